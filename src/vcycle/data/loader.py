"""The loader: lists of clip requests in, batches out, decoded ahead by processes or threads.

One loader serves a whole run: the shape travels with each request, so nothing is rebuilt when the
shape changes. Batches come in order whatever the number of workers. How far it works ahead is
bounded in bytes: by equation 1 batches of all shapes have about the same.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from vcycle.data.batch import Batch, label_tensor
from vcycle.data.dataset import BadVideo, ClipDataset, ClipFacts, ClipRequest, TooManyBadVideos
from vcycle.data.decode.torchcodec import check_decoder
from vcycle.data.loader_stats import LoaderStats
from vcycle.data.sampler import PlanSampler, view_requests
from vcycle.data.workers.processes import Answer, WorkerPool
from vcycle.data.workers.threads import DecodeThreads
from vcycle.schedule.shape import Shape

PREFETCH_BYTES = 64 * 2**20


@dataclass
class _Pending:
    """A batch in the making: its place in the pool's memory and the parts still out."""

    requests: list[ClipRequest]
    offset: int
    offered: int = 0  # requests handed to workers so far
    parts: dict[int, int] = field(default_factory=dict)  # number -> its first request
    clips: dict[int, ClipFacts] = field(default_factory=dict)  # that are decoded, by their places

    @property
    def num_bytes(self) -> int:
        return sum(request.num_bytes for request in self.requests)

    @property
    def end(self) -> int:
        return self.offset + self.num_bytes


class Loader:
    """Iterates over batches, as often as wanted, one iteration at a time.

    An iteration cannot go on once another has begun or the loader was closed: RuntimeError.

    ``bad_videos`` (path -> reason) collects what had to be replaced; TooManyBadVideos is raised
    once that is more than ``max_bad_share`` of the dataset's videos, and more than one. With
    ``num_workers`` of 0 clips are decoded in the calling process, when they are asked for.

    Workers are processes, and batches are in CPU memory, page-locked with ``pin_memory``. With a
    ``decode_device`` they are threads of this process, and batches are on that device; the
    decoder "nvdec" needs one, by default the current CUDA device. Raises ValueError where the
    dataset's decoder does not work.
    """

    def __init__(
        self,
        dataset: ClipDataset,
        request_lists: PlanSampler | Sequence[list[ClipRequest]],
        *,
        num_workers: int,
        largest_batch_bytes: int,
        prefetch_bytes: int = PREFETCH_BYTES,
        max_bad_share: float = 0.01,
        pin_memory: bool = False,
        decode_device: torch.device | str | None = None,
    ) -> None:
        if num_workers < 0:
            raise ValueError(f"num_workers is {num_workers}; use 0 or more")
        if decode_device is None and dataset.decoder == "nvdec":
            decode_device = "cuda"
        check_decoder(dataset.decoder, torch.device(decode_device or "cpu"))
        self.dataset = dataset
        self.request_lists = request_lists
        self.num_workers = num_workers
        self.num_bytes = max(prefetch_bytes, 3 * largest_batch_bytes)
        self.max_bad_share = max_bad_share
        self.pin_memory = pin_memory and decode_device is None
        self.decode_device = decode_device
        self.bad_videos: dict[str, str] = {}
        self._pool: WorkerPool | DecodeThreads | None = None
        self._iteration: object = None  # the one that may go on
        self._stats = LoaderStats(num_workers=num_workers)
        self._busy_since: float | None = None  # since when a batch is in use, as far as counted

    def __len__(self) -> int:
        return len(self.request_lists)

    def __iter__(self) -> Iterator[Batch]:
        self._iteration = iteration = object()
        self._busy_since = None
        batches = self._decode_ahead() if self.num_workers else self._decode_here()
        asked = time.monotonic()
        try:
            for batch in batches:
                given = time.monotonic()
                self._stats.count(len(batch), waited=given - asked)
                self._note_bad(batch.bad)
                self._busy_since = time.monotonic()
                yield batch
                asked = time.monotonic()
                if self._iteration is not iteration:
                    raise RuntimeError(
                        "this iteration of the loader is over: another has begun, or it was closed"
                    )
                self._count_use()
                self._busy_since = None
        except GeneratorExit:
            raise
        except BaseException:
            if self._iteration is iteration:
                # An interrupted answer cannot be read on: the next iteration starts anew.
                self.close()
            raise

    def take_stats(self) -> LoaderStats:
        """What the loader did since this was last asked, or since it was made."""
        self._count_use()
        stats, self._stats = self._stats, LoaderStats(num_workers=self.num_workers)
        return stats

    def leave_out(self, seconds: float) -> None:
        """Count so many seconds less as use of the last batch: a validation took them."""
        self._stats.count_use(-seconds)

    def _count_use(self) -> None:
        if self._busy_since is not None:
            now = time.monotonic()
            self._stats.count_use(now - self._busy_since)
            self._busy_since = now

    def close(self) -> None:
        """End the workers; another iteration starts them again."""
        self._iteration = self._busy_since = None
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _decode_here(self) -> Iterator[Batch]:
        for requests in self.request_lists:
            started = time.monotonic()
            pixels = self._empty(requests)
            clips = []
            for out, request in zip(pixels, requests, strict=True):
                clips.append(self.dataset.read(request, out=out).facts)
            self._stats.count_work(time.monotonic() - started)
            yield self._batch(pixels, clips)

    def _decode_ahead(self) -> Iterator[Batch]:
        if self._pool is None:
            self._pool = self._start_workers()
        pool = self._pool
        pool.forget()
        lists = iter(self.request_lists)
        pending: deque[_Pending] = deque()
        upcoming = next(lists, None)
        while pending or upcoming is not None:
            while upcoming is not None:
                place = self._place(pending, sum(request.num_bytes for request in upcoming))
                if place is None:
                    break
                pending.append(_Pending(upcoming, place))
                upcoming = next(lists, None)
            self._offer(pool, pending)
            head = pending[0]
            if len(head.clips) < len(head.requests):
                for answer in pool.answers(timeout_seconds=10.0):
                    self._collect(answer, pending)
                continue
            pixels = self._empty(head.requests)
            source = pool.memory[head.offset : head.end].view(pixels.shape)
            pixels.copy_(source)
            pending.popleft()
            yield self._batch(pixels, [head.clips[k] for k in range(len(head.requests))])

    def _start_workers(self) -> WorkerPool | DecodeThreads:
        if self.decode_device is None:
            return WorkerPool(self.dataset, num_workers=self.num_workers, num_bytes=self.num_bytes)
        return DecodeThreads(
            self.dataset,
            num_threads=self.num_workers,
            num_bytes=self.num_bytes,
            device=self.decode_device,
        )

    def _place(self, pending: deque[_Pending], num_bytes: int) -> int | None:
        """Where in the ring of the pool's memory a batch fits, behind those that are pending."""
        if not pending:
            return 0
        first, last = pending[0].offset, pending[-1].end
        if pending[-1].offset >= first:  # pending lies in one piece
            if last + num_bytes <= self.num_bytes:
                return last
            return 0 if num_bytes < first else None
        return last if last + num_bytes < first else None

    def _offer(self, pool: WorkerPool | DecodeThreads, pending: deque[_Pending]) -> None:
        """Hand out parts of the pending batches, earliest first, until the workers have enough."""
        for batch in pending:
            clip_bytes = batch.requests[0].num_bytes
            # Two parts a worker, so that a slow one is not waited for long.
            size = math.ceil(len(batch.requests) / (2 * self.num_workers))
            while batch.offered < len(batch.requests):
                part = batch.requests[batch.offered : batch.offered + size]
                number = pool.offer(batch.offset + batch.offered * clip_bytes, part)
                if number is None:
                    return
                batch.parts[number] = batch.offered
                batch.offered += len(part)

    def _collect(self, answer: Answer, pending: deque[_Pending]) -> None:
        self._stats.count_work(answer.seconds)
        if answer.too_many_bad:
            raise TooManyBadVideos(answer.error)
        if answer.error:
            raise RuntimeError(f"a data worker failed:\n{answer.error}")
        for batch in pending:
            first = batch.parts.pop(answer.number, None)
            if first is not None:
                batch.clips.update(enumerate(answer.clips, start=first))

    def _empty(self, requests: list[ClipRequest]) -> Tensor:
        """(N, T, H, W, 3) uint8, page-locked if so wanted."""
        return torch.empty(
            (len(requests), *requests[0].clip_shape),
            dtype=torch.uint8,
            device=self.decode_device,
            pin_memory=self.pin_memory,
        )

    def _batch(self, pixels: Tensor, clips: list[ClipFacts]) -> Batch:
        manifest = self.dataset.manifest
        labels = label_tensor(
            [clip.labels for clip in clips],
            num_classes=manifest.num_classes,
            multi_label=manifest.multi_label,
        )
        return Batch(
            clips=pixels.permute(0, 4, 1, 2, 3),  # (N, 3, T, H, W), a view
            labels=labels,
            indices=torch.tensor([clip.index for clip in clips]),
            bad=tuple(video for clip in clips for video in clip.bad),
        )

    def _note_bad(self, bad: tuple[BadVideo, ...]) -> None:
        for video in bad:
            self.bad_videos[video.path] = video.reason
        num_videos = len(self.dataset)
        if len(self.bad_videos) > max(1, self.max_bad_share * num_videos):
            listed = "\n".join(f"  {path}: {reason}" for path, reason in self.bad_videos.items())
            raise TooManyBadVideos(
                f"{len(self.bad_videos)} of {num_videos} videos cannot be read, more than the "
                f"accepted {self.max_bad_share:.1%}; mend or remove them, or accept more:\n{listed}"
            )


def train_loader(
    dataset: ClipDataset,
    sampler: PlanSampler,
    *,
    num_workers: int,
    prefetch_bytes: int = PREFETCH_BYTES,
    max_bad_share: float = 0.01,
    pin_memory: bool = False,
    decode_device: torch.device | str | None = None,
) -> Loader:
    """The batches of a run, one for each list of requests that the sampler yields.

    Raises ValueError where the sampler draws from another number of videos than the dataset has.
    """
    if sampler.num_videos != len(dataset):
        raise ValueError(
            f"num_videos of the sampler is {sampler.num_videos}, of the dataset {len(dataset)}; "
            f"give PlanSampler the number of videos in the split that the dataset has"
        )
    return Loader(
        dataset,
        sampler,
        num_workers=num_workers,
        largest_batch_bytes=sampler.largest_batch_bytes,
        prefetch_bytes=prefetch_bytes,
        max_bad_share=max_bad_share,
        pin_memory=pin_memory,
        decode_device=decode_device,
    )


def eval_loader(
    dataset: ClipDataset,
    shape: Shape,
    *,
    batch_size: int,
    num_clips: int = 1,
    num_crops: int = 1,
    num_workers: int,
    prefetch_bytes: int = PREFETCH_BYTES,
    max_bad_share: float = 0.01,
    pin_memory: bool = False,
    decode_device: torch.device | str | None = None,
    rank: int = 0,
    world_size: int = 1,
) -> Loader:
    """Every view of every video, video by video; each of several ranks gets some of the batches.

    A view that cannot be read is replaced by another video's, as in training: to score only what
    was asked for, compare ``Batch.indices`` with the requests in ``Loader.request_lists``.

    Raises ValueError for fewer than one clip a batch or a video, and other crops than 1 or 3.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}; use at least 1")
    requests = view_requests(len(dataset), shape, num_clips=num_clips, num_crops=num_crops)
    lists = [requests[i : i + batch_size] for i in range(0, len(requests), batch_size)]
    return Loader(
        dataset,
        lists[rank::world_size],
        num_workers=num_workers,
        largest_batch_bytes=3 * shape.num_pixels * batch_size,
        prefetch_bytes=prefetch_bytes,
        max_bad_share=max_bad_share,
        pin_memory=pin_memory,
        decode_device=decode_device,
    )
