"""The journal: what was done is read again, a row at a time."""

from __future__ import annotations

import tracemalloc

import pytest

from vcycle.datasets.journal import Journal


def test_rows_are_read_again_but_for_a_line_that_was_cut_short(tmp_path):
    file = tmp_path / "journal.jsonl"
    file.write_text('{"a": 1}\n[2]\n{"a": 3}\n{"a": ')
    with Journal(file) as journal:
        assert list(journal.rows()) == [{"a": 1}, {"a": 3}]
        journal.add({"a": 4})
        assert list(journal.rows()) == [{"a": 1}, {"a": 3}, {"a": 4}]
    with Journal(file) as journal:
        assert list(journal.rows()) == [{"a": 1}, {"a": 3}, {"a": 4}]


def test_rows_are_not_kept(tmp_path):
    file = tmp_path / "journal.jsonl"
    file.write_text("".join(f'{{"path": "{k}", "info": {{"a": {k}}}}}\n' for k in range(10_000)))
    tracemalloc.start()
    with Journal(file) as journal:
        assert sum(1 for _ in journal.rows()) == 10_000
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 300_000  # bytes; a list of them has more than ten times that


def test_a_link_is_not_written_through(tmp_path):
    theirs = tmp_path / "thesis.tex"
    theirs.write_text("precious")
    (tmp_path / "journal.jsonl").symlink_to(theirs)
    with pytest.raises(ValueError, match=r"journal\.jsonl: it is no file of its own"):
        Journal(tmp_path / "journal.jsonl").__enter__()
    assert theirs.read_text() == "precious"


def test_rows_that_no_number_or_stack_can_hold_are_left_out(tmp_path):
    file = tmp_path / "journal.jsonl"
    file.write_text(f'{"[" * 100_000}\n{{"a": {"9" * 5000}}}\n{{"a": 3}}\n')
    with Journal(file) as journal:
        assert list(journal.rows()) == [{"a": 3}]
