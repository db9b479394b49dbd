"""The evaluation that ends a run, named in its result and in its plan."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vcycle.cli.main import main
from vcycle.config.paper_recipes import PAPER_RECIPES
from vcycle.config.recipes import recipe
from vcycle.config.run import Evaluation, RunConfig
from vcycle.data.loader import Loader
from vcycle.devices.agreement import Votes
from vcycle.report.html import write_report
from vcycle.schedule.baseline import LearningRate
from vcycle.schedule.multigrid import Multigrid
from vcycle.train.progress import Display
from vcycle.train.run import train


def test_a_run_ends_with_the_protocol_of_its_recipe(
    config: RunConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluation = Evaluation(times=1, batch_size=6, final_clips=3)
    result = train(replace(config, evaluation=evaluation), tmp_path / "run")
    final = result["final"]
    assert final["protocol"] == "3 clips uniformly in time, centre crop, 8x32x32"
    assert (final["num_clips"], final["num_crops"], final["shape"]) == (3, 1, "8x32x32")
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == result
    assert "final evaluation: 3 clips uniformly in time" in capsys.readouterr().out
    # It is what `vcycle eval` says of the same views, not the last validation.
    words = ["--evaluation.num_clips", "3", "--json"]
    assert main(["eval", str(tmp_path / "run"), *words]) == 0
    found = json.loads(capsys.readouterr().out)
    for name in ("top1", "top5", "loss", "videos", "coverage"):
        assert final[name] == pytest.approx(found[name]), name
    assert final["intervals"] == found["intervals"]
    assert final["loss"] != result["loss"]
    rows = (tmp_path / "run" / "scores.csv").read_text().splitlines()[1:]
    assert {row.split(",")[2] for row in rows} == {"3"}  # views of each video
    write_report([tmp_path / "run"], tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert f"<p>Final evaluation, {final['protocol']}: top1 {final['top1']:.1%} (95%" in text


def test_the_final_evaluation_is_of_averaged_weights(config: RunConfig, tmp_path: Path) -> None:
    """As the last validation is; with the views of that it comes to the same."""
    baseline = replace(config.baseline, learning_rate=LearningRate(0.1))  # the two then differ
    config = replace(config, baseline=baseline, multigrid=Multigrid.off(steps=4, norm_group=4))
    config = replace(config, ema_decay=0.5)
    evaluation = Evaluation(times=1, batch_size=6, final_clips=1)
    result = train(replace(config, evaluation=evaluation), tmp_path / "run")
    assert result["final"]["loss"] == pytest.approx(result["loss"], rel=1e-6)


def test_a_run_that_was_killed_in_its_final_evaluation_does_it_again(
    config: RunConfig, tmp_path: Path
) -> None:
    evaluation = Evaluation(times=1, batch_size=6, final_clips=2)
    before = train(replace(config, evaluation=evaluation), tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    after = train(replace(config, evaluation=evaluation), tmp_path / "run", resume=True)
    assert after["final"] == before["final"]


@pytest.mark.parametrize(("kind", "name"), [(Display, "validation"), (Loader, "close")])
def test_a_run_that_is_stopped_after_its_last_step_keeps_its_final_evaluation_for_later(
    kind: type, name: str, config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(config, evaluation=Evaluation(times=1, batch_size=6, final_clips=2))
    with monkeypatch.context() as patch:
        original = getattr(kind, name)

        def stopped(*given: Any) -> None:
            original(*given)
            if (tmp_path / "run" / "scores.csv").exists():  # after the last validation
                signal.raise_signal(signal.SIGTERM)

        patch.setattr(kind, name, stopped)
        with pytest.raises(KeyboardInterrupt, match=r"before its final evaluation"):
            train(config, tmp_path / "run")
    assert not (tmp_path / "run" / "result.json").exists()
    assert train(config, tmp_path / "run", resume=True)["final"]["num_clips"] == 2


def test_bad_videos_of_the_final_evaluation_are_those_of_all_processes(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = {"val/of_another.mp4": "gone"}
    monkeypatch.setattr("vcycle.train.loop.united", lambda own, fabric: {**own, **others})
    evaluation = Evaluation(times=1, batch_size=6, final_clips=2)
    train(replace(config, evaluation=evaluation), tmp_path / "run")
    assert json.loads((tmp_path / "run" / "bad_videos.json").read_text()) == others


def test_processes_stay_in_step(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But after batches that only some of them have."""
    held: list[int] = []

    class Recorded(Votes):
        def hold(self, next_step: int, *questions: bool) -> tuple[bool, ...]:
            held.append(next_step)
            return super().hold(next_step, *questions)

    def one_batch_less(own: Any, _: object) -> list[Any]:
        """In another process."""
        return [own, own - 1] if isinstance(own, int) else [own]

    monkeypatch.setattr("vcycle.devices.agreement.Votes", Recorded)
    monkeypatch.setattr("vcycle.devices.agreement.gathered", one_batch_less)
    evaluation = Evaluation(times=1, batch_size=6, final_clips=2)
    train(replace(config, evaluation=evaluation), tmp_path / "run")
    assert held == [1, 2]  # of four batches
    held.clear()
    assert main(["eval", str(tmp_path / "run"), "--evaluation.num_clips", "2"]) == 0
    assert held == [1, 2]


def test_every_recipe_of_the_paper_names_its_protocol(capsys: pytest.CaptureFixture[str]) -> None:
    ten = "10 clips uniformly in time"
    others = {
        "ssv2-slowfast-r50": "one clip, a frame of each segment, centre crop",
        "charades-slowfast-r50": f"{ten}, 3 crops along the longer side",
    }
    for name in PAPER_RECIPES:
        final = recipe(name).final
        assert final is not None
        views = others.get(name, f"{ten}, centre crop")
        assert final.protocol == f"{views}, {recipe(name).baseline.shape}"
    assert main(["plan", "k400-slowfast-r50", "--json"]) == 0
    protocol = "10 clips uniformly in time, centre crop, 32x224x224"
    assert json.loads(capsys.readouterr().out)["final_evaluation"] == protocol
    assert main(["plan", "k400-slowfast-r50"]) == 0
    assert protocol in " ".join(capsys.readouterr().out.split())


def test_ten_clips_of_segments_are_refused_by_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("num_clips", "final_clips"):
        assert main(["plan", "ssv2-slowfast-r50", f"--evaluation.{name}", "10"]) == 2
        error = capsys.readouterr().err
        assert f"evaluation.{name} 10: with segment sampling every clip covers" in error
        assert error.count("\n") == 1


@pytest.mark.parametrize(("field", "value"), [("final_clips", -1), ("final_crops", 2)])
def test_impossible_views_are_refused(field: str, value: int) -> None:
    with pytest.raises(ValueError, match=rf"evaluation\.{field} {value}: give"):
        Evaluation(**{field: value})
