"""The configuration of a run: one tree of frozen dataclasses, and nothing that needs torch.

In: a recipe's values, changed by flags or a YAML file. Out: all that decides a run, saved with it;
a run can be started again from what it saved. Nothing changes it while training.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from vcycle.config.augmentation import Augmentation
from vcycle.models.entries import ModelEntry, find_model
from vcycle.schedule.baseline import Baseline
from vcycle.schedule.multigrid import Multigrid
from vcycle.schedule.plan import Plan
from vcycle.schedule.shape import ShapeRule

if TYPE_CHECKING:
    from vcycle.data.grid import GridRange


@dataclass(frozen=True)
class Data:
    """Where clips come from and which grids may be drawn (paper, section 4).

    Args:
        manifest: the manifest's file, or the folder that holds it.
        stride: frames between samples at the baseline's shape.
        short_side: least and largest short side in pixels that a video is resized to before a
            crop of the baseline's size is cut.
        frame_rate: frames a second that strides count, whatever a video's own; None counts the
            frames of the video (paper, footnote 5).
        segments: a frame from each of T equal parts of the video instead of a stride.
        inverse_uniform: draw short sides with a density that falls as their square.
        decoder: pyav; torchcodec, if it is installed; or nvdec, which is torchcodec on the GPU.
        decode_seconds: a video whose clip takes longer to decode is tried once more, and then
            counts as unreadable.
        num_workers: processes that decode, with nvdec threads; 0 decodes in the main process; auto
            is the cores of this process, divided by the training processes on the machine.
        max_bad_share: of a split's videos that may be unreadable before the run stops.
        cache_gib: GiB of remote videos that are kept on the machine's disk; 0 for none.
        cache_folder: where, shared by all processes; ``vcycle`` among the user's caches unless set.
        frames_gib: GiB of memory for the decoded frames of the training videos, a copy for each
            process of the machine that decodes: they are kept if all copies fit into it and into a
            quarter of what is free; 0 keeps none.
    """

    manifest: str = ""
    stride: int = 2
    short_side: tuple[int, int] = (256, 340)
    frame_rate: float | None = None
    segments: bool = False
    inverse_uniform: bool = False
    decoder: Literal["pyav", "torchcodec", "nvdec"] = "pyav"
    decode_seconds: float = 60.0
    num_workers: int | Literal["auto"] = "auto"
    max_bad_share: float = 0.01
    cache_gib: float = 10.0
    cache_folder: str = ""
    frames_gib: float = 8.0

    def __post_init__(self) -> None:
        if self.num_workers != "auto" and self.num_workers < 0:
            raise ValueError(f"data.num_workers {self.num_workers}: give 0 or more, or auto")
        if self.stride < 1:
            raise ValueError(f"data.stride {self.stride}: give at least 1 frame")
        if self.frame_rate is not None and not 0 < self.frame_rate < float("inf"):
            raise ValueError(f"data.frame_rate {self.frame_rate}: give a positive number")
        if not 0 < self.short_side[0] <= self.short_side[1]:
            raise ValueError(
                f"data.short_side {list(self.short_side)}: give an increasing interval"
            )
        if not self.decode_seconds > 0:
            raise ValueError(f"data.decode_seconds {self.decode_seconds}: give a positive number")
        if not 0 <= self.max_bad_share <= 1:
            raise ValueError(f"data.max_bad_share {self.max_bad_share}: give a share from 0 to 1")
        if not self.cache_gib >= 0:
            raise ValueError(f"data.cache_gib {self.cache_gib}: give a number of at least 0")
        if not self.frames_gib >= 0:
            raise ValueError(f"data.frames_gib {self.frames_gib}: give a number of at least 0")

    def given_manifest(self) -> str:
        """The manifest. Raises ValueError if none is given."""
        if not self.manifest:
            raise ValueError(
                "data.manifest: give --data FILE, a manifest as `vcycle data index` writes"
            )
        return self.manifest


@dataclass(frozen=True)
class Model:
    """Which network is built, and with which options of its own.

    Args:
        name: a name of ``vcycle models``, or ``package.module:function``.
        options: keyword arguments of the builder.
        weights: a checkpoint to start from.
        pretrained_on: what ``weights`` must have been trained on; None if the run starts from
            random weights.
        freeze: patterns such as ``s1.*`` of the parameters, or names of the layers, that are not
            trained; batch norms among them keep their statistics.
    """

    name: str = "slowfast_r50"
    options: dict[str, Any] = field(default_factory=dict)
    weights: str | None = None
    pretrained_on: Literal["imagenet", "kinetics400"] | None = None
    freeze: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if "num_classes" in self.options:
            raise ValueError("model.options: num_classes comes from the manifest; leave it out")
        for option in self.options:
            if not isinstance(option, str):
                raise ValueError(f"model.options: {option!r} is no name of an option; give text")
        if "name" in self.options:
            raise ValueError("model.options: name is model.name's; call the builder's another")
        _ = self.entry  # an unknown name is refused here

    @property
    def entry(self) -> ModelEntry | None:
        """What is known of the network; None for a function of one's own."""
        return None if ":" in self.name else find_model(self.name)

    @property
    def network(self) -> str:
        """Its name, the same for all aliases of a model."""
        return self.entry.name if self.entry else self.name

    @property
    def rule(self) -> ShapeRule:
        """The clips that the network takes; any, for a function of one's own."""
        return self.entry.rule(self.options) if self.entry else ShapeRule()


@dataclass(frozen=True)
class Optimizer:
    """SGD with momentum as in the paper (Nesterov's, as in the official code), or another.

    Args:
        name: sgd; adamw; muon (Jordan et al., 2024; AdamW for vectors, whose rates serve it); or
            for large batches lars or lamb (You et al., 2017 and 2020).
        momentum: of SGD, LARS and Muon, 0 for none; beta 1 of AdamW, LAMB and Muon's vectors.
        weight_decay: none is applied to norm weights.
        clip_norm: longest gradient, as the norm over all parameters; longer ones are scaled to it;
            0 does not clip.
        layer_decay: factor of the rate from each layer to the one before it, 1 for none; the
            classifier has the plan's rate (Bao et al., 2022).
    """

    name: Literal["sgd", "adamw", "muon", "lars", "lamb"] = "sgd"
    momentum: float = 0.9
    weight_decay: float = 1e-4
    clip_norm: float = 0.0
    layer_decay: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise ValueError(f"optimizer.momentum {self.momentum}: give a number from 0 to below 1")
        for name in ("weight_decay", "clip_norm"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"optimizer.{name} {getattr(self, name)}: give 0 or more")
        if not 0 < self.layer_decay <= 1:
            raise ValueError(
                f"optimizer.layer_decay {self.layer_decay}: give a number above 0, up to 1"
            )


@dataclass(frozen=True)
class Evaluation:
    """Validation at the baseline's shape, whatever the phase.

    Args:
        times: how often in a run, at even distances in steps; the last is after the last step.
        num_clips: clips a video, spread evenly over it.
        num_crops: 1 (centre) or 3 (along the longer side).
        batch_size: clips at a time.
        precise_bn: training batches at the baseline's shape from which norm statistics are
            estimated anew before the last validation; 0 leaves the running averages.
        final_clips: as ``num_clips``, of the evaluation that ends the run; 0 for none.
        final_crops: as ``num_crops``, of the evaluation that ends the run.
    """

    times: int = 20
    num_clips: int = 1
    num_crops: int = 1
    batch_size: int = 8
    precise_bn: int = 0
    final_clips: int = 0
    final_crops: int = 1

    def __post_init__(self) -> None:
        for name, least in (
            *(("times", 1), ("num_clips", 1), ("batch_size", 1)),
            *(("precise_bn", 0), ("final_clips", 0)),
        ):
            if getattr(self, name) < least:
                raise ValueError(
                    f"evaluation.{name} {getattr(self, name)}: give a number of at least {least}"
                )
        for name in ("num_crops", "final_crops"):
            if getattr(self, name) not in (1, 3):
                raise ValueError(f"evaluation.{name} {getattr(self, name)}: give 1 or 3")


@dataclass(frozen=True)
class Checkpoint:
    """When a run writes a checkpoint. It also does before every validation and when asked to stop.

    Args:
        minutes: after so many minutes; 0 for none by time.
        steps: after every so many steps; 0 for none by steps.
        keep: the last so many are kept; the one with the best validation is kept as well.
    """

    minutes: float = 10.0
    steps: int = 0
    keep: int = 2

    def __post_init__(self) -> None:
        for name, least in (("minutes", 0), ("steps", 0), ("keep", 1)):
            if not getattr(self, name) >= least:
                raise ValueError(
                    f"checkpoint.{name} {getattr(self, name)}: give a number of at least {least}"
                )


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides a run.

    Args:
        recipe: the name of the recipe that it came from.
        seed: of the weights, the clips, their order and all else that is drawn.
        precision: 32-true is float32 throughout, TF32 neither in convolutions nor in products of
            matrices; tf32 lets a GPU use it in both; bf16-mixed and 16-mixed run under autocast,
            the latter with a gradient scaler.
        label_smoothing: share of a label that is spread over all classes (Szegedy et al., 2016).
        ema_decay: of an exponential moving average of the weights over steps, such as 0.999, which
            is then what is validated; 0 for none.
        accumulate: micro-batches that a process splits its part of a batch into; a step's memory
            shrinks by as much, its result does not change. auto finds for each batch the fewest
            that fit into memory, in whole norm groups.
        compile: compile the blocks of the network, once for each shape.
        cuda_graphs: record the forward and backward passes of each kind of batch once, and replay
            them: a GPU is then told what to do at once and not kernel by kernel. auto does so on
            one GPU for the project's own networks; on, for any, if what it computes does not
            depend on decisions of the host, and on several, which then exchange gradients after
            the passes.
        channels_last: train in ``torch.channels_last_3d`` memory, in which clips arrive; False
            trains in contiguous memory.
        nonfinite: a loss that is not finite stops the run, or a step whose loss or gradients are
            not is skipped and counted; skipping reads them before every update, which waits for
            the device, and 20 in a row end the run. No checkpoint has weights that are not finite.
            A run of which a scaler of gradients (16-mixed) takes no step for 50 in a row ends.
        log: live logs beside ``metrics.jsonl``: tensorboard and wandb, if they are installed.
        threads: CPU threads of the training process; 0 leaves it to torch.
        notes: what the recipe chose and why, a line each, printed with the plan.
        schedule_notes: why the schedule is this one, printed after them; none if it was asked for.
        steps_note: why the run is as long as it is, printed last.
        fitted_seconds: the time that its length was fitted to; None if no time was given.
    """

    recipe: str
    baseline: Baseline
    multigrid: Multigrid = Multigrid()
    data: Data = Data()
    model: Model = Model()
    optimizer: Optimizer = Optimizer()
    augmentation: Augmentation = Augmentation()
    label_smoothing: float = 0.0
    ema_decay: float = 0.0
    evaluation: Evaluation = Evaluation()
    checkpoint: Checkpoint = Checkpoint()
    seed: int = 0
    precision: Literal["32-true", "tf32", "bf16-mixed", "16-mixed"] = "32-true"
    accumulate: int | Literal["auto"] = 1
    compile: bool = False
    cuda_graphs: Literal["auto", "on", "off"] = "auto"
    channels_last: bool = True
    nonfinite: Literal["stop", "skip"] = "stop"
    log: tuple[Literal["tensorboard", "wandb"], ...] = ()
    threads: int = 0
    notes: tuple[str, ...] = ()
    schedule_notes: tuple[str, ...] = ()
    steps_note: str = ""
    fitted_seconds: int | None = None

    def __post_init__(self) -> None:
        for name, most in (("threads", 1024), ("seed", 2**63 - 1)):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} {getattr(self, name)}: give a number of at least 0")
            if getattr(self, name) > most:
                raise ValueError(f"{name} {getattr(self, name)}: give a number of at most {most}")
        if self.accumulate != "auto" and self.accumulate < 1:
            raise ValueError(f"accumulate {self.accumulate}: give a number of at least 1, or auto")
        for name in ("label_smoothing", "ema_decay"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)}: give a number from 0 to below 1")
        for name in ("num_clips", "final_clips"):
            clips = getattr(self.evaluation, name)
            check_num_clips(clips, segments=self.data.segments, name=f"evaluation.{name}")

    @property
    def has_chosen_schedule(self) -> bool:
        """Whether the recipe chose the schedule, as its notes say, and nobody asked for one."""
        return bool(self.schedule_notes)

    @property
    def micro_batches(self) -> int:
        """Micro-batches that the loader draws of each batch; auto splits whole batches later."""
        return 1 if self.accumulate == "auto" else self.accumulate

    @property
    def final(self) -> RunConfig | None:
        """This configuration with the views of the evaluation that ends the run, if one does."""
        views = self.evaluation
        if not views.final_clips:
            return None
        views = replace(views, num_clips=views.final_clips, num_crops=views.final_crops)
        return replace(self, evaluation=views)

    @property
    def protocol(self) -> str:
        """The views that a video is scored by, in words."""
        clips, crops = self.evaluation.num_clips, self.evaluation.num_crops
        in_time = "the middle clip" if clips == 1 else f"{clips} clips uniformly in time"
        if self.data.segments:
            in_time = "one clip, a frame of each segment"
        in_space = "centre crop" if crops == 1 else f"{crops} crops along the longer side"
        return f"{in_time}, {in_space}, {self.baseline.shape}"

    def grid_range(self) -> GridRange:
        """The grids of a clip. Raises ValueError if crops do not fit into short sides."""
        from vcycle.data.grid import GridRange  # which needs numpy, and a plan does not

        data = self.data
        return GridRange(
            self.baseline.shape,
            data.stride,
            data.short_side,
            frame_rate=data.frame_rate,
            segments=data.segments,
            inverse_uniform=data.inverse_uniform,
        )

    def plan(self) -> Plan:
        """The schedule of this run.

        Raises ValueError if it leaves SlowFast no slow frame, or drops tokens of a model that is
        known not to have any.
        """
        return self._plan

    @cached_property
    def _plan(self) -> Plan:
        plan = Plan(self.baseline, self.multigrid)
        entry = self.model.entry
        if plan.drops_tokens and entry is not None and not entry.drops_tokens:
            raise ValueError(
                f"multigrid.long_cycle.tokens: model {self.model.name} has no tokens to drop; "
                f"choose --model video_vit_tiny, or give null"
            )
        for kind in plan.mini_batches():
            count = entry.num_tokens(kind.shape, self.model.options) if entry is not None else None
            if count is not None and count * kind.token_share < 0.5:
                raise ValueError(
                    f"multigrid.long_cycle.tokens {kind.token_share:g}: a clip of {kind.shape} has "
                    f"{count} tokens, and that share of them is none; give {1 / count:.3g} or more"
                )
        shape, alpha = min(plan.shapes), self.model.rule.frame_multiple
        if shape.frames < alpha and not (entry is not None and entry.drops_tokens):
            raise ValueError(
                f"frames {shape.frames} at {shape}: model {self.model.name} takes a slow frame of "
                f"every {alpha}; start from more frames, or from a cycle of longer clips"
            )
        return plan


def check_num_clips(num_clips: int, *, segments: bool, name: str = "num_clips") -> None:
    """Raise ValueError if clips are segment-sampled and there is to be more than one.

    Such a clip covers the whole video, so all clips in time would be one and the same.
    """
    if segments and num_clips > 1:
        raise ValueError(
            f"{name} {num_clips}: with segment sampling every clip covers the whole video, so "
            f"all would be the same; give 1, or 3 crops"
        )
