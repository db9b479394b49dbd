"""Whether norm groups fit a batch that is cut into parts.

In: clips per norm group, clips of the batch, number of parts. Out: whether they fit, or one line
that says why not.
"""

from __future__ import annotations


def fits_parts(norm_group: int, *, batch_clips: int, num_parts: int) -> bool:
    """Whether groups divide a batch, and equal parts of it hold whole groups or lie in one each."""
    part = batch_clips / num_parts
    return batch_clips % norm_group == 0 and (part % norm_group == 0 or norm_group % part == 0)


def check_norm_group(norm_group: int, *, batch_clips: int, num_parts: int = 1) -> None:
    """Check before step 0 that norm groups of ``norm_group`` clips fit a global batch.

    The batch of ``batch_clips`` is cut into ``num_parts`` contiguous equal parts, one a process.
    The size of a part must be a multiple or a divisor of ``norm_group``. Successive micro-batches
    of a process cannot share a group: let ``batch_clips`` then be the clips of all processes at
    once.
    Raises ValueError if they do not fit.

    >>> check_norm_group(8, batch_clips=64, num_parts=4)  # two groups in each part
    >>> check_norm_group(8, batch_clips=64, num_parts=16)  # two parts to each group
    >>> check_norm_group(8, batch_clips=20)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: norm_group 8: it does not divide a batch of 20 clips; choose ...
    """
    if norm_group < 1 or batch_clips % norm_group:
        raise ValueError(
            f"norm_group {norm_group}: it does not divide a batch of {batch_clips} clips; "
            "choose a divisor of the batch size"
        )
    if not fits_parts(norm_group, batch_clips=batch_clips, num_parts=num_parts):
        raise ValueError(
            f"norm_group {norm_group}: it does not fit {num_parts} processes with "
            f"{batch_clips / num_parts:g} clips each; choose a number of processes that does not "
            f"split groups, or splits them evenly"
        )
