"""The plot of a comparison."""

from __future__ import annotations

import json
from pathlib import Path

from vcycle.report.curves import draw_curves


def test_each_run_is_a_labelled_line(tmp_path: Path) -> None:
    runs = {"baseline": tmp_path / "a", "multigrid": tmp_path / "b"}
    for folder, score in zip(runs.values(), (0.5, 0.875), strict=True):
        folder.mkdir()
        scores = (0.1, score + 0.1, score)  # the last validation counts, not the best
        rows = [{"step": k, "seconds": 10.0 * k, "top1": each} for k, each in enumerate(scores)]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / "validation.jsonl").write_text(text)
    draw_curves(runs, tmp_path / "curves.svg", title="Two runs")
    draw_curves(runs, tmp_path / "again.svg", title="Two runs")
    text = (tmp_path / "curves.svg").read_text()
    for words in ("Two runs", "multigrid: 87.5%", "baseline: 50.0%", "seconds of training"):
        assert f"<!-- {words} -->" in text
    assert (tmp_path / "again.svg").read_text() == text
