"""From frame numbers to decoded frames, with as little decoding as possible.

An open container and ascending frame numbers go in; ``av.VideoFrame``s come out. Frame number k is
the frame on display at k / frame_rate seconds: the last that begins no later than half a frame
after that time, since clocks are rounded. At a constant frame rate every frame has a number of its
own; at a variable one a long frame serves several numbers and a short one may serve none.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import dropwhile
from typing import Any

from vcycle.data.decode.clock import StreamClock

# FFmpeg's own decoders, which obey a new ``skip_frame`` from the next packet on.
_SKIPPING = frozenset(("h264", "hevc", "mpeg1video", "mpeg2video", "mpeg4", "vp8", "vp9"))


class MissedFrame(Exception):  # noqa: N818  what happened, not a mistake
    """A seek or a jump landed past a wanted frame; only decoding from the start finds it."""


class PastDeadline(Exception):  # noqa: N818  what happened, not a mistake
    """The time for a decode is over."""


def wanted_frames(
    container: Any,
    stream: Any,
    clock: StreamClock,
    numbers: Sequence[int],
    *,
    skip: bool,
    back_seconds: float = 0.0,
    deadline: float = math.inf,
) -> Iterator[tuple[Any, int]]:
    """The frames of ascending ``numbers``, each with how many of the numbers it serves.

    ``skip`` seeks, to ``back_seconds`` before the first number, jumps from key frame to key frame
    and decodes only what is needed; otherwise everything is decoded from the start. The last frame
    that decodes serves all numbers past the end; nothing is yielded if no frame decodes.

    Raises MissedFrame, possibly after some frames, if ``skip`` went past a wanted frame, and
    PastDeadline at ``deadline`` of ``time.monotonic()``.
    """
    # Seek to the key frame before the first number.
    skip = skip and not clock.counted
    seek = skip and numbers[0] > 0
    if seek:
        # Seeking goes by decoding time, which runs ahead of display by the reordering.
        ahead = math.ceil((1 + stream.codec_context.reorder_depth) * clock.tick)
        ahead += int(back_seconds / stream.time_base)
        container.seek(max(clock.until(numbers[0]) - ahead, clock.start), stream=stream)

    packets = _before(deadline, intact_packets(container, stream))
    if seek:  # which may land between key frames, on pictures without what they refer to
        packets = dropwhile(lambda packet: not packet.is_keyframe, packets)
    if skip:
        frames = _decode_needed(stream, packets, clock, numbers, sought=seek)
    else:
        frames = _decode_all(stream, packets)
    done = 0  # numbers that have their frame
    shown = begins = None  # the frame on display, and when the newest frame begins
    for position, frame in enumerate(frames):
        # When does this frame begin?
        if frame.pts is not None and not clock.counted:
            begins = frame.pts
        elif position < len(clock.times):
            begins = clock.times[position]
        elif begins is not None:
            begins += clock.tick
        elif not seek:
            begins = clock.start
        if begins is None or (seek and shown is None and begins > clock.until(numbers[0])):
            raise MissedFrame

        # The frame before it serves all numbers until then.
        ended = bisect_left(numbers, begins, lo=done, key=clock.until)
        if ended > done:
            yield (frame if shown is None else shown), ended - done
        done = ended
        if done == len(numbers):
            return
        shown = frame

    # Past the end, the last frame repeats.
    if shown is not None:
        yield shown, len(numbers) - done
    elif skip:
        raise MissedFrame


def intact_packets(container: Any, stream: Any) -> Iterator[Any]:
    """The packets of a stream, without one that the end of a truncated file cuts off."""
    drop_corrupt = container.format.name != "mpegts"  # there they are damaged in transmission
    try:
        for packet in container.demux(stream):
            # An empty packet would end the decoding.
            if packet.size and not (packet.is_corrupt and drop_corrupt):
                yield packet
    except IndexError:  # of PyAV, once all are read, if another stream has begun in the middle
        return


def _before(deadline: float, packets: Iterator[Any]) -> Iterator[Any]:
    for packet in packets:
        if time.monotonic() > deadline:
            raise PastDeadline
        yield packet


def _decode_all(stream: Any, packets: Iterator[Any]) -> Iterator[Any]:
    for packet in packets:
        yield from stream.codec_context.decode(packet)
    yield from stream.codec_context.decode(None)


def _decode_needed(
    stream: Any,
    packets: Iterator[Any],
    clock: StreamClock,
    numbers: Sequence[int],
    *,
    sought: bool,
) -> Iterator[Any]:
    """Frames in display order: at least those of ``numbers``, and those they refer to.

    Packets wait until all that may hold the next wanted frame are here. If a key frame comes before
    that, no earlier packet holds it, and they are dropped: a jump. After one, and where a seek
    landed (``sought``), the decoder has to begin with the frame of the first packet: if it does
    not, that was only a point to start recovering from, and what follows may be damaged.
    """
    context = stream.codec_context
    depth = context.reorder_depth
    waiting: list[Any] = []
    wanted = 0  # index of the first number whose frame has not been sent to the decoder
    until = clock.until(numbers[wanted])
    landing: int | None = None  # after a jump: the latest time at which the next frame may begin
    sent = False  # whether packets were, since then

    def landed(frames: Iterable[Any]) -> Iterator[Any]:
        nonlocal landing
        for frame in frames:
            if landing is not None and frame.pts is not None:
                if frame.pts > landing:
                    raise MissedFrame
                landing = None
            yield frame

    for packet in packets:
        if sought:
            landing, sought = packet.pts, False

        # An edit list cut this packet out of the middle; seeking knows nothing of those.
        if packet.is_discard and packet.pts is not None and packet.pts >= clock.start:
            raise MissedFrame

        # Jump: drop what waits if the next wanted frame is this key frame or a later one.
        if waiting and _can_jump_to(packet, waiting, until):
            yield from landed(context.decode(None))
            context.flush_buffers()
            waiting.clear()
            if landing is not None and sent:
                raise MissedFrame  # nothing came of the jump before
            landing, sent = packet.pts, False

        # Nothing from this packet on is displayed before its decoding time. Some containers do not
        # store it; then nothing is displayed before the first of as many packets as are reordered.
        now = packet.dts
        if now is None and packet.pts is not None:
            if len(waiting) < depth:
                waiting.append(packet)
                continue
            recent = (*waiting[len(waiting) - depth :], packet)
            now = min(each.pts for each in recent if each.pts is not None)

        # All packets that may hold the wanted frame are here: decode them, go on to the next.
        if now is None or now > until:
            sent = sent or bool(waiting)
            yield from landed(_decode_waiting(context, waiting, packet, clock, numbers))
            waiting.clear()
            if now is not None:
                wanted = bisect_left(numbers, now, lo=wanted, key=clock.until)
                if wanted == len(numbers):
                    break
                until = clock.until(numbers[wanted])
        waiting.append(packet)
    else:
        yield from landed(_decode_waiting(context, waiting, None, clock, numbers))

    # Flush the decoder.
    yield from landed(context.decode(None))
    if landing is not None:
        raise MissedFrame


def _can_jump_to(packet: Any, waiting: list[Any], until: int) -> bool:
    """Whether the next wanted frame is that of this key frame, or a later one."""
    if not packet.is_keyframe or packet.pts is None or packet.pts > until:
        return False
    return all(earlier.pts is not None and earlier.pts < packet.pts for earlier in waiting)


def _decode_waiting(
    context: Any, waiting: list[Any], following: Any, clock: StreamClock, numbers: Sequence[int]
) -> Iterator[Any]:
    """Decode packets; the decoder may skip those that neither we nor other frames need."""
    known = sorted(p.pts for p in (*waiting, following) if p is not None and p.pts is not None)
    for packet in waiting:
        needed = True
        if packet.pts is not None and context.name in _SKIPPING:
            index = bisect_left(numbers, packet.pts, key=clock.until)
            later = bisect_right(known, packet.pts)  # the next that may be on display instead
            needed = index < len(numbers) and (
                later == len(known) or known[later] > clock.until(numbers[index])
            )
        context.skip_frame = "DEFAULT" if needed else "NONREF"
        yield from context.decode(packet)
