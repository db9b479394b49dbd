"""Tables that people write: what is read, and the line, mistake and fix of what is wrong."""

from __future__ import annotations

import re

import pytest

from vcycle.data.tables import (
    check_line,
    parse_items,
    parse_lines,
    parse_number,
    parse_table,
    parse_whole_number,
    without_control,
)


def test_rows_and_lines_are_read_whatever_ends_them(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbfname,count\r\nx,1\r\n\r\n'y,2\r\n")
    rows = parse_table(tmp_path / "a.csv", ("count",), lambda row: dict(row), fix="fix it")
    assert rows == [{"name": "x", "count": "1"}, {"name": "'y", "count": "2"}]
    (tmp_path / "a.txt").write_text("one\n\ntwo\u2028still two\n")
    assert parse_lines(tmp_path / "a.txt", str.upper, fix="fix it") == ["ONE", "TWO\u2028STILL TWO"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("name,count,count\nx,1,2\n", "a.csv line 1: 2 columns are count; leave one; fix it"),
        ("name\nx\n", "a.csv line 1: no column count; fix it"),
        ("name,count\nx,1\ny\n", "a.csv line 3: has 1 values for 2 columns; fix it"),
        ("name,count\nx,one\n", "line 2: count 'one' is not a whole number of at least 0; fix it"),
    ],
)
def test_what_is_wrong_is_named_with_its_line_and_fix(tmp_path, content, message):
    (tmp_path / "a.csv").write_text(content)
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_table(
            tmp_path / "a.csv",
            ("count",),
            lambda row: parse_whole_number(row["count"], "count"),
            fix="fix it",
        )


def test_json_that_is_no_list_of_objects_is_named(tmp_path):
    file = tmp_path / "a.json"
    for content, message in (
        ("{}", "a.json: is not a list of videos; fix it"),
        ("[1]", "a.json item 1: is not an object that describes a video; fix it"),
        ("[\n1,\n}", "a.json line 3: is not JSON"),
        ("[" * 100_000, "a.json: is not JSON of plain values"),
        ("9" * 5000, "a.json: is not JSON of plain values"),
    ):
        file.write_text(content)
        with pytest.raises(ValueError, match=re.escape(message)):
            parse_items(file, dict, fix="fix it")


@pytest.mark.parametrize("text", ["-1", "nan", "inf", "one", ""])
def test_numbers_are_finite_and_not_negative(text):
    assert parse_number(" 1.5", "x") == 1.5
    with pytest.raises(ValueError, match=f"x '{text}' is not a number from 0 to 2147483648"):
        parse_number(text, "x")
    with pytest.raises(ValueError, match=f"x '{text}' is not a whole number of at least 0"):
        parse_whole_number(text, "x")


def test_no_video_has_so_many_seconds():
    with pytest.raises(ValueError, match="end '1e308' is not a number from 0 to 2147483648"):
        parse_number("1e308", "end")


@pytest.mark.parametrize("control", ["\x1b", "\x9b", "\u202e", "\u202d", "\n"])
def test_names_that_steer_a_terminal_are_refused(control):
    name = f"run{control}31m"
    with pytest.raises(ValueError, match=r"class .* has a line break or another control character"):
        check_line(name, "class")
    assert control not in without_control(name)


@pytest.mark.parametrize(
    "name",
    ["پرتاب می\u200cکند", "קפיצה\u200f", "走る", "наклон", "สวัสดี", "👩\u200d🚀 é", "\u2068b\u2069"],
)
def test_names_in_any_script_are_kept(name):
    check_line(name, "class")
    assert without_control(name) == name
