"""A trained model for other programs: safetensors, a ``torch.export`` program, or ONNX.

In: a LoadedModel. Out: a file that takes clips of any number, frames, height and width, and knows
nothing of multigrid. A program is run at several shapes beside the module before its file appears.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import logging
import math
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from vcycle.config.run import Model
from vcycle.data.atomic import atomic, check_output
from vcycle.evaluate.checkpoint import weights_bytes, without_json
from vcycle.evaluate.load_model import LoadedModel
from vcycle.models.buffers import as_it_was
from vcycle.schedule.messages import shortened
from vcycle.schedule.shape import Shape

Format: TypeAlias = Literal["safetensors", "torch", "onnx"]
_SUFFIXES: dict[Format, str] = {"safetensors": ".safetensors", "torch": ".pt2", "onnx": ".onnx"}
FORMATS: tuple[Format, ...] = tuple(_SUFFIXES)
TOLERANCE = 1e-3
"""Of scores, relative to the largest: other kernels add in another order."""


class Exported(nn.Module):
    """A module whose parameter is called ``clips``; with a normalisation, of pixels 0 to 255."""

    def __init__(self, module: nn.Module, *, mean: float | None, std: float) -> None:
        super().__init__()
        self.module, self.mean, self.std = module, mean, std

    def forward(self, clips: Tensor) -> Tensor:
        if self.mean is not None:
            clips = (clips / 255 - self.mean) / self.std
        scores: Tensor = self.module(clips)
        return scores


def format_of(file: str | Path) -> Format:
    """The format that a file's ending names. Raises ValueError if it names none."""
    for format, suffix in _SUFFIXES.items():
        if Path(file).suffix.lower() == suffix:
            return format
    raise ValueError(
        f"--out {file}: its ending names no format; end it in {', '.join(_SUFFIXES.values())}, or "
        f"give --format {', '.join(FORMATS)}"
    )


_OF_RUNS = ("best.safetensors", "checkpoint.safetensors")


def export_model(
    model: LoadedModel, file: str | Path, *, format: Format, normalise: bool = False
) -> list[Shape]:
    """Write ``model`` to ``file``, atomically; returns the shapes at which it was checked.

    ``onnx`` and ``torch`` take (N, 3, T, H, W) float32 clips, normalised as ``model.normalize``
    does; with ``normalise`` they are pixels from 0 to 255 and the program normalises. They return
    (N, classes) scores before softmax. SlowFast takes clips of two slow frames or more.
    ``safetensors`` keeps the weights and their metadata, which ``load_model`` reads back.

    Raises ValueError if the format is another, there is no folder to write to, ``normalise`` is
    asked of safetensors, the format's packages are not installed, the model cannot be traced for
    all shapes, or the program's scores are not the module's; nothing is left at ``file`` then.
    """
    if format not in FORMATS:
        raise ValueError(f"--format {format}: give {', '.join(FORMATS)}")
    check_output(Path(file), _SUFFIXES[format], flag="--out")
    if (Path(file).parent / "config.yaml").exists() and Path(file).name in _OF_RUNS:
        raise ValueError(f"--out {file}: it is the run's own; give another name")
    if format == "safetensors":
        if normalise:
            raise ValueError("--normalise: safetensors holds weights only; give onnx or torch")
        write_weights(model, Path(file))
        return []
    if format == "onnx":
        _require_onnx()
    mean = model.trained.mean if normalise else None
    takes = "pixels from 0 to 255" if normalise else "(pixels / 255 - mean) / std"
    facts = json.dumps({**model.trained.to_dict(), "input": takes})
    own = _on_cpu(model.module)
    with as_it_was(own), atomic(Path(file)) as partial:
        module = Exported(own, mean=mean, std=model.trained.std).eval()
        example, *others = check_shapes(model)
        # At a larger shape no side becomes a special 1.
        program = _traced(module, others[0], example)
        run = (_write_onnx if format == "onnx" else _write_program)(program, facts, partial)
        for number, shape in enumerate((example, *others)):
            _check(module, run, shape, num_clips=1 + number % 3, pixels=normalise)
    return [example, *others]


def _on_cpu(module: nn.Module) -> nn.Module:
    """The module, or if it is elsewhere a copy: the caller's stays on its device."""
    tensors = (*module.parameters(), *module.buffers())
    if all(each.device.type == "cpu" for each in tensors):
        return module
    try:
        return copy.deepcopy(module).cpu()
    except Exception as error:  # whatever a layer of one's own may hold, such as a lock
        raise ValueError(
            f"export: the model cannot be copied to the CPU ({shortened(error)}); export one that "
            f"is there"
        ) from error


def _write_program(program: ExportedProgram, facts: str, file: Path) -> Callable[[Tensor], Tensor]:
    content = io.BytesIO()  # on a full disk the writer would end this process
    torch.export.save(program, content, extra_files={"vcycle.json": facts})
    file.write_bytes(content.getbuffer())
    del content
    with file.open("rb") as written:
        return torch.export.load(written).module(check_guards=False)


def _write_onnx(program: ExportedProgram, facts: str, file: Path) -> Callable[[Tensor], Tensor]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        with _quiet():
            onnx = torch.onnx.export(
                program, dynamo=True, input_names=["clips"], output_names=["scores"]
            )
        assert onnx is not None
        onnx.model.metadata_props["vcycle"] = facts
        content = onnx.model_proto.SerializeToString()
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # both have errors of their own, for layers, dtypes and sizes
        reason: BaseException = error
        while reason.__cause__ is not None:  # the first says what, the last how to report it
            reason = reason.__cause__
        raise ValueError(
            f"export: onnx cannot hold it ({shortened(reason)}); export .pt2 or safetensors"
        ) from error
    file.write_bytes(content)
    return lambda clips: torch.from_numpy(session.run(None, {"clips": clips.numpy()})[0])


def check_shapes(model: LoadedModel) -> list[Shape]:
    """Shapes to check a program at: that of training, larger, smaller, and not square.

    All are of the network's own rule, or of the run's if the network is a function of one's own.
    """
    shape, network = model.shape, Model(model.trained.name, model.trained.options)
    rule = network.rule if network.entry is not None else model.trained.rule
    least, step = max(16, rule.min_side), _multiple(16, rule.side_multiple)
    frames = max(2 * rule.frame_multiple, rule.min_frames, shape.frames // 2)
    smaller = Shape(
        _multiple(frames, rule.frame_multiple),
        _multiple(max(least, shape.height // 2), rule.side_multiple),
        _multiple(max(least, shape.width // 2), rule.side_multiple),
    )
    return [
        shape,
        Shape(shape.frames + rule.frame_multiple, shape.height + step, shape.width + 2 * step),
        smaller,
        Shape(smaller.frames, shape.height, shape.width + step),
    ]


def _multiple(size: int, of: int) -> int:
    """The least whole multiple that is no smaller."""
    return of * math.ceil(size / of)


def _traced(module: nn.Module, example: Shape, other: Shape) -> ExportedProgram:
    # Sizes of 0 and 1 are special to the tracer, so the example has two clips.
    clips = torch.zeros(2, 3, example.frames, example.height, example.width)
    dynamic = {"clips": dict.fromkeys((0, 2, 3, 4), Dim.DYNAMIC)}
    try:
        with _quiet():
            return torch.export.export(module, (clips,), dynamic_shapes=dynamic)
    except Exception as error:  # whatever a model of one's own may raise when it is traced
        reason = shortened(error, 300)
        raise ValueError(
            f"model: it cannot be exported for clips of every shape, {example} and {other} alike "
            f"({reason}); export safetensors, or write its forward without branches on sizes, and "
            f"x.shape[0] for len(x)"
        ) from error


def _check(
    module: nn.Module,
    run: Callable[[Tensor], Tensor],
    shape: Shape,
    *,
    num_clips: int,
    pixels: bool,
) -> None:
    """Raise ValueError unless a program gives the module's scores for random clips."""
    size = (num_clips, 3, shape.frames, shape.height, shape.width)
    clips = torch.randn(size, generator=torch.Generator().manual_seed(0))
    if pixels:
        clips = clips.mul_(60).add_(120).clamp_(0, 255).round_()
    expected = _scores(module, clips, f"the model does not run at {shape}")
    found = _scores(run, clips, f"at {shape} the model runs and its program does not")
    difference = float((found - expected).abs().max())
    if not difference <= TOLERANCE * max(1.0, float(expected.abs().max())):
        raise ValueError(
            f"export: at {shape} the program's scores differ from the module's by "
            f"{difference:.2g}; export safetensors"
        )


def _scores(run: Callable[[Tensor], Tensor], clips: Tensor, problem: str) -> Tensor:
    try:
        with torch.no_grad():
            return run(clips.clone())  # a model may change its clips in place
    except Exception as error:  # onnxruntime has errors of its own, and so may a user's model
        raise ValueError(
            f"export: {problem} ({shortened(error)}); give another format, such as safetensors"
        ) from error


def _require_onnx() -> None:
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ValueError(
            f"--format onnx: {error.name} is not installed; pip install 'vcycle[export]'"
        ) from None


def write_weights(model: LoadedModel, file: Path) -> None:
    """Write the weights with the TrainedModel in their metadata, atomically.

    Raises ValueError if the module has more than them.
    """
    state = model.module.state_dict()
    if lost := without_json(state):
        raise ValueError(
            f"export: {lost[0]!r} of {model.trained.name} is more than JSON can say, and a "
            f"safetensors file holds no more beside tensors; let get_extra_state return numbers, "
            f"strings, and lists and dictionaries of them"
        )
    contents = weights_bytes(state, model.trained.to_dict())
    with atomic(file) as partial:
        partial.write_bytes(contents)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The exporters report progress and what they lack, of which nothing concerns a user."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
