"""How much longer steps take while workers decode beside them, on cores that they share.

In: a model on a CPU, the run's videos, and what model and workers took by themselves. Out: a factor
for predicted steps. Each slows the other down, in caches and by taking turns, which no sum of the
two says.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing

from torch.optim import Optimizer

from vcycle.data.bad_videos import TooManyBadVideos
from vcycle.data.dataset import ClipDataset
from vcycle.data.loader import Loader
from vcycle.data.randomness import indexed_generator
from vcycle.data.request import ClipRequest
from vcycle.models import commit_statistics, set_norm_group, set_token_share
from vcycle.schedule.plan import MiniBatch
from vcycle.train.activity import Activity
from vcycle.train.gradients import Gradients
from vcycle.train.measure.rehearsal import unchanged
from vcycle.train.measure.rehearsed_steps import as_of_the_run
from vcycle.train.measure.timing import Kind, StepTimes

_MOST_ROUNDS = 4


def slowdown(
    gradients: Gradients,
    optimizer: Optimizer,
    dataset: ClipDataset,
    *,
    times: StepTimes,
    activity: Activity,
    limit_seconds: float,
) -> float:
    """Seconds of steps with their clips, over what ``times`` predicts of them.

    A step of each kind in turn, with real clips, gradients and updates; network and optimizer are
    as before afterwards. 1 if nothing is shared: without workers, with several processes or on a
    GPU; and if two rounds of steps would take longer than ``limit_seconds``.
    """
    config, network, fabric = gradients.config, gradients.network, gradients.fabric
    kinds = config.plan().mini_batches()
    expected = sum(times.step(Kind.of(kind)) for kind in kinds)
    rounds = min(_MOST_ROUNDS, int(limit_seconds / expected))
    is_shared = times.shared_cores and times.workers and fabric.world_size == 1
    if not is_shared or config.micro_batches > 1 or rounds < 2:
        return 1.0
    decoding = f"{times.workers} workers decode" if times.workers > 1 else "a worker decodes"
    activity.begin(f"timing steps while {decoding}")
    loader = Loader(
        dataset,
        # The workers are to be busy until the last step that is timed.
        _requests(kinds, rounds + 1, num_videos=len(dataset), seed=config.seed),
        num_workers=times.workers,
        largest_batch_bytes=max(3 * kind.batch_size * kind.shape.num_pixels for kind in kinds),
        prefetch_bytes=1,  # little ahead: soon they decode no faster than the model takes clips
        max_bad_share=1.0,
        device=fabric.device,
    )
    videos = dataset.manifest
    with closing(loader), unchanged(network, optimizer, config.model.name):
        updates = not optimizer.state  # that of a resumed run is not to change
        batches = iter(loader)
        began = time.perf_counter()
        try:
            for number in range(rounds * len(kinds)):
                if number == len(kinds):  # the first starts the workers, which may keep frames
                    began = time.perf_counter()
                kind = kinds[number % len(kinds)]
                set_norm_group(network, kind.norm_group)
                set_token_share(network, kind.token_share)
                clips = next(batches).to(fabric.device).clips
                gradients.batch(kind, as_of_the_run(clips, config, videos), seed=0)
                commit_statistics(network)
                if updates:
                    optimizer.step()
                optimizer.zero_grad(set_to_none=True)
        except TooManyBadVideos:  # the run will count them
            return 1.0
        took = time.perf_counter() - began
    return took / ((rounds - 1) * expected)


def _requests(
    kinds: Sequence[MiniBatch], rounds: int, *, num_videos: int, seed: int
) -> list[list[ClipRequest]]:
    """A list for each step of each round, of videos drawn at random."""
    rng = indexed_generator(seed, "loader speed", 1)
    return [
        [
            ClipRequest(index, kind.shape, seed=number)
            for index in rng.integers(num_videos, size=kind.batch_size).tolist()
        ]
        for number in range(rounds)
        for kind in kinds
    ]
