"""How long a worker decodes for a clip of each shape, measured on the run's own videos.

In: a configuration, its plan and the clips of its training videos. Out: seconds a clip, by shape.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

from vcycle.config.run import RunConfig
from vcycle.data.bad_videos import TooManyBadVideos
from vcycle.data.dataset import ClipDataset
from vcycle.data.loader import Loader
from vcycle.data.randomness import indexed_generator
from vcycle.data.request import ClipRequest
from vcycle.devices.fabric import Fabric
from vcycle.evaluate.loaders import num_workers
from vcycle.schedule.messages import counted
from vcycle.schedule.shape import Shape
from vcycle.train.activity import Activity

_LEAST_CLIPS = 4
_KEPT_VIDEOS = 4
_KEPT_ROUNDS = 8
_SHAPE_SECONDS = 0.5
_RUN_SHARE = 1 / 8
"""Of the run's clips of a shape, in a short one: no more rounds begin after so many."""


def for_timing(dataset: ClipDataset, *, seed: int) -> ClipDataset:
    """A run's clips; those of few videos, which each worker soon has, if it keeps their frames."""
    if dataset.kept is None:
        return dataset
    rng, videos = indexed_generator(seed, "loader speed", 2), dataset.manifest.videos
    few = rng.choice(len(videos), min(_KEPT_VIDEOS, len(videos)), replace=False).tolist()
    return replace(
        dataset, manifest=replace(dataset.manifest, videos=tuple(videos[index] for index in few))
    )


def decode_seconds(
    config: RunConfig,
    dataset: ClipDataset,
    fabric: Fabric,
    *,
    activity: Activity,
    shapes: Sequence[Shape] = (),
) -> dict[Shape, float]:
    """Seconds of one worker for a clip, by shape, while all its fellows work too.

    ``shapes`` are the plan's unless given.
    Videos that cannot be read are nobody's fault here: the run will count them.
    """
    plan = config.plan()
    shapes = shapes or plan.shapes
    activity.begin(f"timing the loader: clips of {counted(len(shapes), 'shape')}")
    workers = num_workers(config.data)
    loader = Loader(
        dataset,
        [],
        num_workers=workers,
        largest_batch_bytes=max(3 * shape.num_pixels for shape in shapes) * _LEAST_CLIPS,
        max_bad_share=1.0,
        device=fabric.device,
    )
    found: dict[Shape, float] = {}
    drawn: Counter[Shape] = Counter()
    for kind in plan.mini_batches():
        drawn[kind.shape] += kind.steps * kind.batch_size
    rng = indexed_generator(config.seed, "loader speed", 0)
    size = max(_LEAST_CLIPS, 2 * workers)

    def decode(shape: Shape, first: int) -> tuple[int, float]:
        """Clips of ``size`` videos, and the seconds of all workers together."""
        indices = rng.integers(len(dataset), size=size).tolist()
        loader.request_lists = [
            [ClipRequest(index, shape, seed=first + k)] for k, index in enumerate(indices)
        ]
        try:
            clips = sum(len(batch) for batch in loader)
        except TooManyBadVideos:
            clips = 1
        return clips, loader.take_work_seconds()

    with closing(loader):
        for _ in range(1 if dataset.kept is None else _KEPT_ROUNDS):
            decode(shapes[0], 0)  # a worker's first clips take it longer
        for shape in shapes:
            work, clips, most = 0.0, 0, min(4 * size, _RUN_SHARE * drawn[shape])
            rounds: list[float] = []
            while not clips or (work < _SHAPE_SECONDS and clips < most):
                more, seconds = decode(shape, clips)
                clips, work = clips + more, work + seconds
                rounds.append(seconds / more)
            # Of kept frames, one round may have a video that a worker had not read.
            found[shape] = work / clips if dataset.kept is None else statistics.median(rounds)
    return found
