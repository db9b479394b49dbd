"""Groups that fit a batch and its parts, and those that do not."""

from __future__ import annotations

import pytest

from vcycle.schedule.norm_groups import check_norm_group


@pytest.mark.parametrize(
    ("group", "batch", "parts", "fits"),
    [
        (8, 64, 1, True),
        (8, 64, 8, True),
        (16, 32, 4, True),
        (32, 32, 4, True),
        (8, 20, 1, False),
        (8, 24, 2, False),
        (0, 8, 1, False),
        (12, 48, 6, False),
    ],
)
def test_groups_are_checked_before_the_first_step(
    group: int, batch: int, parts: int, fits: bool
) -> None:
    if fits:
        check_norm_group(group, batch_clips=batch, num_parts=parts)
        return
    with pytest.raises(ValueError, match=f"norm_group {group}: it does not"):
        check_norm_group(group, batch_clips=batch, num_parts=parts)
