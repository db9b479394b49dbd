"""Load published weights into a model, and say exactly what was loaded.

In: a model and a local file: a PySlowFast or PyTorchVideo checkpoint, a state dict of the model's
own, or a 2D ResNet trained on ImageNet, whose convolutions are inflated over time (paper, section
4.4: "3D convolutions inflated from 2D convolutions"). Out: the model, changed in place, and a
report. Nothing is changed unless everything fits.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from vcycle.models.checkpoint_files import read_state_dict, shown, without_wrappers
from vcycle.models.checkpoint_names import from_image_resnet, from_pytorchvideo

OWN, PYTORCHVIDEO, IMAGE = "the model's own names", "PyTorchVideo names", "2D ResNet, inflated"


@dataclass(frozen=True)
class LoadReport:
    """What became of every entry of a state dict and of a model.

    Keys are as in the file or the model, without the prefixes that wrappers put before them.
    """

    path: str
    layout: str
    """How the file names its tensors."""
    matched: tuple[str, ...]
    """Keys of the model that were filled."""
    partial: tuple[str, ...]
    """Those among `matched` whose last input channels, of the lateral connections, stay fresh."""
    dropped: tuple[str, ...]
    """Keys of the file's state dict that were not used, those of no tensor last."""
    missing: tuple[str, ...]
    """Keys of the model that keep their fresh values."""
    head: str
    """What became of the classifier, in words."""

    def __str__(self) -> str:
        def some(keys: tuple[str, ...]) -> str:
            more = f" and {len(keys) - 3} more" if len(keys) > 3 else ""
            names = ", ".join(shown(key) for key in keys[:3])
            return f"{len(keys)}" + (f" ({names}{more})" if keys else "")

        return (
            f"{self.path}: {self.layout}; matched {len(self.matched)}, "
            f"of them in part {some(self.partial)}; dropped {some(self.dropped)}; "
            f"missing {some(self.missing)}; {self.head}"
        )


def load_weights(model: nn.Module, path: str | Path, *, partial: bool = False) -> LoadReport:
    """Fill `model` from the local file at `path`, read as tensors alone; see the module.

    The classifier is left fresh where the number of classes differs, and always for a 2D ResNet.
    New non-local blocks may be missing from the file; with a 2D ResNet also SlowFast's fast pathway
    and lateral connections. Any other difference is refused, unless `partial`, which loads what
    fits.

    Raises ValueError, in one line with the file and the key, for a file of another architecture,
    one that matches nothing, one with values that are not finite or are whole numbers where the
    model has fractions, and one that `read_state_dict` refuses; the model is then unchanged.
    """
    state, others = read_state_dict(path)
    places = model.state_dict().items()
    target = {without_wrappers(key): place for key, place in places if isinstance(place, Tensor)}
    layout, names = _names(path, state, target)
    matching = _Matching(str(path), layout, target, _head_prefix(model), partial)
    for key, value in state.items():
        matching.add(key, names[key], value)
    matching.dropped += others
    return matching.apply()


def _names(
    path: str | Path, state: dict[str, Tensor], target: dict[str, Tensor]
) -> tuple[str, dict[str, str | None]]:
    """How the file names its tensors, and for each of its keys the model's."""
    own: dict[str, str | None] = {key: key if key in target else None for key in state}
    candidates = [
        (OWN, own),
        (PYTORCHVIDEO, from_pytorchvideo(state)),
        (IMAGE, from_image_resnet(state)),
    ]
    counts = [sum(name in target for name in names.values()) for _, names in candidates]
    if not max(counts):
        raise ValueError(
            f"{path}: matches nothing in this model; the file has {shown(next(iter(state)))}, "
            f"the model {shown(next(iter(target), ''))}: choose the model it was made for"
        )
    return candidates[counts.index(max(counts))]


def _head_prefix(model: nn.Module) -> str:
    """The name of the classifier: the last linear layer, with a dot."""
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    return f"{without_wrappers(linear[-1])}." if linear else "head."


class _Matching:
    """Tensors of the file, one after the other, against places in the model."""

    def __init__(
        self, path: str, layout: str, target: dict[str, Tensor], head: str, partial: bool
    ) -> None:
        self.path, self.layout, self.target, self.head = path, layout, target, head
        self.accept_partial = partial
        self.filled: dict[str, Tensor] = {}
        self.partial: list[str] = []
        self.dropped: list[str] = []
        self.head_text = "classifier loaded"

    def add(self, key: str, name: str | None, value: Tensor) -> None:
        place = None if name is None else self.target.get(name)
        if name is not None and name.startswith(self.head) and self._drops_head(place, value):
            self.dropped.append(key)
            return
        if place is None or name is None:
            self._refuse_unless_partial(f"has {shown(key)}, which this model has not")
            self.dropped.append(key)
            return
        if name in self.filled:
            raise ValueError(
                f"{self.path}: {shown(key)} fills {shown(name)} a second time; refused"
            )
        frames = _frames_to_fill(value, place) if self.layout == IMAGE else 0
        # (O, I, H, W) -> (O, I, T, H, W), without memory for it: the file may claim any shape.
        fitted = value.unsqueeze(2).expand(-1, -1, frames, -1, -1) if frames else value
        if fitted.shape != place.shape and not self._fits_in_part(name, fitted, place):
            self._refuse_unless_partial(
                f"has {shown(key)} of shape {tuple(value.shape)} for {shown(name)} of shape "
                f"{tuple(place.shape)}"
            )
            self.dropped.append(key)
            return
        if place.is_floating_point() and not value.is_floating_point():
            raise ValueError(
                f"{self.path}: {shown(key)} holds whole numbers ({value.dtype}), {shown(name)} "
                f"takes {place.dtype}; refused, save the weights as floating point"
            )
        if not bool((value.isfinite() & value.to(place.dtype).isfinite()).all()):
            raise ValueError(f"{self.path}: {shown(key)} holds values that are not finite; refused")
        if fitted.shape != place.shape:
            self.partial.append(name)
        self.filled[name] = fitted / frames if frames else fitted

    def _drops_head(self, place: Tensor | None, value: Tensor) -> bool:
        if value.ndim == 0:
            return False
        if self.layout == IMAGE:
            self.head_text = f"classifier of {value.shape[0]} image classes dropped"
            return True
        if place is None or value.shape[0] == place.shape[0]:
            return False
        if value.shape[1:] != place.shape[1:]:
            return False
        classes = f"{value.shape[0]} classes in the file, {place.shape[0]} in the model"
        self.head_text = f"classifier dropped: {classes}"
        return True

    def _fits_in_part(self, name: str, value: Tensor, place: Tensor) -> bool:
        """Slow features come first, lateral ones after them: only the first have weights."""
        return (
            self.layout == IMAGE
            and "_res0." in name
            and value.ndim == place.ndim == 5
            and value.shape[1] < place.shape[1]
            and value[:, :1].shape == place[:, :1].shape
        )

    def _refuse_unless_partial(self, what: str) -> None:
        if not self.accept_partial:
            raise ValueError(
                f"{self.path}: another architecture ({self.layout}): it {what}; choose the model "
                "it was made for; vcycle.load_weights(..., partial=True) takes what fits"
            )

    def _may_be_missing(self, name: str) -> bool:
        new = ("nonlocal", "pathway1", "_fuse.") if self.layout == IMAGE else ("nonlocal",)
        fresh = name.startswith(self.head) or name.endswith("num_batches_tracked")
        return fresh or any(part in name for part in new)

    def apply(self) -> LoadReport:
        missing = [name for name in self.target if name not in self.filled]
        for name in missing:
            if not self._may_be_missing(name):
                self._refuse_unless_partial(f"has nothing for {shown(name)}")
        if not self.filled:
            raise ValueError(f"{self.path}: nothing in it fits this model; choose another file")
        with torch.no_grad():
            for name, value in self.filled.items():
                place = self.target[name]
                (place[:, : value.shape[1]] if name in self.partial else place).copy_(value)
        if self.head_text == "classifier loaded" and any(m.startswith(self.head) for m in missing):
            self.head_text = "classifier fresh: the file has none"
        return LoadReport(
            path=self.path,
            layout=self.layout,
            matched=tuple(self.filled),
            partial=tuple(self.partial),
            dropped=tuple(self.dropped),
            missing=tuple(missing),
            head=self.head_text,
        )


def _frames_to_fill(value: Tensor, place: Tensor) -> int:
    """How many frames of `place` a 2D kernel is repeated over and divided by; 0 for none.

    On a clip that does not change over time the result is that of the 2D convolution.
    """
    return place.shape[2] if value.ndim == 4 and place.ndim == 5 else 0
