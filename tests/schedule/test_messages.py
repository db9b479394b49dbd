"""Messages are one short line each."""

from __future__ import annotations

from vcycle.schedule.messages import counted, duration, one_line, quoted, shortened


def test_an_error_is_one_short_line():
    assert one_line(MemoryError()) == "not enough memory"
    assert one_line(OSError(28, "No space left on device")) == "No space left on device"
    assert one_line(ValueError("two\n  lines")) == "two lines"
    assert one_line(KeyError("x" * 500)).startswith("KeyError: 'xxx")
    assert len(one_line(KeyError("x" * 500))) == 200


def test_counts_texts_and_what_errors_say():
    assert [counted(n, "video") for n in (0, 1, 1200)] == ["0 videos", "1 video", "1,200 videos"]
    assert counted(2, "class") == "2 classes"
    assert quoted("x" * 100) == repr("x" * 60)
    assert shortened(ValueError("two\n  lines"), 5) == "two l"


def test_durations_read_well():
    texts = [duration(x) for x in (0.4, 59.4, 61, 3599, 3600, 27000, 216_000)]
    assert texts == ["0 s", "59 s", "1:01 min", "59:59 min", "1:00 h", "7:30 h", "2.5 days"]
