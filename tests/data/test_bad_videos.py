"""How many bad videos a run accepts, and what it says about them."""

from __future__ import annotations

import pytest

from vcycle.data.bad_videos import BadVideo, BadVideos, TooManyBadVideos


def bad(*numbers):
    return [BadVideo(f"{number}.mp4", "not found") for number in numbers]


def test_one_is_always_accepted_and_each_counts_once():
    videos = BadVideos(num_videos=10, max_share=0.0)
    videos.add(bad(3))
    videos.add(bad(3, 3))
    assert videos.reasons == {"3.mp4": "not found"}
    with pytest.raises(TooManyBadVideos) as caught:
        videos.add(bad(5))
    assert str(caught.value) == (
        "2 of 10 videos cannot be read, more than the accepted 0.0%; fix them, or accept "
        "more with --data.max_bad_share:\n  3.mp4: not found\n  5.mp4: not found"
    )


def test_the_first_of_many_are_listed():
    with pytest.raises(TooManyBadVideos) as caught:
        BadVideos(num_videos=1000, max_share=0.01).add(bad(*range(500)))
    lines = str(caught.value).splitlines()
    assert len(lines) == 12
    assert lines[-2:] == ["  9.mp4: not found", "  and 490 more"]


def test_as_many_as_the_share_are_accepted():
    videos = BadVideos(num_videos=40, max_share=0.05)
    videos.add(bad(0, 1))
    with pytest.raises(TooManyBadVideos, match=r"3 of 40 videos .* the accepted 5\.0%"):
        videos.add(bad(2))
