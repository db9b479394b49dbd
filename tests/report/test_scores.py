"""Scores of videos: what is confused, what the worst mistakes are, files that are none."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from vcycle.cli.main import main
from vcycle.data.manifest import Manifest
from vcycle.data.metadata import Video
from vcycle.evaluate.metric_names import distinct
from vcycle.evaluate.metrics import VideoScores
from vcycle.evaluate.scores_file import write_scores
from vcycle.report.scores import Scores, confusion, read_scores, worst_mistakes

CLASSES = ("a", "b;c", "d")
FACTS = {"num_frames": 1, "frame_rate": 1.0, "duration_seconds": 1.0, "width": 8, "height": 8}
FACTS |= {"codec": "h264", "rotation": 0, "key_interval": 1}


def write(file: Path, *lines: str, head: str = "path,labels,views,a,b;c,d") -> Path:
    file.write_text("".join(f"{line}\n" for line in (head, *lines)))
    return file


def test_the_scores_of_a_run_are_those_of_eval(
    trained_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run leaves the file that ``vcycle eval --scores`` writes, and they count alike."""
    file = tmp_path / "scores.csv"
    assert main(["eval", str(trained_run), "--scores", str(file), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (trained_run / "scores.csv").read_bytes() == file.read_bytes()
    classes = json.loads((trained_run / "dataset.json").read_text())["validation"]["classes"]
    scores = read_scores(file, classes, multi_label=False)
    assert confusion(scores).tolist() == result["confusion"]
    mistakes = worst_mistakes(scores, 1000, multi_label=False)
    assert len(mistakes) == round((1 - result["top1"]) * result["videos"]) > 0
    shares = [mistake.probability for mistake in mistakes]
    assert shares == sorted(shares, reverse=True)


def test_a_class_may_be_named_with_what_separates_several(tmp_path: Path) -> None:
    file = write(tmp_path / "scores.csv", "x.mp4,b;c,10,0.7,0.2,0.1")
    scores = read_scores(file, CLASSES, multi_label=False)
    assert scores.labels == ((1,),)
    (mistake,) = worst_mistakes(scores, 12, multi_label=False)
    assert (mistake.predicted, mistake.probability, mistake.label_probability) == (0, 0.7, 0.2)


def test_classes_of_several_labels_may_be_named_so_too(tmp_path: Path) -> None:
    names = ("a; b", 'say "c"', "d")
    labels = ((0, 2, 0), (1,), ())  # Charades lists an action as often as it happens
    videos = tuple(
        Video(path=f"{k}.mp4", labels=each, split="val", **FACTS) for k, each in enumerate(labels)
    )
    collected = VideoScores(num_videos=3, num_classes=3, multi_label=True)
    collected.add(torch.arange(3), torch.zeros(3, 3), torch.zeros(3, 3))
    write_scores(tmp_path / "scores.csv", collected, Manifest(tmp_path, names, videos))
    read = read_scores(tmp_path / "scores.csv", names, multi_label=True)
    assert read.labels == ((0, 2), (1,), ())


def test_what_a_file_is_argmax_of_is_what_the_validation_was(tmp_path: Path) -> None:
    """Of three views, though the second class leads by the last bits of a float32."""
    collected = VideoScores(num_videos=1, num_classes=2, multi_label=False)
    collected.add(torch.zeros(3, dtype=torch.int64), torch.zeros(3, 2), torch.ones(3))
    collected.scores[0, 1] = torch.nextafter(collected.scores[0, 1], torch.tensor(2.0))
    video = Video(path="a.mp4", labels=(1,), split="val", **FACTS)
    write_scores(tmp_path / "scores.csv", collected, Manifest(tmp_path, ("a", "b"), (video,)))
    read = read_scores(tmp_path / "scores.csv", ("a", "b"), multi_label=False)
    assert collected.compute()["top1"] == 1
    assert confusion(read).tolist() == [[0, 0], [0, 1]]


def test_of_several_labels_a_mistake_is_more_probable_than_one_that_holds() -> None:
    scores = Scores(
        ("right.mp4", "wrong.mp4", "none.mp4"),
        ((0, 1), (0, 1), ()),
        np.array([[0.9, 0.8, 0.7], [0.9, 0.3, 0.6], [0.1, 0.2, 0.4]]),
    )
    found = worst_mistakes(scores, 12, multi_label=True)
    assert [(m.path, m.predicted, m.probability) for m in found] == [
        ("wrong.mp4", 2, 0.6),
        ("none.mp4", 2, 0.4),
    ]
    assert [m.label_probability for m in found] == [0.9, 0.0]


@pytest.mark.parametrize("multi_label", [True, False])
def test_two_classes_of_one_name_are_two(tmp_path: Path, multi_label: bool) -> None:
    names = ("crane", "owl", "crane")
    videos = tuple(
        Video(path=f"{k}.mp4", labels=(k,), split="val", **FACTS) for k in range(len(names))
    )
    collected = VideoScores(num_videos=3, num_classes=3, multi_label=multi_label)
    scores = 8 * torch.eye(3)
    collected.add(torch.arange(3), scores, scores > 0 if multi_label else torch.arange(3))
    write_scores(tmp_path / "scores.csv", collected, Manifest(tmp_path, names, videos))
    read = read_scores(tmp_path / "scores.csv", distinct(names), multi_label=multi_label)
    assert read.labels == ((0,), (1,), (2,))
    assert not worst_mistakes(read, 12, multi_label=multi_label)
    assert confusion(read).tolist() == np.eye(3).tolist()


@pytest.mark.parametrize("multi_label", [True, False])
def test_videos_with_scores_that_are_not_finite_are_mistakes_and_taken_for_no_class(
    tmp_path: Path, multi_label: bool
) -> None:
    lines = ("x.mp4,a,10,nan,nan,nan", "y.mp4,d,10,0.1,0.7,0.2", "z.mp4,d,10,0,0,1")
    file = write(tmp_path / "scores.csv", *lines)
    scores = read_scores(file, CLASSES, multi_label=multi_label)
    mistakes = worst_mistakes(scores, 12, multi_label=multi_label)
    found = [(m.path, m.predicted, m.probability) for m in mistakes]
    assert found == [("y.mp4", 1, 0.7), ("x.mp4", None, 0.0)]
    if not multi_label:
        assert confusion(scores).tolist() == [[0, 0, 0], [0, 0, 0], [0, 1, 1]]


@pytest.mark.parametrize(
    ("head", "line", "message"),
    [
        ("path,labels,views,a,b", "x.mp4,a,1,1,0", "of other classes than the run"),
        ("path,labels,views,a,b;c,d", "x.mp4,e,1,1,0,0", "cannot be read"),
        ("path,labels,views,a,b;c,d", "x.mp4,a,1,1,0", "cannot be read"),
        ("path,labels,views,a,b;c,d", "x.mp4,a,1,1,0,zero", "cannot be read"),
        ("path,labels,views,a,b;c,d", "x.mp4", "cannot be read"),
        ("", "", "of other classes than the run"),
    ],
)
def test_a_file_that_is_none_is_named(tmp_path: Path, head: str, line: str, message: str) -> None:
    file = write(tmp_path / "scores.csv", line, head=head)
    with pytest.raises(ValueError, match=message) as error:
        read_scores(file, CLASSES, multi_label=False)
    assert str(file) in str(error.value)
