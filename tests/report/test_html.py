"""The report of runs: one file that asks for nothing else, whatever the runs' texts are."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.report.chromium import CHROMIUM, Page, screenshot, visit
from vcycle.cli.main import main
from vcycle.report.run_section import _confusion
from vcycle.report.runs import read_run
from vcycle.report.scores import Scores

HOSTILE = "</script><img src=x onerror=alert(1)>"
LINK = '<a href="https://example.org">x</a>'


@pytest.fixture(scope="module")
def folders(trained_run: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two runs whose names and classes are HTML."""
    folder = tmp_path_factory.mktemp("hostile")
    runs = [folder / "<img src=x onerror=alert(1)>", folder / "a &amp; \"b' $x_{$"]
    for run in runs:
        shutil.copytree(trained_run, run)
        dataset = json.loads((run / "dataset.json").read_text())
        classes = dataset["validation"]["classes"]
        text = (run / "scores.csv").read_text()
        for number, name in enumerate((HOSTILE, LINK)):
            text = text.replace(classes[number], name.replace('"', '""').join('""'))
            classes[number] = name
        (run / "scores.csv").write_text(text)
        (run / "dataset.json").write_text(json.dumps(dataset))
    return runs


@pytest.fixture(scope="module")
def report(folders: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report") / "report.html"
    assert main(["report", *map(str, folders), "--out", str(out)]) == 0
    return out


def test_it_holds_every_validation_as_table_and_json(report: Path, folders: list[Path]) -> None:
    text = report.read_text()
    points = read_run(folders[0]).points
    data = re.search(r'<script type="application/json" id="runs">(.*?)</script>', text, re.DOTALL)
    assert data is not None
    values = json.loads(data[1])[0]
    assert [each["accuracy"] for each in values["points"]] == [point.accuracy for point in points]
    assert values["plan"][-1]["last_step"] + 1 == len(read_run(folders[0]).steps)
    for point in points:
        assert f"<td>{point.accuracy:.2%}</td><td>{point.seconds:,.1f}</td>" in text


def test_text_of_runs_is_text(report: Path) -> None:
    page = Page(report.read_text())
    assert not any("onerror" in attributes for _, attributes in page.elements)
    assert [tag for tag, _ in page.elements].count("script") == 1 + 2 + len(page.with_class("plot"))
    links = [attributes["href"] for tag, attributes in page.elements if tag == "a"]
    assert links
    assert all(link and link.startswith("#") for link in links)


def test_nothing_leaves_the_page_and_every_picture_is_named(report: Path) -> None:
    page = Page(report.read_text())
    for tag, attributes in page.elements:
        for name in ("src", "href", "xlink:href"):
            link = attributes.get(name) or ""
            assert link.startswith(("#", "data:image/")) or not link, (tag, link[:80])
    policies = [a["content"] for _, a in page.elements if a.get("http-equiv")]
    assert len(policies) == 1
    assert policies[0] is not None
    assert policies[0].startswith("default-src 'none'; script-src 'sha256-")
    for tag, attributes in page.elements:
        if attributes.get("role") in ("img", "region"):
            assert attributes.get("aria-label"), tag
        if tag == "th":
            assert attributes.get("scope") in ("row", "col")
        if tag == "img":
            assert attributes.get("alt") == ""
    tags = [tag for tag, _ in page.elements]
    assert tags.count("table") == tags.count("caption") > 0
    assert tags.count("h1") == tags.count("main") == 1


def test_each_chart_is_followed_by_its_table(report: Path) -> None:
    """Accuracy over four costs; loss and rate; of both runs speed, waiting and confusion."""
    text = report.read_text()
    assert len(Page(text).with_class("plot")) == 4 + 2 + 2 * 3
    assert len(Page(text).with_class("drawing")) == 2
    assert text.count("<summary>The same as a table") == 1 + 2 * 3
    assert text.count("The table that follows has its values.") == 4 + 2 * 3
    assert text.count("<summary>The end of every phase as a table") == 1
    assert text.count("The table that follows has its values at the end of every phase.") == 2


def test_a_matrix_of_many_classes_is_followed_by_those_that_are_confused_most() -> None:
    classes = [f"class {k}" for k in range(31)]
    shares = np.eye(31)[[1, 1]]
    for count, said in ((31, "the classes that are confused most"), (30, "its values")):
        scores = Scores(("a.mp4", "b.mp4"), ((0,), (1,)), shares[:, :count])
        text = _confusion(scores, classes[:count], name="x")
        assert f"The table that follows has {said}." in text
        assert ("The most frequent as a table" in text) == (count == 31)


def test_the_grids_are_shown_at_every_shape_of_the_plan(report: Path, folders: list[Path]) -> None:
    shapes = {row["shape"] for row in read_run(folders[0]).steps}
    text = report.read_text()
    assert len(Page(text).with_class("clip")) == len(shapes)
    for shape in shapes:
        _, height, width = shape.split("x")
        assert f"<strong>{shape}</strong>" in text
        assert f"Clip of {shape}: frames " in text
        assert f"become {width} x {height}" in text


def test_the_shapes_of_validations_are_said_and_many_runs_are_counted(
    trained_run: Path, tmp_path: Path
) -> None:
    runs = [tmp_path / name for name in "abcdef"]
    for run in runs:
        shutil.copytree(trained_run, run)
    out = tmp_path / "report.html"
    assert main(["report", *map(str, runs[:2]), "--out", str(out)]) == 0
    dataset = json.loads((trained_run / "dataset.json").read_text())
    shape = dataset["validation"]["shape"]
    assert f"Every validation is at the run&#x27;s full shape: {shape}." in out.read_text()

    dataset["validation"]["shape"] = "4x16x16"
    (runs[1] / "dataset.json").write_text(json.dumps(dataset))
    assert main(["report", *map(str, runs), "--out", str(out)]) == 0
    text = out.read_text()
    assert f"full shape: {shape} in a, c, d, e, f; 4x16x16 in b." in text
    assert f"Note: validations differ: clips of {shape} in a, c, d, e, f; clips of" in text
    assert "<title>vcycle report: 6 runs</title>" in text


def test_scores_that_are_not_finite_are_said_and_are_no_class(
    trained_run: Path, tmp_path: Path
) -> None:
    run, out = shutil.copytree(trained_run, tmp_path / "run"), tmp_path / "report.html"
    head, line, *_ = (run / "scores.csv").read_text().splitlines()
    path, label, views, *shares = line.split(",")
    lost = ",".join([path, label, views, *["nan"] * len(shares)])
    (run / "scores.csv").write_text("\n".join([head, lost, ""]))
    assert main(["report", str(run), "--out", str(out)]) == 0
    text = out.read_text()
    assert "0 of 1 are right. Scores of 1 are not finite, and are left out." in text
    assert f"Its scores are not finite; it shows <strong>{label}</strong>." in text
    assert "nan%" not in text


def test_an_unfinished_run_is_reported_as_far_as_it_is(
    trained_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = tmp_path / "run", tmp_path / "report.html"
    shutil.copytree(trained_run, run)
    for name in ("result.json", "scores.csv", "starts.jsonl", "multiply_adds.json"):
        (run / name).unlink()
    config = (run / "config.yaml").read_text()
    config = re.sub("manifest: .*", f"manifest: {tmp_path / 'gone'}", config)
    (run / "config.yaml").write_text(config)
    steps = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(steps[:3]) + steps[3][:20])
    for name in ("validation.jsonl", "phases.jsonl"):
        (run / name).write_text("")
    assert main(["report", str(run), "--out", str(out)]) == 0
    text = out.read_text()
    for sentence in (
        "not complete",
        "No validation has been done yet.",
        "No phase is done yet.",
        "there are no scores of the videos yet",
        "The folder does not say how the run was started.",
        "Left out: the run&#x27;s videos cannot be reached",
    ):
        assert sentence in text
    assert len(Page(text).with_class("plot")) == 2  # loss and rate

    (run / "metrics.jsonl").write_text("")
    assert main(["report", str(run), "--out", str(out)]) == 2
    assert "no metrics yet; wait for its first steps" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "text", "names_file"),
    [
        ("phases.jsonl", "{}\n", False),
        ("phases.jsonl", '{"phase": 99, "wait_share": 0.0}\n', False),
        ("starts.jsonl", "{}\n", False),
        ("result.json", '{"final": {"intervals": {}}}', False),
        ("result.json", "[]", True),
        ("result.json", "{", True),
        ("bad_videos.json", "[1]", True),
        (
            "metrics.jsonl",
            '{"step": 0, "shape": "4x32x32", "token_share": 1, "batch_size": 8}\n',
            False,
        ),
        (
            "metrics.jsonl",
            '{"step": 0, "phase": 0, "shape": "4x32x32", "token_share": 1, "batch_size": 8, '
            '"learning_rate": 0.1, "seconds": 1, "loss": "large"}\n',
            False,
        ),
        ("dataset.json", '{"validation": {"multi_label": false, "videos_sha256": ""}}', False),
    ],
)
def test_files_that_no_run_wrote_are_one_line(
    trained_run: Path,
    name: str,
    text: str,
    names_file: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained_run, run)
    (run / name).write_text(text)
    assert main(["report", str(run), "--out", str(tmp_path / "x.html")]) == 2
    error = capsys.readouterr().err
    of_folder = f"run folder {run}: its files are not as vcycle train writes them"
    assert (of_folder in error) != names_file
    assert (f"{run / name}" in error and "; restore " in error) == names_file
    assert error.count("\n") == 1


@pytest.mark.parametrize("missing", ["metrics.jsonl", "dataset.json"])
def test_a_folder_that_is_no_run_is_one_line(
    trained_run: Path, missing: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained_run, run)
    (run / missing).unlink()
    assert main(["report", str(run), "--out", str(tmp_path / "x.html")]) == 2
    error = capsys.readouterr().err
    assert f"no {missing} in it" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "x.html").exists()


def test_a_run_is_given_once(
    trained_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = str(trained_run.parent / "." / ".." / trained_run.parent.name / trained_run.name)
    for command in (["report", "--out", str(tmp_path / "x")], ["compare"]):
        assert main([*command, str(trained_run), again]) == 2
        assert "given more than once" in capsys.readouterr().err


def test_scores_of_other_videos_are_not_shown_as_the_run_s(
    trained_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(trained_run, tmp_path / "run")
    file = run / "scores.csv"
    assert main(["eval", str(run), "--split", "train", "--scores", str(file)]) == 0
    assert main(["report", str(run), "--out", str(tmp_path / "report.html")]) == 0
    text = (tmp_path / "report.html").read_text()
    assert "scores.csv is of other videos than those that the run is validated on" in text
    assert "Worst mistakes" not in text


def test_runs_of_one_name_are_told_apart_by_their_folders(
    trained_run: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other" / trained_run.name
    shutil.copytree(trained_run, other)
    out = tmp_path / "report.html"
    assert main(["report", str(trained_run), str(other), "--out", str(out)]) == 0
    assert f'<h2 id="run-1">{other}</h2>' in out.read_text()


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium")
def test_in_chromium_every_chart_is_drawn_and_nothing_else_happens(
    report: Path, tmp_path: Path
) -> None:
    seen = visit(report, tmp_path)
    page = Page(seen.dom)
    plots = page.with_class("plot")
    assert len(plots) == 12
    assert all("js-plotly-plot" in (plot["class"] or "") for plot in plots)
    assert len(page.with_class("trace")) >= 2 * (4 + 2)  # a line a run on each of six charts
    assert len(page.with_class("hm")) == 2
    assert page.elements[0][1].get("data-drawn") == "12"
    assert seen.console == []
    assert seen.requests == []
    assert not any("onerror" in attributes for _, attributes in page.elements)
    assert not [a for _, a in page.elements if "example.org" in (a.get("href") or "")]
    assert re.search(r"<text[^>]*>&lt;a href", seen.dom)  # the name of a class, on an axis


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium")
def test_in_chromium_a_page_without_the_policy_would_be_caught(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text('<img src="http://127.0.0.1:9/x.png"><script>console.error("no")</script>')
    seen = visit(page, tmp_path)
    assert seen.requests == ["http://127.0.0.1:9/x.png"]
    assert any("no" in line for line in seen.console)


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium")
def test_in_chromium_it_is_dark_or_light_as_its_reader_is(report: Path, tmp_path: Path) -> None:
    corners = [
        Image.open(screenshot(report, tmp_path, dark=dark)).convert("RGB").getpixel((2, 2))
        for dark in (False, True)
    ]
    assert corners == [(0xFF, 0xFF, 0xFF), (0x14, 0x18, 0x1F)]
