"""From wanted frames to decoded pictures, with as little decoding as can be.

Frame k is the picture shown at k / frame_rate seconds: the last that begins no later than half a
frame after that time, since clocks are rounded. A constant frame rate gives each picture its own
frame; with a variable one a picture that stays longer serves several, and a short one none.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

# FFmpeg's own decoders, which take up a new ``skip_frame`` with the next packet.
_SKIPPING = frozenset(("h264", "hevc", "mpeg1video", "mpeg2video", "mpeg4", "vp8", "vp9"))


class Missed(Exception):  # noqa: N818  what happened, not a mistake
    """A seek or a jump landed behind a wanted picture: only a plain decode finds it."""


@dataclass(frozen=True)
class Clock:
    """A stream's clock: the time ``start`` of its first picture, and ``tick`` units per frame.

    Where the container's times of display are missing or wrong, pictures are ``counted`` from the
    first on; then nothing can be skipped.
    """

    start: int
    tick: Fraction
    counted: bool = False

    def until(self, frame: int) -> int:
        """The latest time at which the picture of a frame may begin."""
        over, under = self.tick.as_integer_ratio()  # whole numbers: this is asked for every packet
        return self.start + (2 * frame + 1) * over // (2 * under)


def wanted_pictures(
    container: Any,
    stream: Any,
    clock: Clock,
    frames: Sequence[int],
    *,
    sparing: bool,
    deadline: float = math.inf,
) -> Iterator[tuple[Any, int]]:
    """The pictures of the frames, which ascend, each with how many frames it serves.

    ``sparing`` seeks, jumps from key frame to key frame and skips what is not needed; otherwise
    all is decoded from the beginning. The last picture serves all frames past the end; nothing
    comes if no picture decodes. Raises Missed, also between pictures, when it was too sparing, and
    TimeoutError at ``deadline`` of time.monotonic().
    """
    sparing = sparing and not clock.counted
    seek = sparing and frames[0] > 0
    if seek:
        # Seeking goes by decoding time, which runs ahead of display by the reordering.
        ahead = math.ceil((1 + stream.codec_context.reorder_depth) * clock.tick)
        container.seek(max(clock.until(frames[0]) - ahead, clock.start), stream=stream)
    packets = _until(deadline, whole_packets(container, stream))
    if sparing:
        pictures = _sparingly_decoded(stream, packets, clock, frames)
    else:
        pictures = _all_decoded(stream, packets)
    done = 0
    shown = begins = None
    for picture in pictures:
        if picture.pts is not None and not clock.counted:
            begins = picture.pts
        elif begins is not None:
            begins += clock.tick
        elif not seek:
            begins = clock.start
        if begins is None or (seek and shown is None and begins > clock.until(frames[0])):
            raise Missed
        ended = bisect_left(frames, begins, lo=done, key=clock.until)
        if ended > done:
            yield shown or picture, ended - done
        done = ended
        if done == len(frames):
            return
        shown = picture
    if shown is not None:
        yield shown, len(frames) - done
    elif sparing:
        raise Missed


def whole_packets(container: Any, stream: Any) -> Iterator[Any]:
    """The packets of a stream; without one that the end of a file that was cut off cuts off."""
    broken_ones_end_it = container.format.name != "mpegts"  # there they are damaged on the way
    for packet in container.demux(stream):
        # An empty packet would end the decoding.
        if packet.size and not (packet.is_corrupt and broken_ones_end_it):
            yield packet


def _until(deadline: float, packets: Iterator[Any]) -> Iterator[Any]:
    for packet in packets:
        if time.monotonic() > deadline:
            raise TimeoutError("decoding took longer than the limit")
        yield packet


def _all_decoded(stream: Any, packets: Iterator[Any]) -> Iterator[Any]:
    for packet in packets:
        yield from stream.codec_context.decode(packet)
    yield from stream.codec_context.decode(None)


def _sparingly_decoded(
    stream: Any, packets: Iterator[Any], clock: Clock, frames: Sequence[int]
) -> Iterator[Any]:
    """Pictures in display order; at least those of the frames and what they refer to.

    Packets wait until one shows that all which may hold the next wanted picture are here. If a key
    frame comes before that, no earlier one holds it, and they are dropped: a jump.
    """
    context = stream.codec_context
    depth = context.reorder_depth
    waiting: list[Any] = []
    wanted = 0  # the first frame whose picture has not been sent to the decoder
    until = clock.until(frames[wanted])
    landing: int | None = None  # after a jump: no later than this the next picture has to begin

    def landed(pictures: Iterable[Any]) -> Iterator[Any]:
        nonlocal landing
        for picture in pictures:
            if landing is not None and picture.pts is not None:
                if picture.pts > landing:
                    raise Missed  # the key frame was one to begin recovering from
                landing = None
            yield picture

    for packet in packets:
        if packet.is_discard and packet.pts is not None and packet.pts >= clock.start:
            raise Missed  # cut out of the middle by an edit list, which seeking knows nothing of
        if waiting and _begins_anew(packet, waiting, until):
            yield from landed(context.decode(None))
            context.flush_buffers()
            waiting.clear()
            landing = until
        # From a packet on, nothing is shown before its decoding time. Some containers do not tell
        # it; then nothing is shown before the first of as many packets as are reordered.
        now = packet.dts
        if now is None and packet.pts is not None:
            if len(waiting) < depth:
                waiting.append(packet)
                continue
            recent = (*waiting[len(waiting) - depth :], packet)
            now = min(each.pts for each in recent if each.pts is not None)
        if now is None or now > until:
            yield from landed(_send(context, waiting, packet, clock, frames))
            waiting.clear()
            if now is not None:
                wanted = bisect_left(frames, now, lo=wanted, key=clock.until)
                if wanted == len(frames):
                    break
                until = clock.until(frames[wanted])
        waiting.append(packet)
    else:
        yield from landed(_send(context, waiting, None, clock, frames))
    yield from landed(context.decode(None))
    if landing is not None:
        raise Missed


def _begins_anew(packet: Any, waiting: list[Any], until: int) -> bool:
    """Whether the next wanted picture is that of a key frame, or after it."""
    if not packet.is_keyframe or packet.pts is None or packet.pts > until:
        return False
    return all(earlier.pts is not None and earlier.pts < packet.pts for earlier in waiting)


def _send(
    context: Any, waiting: list[Any], following: Any, clock: Clock, frames: Sequence[int]
) -> Iterator[Any]:
    """Decode packets, letting the decoder skip those that neither we nor other pictures need."""
    known = sorted(p.pts for p in (*waiting, following) if p is not None and p.pts is not None)
    for packet in waiting:
        needed = True
        if packet.pts is not None and context.name in _SKIPPING:
            frame = bisect_left(frames, packet.pts, key=clock.until)
            later = bisect_right(known, packet.pts)  # the next that may be shown instead
            needed = frame < len(frames) and (
                later == len(known) or known[later] > clock.until(frames[frame])
            )
        context.skip_frame = "DEFAULT" if needed else "NONREF"
        yield from context.decode(packet)
