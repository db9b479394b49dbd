"""Whether a checkpoint is of the run that is asked for: the same plan, model and dataset.

In: what a checkpoint or a ``config.yaml`` says, and what the run would be now. Out: nothing, or a
ValueError with every field that differs and both its values.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

from torch import nn

from vcycle.config.run import RunConfig
from vcycle.data.manifest import Manifest
from vcycle.devices.agreement import gathered
from vcycle.devices.fabric import Fabric

_FREE = (
    *("threads", "accumulate", "compile", "cuda_graphs", "checkpoint", "nonfinite", "log"),
    *("notes", "schedule_notes", "steps_note", "fitted_seconds"),
    *(f"evaluation.{name}" for name in ("times", "batch_size", "final_clips", "final_crops")),
    *("data.manifest", "data.num_workers", "data.max_bad_share", "data.decode_seconds"),
    *("data.cache_gib", "data.cache_folder", "data.frames_gib"),
)
"""Fields that a resumed run may change: they decide no clip, no rate, no gradient and no score but
the final one, but for what a model draws by itself in each micro-batch."""
_OF_A_PROCESS = (
    *("threads", "log", "notes", "schedule_notes", "steps_note", "fitted_seconds"),
    *("data.manifest", "data.num_workers", "data.cache_gib", "data.cache_folder"),
    *("data.frames_gib", "model.weights"),
)
"""Fields in which the processes of one run may differ: the first sends them its weights."""
_MOST_SHOWN = 20  # another network differs in hundreds of tensors


def config_differences(before: dict[str, Any], config: RunConfig) -> list[str]:
    """What a saved configuration has that this one has not, in all that decides the run."""
    return _differences(before, asdict(config), free=_FREE)


def check_config(before: dict[str, Any], config: RunConfig, *, source: str) -> None:
    """Raise ValueError unless a saved configuration is this one in all that decides the run."""
    _check(config_differences(before, config), source=source)


def check_state(
    state: dict[str, Any], config: RunConfig, dataset: dict[str, Any], *, source: str
) -> None:
    """Raise ValueError unless a checkpoint is of this configuration and ``identity``."""
    before = {**state["config"], "plan": state["plan"], "manifest": state["manifest"]}
    now = {**asdict(config), "plan": config.plan().to_dict(), "manifest": dataset}
    _check(_differences(before, now, free=_FREE), source=source)


def check_processes(
    config: RunConfig, dataset: dict[str, Any], fabric: Fabric, *, seconds: float | None
) -> None:
    """Raise ValueError, in all processes, unless each has the same run, ``identity`` and time.

    A command that was changed on one machine would train something else there, or wait for ever.
    """
    own = {**asdict(config), "manifest": dataset, "vcycle": version("vcycle"), "--time": seconds}
    first, *others = gathered(own, fabric)
    for rank, values in enumerate(others, 1):
        places = "on process 0", f"on process {rank}"
        if differing := _differences(first, values, free=_OF_A_PROCESS, places=places):
            raise ValueError(
                f"the processes differ: {_shown(differing)}; start all by the same command, on the "
                f"same videos, with --precision if their processors are of other kinds"
            )


def check_network(weights: dict[str, Any], network: nn.Module, *, source: str) -> None:
    """Raise ValueError unless the tensors of a checkpoint's weights are those of the network."""
    before, now = (
        {name: _size(value) for name, value in values.items()}
        for values in (weights, network.state_dict())
    )
    _check(_differences({"weights": before}, {"weights": now}), source=source)


def parts_sha256(manifest: Manifest) -> str:
    """Of the seconds that each line of a manifest is about."""
    parts = [(video.start_seconds, video.end_seconds) for video in manifest.videos]
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def identity(manifest: Manifest) -> dict[str, Any]:
    """All that decides which clip a sample position is, and what it shows.

    ``details_sha256`` is of what a manifest says of its videos beside path, split and labels: size,
    frames, rate, the part that clips are taken from, whether they may be mirrored. It takes seconds
    of a large dataset.
    """
    videos, details = hashlib.sha256(), hashlib.sha256()
    for video in manifest.videos:
        videos.update(f"{video.path}\0{video.split}\0{video.labels}\n".encode())
        details.update(repr(sorted(asdict(video).items())).encode())
    return {
        "num_videos": len(manifest),
        "classes": list(manifest.classes),
        "multi_label": manifest.multi_label,
        "videos_sha256": videos.hexdigest(),
        "details_sha256": details.hexdigest(),
    }


def _size(value: Any) -> str:
    """Of a tensor; what else a model keeps may change."""
    return "x".join(map(str, value.shape)) if hasattr(value, "shape") else "no tensor"


def is_of(validation: dict[str, Any], videos: Manifest) -> bool:
    """Whether a run's ``dataset.json`` has these videos, and all that is known of them."""
    now = identity(videos)
    return all(now[key] == validation.get(key) for key in now if key.endswith("sha256"))


def _differences(
    before: dict[str, Any],
    now: dict[str, Any],
    *,
    free: tuple[str, ...] = (),
    places: tuple[str, str] = ("in it", "now"),
) -> list[str]:
    old, new = dict(_leaves(before)), dict(_leaves(now))
    return [
        f"{name} is {old.get(name, 'not set')} {places[0]}, {new.get(name, 'not set')} {places[1]}"
        for name in sorted({**old, **new})
        if old.get(name) != new.get(name)
        and not any(name == each or name.startswith(f"{each}.") for each in free)
    ]


def _check(differing: list[str], *, source: str) -> None:
    if differing:
        shown = _shown(differing)
        if any(each.startswith("manifest.") for each in differing):
            shown += "; its videos, or their manifest, have changed since"
        raise ValueError(f"{source}: {shown}; resume with the same, or choose another folder")


def _shown(differing: list[str]) -> str:
    more = len(differing) - _MOST_SHOWN
    return "; ".join(differing[:_MOST_SHOWN] + ([f"and {more} more"] if more > 0 else []))


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Dotted names and values; an empty list or dictionary is a value."""
    pairs: Any = ()
    if isinstance(value, dict):
        pairs = value.items()
    elif isinstance(value, list | tuple):
        pairs = enumerate(value)
    if not pairs:
        is_whole = isinstance(value, float) and value.is_integer()  # 1 may stand for 1.0
        yield name, str(int(value) if is_whole else [] if isinstance(value, tuple) else value)
    for key, each in pairs:
        yield from _leaves(each, f"{name}.{key}" if name else str(key))
