"""Check a model at every shape of a plan, before the first step.

In: an ``nn.Module``, and the shapes. Out: nothing, or one line that names the layer that fails.
Multigrid needs a model that shares its weights over time and space (paper, section 3.1):
convolutions and attention do, a linear layer on flattened features does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from vcycle.models.buffers import as_it_was
from vcycle.models.memory_layout import memory_format
from vcycle.models.norm import sub_batch_norms
from vcycle.models.out_of_memory import out_of_memory_by_name
from vcycle.models.tokens import TokenDrop, set_token_share
from vcycle.models.wrapped import unwrapped
from vcycle.schedule.messages import raised_text
from vcycle.schedule.shape import Shape, clip_name

TOO_FEW_VALUES = "Expected more than 1 value per channel when training"
"""What torch's batch norms say of a single clip."""


def check_model(
    model: nn.Module, shapes: Iterable[Shape] | Shape, *, num_classes: int, num_clips: int = 2
) -> None:
    """Run ``model`` at every shape, in training and in evaluation, before step 0.

    Random clips of (num_clips, 3, T, H, W), in the memory format of the model's weights, must give
    scores of (num_clips, num_classes), before softmax. In training these must be finite, and so
    their gradient, which has to reach the clips, or else all parameters that are trained. In
    evaluation the scores of a clip may not depend on the clips beside it. The model runs within the
    autocast that is on, which should be that of the training, and keeps the share of tokens that is
    set; its buffers, gradients, modes, norm groups and the random state are restored. If layers are
    checkpointed reentrantly, hooks of gradients run, so that an optimizer that steps in them is to
    come later. Of a model in DDP or ``torch.compile`` the one within is run.

    Raises ValueError if a shape fails. The message is one line that names the shape and the layer,
    for example a classifier that fits one shape only.
    """
    model = unwrapped(model)
    given = (shapes,) if isinstance(shapes, Shape) else tuple(dict.fromkeys(shapes))
    for shape in given:
        if not isinstance(shape, Shape):
            raise TypeError(
                f"shapes of {type(shape).__name__}: give plan.shapes, or a list of vcycle.Shape"
            )
        with _tried_out(model):
            clips = _random_clips(model, shape, num_clips)
            model.train()
            where = f"at shape {clip_name(shape, _token_share(model))}"
            scores = _scores(model, clips.requires_grad_(), where, num_classes)
            _check_gradient(model, scores, clips, where, num_classes)
            model.eval()
            with torch.no_grad():
                _check_evaluation(model, clips.detach(), f"at shape {shape}", num_classes)


def _random_clips(model: nn.Module, shape: Shape, num_clips: int) -> Tensor:
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    dims = (num_clips, 3, shape.frames, shape.height, shape.width)
    return torch.randn(dims, device=device).contiguous(memory_format=memory_format(model))


def _scores(model: nn.Module, clips: Tensor, where: str, num_classes: int) -> Tensor:
    """(B, num_classes), of the same random state each time."""
    torch.manual_seed(0)
    scores = _run(model, clips, where)
    return _checked_scores(scores, where, num_clips=len(clips), num_classes=num_classes)


def _run(model: nn.Module, clips: Tensor, where: str) -> Any:
    try:
        with out_of_memory_by_name():
            return model(clips.clone())  # the model may change a clone in place
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as error:
        name = _failing_layer(model, clips)
        layer = f"layer {name!r} ({type(model.get_submodule(name)).__name__})" if name else "it"
        fix = (
            "multigrid needs a model that takes every shape of the plan: pool globally before a "
            "linear layer, interpolate positions, or choose shapes that the model takes by "
            "multigrid.rule.frame_multiple and side_multiple"
        )
        if "SyncBatchNorm expected input tensor to be on GPU" in str(error):
            fix = (
                "it takes clips on a GPU alone; build the model with nn.BatchNorm3d, whose "
                "groups span processes once vcycle.convert_batch_norm has converted it"
            )
        if _needs_all_tokens(model, clips):
            fix = (
                "after vcycle.TokenDrop a clip has fewer tokens than its grid has places: let the "
                "layers take any number, or give --multigrid.long_cycle.tokens null"
            )
        if TOO_FEW_VALUES in str(error):
            fix = (
                "it takes its statistics from two clips or more: give a larger --batch-size, or "
                "build the model with nn.LayerNorm there"
            )
        if "view size is not compatible" in str(error):
            fix = "let forward use reshape"
            if not clips.is_contiguous():
                fix = f"clips are channels-last: {fix}, or give --channels_last false"
        raise ValueError(f"model: {where} {layer} fails: {raised_text(error)}; {fix}") from error


def _token_share(model: nn.Module) -> float:
    return min((m.share for m in model.modules() if isinstance(m, TokenDrop)), default=1.0)


def _needs_all_tokens(model: nn.Module, clips: Tensor) -> bool:
    """Whether a model that failed passes with all of its tokens."""
    share = _token_share(model)
    if share == 1 or not model.training:
        return False
    set_token_share(model, 1.0)
    try:
        model(clips.clone())
    except Exception:
        return False
    finally:
        set_token_share(model, share)
    return True


def _failing_layer(model: nn.Module, clips: Tensor) -> str:
    """The name of the layer that raises; "" if it is the model itself, or cannot be told."""
    # Modules entered and not left: the last is the one in which the exception is raised. What is
    # scripted takes no hooks, and what is compiled would be compiled with them.
    inside: list[str] = []
    hooks = []

    def leave(*_: Any) -> None:
        inside.pop()

    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule) or "_orig_mod" in name:
            continue
        hooks += [
            module.register_forward_pre_hook(lambda *_, name=name: inside.append(name)),
            module.register_forward_hook(leave),
        ]
    try:
        model(clips.clone())
    except torch.OutOfMemoryError:  # the first pass is not gone yet
        return ""
    except Exception:
        return inside[-1] if inside else ""
    finally:
        for hook in hooks:
            hook.remove()
    return ""


def _checked_scores(scores: Any, where: str, *, num_clips: int, num_classes: int) -> Tensor:
    if not isinstance(scores, Tensor):
        raise ValueError(
            f"model: {where} it returns a {type(scores).__name__}; return the scores, a "
            f"tensor of (B, {num_classes})"
        )
    if scores.shape != (num_clips, num_classes):
        raise ValueError(
            f"model: {where} it returns {tuple(scores.shape)} for {num_clips} clips; "
            f"return ({num_clips}, {num_classes}), one score per class: the function that builds "
            f"it gets their number as num_classes"
        )
    values = scores.detach().float()
    are_shares = (values >= 0).all() & ((values.sum(1) - 1).abs() < 1e-2).all()
    if num_classes > 1 and bool(are_shares):
        raise ValueError(f"model: {where} it returns probabilities; return scores before softmax")
    return scores


def _check_gradient(
    model: nn.Module, scores: Tensor, clips: Tensor, where: str, num_classes: int
) -> None:
    if not bool(scores.isfinite().all()):
        raise ValueError(
            f"model: {where} scores are not finite; check its initialisation"
            f"{_in_bfloat16(scores, clips)}"
        )
    trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
    gradient: Tensor | None = None
    gradients: Sequence[Tensor | None] = [None] * len(trained)
    if scores.requires_grad:
        try:
            inputs = [clips, *trained.values()]
            gradient, *gradients = torch.autograd.grad(_loss(scores), inputs, allow_unused=True)
        except RuntimeError as error:
            if "compatible with .grad()" not in str(error):
                raise
            gradient, *gradients = _gradients_of_backward(model, clips, where, num_classes)
    if gradient is not None and not bool(gradient.isfinite().all()):
        raise ValueError(
            f"model: {where} the gradient of the clips is not finite; look for a square "
            f"root, a logarithm or a division at zero{_in_bfloat16(scores, clips)}"
        )
    if gradient is not None and bool(gradient.any()):
        return
    # A frozen part may keep it from the clips, but not from what is trained.
    without = [name for name, each in zip(trained, gradients, strict=True) if each is None]
    is_blind = len(scores) > 1 and bool((scores == scores[:1]).all())
    if without or is_blind or not any(each is not None and each.any() for each in gradients):
        also = f", nor {without[0]!r}" if without and gradients != [None] * len(trained) else ""
        raise ValueError(
            f"model: {where} no gradient reaches the clips{also}; look for detach, no_grad or "
            f"argmax in its forward, or freeze what is before that (requires_grad_(False))"
        )


def _loss(scores: Tensor) -> Tensor:
    return scores.float().logsumexp(1).sum() + scores.float().square().sum()


def _gradients_of_backward(
    model: nn.Module, clips: Tensor, where: str, num_classes: int
) -> list[Tensor | None]:
    """Of the clips and of what is trained, by another forward pass; gradients that are there stay.

    Reentrant checkpoints, which are torch's default, refuse ``autograd.grad``.
    """
    before = {name: each.grad for name, each in model.named_parameters()}
    try:
        model.zero_grad()
        _loss(_scores(model, clips, where, num_classes)).backward()  # type: ignore[no-untyped-call]
        return [clips.grad, *(each.grad for each in model.parameters() if each.requires_grad)]
    finally:
        for name, each in model.named_parameters():
            each.grad = before[name]


def _check_evaluation(model: nn.Module, clips: Tensor, where: str, num_classes: int) -> None:
    """The scores of a clip may not depend on those beside it, unless norms have no statistics."""
    where = f"in evaluation, {where},"
    scores = _scores(model, clips, where, num_classes)
    norms = (each for each in model.modules() if isinstance(each, _BatchNorm))
    if len(clips) == 1 or any(each.running_mean is None for each in norms):
        return
    others = torch.cat([clips[:1], clips[1:].flip(2, 3, 4).neg()])
    moved = (_scores(model, others, where, num_classes) - scores).float().abs()
    if bool(moved[0].max() > 1e-3 * moved[1:].max()):
        raise ValueError(
            f"model: {where} the scores of a clip depend on the clips beside it; look for a "
            f"reshape that mixes clips with frames, a number of frames that is fixed, or a norm "
            f"over the batch"
        )


def _in_bfloat16(scores: Tensor, clips: Tensor) -> str:
    """What is known to go wrong there, if that is where the scores are from."""
    if clips.shape[2] > 1 or scores.dtype != torch.bfloat16 or scores.device.type != "cpu":
        return ""
    return (
        "; in bfloat16 on a CPU torch's convolutions of single frames are at fault: call "
        "vcycle.convert_convolutions(model)"
    )


@contextmanager
def _tried_out(model: nn.Module) -> Iterator[None]:
    """Within this, the model runs without norm groups; it is as it was afterwards."""
    # A classifier that starts at zero passes no gradient back before its first step, so parameters
    # of zeros hold random values during the check.
    zeros = [p for p in model.parameters() if p.ndim > 1 and not p.any()]
    devices = {p.device for p in model.parameters() if p.device.type == "cuda"}
    try:
        cuda = [device.index for device in devices]
        with torch.random.fork_rng(cuda), as_it_was(model):
            torch.manual_seed(0)
            for parameter in zeros:
                nn.init.normal_(parameter, std=0.01)
            for norm in sub_batch_norms(model):
                norm.norm_group, norm._pending = None, None
            yield
    finally:
        with torch.no_grad():
            for parameter in zeros:
                parameter.zero_()
