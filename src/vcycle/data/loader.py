"""The loader: lists of clip requests in, batches out, decoded ahead by processes or threads.

One loader serves a whole run: the shape travels with each request, so nothing is rebuilt if the
shape changes. Batches come in order, whatever the number of workers. How far it works ahead is
bounded in bytes: by equation 1, batches of all shapes have about the same.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import torch
from torch import Tensor

from vcycle.data.bad_videos import BadVideo, BadVideos, TooManyBadVideos
from vcycle.data.batch import Batch, label_tensor
from vcycle.data.dataset import ClipDataset, ClipFacts
from vcycle.data.decode.torchcodec import check_decoder
from vcycle.data.device_copy import DeviceCopy
from vcycle.data.request import ClipRequest
from vcycle.data.ring import Ring
from vcycle.data.sampler import PlanSampler
from vcycle.data.workers.parts import Answer
from vcycle.data.workers.processes import WorkerPool
from vcycle.data.workers.threads import DecodeThreads

_Pool = WorkerPool | DecodeThreads
PREFETCH_BYTES = 64 * 2**20


@dataclass
class _Pending:
    """A batch in the making: its place in the pool's memory and what its workers have done."""

    requests: list[ClipRequest]
    offset: int
    num_offered: int = 0  # requests handed to workers so far
    parts: dict[int, int] = field(default_factory=dict)  # those out: number -> first request
    clips: dict[int, ClipFacts] = field(default_factory=dict)  # those decoded, by position

    @property
    def is_complete(self) -> bool:
        return len(self.clips) == len(self.requests)


class Loader:
    """Iterates over batches, as often as needed, one iteration at a time.

    An iteration raises RuntimeError if another has begun since, or the loader was closed.

    ``bad_videos`` (path -> reason) collects the videos that were replaced; TooManyBadVideos is
    raised if they are more than ``max_bad_share`` of the dataset's, and more than one. With
    ``num_workers`` of 0 clips are decoded in the calling process, as batches are asked for.

    Workers are processes, or ``threads`` of this process. Clips are in CPU memory; those for a CUDA
    ``device`` are copied there as they are asked for, beside what it computes, unless its memory is
    full: the batch is on the CPU then, to be copied once there is room. The decoder "nvdec"
    decodes them there, in threads, by default on the current CUDA device. Raises ValueError if the
    dataset's decoder does not work, or it keeps frames, which threads cannot share.
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
        device: torch.device | str | None = None,
        threads: bool = False,
    ) -> None:
        if num_workers < 0:
            raise ValueError(f"num_workers {num_workers}: give 0 or more")
        if not isinstance(dataset, ClipDataset):
            raise TypeError(
                f"dataset {type(dataset).__name__}: this loader takes a ClipDataset; give your own "
                f"to torch's DataLoader(dataset, batch_sampler=..., collate_fn=vcycle.collate)"
            )
        decodes_there = dataset.decoder == "nvdec"
        device = torch.device(device or ("cuda" if decodes_there else "cpu"))
        self._decode_device = device if decodes_there else torch.device("cpu")
        check_decoder(dataset.decoder, self._decode_device)
        self.dataset = dataset
        self.request_lists = request_lists
        self.num_workers = num_workers
        self.num_bytes = max(prefetch_bytes, 3 * largest_batch_bytes)
        self.threads = threads or decodes_there
        if self.threads and dataset.kept is not None:
            raise ValueError("threads cannot share kept frames: give threads=False, or no kept")
        self._copy_device = device if device.type == "cuda" and not decodes_there else None
        self._copies: DeviceCopy | None = None
        self._bad = BadVideos(num_videos=len(dataset), max_share=max_bad_share)
        self._pool: _Pool | None = None
        self._iteration: object = None  # the one that may go on
        self._work_seconds = 0.0
        self._num_clips = self._num_left = 0

    def __len__(self) -> int:
        return len(self.request_lists)

    def __iter__(self) -> Iterator[Batch]:
        self._iteration = iteration = object()
        batches = self._decode_ahead() if self.num_workers else self._decode_here()
        try:
            for batch in batches:
                self._bad.add(batch.bad)
                yield batch
                if self._iteration is not iteration:
                    raise RuntimeError(
                        "this iteration of the loader is over: another has begun, or it was closed"
                    )
        except GeneratorExit:
            raise
        except BaseException:
            if self._iteration is iteration:
                # An answer that was half read cannot be read on: end the workers.
                self.close()
            raise

    @property
    def bad_videos(self) -> dict[str, str]:
        """The videos that could not be read so far: path -> reason."""
        return self._bad.reasons

    def add_bad_videos(self, reasons: dict[str, str]) -> None:
        """Count videos that another process could not read, path to reason, as its own."""
        self._bad.add(BadVideo(path, reason) for path, reason in reasons.items())

    def take_work_seconds(self) -> float:
        """Seconds of decoding, summed over workers, since this was last called."""
        seconds, self._work_seconds = self._work_seconds, 0.0
        return seconds

    def take_left_share(self) -> float:
        """Of the clips since this was last called, those that the decoder left to PyAV."""
        share = self._num_left / max(1, self._num_clips)
        self._num_clips = self._num_left = 0
        return share

    def close(self) -> None:
        """End the workers; another iteration starts them again."""
        self._iteration = None
        if self._copies is not None:
            self._copies.close()
            self._copies = None
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
            self._work_seconds += time.monotonic() - started
            if self._copy_device is not None:
                with suppress(torch.OutOfMemoryError):  # then it is the caller's to make room
                    pixels = pixels.to(self._copy_device, non_blocking=True)
            yield self._batch(pixels, clips, requests)

    def _decode_ahead(self) -> Iterator[Batch]:
        # Start the workers, or take back what an abandoned iteration left them.
        if self._pool is None:
            self._pool = self._start_workers()
            if self._copy_device is not None:
                self._copies = DeviceCopy(self._pool.memory, self._copy_device)
        pool, copies = self._pool, self._copies
        pool.forget()
        if copies is not None:
            copies.wait()

        ring = Ring(self.num_bytes)
        copying: deque[torch.cuda.Event] = deque()  # out of the places before those of ``pending``
        lists = iter(self.request_lists)
        pending: deque[_Pending] = deque()  # in the order of the ring, which is that of the run
        upcoming = next(lists, None)
        while pending or upcoming is not None:
            # Give every batch that fits a place in the ring, where others are copied out.
            while copying and copying[0].query():  # type: ignore[no-untyped-call]
                copying.popleft()
                ring.give_back()

            while upcoming is not None:
                offset = ring.take(sum(request.num_bytes for request in upcoming))
                if offset is None:
                    break
                pending.append(_Pending(upcoming, offset))
                upcoming = next(lists, None)
            if not pending:
                copying[0].synchronize()
                continue

            # Keep the workers busy, and wait for them until the first batch is complete.
            self._offer(pool, pending)
            head = pending[0]
            if not head.is_complete:
                for answer in pool.answers(timeout_seconds=10.0):
                    self._collect(answer, pending)
                continue

            # Copy it out, so that its place can be used again.
            shape = (len(head.requests), *head.requests[0].clip_shape)
            source = pool.memory[head.offset : head.offset + math.prod(shape)].view(shape)
            pending.popleft()
            on_device = copies and _copied_if_it_fits(copies, source)
            if on_device:
                pixels, copied = on_device
                copying.append(copied)
            else:
                pixels = self._empty(head.requests).copy_(source)
                while copying:  # their places come first
                    copying.popleft().synchronize()
                    ring.give_back()
                ring.give_back()
            clips = [head.clips[k] for k in range(len(head.requests))]
            yield self._batch(pixels, clips, head.requests)

    def _start_workers(self) -> _Pool:
        if not self.threads:
            return WorkerPool(self.dataset, num_workers=self.num_workers, num_bytes=self.num_bytes)
        return DecodeThreads(
            self.dataset,
            num_threads=self.num_workers,
            num_bytes=self.num_bytes,
            device=self._decode_device,
        )

    def _offer(self, pool: _Pool, pending: deque[_Pending]) -> None:
        """Hand out parts of the pending batches, earliest first, until the workers have enough."""
        for batch in pending:
            clip_bytes = batch.requests[0].num_bytes
            # Two parts per worker, so that a slow one is not waited for long.
            size = math.ceil(len(batch.requests) / (2 * self.num_workers))
            while batch.num_offered < len(batch.requests):
                part = batch.requests[batch.num_offered : batch.num_offered + size]
                number = pool.offer(batch.offset + batch.num_offered * clip_bytes, part)
                if number is None:
                    return
                batch.parts[number] = batch.num_offered
                batch.num_offered += len(part)

    def _collect(self, answer: Answer, pending: deque[_Pending]) -> None:
        self._work_seconds += answer.seconds
        if answer.too_many_bad:
            raise TooManyBadVideos(answer.error)
        if answer.error:
            raise RuntimeError(f"a data worker failed:\n{answer.error}")
        for batch in pending:
            first = batch.parts.pop(answer.number, None)
            if first is not None:
                batch.clips.update(enumerate(answer.clips, start=first))

    def _empty(self, requests: list[ClipRequest]) -> Tensor:
        """(N, T, H, W, 3) uint8 where clips are decoded, page-locked if they are copied on."""
        return torch.empty(
            (len(requests), *requests[0].clip_shape),
            dtype=torch.uint8,
            device=self._decode_device,
            pin_memory=self._copy_device is not None,
        )

    def _batch(self, pixels: Tensor, clips: list[ClipFacts], requests: list[ClipRequest]) -> Batch:
        self._num_clips += len(clips)
        self._num_left += sum(clip.left_to_pyav for clip in clips)
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
            part=requests[0].part,
        )


def _copied_if_it_fits(
    copies: DeviceCopy, source: Tensor
) -> tuple[Tensor, torch.cuda.Event] | None:
    """A copy on the device; None without memory, which is the caller's to make.

    An iteration that raised it would be over.
    """
    try:
        return copies.copy(source)
    except torch.OutOfMemoryError:
        return None
