"""``--schedule``: what it chooses, what it leaves to the recipe, and what changes it further."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vcycle.cli.main import main
from vcycle.config.fields import config_from, config_text, read_values
from vcycle.config.flag_parser import FlagParser
from vcycle.config.flags import add_config_flags
from vcycle.config.from_flags import run_config
from vcycle.config.recipes import FIXED_RECIPES, USER_RECIPES, recipe
from vcycle.config.run import RunConfig
from vcycle.config.schedule_choice import timed
from vcycle.schedule.cycles import LongCycle
from vcycle.schedule.multigrid import COARSE_TO_FINE, SCHEDULES, Anneal, Multigrid

KINETICS = "k400-slowfast-r50"
Values = Callable[..., dict[str, Any]]


@pytest.fixture
def values(capsys: pytest.CaptureFixture[str]) -> Values:
    def values(*arguments: str) -> dict[str, Any]:
        assert main(["plan", *arguments, "--json"]) == 0, capsys.readouterr().err
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    return values


def shapes_and_steps(found: dict[str, Any]) -> list[tuple[str, int, int]]:
    return [(each["shape"], each["batch_size"], each["steps"]) for each in found["phases"]]


@pytest.mark.parametrize("schedule", ["pass", "anneal"])
@pytest.mark.parametrize("name", [*FIXED_RECIPES, *USER_RECIPES])
def test_every_recipe_takes_every_schedule(name: str, schedule: str, values: Values) -> None:
    config = recipe(name)
    found = values(name, "--schedule", schedule)
    rule, shape = config.multigrid.rule, config.baseline.shape
    grids = [rule.scale(shape, frames=frames, side=side) for frames, side in COARSE_TO_FINE]
    assert [each["shape"] for each in found["phases"]] == [str(grid) for grid in grids]
    shares = (0.5, 0.3, 0.2) if schedule == "pass" else (0.45, 0.3, 0.25)
    for phase, share in zip(found["phases"], shares, strict=True):
        assert phase["steps"] == pytest.approx(share * found["steps"], abs=8)
    assert found["phases"][-1]["batch_size"] == config.baseline.batch_size
    if config.multigrid.steps is not None:  # of one's own videos, in 3/8 of the steps
        assert found["steps"] == config.multigrid.steps
    else:
        factor = {"pass": 3.5, "anneal": 3.25}[schedule]
        assert found["epochs"] == pytest.approx(factor * found["baseline_epochs"], rel=2e-3)
        assert found["steps"] == pytest.approx(3 / 8 * found["baseline_steps"], rel=0.02)
    said = [note for note in found["notes"] if "as asked" in note]
    is_short = found["steps"] < 0.55 * found["baseline_steps"]
    if config.model.entry.family == "SlowFast" and is_short:
        assert said == [
            f"schedule as asked: {100 * found['steps'] / found['baseline_steps']:.3g}% of the "
            f"baseline's steps; in fewer than 55% a narrow SlowFast's single pass mostly fell "
            f"short of the baseline's accuracy"
        ]
    else:
        assert not said
    assert found["compute_unit"] == "multiply-adds"
    assert found["flags"] == [f"--schedule {schedule}"]


def test_a_recipe_s_own_schedule_and_off_are_the_recipe_and_its_baseline(values: Values) -> None:
    for name, schedule in ((KINETICS, "paper"), ("demo", "paper"), ("finetune", "anneal")):
        assert values(name, "--schedule", schedule)["phases"] == values(name)["phases"]
        off, baseline = values(name, "--schedule", "off"), values(name, "--baseline")
        assert off["phases"] == baseline["phases"]
    small = "k400-slowfast-r50-small-baseline"
    assert values(small, "--schedule", "off")["phases"] == values(small)["phases"]


@pytest.mark.parametrize(
    "flags",
    [
        ["--schedule", "off"],
        ["--schedule", "paper"],
        ["--schedule", "pass"],
        ["--baseline"],
        ["--multigrid.batch_exponent", "0.5"],
        ["--multigrid.long_cycle.batch_factors", "[8, 1, 1]"],
        ["--multigrid.anneal.form", "cosine"],
    ],
)
def test_a_schedule_that_is_asked_for_has_no_reason_of_the_recipe(
    flags: list[str], values: Values
) -> None:
    """Nor do other batches make the run longer."""
    recipe_s, asked = (
        values("scratch", "--num-videos", "60", *each) for each in ((), tuple(flags))
    )
    assert any(note.startswith("schedule anneal") for note in recipe_s["notes"])
    assert not any(note.startswith("schedule anneal") for note in asked["notes"])
    if flags[0].startswith("--multigrid") or flags[-1] == "pass":
        assert asked["steps"] == recipe_s["steps"]
    if flags[-1] in ("off", "--baseline"):
        assert asked["steps"] == asked["baseline_steps"] == recipe_s["baseline_steps"]


@pytest.mark.parametrize(
    "flags",
    [("norm_group", "2"), ("rate_exponent", "0.5"), ("rule.side_multiple", "2")],
)
@pytest.mark.parametrize("videos", ["60", "50"])
def test_what_is_no_part_of_a_schedule_leaves_it_its_reason(
    videos: str, flags: tuple[str, str], values: Values
) -> None:
    of_recipe = ("scratch", "--num-videos", videos, "--batch-size", "8")
    found = values(*of_recipe, f"--multigrid.{flags[0]}", flags[1])
    (why,) = (note for note in found["notes"] if note.startswith("schedule"))
    assert why.startswith("schedule anneal" if videos == "60" else "schedule off")
    assert why in values(*of_recipe)["notes"]


def test_a_baseline_has_no_batches_to_ask_for(values: Values) -> None:
    of_recipe = ("scratch", "--num-videos", "50", "--batch-size", "8")
    found = values(*of_recipe, "--multigrid.batch_exponent", "0.5")
    assert any(note.startswith("schedule off: the anneal's first") for note in found["notes"])


def test_a_pass_that_is_asked_for_is_said_to_be_short(values: Values) -> None:
    short = (
        "schedule as asked: 17.3% of the baseline's steps; in fewer than 36% a single pass mostly"
    )
    for flags, is_short in (([], False), (["--epoch-factor", "1.5"], True)):
        notes = values("k400-i3d-r50", "--schedule", "anneal", *flags)["notes"]
        assert any(note.startswith(short) for note in notes) == is_short
    assert not any("as asked" in note for note in values(KINETICS)["notes"])


def test_a_pass_begins_where_the_network_can_see_clips(values: Values, capsys) -> None:
    """Unless its factors were asked for: then they are refused."""
    small = ("scratch", "--num-videos", "60", "--model", "slowfast_tiny", "--shape", "4x16x16")
    plan = values(*small)
    shapes = ["2x8x8", "2x11x11", "4x16x16"]
    assert [phase["shape"] for phase in plan["phases"]] == shapes
    asked = values(*small, "--epoch-factor", "1", "--multigrid.norm_group", "2")
    assert [phase["shape"] for phase in asked["phases"]] == shapes
    (note,) = (note for note in plan["notes"] if note.startswith("the pass begins"))
    assert note == (
        "the pass begins at 0.5 of the frames and 0.5 of the side: slowfast_tiny takes no smaller "
        "clips at 4x16x16"
    )
    for schedule in ("pass", "anneal"):
        named = values(*small, "--schedule", schedule)
        assert [phase["shape"] for phase in named["phases"]] == shapes
        assert note in named["notes"]
        factors = ["--multigrid.long_cycle.factors", "[[0.25, 0.5], [0.5, 0.5], [1, 1]]"]
        assert main(["plan", *small, "--schedule", schedule, *factors]) == 2
        assert "frames 4 x 0.25 is 1" in capsys.readouterr().err


def test_a_pass_whose_anneal_or_last_shapes_are_asked_for_fits_the_network_too(
    values: Values, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ("scratch", "--num-videos", "60", "--model", "slowfast_tiny", "--shape", "4x16x16")
    steps = values(*small)["steps"]
    for flags, shapes in (
        (("--multigrid.anneal.final", "0.01"), ["2x8x8", "2x11x11", "4x16x16"]),
        (("--multigrid.anneal.form", "cosine"), ["2x8x8", "2x11x11", "4x16x16"]),
        (("--long-cycle-shapes", "2"), ["2x11x11", "4x16x16"]),
    ):
        found = values(*small, *flags)
        assert [phase["shape"] for phase in found["phases"]] == shapes
        assert found["steps"] == steps
    of_paper = ("--shape", "8x112x112", "--long-cycle-shapes", "2")
    assert main(["plan", KINETICS, *of_paper]) == 2
    error = capsys.readouterr().err
    assert "frames 8 x 0.25 is 2" in error
    assert error.endswith(
        "; the steps are the whole cycle's: fix them with --epoch-factor or --multigrid.steps to "
        "leave a part of it out\n"
    )
    assert values(KINETICS, *of_paper, "--multigrid.steps", "9000")["steps"] == 9000
    assert main(["plan", KINETICS, "--long-cycle-shapes", "2", "--multigrid.norm_group", "7"]) == 2
    error = capsys.readouterr().err
    assert "groups of 7 clips do not divide" in error
    assert "fix them with" not in error


def test_a_schedule_that_is_asked_for_is_not_chosen_though_its_pass_begins_later(
    values: Values,
) -> None:
    """Else a time in which few of its steps fit would take it away."""
    small = ("--num-videos", "60", "--model", "slowfast_tiny", "--shape", "4x16x16")
    asked = ("--schedule", "anneal", "--multigrid.steps", "200")
    parser = FlagParser(prog="vcycle plan", word="recipe")
    add_config_flags(parser)
    config = run_config(parser.parse_args(["scratch", *small, *asked]))
    assert not config.has_chosen_schedule
    assert timed(config, 200, baseline_steps=500) == config
    notes = values("scratch", *small, *asked)["notes"]
    assert any(note.startswith("schedule as asked: 200 steps are few") for note in notes)


def test_a_pass_over_one_shape_is_the_baseline(values: Values) -> None:
    own = ("scratch", "--num-videos", "300", "--epochs", "40", "--model", "video_vit_tiny")
    found = values(*own, "--shape", "2x16x16")
    assert found["steps"] == found["baseline_steps"]
    (why,) = (note for note in found["notes"] if note.startswith("schedule"))
    assert why == "schedule off: video_vit_tiny takes no smaller clips at 2x16x16"


def test_a_note_says_of_grids_smaller_than_any_that_was_tried(values: Values) -> None:
    own = ("scratch", "--num-videos", "300", "--model", "resnet3d_tiny", "--shape")
    (note,) = (n for n in values(*own, "4x64x64")["notes"] if n.startswith("grids of"))
    assert note == (
        "grids of 1x32x32 are smaller than any that was tried (2x34x34): compare with "
        "--schedule off"
    )
    for shape in ("8x96x96", "8x68x68"):
        assert not [n for n in values(*own, shape)["notes"] if n.startswith("grids of")]


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("long_cycle.shares", "[0.5, 0.3, 0.2]"),
        ("short_cycle.factors", "[[1, 0.5], [1, 0.7]]"),
        ("anneal.share", "0.5"),
    ],
)
def test_cycles_are_refused_where_the_recipe_plans_a_baseline(
    flag: str, value: str, values: Values, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else they would begin another schedule, which nobody named."""
    few = ["scratch", "--num-videos", "300", "--epochs", "5", "--model", "resnet3d_tiny"]
    assert main(["plan", *few, f"--multigrid.{flag}", value]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"vcycle: --multigrid.{flag}: scratch plans a baseline here (schedule ")
    assert "(schedule off: 188 steps are few: " in error
    assert error.endswith("give --schedule anneal, or another, with it\n")
    assert error.count("\n") == 1
    if flag == "anneal.share":  # a baseline that falls in a line
        plan = values(*few, "--schedule", "off", f"--multigrid.{flag}", value)
        assert [phase["shape"] for phase in plan["phases"]] == ["32x224x224"] * len(plan["phases"])


def test_a_baseline_of_what_the_study_tried_falls_along_a_cosine(values: Values) -> None:
    """After a twentieth of its steps, as the study's baselines do; others drop as the paper's."""
    few = ("scratch", "--num-videos", "300", "--epochs", "5", "--shape", "8x96x96", "--model")
    tried, other = (values(*few, name) for name in ("resnet3d_tiny", "i3d_r50"))
    assert tried["warmup_steps"] == 188 // 20
    first, *_, last = tried["phases"]
    assert first["learning_rate"] == 0.012
    assert last["last_learning_rate"] < 0.012 / 1000
    assert other["warmup_steps"] == 188 // 7
    assert len({phase["learning_rate"] for phase in other["phases"]}) == 4


def test_a_short_schedule_that_is_asked_for_is_warned_of(values: Values) -> None:
    short = ("scratch", "--num-videos", "60", "--epochs", "29")
    assert any(note.startswith("schedule off: 218 steps") for note in values(*short)["notes"])
    few = "schedule as asked: 79 steps are few: no pass of fewer than 221 was compared"
    notes = values(*short, "--schedule", "anneal")["notes"]
    assert any(note.startswith(few) for note in notes)
    notes = values(*short, "--schedule", "paper")["notes"]
    (note,) = (note for note in notes if note.startswith("schedule as asked"))
    assert note.endswith(
        "of the baseline's steps; in fewer than 55% the paper's cycles mostly fell short of the "
        "baseline's accuracy"
    )


def test_what_the_study_says_of_an_asked_schedule_is_of_its_network_and_length(
    values: Values,
) -> None:
    """A transformer passed its baseline in fewer steps; a longer baseline than any was not met."""
    asked = ("--shape", "8x96x96", "--schedule", "anneal", "--multigrid.steps")
    long = "not shown for a baseline this long"
    short = "schedule as asked: "
    for model, baseline, steps, begins in (
        ("resnet3d_tiny", "1500", "414", [f"{short}27.6% of the baseline's steps"]),
        ("video_vit_tiny", "1500", "276", []),
        (
            "video_vit_tiny",
            "1500",
            "270",
            [f"{short}18% of the baseline's steps; in fewer than 18.4% a"],
        ),
        ("video_vit_tiny", "4000", "900", [long]),
    ):
        flags = ("--num-videos", "300", "--model", model, "--baseline.steps", baseline)
        notes = values("scratch", *flags, *asked, steps)["notes"]
        found = [note for note in notes if note.startswith(("schedule as asked", long))]
        assert [note.startswith(begin) for note, begin in zip(found, begins, strict=True)] == [
            True for _ in begins
        ]


@pytest.mark.parametrize(
    ("flags", "note"),
    [
        (["--schedule", "pass"], "schedule as asked: under Muon none but the anneal was tried"),
        (["--schedule", "anneal"], None),
        (["--schedule", "pass", "--optimizer.name", "adamw"], None),
        (
            ["--multigrid.batch_exponent", "0.5"],
            "batch exponent 0.5 as asked: at the same cost 1/2 was no better than 1, which is "
            "equation 1",
        ),
        (
            ["--schedule", "anneal", "--epochs", "50"],
            "not shown for a baseline this long: under Muon the longest that the anneal was "
            "compared with had 1,500 steps",
        ),
    ],
)
def test_what_is_asked_for_is_told_what_was_tried(
    flags: list[str], note: str | None, values: Values
) -> None:
    of_recipe = ("scratch", "--num-videos", "300", "--model", "resnet3d_tiny", "--shape", "8x96x96")
    found = values(*of_recipe, "--epochs", "40", *flags)["notes"]
    said = [each for each in found if "as asked: " in each or each.startswith("not shown")]
    assert said == ([note] if note else [])


@pytest.mark.parametrize(
    ("flags", "steps"),
    [
        (["--schedule", "pass", "--multigrid.steps", "276"], [138, 83, 55]),
        (
            [
                *("--schedule", "pass", "--multigrid.steps", "1000"),
                *("--multigrid.long_cycle.shares", "[0.35, 0.3, 0.35]"),
            ],
            [350, 300, 350],
        ),
        (
            [
                *("--multigrid.long_cycle.factors", "[[0.5, 0.5], [1, 1]]"),
                *("--multigrid.long_cycle.shares", "[0.8, 0.2]"),
                *("--schedule=anneal", "--multigrid.steps=500"),
            ],
            [400, 100],
        ),
        (["--schedule", "off", "--multigrid.steps", "100"], [70, 20, 10]),
        (["--schedule", "off", "--epoch-factor", "0.5"], [630, 180, 90]),
        (["--schedule", "pass", "--long-cycle-shapes", "1", "--epoch-factor", "1"], [1800]),
    ],
)
def test_what_changes_a_schedule_further(
    flags: list[str], steps: list[int], values: Values
) -> None:
    assert [each["steps"] for each in values("demo", *flags)["phases"]] == steps


def test_an_epoch_factor_fixes_the_clips(values: Values) -> None:
    for factor in (0.25, 1.0, 2.0):
        found = values(KINETICS, "--schedule", "anneal", "--epoch-factor", str(factor))
        assert found["clips"] == pytest.approx(factor * found["baseline_clips"], abs=512)


@pytest.mark.parametrize(
    "multigrid",
    [
        *SCHEDULES.values(),
        Multigrid.progressive_resizing(),
        replace(
            Multigrid.named("anneal"),
            steps=300,
            long_cycle=LongCycle(COARSE_TO_FINE, (0.5, 0.2, 0.3), (4, 2, 1), (2.0, 1.5, 1.0), True),
            anneal=Anneal("cosine", share=0.4, final=0.01, warmup=0.05),
        ),
    ],
)
def test_a_configuration_file_holds_any_schedule(tmp_path: Path, multigrid: Multigrid) -> None:
    config = replace(recipe("demo"), multigrid=multigrid)
    file = tmp_path / "config.yaml"
    file.write_text(config_text(config))
    assert config_from(read_values(file), {}) == config


def test_a_saved_run_takes_another_schedule(
    tmp_path: Path, values: Values, synthetic_videos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(config_text(recipe("demo")))
    flags = ["--schedule", "pass", "--multigrid.steps", "276"]
    found = values("--config", str(file), *flags)
    assert shapes_and_steps(found) == shapes_and_steps(values("demo", *flags))
    configs: list[RunConfig] = []
    monkeypatch.setattr("vcycle.train.run.train", lambda config, *_, **__: configs.append(config))
    data = ("--data", str(synthetic_videos))
    assert main(["train", "--config", str(file), *flags, *data]) == 0
    assert main(["train", "demo", *flags, *data]) == 0
    assert configs[0] == configs[1]
    demo = recipe("demo")
    assert configs[0] == replace(
        demo,
        data=replace(demo.data, manifest=str(synthetic_videos)),
        multigrid=replace(demo.multigrid.with_schedule("pass"), steps=276),
    )


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--schedule", "anneel"],
            "schedule 'anneel': choose paper, pass, anneal, off; did you mean anneal?",
        ),
        (
            ["--schedule", "pass", "--baseline"],
            "--baseline and --schedule: a baseline has none; leave one out",
        ),
        (
            ["--schedule", "pass", "--baseline-steps", "9"],
            "--baseline-steps and --schedule: a baseline has none; leave one out",
        ),
        (
            ["--schedule", "off", "--long-cycle-shapes", "2"],
            "--long-cycle-shapes: the schedule has no long cycle; leave it out",
        ),
        (
            ["--schedule", "pass", "--no-fine-tuning"],
            "--no-fine-tuning: a single pass ends on the full grid; leave it out",
        ),
        (
            ["--schedule", "pass", "--multigrid.long_cycle.shares", "[0.5, 0.3, 0.1]"],
            "long_cycle.shares [0.5, 0.3, 0.1]: they sum to 0.9; give shares of the steps that sum "
            "to 1",
        ),
        (
            ["--schedule", "pass", "--multigrid.long_cycle.factors", "[[0.25, 1], [0.5, 1]]"],
            "long_cycle.factors [[0.25, 1], [0.5, 1]]: a run ends on the full grid; make [1, 1] "
            "the last",
        ),
        (
            ["--schedule", "anneal", "--multigrid.anneal.share", "1.5"],
            "anneal.share 1.5: the anneal is longer than the run; give a share of the steps of at "
            "most 1, or null for the steps on the full grid",
        ),
        (
            ["--schedule", "pass", "--multigrid.steps", "2"],
            "steps 2: none of the plan's is left for 32x224x224; give more, such as 4, or fewer "
            "long-cycle shapes, or a larger share for it",
        ),
    ],
)
def test_mistakes(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", KINETICS, *flags]) == 2
    assert capsys.readouterr().err == f"vcycle: {message}\n"


@pytest.mark.parametrize("schedule", ["pass", "anneal", "off"])
def test_the_table_and_the_plot(
    schedule: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "plan.svg"
    assert main(["plan", KINETICS, "--schedule", schedule, "--plot", str(file)]) == 0
    text = capsys.readouterr().out
    if schedule == "off":
        assert "pass" not in text
        return
    assert re.search(r"\n +1 +1 +pass +8x112x112 +8,192 +(18|20),\d{3} ", text)
    assert re.search(r"\nmultiply-adds .* 2\.[56]\dx\n", text)
    over = {
        "pass": "along a cosine to 0",
        "anneal": "constant on each shape, then in a line to 0 over the last 25% of the steps",
    }[schedule]
    assert f"- rate: {over}, in place of the baseline's" in " ".join(text.split())
    assert "stage" not in re.sub(r"<!--.*?-->", "", file.read_text(), flags=re.DOTALL)
