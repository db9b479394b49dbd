"""Load published weights into a model, and report exactly what was loaded.

In: a model and a local file: a PySlowFast or PyTorchVideo checkpoint, a state dict of the model,
or a 2D ResNet trained on ImageNet, which is inflated over time (paper, section 4.4: "3D
convolutions inflated from 2D convolutions"). Out: the model, changed in place, and a report. If
anything does not fit, the model is unchanged.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from vcycle.models.checkpoint_files import USUAL_DTYPES, read_state_dict, shown
from vcycle.models.checkpoint_names import from_image_resnet, from_pytorchvideo
from vcycle.models.wrapped import without_wrappers

_CONV = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
OWN, PYTORCHVIDEO, IMAGE = "the model's own names", "PyTorchVideo names", "2D ResNet, inflated"


@dataclass(frozen=True)
class LoadReport:
    """What was loaded, key by key.

    Keys are those of the file or of the model, without prefixes of wrappers.
    """

    path: str
    layout: str
    """The naming scheme of the file."""
    matched: tuple[str, ...]
    """Keys of the model that were loaded."""
    partial: tuple[str, ...]
    """Keys in ``matched`` whose input channels from the lateral connections stay fresh."""
    dropped: tuple[str, ...]
    """Keys of the file that were not used; entries that are no tensors come last."""
    missing: tuple[str, ...]
    """Keys of the model that keep their fresh values."""
    head: str
    """Whether the classifier was loaded, in words."""

    def __str__(self) -> str:
        def some(keys: tuple[str, ...]) -> str:
            more = f" and {len(keys) - 3} more" if len(keys) > 3 else ""
            names = ", ".join(shown(key) for key in keys[:3])
            return f"{len(keys)}" + (f" ({names}{more})" if keys else "")

        partly = f", {some(self.partial)} of them in part" if self.partial else ""
        return (
            f"{self.path}: {self.layout}; loaded {len(self.matched)} tensors{partly}; "
            f"left out {some(self.dropped)}; not in the file {some(self.missing)}; {self.head}"
        )


def load_weights(
    model: nn.Module,
    path: str | Path,
    *,
    num_classes: int | None = None,
    partial: bool = False,
    keep_classifier: bool = True,
) -> LoadReport:
    """Load the local file at ``path`` into ``model``, in place; see the module for the formats.

    The classifier stays fresh if the number of classes differs, and for every 2D ResNet. Of a model
    with ``num_classes`` it is all that differs from the file in its first dimension alone, which is
    that number in the model, and one and the same other in the file: an auxiliary classifier, too.
    If linear or convolutional layers have that number, one of them must differ so. If the number is
    not given, it is the model's last ``nn.Linear``. The classifier, non-local blocks and counters
    of batches may be missing from the file; from a 2D ResNet, SlowFast's fast pathway and lateral
    connections too. Any other difference is an error; with ``partial`` it is not, and what fits is
    loaded. Without ``keep_classifier`` the last linear layer of ``num_classes`` outputs, or else
    the last such convolution of single pixels, stays fresh, as of other classes.

    Raises ValueError if the file is of another architecture or matches nothing, if a value is not
    finite, if integers would become floating point, complex numbers real or numbers others, and if
    ``read_state_dict`` refuses the file. The message is one line that names the file and the key;
    the model is then unchanged.
    """
    state, others = read_state_dict(path)
    places = model.state_dict().items()
    target = {without_wrappers(key): place for key, place in places if isinstance(place, Tensor)}
    layout, names = _names(path, state, target)
    file_classes = None
    if num_classes is not None:
        given = {name: state[key] for key, name in names.items() if name in target}
        file_classes = _file_classes(model, given, target, num_classes)
    matching = _Matching(
        path=str(path),
        layout=layout,
        target=target,
        head=_head_prefix(model, num_classes),
        num_classes=num_classes,
        file_classes=file_classes,
        accept_partial=partial,
        keep_classifier=keep_classifier,
    )
    for key, value in state.items():
        matching.add(key, names[key], value)
    matching.dropped += others
    return matching.apply()


def _names(
    path: str | Path, state: dict[str, Tensor], target: dict[str, Tensor]
) -> tuple[str, dict[str, str | None]]:
    """The naming scheme of the file, and for each of its keys the model's.

    If none matches, the keys are read once more without the name that begins most of them, under
    which Lightning's modules and others hold the model.
    """
    outer = Counter(key.partition(".")[0] for key in state).most_common(1)[0][0] + "."
    for prefix in ("", outer):
        inner = {key: key.removeprefix(prefix) for key in state}
        own: dict[str, str | None] = {key: key if key in target else None for key in inner.values()}
        candidates = [
            (OWN, own),
            (PYTORCHVIDEO, from_pytorchvideo(own)),
            (IMAGE, from_image_resnet(own)),
        ]
        counts = [sum(name in target for name in names.values()) for _, names in candidates]
        if max(counts):
            layout, names = candidates[counts.index(max(counts))]
            return layout, {key: names[each] for key, each in inner.items()}
    raise ValueError(
        f"{path}: matches nothing in this model; the file has {shown(next(iter(state)))}, "
        f"the model {shown(next(iter(target), ''))}: choose the model it was made for"
    )


def _head_prefix(model: nn.Module, num_classes: int | None) -> str:
    """Key prefix of the classifier: the last linear layer, of so many outputs if one has them.

    If none has, it is the last convolution of single pixels that does.
    """
    layers = list(model.named_modules())
    linear = {name: each.out_features for name, each in layers if isinstance(each, nn.Linear)}
    pixels = {
        name: each.out_channels
        for name, each in layers
        if isinstance(each, _CONV) and set(each.kernel_size) == {1}
    }
    of_classes = [
        [name for name, number in kind.items() if number == num_classes]
        for kind in (linear, pixels)
    ]
    names = of_classes[0] or of_classes[1] or list(linear)
    return f"{without_wrappers(names[-1])}." if names else "head."


def _file_classes(
    model: nn.Module, given: dict[str, Tensor], target: dict[str, Tensor], num_classes: int
) -> int | None:
    """How many classes the file's classifiers have; None if no layer of the model can be one."""
    layers = [n for n, layer in model.named_modules() if isinstance(layer, (nn.Linear, *_CONV))]
    prefixes = tuple(f"{without_wrappers(name)}." for name in layers)
    found = None
    for name, place in target.items():
        if name.startswith(prefixes) and place.shape[:1] == (num_classes,):
            value = given.get(name, place)
            if value.ndim and value.shape[0] != num_classes and value.shape[1:] == place.shape[1:]:
                return value.shape[0]
            found = num_classes
    return found


@dataclass(kw_only=True)
class _Matching:
    """Matches tensors of the file to tensors of the model, one at a time."""

    path: str
    layout: str
    target: dict[str, Tensor]
    head: str
    num_classes: int | None
    file_classes: int | None
    accept_partial: bool
    keep_classifier: bool
    fresh: set[str] = field(default_factory=set)
    filled: dict[str, Tensor] = field(default_factory=dict)
    partial: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    head_text: str = "classifier loaded"

    def add(self, key: str, name: str | None, value: Tensor) -> None:
        place = None if name is None else self.target.get(name)
        if name is not None and self._drops_head(name, place, value):
            self.dropped.append(key)
            self.fresh.add(name)
            return
        if place is None or name is None:
            self._refuse_unless_partial(f"has {shown(key)}, which is not in this model")
            self.dropped.append(key)
            return
        if name in self.filled:
            raise ValueError(
                f"{self.path}: {shown(key)} fills {shown(name)} a second time; save each once"
            )
        frames = _frames_to_fill(value, place) if self.layout == IMAGE else 0
        # (O, I, H, W) -> (O, I, T, H, W), as a view: the file may claim any shape.
        fitted = value.unsqueeze(2).expand(-1, -1, frames, -1, -1) if frames else value
        if fitted.shape != place.shape and not self._fits_in_part(name, fitted, place):
            self._refuse_unless_partial(
                f"has {shown(key)} of shape {tuple(value.shape)} for {shown(name)} of shape "
                f"{tuple(place.shape)}"
            )
            self.dropped.append(key)
            return
        check_kind(self.path, key, value, name, place)
        if not bool((value.isfinite() & value.to(place.dtype).isfinite()).all()):
            raise ValueError(
                f"{self.path}: {shown(key)} holds values that are not finite; choose another file"
            )
        rounds = place.is_floating_point() or place.is_complex()
        is_count = name.endswith("num_batches_tracked")  # which may have been averaged
        if not (rounds or is_count) and not value.to(place.dtype).to(value.dtype).equal(value):
            raise ValueError(
                f"{self.path}: {shown(key)} holds values that {shown(name)} does not, which takes "
                f"{place.dtype}; choose another file"
            )
        if fitted.shape != place.shape:
            self.partial.append(name)
        self.filled[name] = fitted / frames if frames else fitted

    def _drops_head(self, name: str, place: Tensor | None, value: Tensor) -> bool:
        if value.ndim == 0:
            return False
        is_last = name.startswith(self.head)
        if self.layout == IMAGE and is_last:
            self.head_text = f"classifier of {value.shape[0]} image classes dropped"
            return True
        if not self.keep_classifier and is_last:
            self.head_text = "classifier dropped: its classes are others, or in another order"
            return True
        if place is None or place.ndim == 0 or value.shape[1:] != place.shape[1:]:
            return False
        in_file, in_model = value.shape[0], place.shape[0]
        is_of_classes = is_last if self.num_classes is None else in_model == self.num_classes
        if in_file == in_model or not is_of_classes or self.file_classes not in (None, in_file):
            return False
        self.file_classes = in_file
        self.head_text = (
            f"classifier dropped: {in_file} classes in the file, {in_model} in the model"
        )
        return True

    def _fits_in_part(self, name: str, value: Tensor, place: Tensor) -> bool:
        """Whether only lateral input channels, which follow the slow ones, are missing."""
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
        fresh = name in self.fresh or name.startswith(self.head)
        return fresh or name.endswith("num_batches_tracked") or any(part in name for part in new)

    def apply(self) -> LoadReport:
        for name in [name for name in self.target if name not in self.filled]:
            # Of tensors that are one and the same, safetensors keep a single name.
            place = self.target[name]
            tied = [other for other in self.filled if self.target[other].is_set_to(place)]
            if tied:
                self.filled[name] = self.filled[tied[0]]
        missing = [name for name in self.target if name not in self.filled]
        for name in missing:
            if not self._may_be_missing(name):
                self._refuse_unless_partial(f"lacks {shown(name)}")
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


def check_kind(path: str | Path, key: str, value: Tensor, name: str, place: Tensor) -> None:
    """Raise ValueError if a cast of a file's tensor to that of a model would change its kind.

    Integers would become floating point, complex numbers real, or a float8's eight bits more.
    Floating point is taken for integers, as of counters that were averaged.
    """
    is_lossy = value.is_complex() and not place.is_complex()
    is_unusual = value.dtype not in USUAL_DTYPES and value.dtype != place.dtype
    if is_lossy or is_unusual or (place.is_floating_point() and not value.is_floating_point()):
        raise ValueError(
            f"{path}: {shown(key)} holds {value.dtype}, {shown(name)} takes {place.dtype}; save it "
            f"as that"
        )


def _frames_to_fill(value: Tensor, place: Tensor) -> int:
    """Temporal size to inflate a 2D kernel to, by repetition and division; 0 if it is not 2D.

    On a clip of equal frames the result is that of the 2D convolution.
    """
    return place.shape[2] if value.ndim == 4 and place.ndim == 5 else 0
