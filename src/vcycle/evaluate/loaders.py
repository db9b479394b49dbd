"""The loaders of a run: batches of its plan to train on, views to score.

In: a RunConfig and a split's videos. Out: this process's share of the batches.
"""

from __future__ import annotations

import os
from pathlib import Path

from vcycle.config.run import Data, RunConfig
from vcycle.data.cache import VideoCache, cache_folder
from vcycle.data.dataset import ClipDataset
from vcycle.data.decode.kept import KeptFrames, decoded_bytes
from vcycle.data.loader import Loader
from vcycle.data.loaders import eval_loader, train_loader
from vcycle.data.manifest import Manifest
from vcycle.data.sampler import PlanSampler
from vcycle.devices.agreement import united
from vcycle.devices.cores import default_workers
from vcycle.devices.fabric import Fabric
from vcycle.devices.memory import free_memory_bytes
from vcycle.schedule.plan import Plan
from vcycle.schedule.shape import Shape

_LEAST_READINGS = 2
"""Of a video in each process that decodes, for decoding all of it to pay."""


def num_workers(data: Data) -> int:
    """How many processes or threads decode for this process."""
    return default_workers() if data.num_workers == "auto" else data.num_workers


def num_decoding(data: Data) -> int:
    """How many processes of the run decode on this machine."""
    return max(1, num_workers(data)) * int(os.environ.get("LOCAL_WORLD_SIZE", 1))


def make_train_loader(
    config: RunConfig,
    plan: Plan,
    videos: Manifest,
    fabric: Fabric,
    *,
    kept: KeptFrames | None = None,
    first_step: int = 0,
) -> Loader:
    """This process's batches of the plan, from ``first_step`` on."""
    sampler = PlanSampler(
        plan,
        len(videos),
        config.seed,
        rank=fabric.global_rank,
        world_size=fabric.world_size,
        micro_batches=config.micro_batches,
        first_step=first_step,
    )
    return train_loader(
        make_dataset(config, videos, kept=kept),
        sampler,
        num_workers=num_workers(config.data),
        max_bad_share=config.data.max_bad_share,
        device=fabric.device,
    )


def make_eval_loader(
    config: RunConfig, videos: Manifest, fabric: Fabric, *, shape: Shape | None = None
) -> Loader:
    """This process's views of ``videos`` at a shape, the baseline's unless given."""
    return eval_loader(
        make_dataset(config, videos),
        shape or config.baseline.shape,
        batch_size=config.evaluation.batch_size,
        num_clips=config.evaluation.num_clips,
        num_crops=config.evaluation.num_crops,
        num_workers=num_workers(config.data),
        max_bad_share=config.data.max_bad_share,
        device=fabric.device,
        rank=fabric.global_rank,
        world_size=fabric.world_size,
    )


def united_bad_videos(loader: Loader, fabric: Fabric) -> dict[str, str]:
    """What any process could not read, path to reason; all processes call this.

    Raises TooManyBadVideos, in all of them, if that is more than the run accepts.
    """
    bad = united(loader.bad_videos, fabric)
    loader.add_bad_videos(bad)
    return bad


def make_dataset(
    config: RunConfig, videos: Manifest, *, kept: KeptFrames | None = None
) -> ClipDataset:
    """The clips that the run may draw from ``videos``."""
    data = config.data
    return ClipDataset(
        videos,
        config.grid_range(),
        limit_seconds=data.decode_seconds,
        decoder=data.decoder,
        cache=video_cache(data),
        kept=kept,
    )


def kept_frames(data: Data, videos: Manifest, *, num_clips: int) -> KeptFrames | None:
    """Where each process that decodes keeps the frames of ``videos``.

    None if they do not fit, or if of the ``num_clips`` that are decoded for this training process
    there are too few for each process to have some of each video.
    """
    decoders = max(1, num_workers(data))
    if num_clips < _LEAST_READINGS * decoders * len(videos):
        return None
    max_bytes = int(min(data.frames_gib * 2**30, free_memory_bytes() / 4)) // num_decoding(data)
    fits = data.decoder == "pyav" and decoded_bytes(videos.videos) <= max_bytes
    return KeptFrames(max_bytes) if fits else None


def video_cache(data: Data) -> VideoCache | None:
    """Where remote videos are kept on this machine, if they are."""
    if not data.cache_gib:
        return None
    folder = data.cache_folder
    try:
        place = Path(folder).expanduser() if folder else cache_folder()
    except RuntimeError:  # a user without a home, as containers have them
        if folder:
            raise ValueError(
                f"data.cache_folder {folder}: there is no home directory; give another folder"
            ) from None
        return None
    return VideoCache(place, int(data.cache_gib * 2**30))
