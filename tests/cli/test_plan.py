"""``vcycle plan``: its flags, its JSON, its table and its plot."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes

from vcycle.cli.main import main
from vcycle.cli.plan import add_plan_flags, run_plan_command
from vcycle.config.fields import config_text
from vcycle.config.flag_parser import FlagParser
from vcycle.config.from_flags import run_config
from vcycle.config.recipes import FIXED_RECIPES, USER_RECIPES, recipe
from vcycle.config.run import RunConfig
from vcycle.data.manifest import Manifest
from vcycle.data.metadata import Video
from vcycle.report.plan_plot import draw_plans
from vcycle.report.plan_table import plan_table
from vcycle.schedule import cost
from vcycle.schedule.baseline import Baseline, LearningRate
from vcycle.schedule.cycles import LongCycle
from vcycle.schedule.multigrid import Multigrid
from vcycle.schedule.plan import Plan
from vcycle.schedule.shape import Shape

Run = Callable[..., str]
KINETICS = "k400-slowfast-r50"
SMALL_PASS = ("scratch", "--num-videos", "60", "--model", "slowfast_tiny", "--shape", "4x16x16")
NO_RECIPE = (
    "recipe: name one (vcycle plan --list shows them), or give --config FILE instead; vcycle train "
    "takes a folder of videos, too"
)


def plan(*arguments: str) -> None:
    parser = FlagParser(prog="vcycle plan", word="recipe")
    add_plan_flags(parser)
    run_plan_command(parser.parse_args(arguments))


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str) -> str:
        plan(*arguments)
        return capsys.readouterr().out

    return run


@pytest.fixture
def values(run: Run) -> Callable[..., Any]:
    return lambda *arguments: json.loads(run(*arguments, "--json"))


@pytest.mark.parametrize("name", [*FIXED_RECIPES, *USER_RECIPES])
def test_json_of_every_recipe(name: str, values: Callable[..., Any]) -> None:
    found = values(name)
    plan = recipe(name).plan()
    assert found["recipe"] == name
    assert found["steps"] == len(plan) == sum(phase["steps"] for phase in found["phases"])
    assert found["baseline_steps"] == plan.baseline.steps
    assert found["step_reduction"] == plan.baseline.steps / len(plan)
    assert found["epochs"] == plan.num_clips / plan.baseline.num_videos
    assert found["baseline_epochs"] == plan.baseline.epochs
    assert found["compute_unit"] == "multiply-adds"
    first_step = 0
    for phase in found["phases"]:
        step = plan[phase["first_step"]]
        assert phase["first_step"] == first_step
        assert phase["last_step"] == first_step + phase["steps"] - 1
        assert phase["stage"] == plan.phases[step.phase].stage
        base = plan.phases[step.phase].base
        assert (phase["frames"], phase["height"], phase["width"]) == (
            base.shape.frames,
            base.shape.height,
            base.shape.width,
        )
        assert phase["batch_size"] == base.batch_size
        assert phase["norm_group"] == 8
        if step.index >= plan.warmup_steps:
            assert phase["learning_rate"] == step.learning_rate
        first_step += phase["steps"]


def test_reductions_of_kinetics(values: Callable[..., Any]) -> None:
    found = values(KINETICS)
    assert found["step_reduction"] == pytest.approx(3.427, abs=1e-3)
    # The official code's forward multiply-adds fall by 3.343; its phases end at whole epochs.
    assert found["compute_reduction"] == pytest.approx(3.343, abs=5e-3)
    assert found["baseline_compute"] / found["compute"] == found["compute_reduction"]
    assert found["frame_reduction"] == pytest.approx(1.387, abs=1e-3)
    assert found["span_reduction"] < 1


def test_frames_on_the_grids_and_spanned(run: Run, values: Callable[..., Any]) -> None:
    assert re.search(r"\nframes on the grids .* 1\.39x\n", run(KINETICS))
    assert re.search(r"\nframes spanned .* 1\.06x as many\n", run(KINETICS))
    # At stride 1 a coarse grid still spans up to as much as the baseline's.
    plan = recipe(KINETICS).plan()
    spanned = cost.frames_spanned(plan, stride=1).reduction
    assert values(KINETICS, "--data.stride", "1")["span_reduction"] == spanned
    # A frame of each of T segments: every clip spans its video.
    something = values("ssv2-slowfast-r50")
    assert something["span_reduction"] == something["baseline_clips"] / something["clips"]
    assert re.search(r"\nvideos spanned .* 1\.50x as many\n", run("ssv2-slowfast-r50"))


def test_the_flags_are_said(tmp_path: Path, run: Run, values: Callable[..., Any]) -> None:
    flags = ["--epoch-factor", "2", "--baseline.batch_size", "64", "--no-fine-tuning", "--seed=3"]
    said = ["--epoch-factor 2", "--baseline.batch_size 64", "--no-fine-tuning", "--seed 3"]
    assert values(KINETICS, *flags)["flags"] == said
    assert values(KINETICS)["flags"] == []
    heading = " ".join(run(KINETICS, *flags).split())
    assert heading.startswith(f"{KINETICS} {' '.join(said)}: Kinetics-400, SlowFast R50")
    files = [tmp_path / name for name in ("a.svg", "b.svg")]
    assert run(KINETICS, "--plot", str(files[0])).endswith(f"\ndrawn in {files[0]}\n")
    run(KINETICS, "--seed", "3", "--plot", str(files[1]))  # a flag that changes no step
    assert files[0].read_text() != files[1].read_text()


def step_rows(*, without: str = "") -> list[dict[str, Any]]:
    """What a benchmark could have measured for the default plan on eight devices."""
    return [
        {"shape": str(shape), "clips": clips, "seconds": 1.8, "bytes": 3e9 * shape.frames}
        for shape, clips in {
            each.shape: each.batch_size for each in recipe(KINETICS).plan().mini_batches()
        }.items()
        if str(shape) != without
    ]


def test_predicted_wall_clock(tmp_path: Path, run: Run, values: Callable[..., Any]) -> None:
    file = tmp_path / "steps.json"
    file.write_text(json.dumps(step_rows()))
    found = values(KINETICS, "--step-seconds", str(file))
    assert found["predicted_seconds"] == pytest.approx(1.8 * 32_685)
    assert found["baseline_predicted_seconds"] == pytest.approx(1.8 * 112_000)
    assert found["predicted_speedup"] == pytest.approx(112_000 / 32_685)
    assert "memory" not in found
    text = run(KINETICS, "--step-seconds", str(file))
    assert re.search(r"\nwall-clock, hours +16\.3 +56 +3\.43x\n", text)
    assert "predicted_seconds" not in values(KINETICS)
    assert "wall-clock" not in run(KINETICS)


def test_workers_that_keep_up_with_measured_steps(
    tmp_path: Path, run: Run, values: Callable[..., Any]
) -> None:
    files = [tmp_path / name for name in ("steps.json", "loader.json")]
    files[0].write_text(json.dumps(step_rows()))
    rows = [{"source": "raw", "shape": "8x112", "cpu_ms_per_clip": 0.001}]
    files[1].write_text(json.dumps(rows))
    flags = (KINETICS, "--step-seconds", str(files[0]), "--loader", str(files[1]))
    flags = (*flags, "--data.num_workers", "900", "--num-devices", "8")
    found = values(*flags)["decoding"]
    assert re.fullmatch(r"decoding: .* clips/s .*; raw videos need 1 worker; 7200 keep up", found)
    assert "7200 keep up" in " ".join(run(*flags).split())
    files[1].write_text("[]")
    with pytest.raises(ValueError, match=r"--loader .*loader\.json: give the rows"):
        run(*flags)


def test_batches_that_fit(tmp_path: Path, run: Run, values: Callable[..., Any]) -> None:
    file = tmp_path / "steps.json"
    file.write_text(json.dumps(step_rows()))
    arguments = (KINETICS, "--step-seconds", str(file), "--memory-gib", "40", "--num-devices", "8")
    memory = {row["shape"]: row for row in values(*arguments)["memory"]}
    assert list(memory) == [row["shape"] for row in step_rows()]
    coarse, fine = memory["8x158x158"], memory["32x224x224"]
    assert (coarse["batch_size"], coarse["fits"], coarse["micro_batch"]) == (4096, True, 512)
    # 64 clips take 96e9 bytes on a device; 16 take 24e9, and 32 take 48e9, more than 40 GiB.
    assert (fine["batch_size"], fine["fits"], fine["micro_batch"]) == (512, False, 16)
    assert fine["step_bytes"] == pytest.approx(96e9)
    lines = [" ".join(line.split()) for line in run(*arguments).splitlines()]
    assert "2 32x224x224 512 8 16 at a time" in lines
    assert "8x158x158 0 8x112x112 8,192 16 yes" in lines
    assert "0 32x224x224 512 8 16 at a time" in " ".join(
        " ".join(line.split()) for line in run(*arguments, "--baseline").splitlines()
    )
    assert " no\n" in run(*arguments[:4], "0.001")


@pytest.mark.parametrize(
    ("text", "flags", "message"),
    [
        ("{", [], "Expecting property name"),
        ("[]", [], "give a list of rows with shape, clips, seconds and, for memory, bytes"),
        ('[{"shape": "8x8"}]', [], "row 0: give shape, clips and seconds"),
        (
            json.dumps(step_rows(without="8x112x112")),
            [],
            "seconds of a step: measure 8x112x112 with 8,192 clips too",
        ),
        (
            json.dumps(step_rows()),
            ["--num-devices", "8"],
            "--num-devices: it is for --memory-gib and --loader",
        ),
        (
            json.dumps(step_rows()),
            ["--memory-gib", "8", "--num-devices", "0"],
            "--num-devices 0: give at least 1",
        ),
        (json.dumps(step_rows()), ["--memory-gib", "nan"], "memory nan: give a positive number"),
    ],
)
def test_measurements_that_do_not_fit(
    tmp_path: Path, text: str, flags: list[str], message: str
) -> None:
    file = tmp_path / "steps.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        plan(KINETICS, "--step-seconds", str(file), *flags)
    assert "\n" not in str(error.value)


def test_the_table(run: Run) -> None:
    text = run(KINETICS)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[0].startswith(f"{KINETICS}: Kinetics-400, SlowFast R50")
    assert "1 1 cycle 8x158x158 4,096 3,210 73.0 6.4" in lines
    assert "4 14 fine-tuning 32x224x224 512 2,918 14.5 0.0008" in lines
    assert "Norm groups of 8 clips." in lines
    assert "0 16x112x112 4,096 32" in [" ".join(line.split()[-4:]) for line in lines]
    assert "steps 32,685 112,000 3.43x" in lines
    assert "epochs 358.4 238.9 1.50x as many" in lines
    assert "- warm-up: 1,500 steps, to a rate of 6.4" in lines


def test_the_table_of_a_baseline(run: Run) -> None:
    text = run(KINETICS, "--baseline")
    assert "short cycle" not in text
    assert "constant" in text
    without_groups = run(KINETICS, "--multigrid.norm_group", "null")
    assert "No norm groups." in without_groups


@pytest.mark.parametrize("schedule", ["paper", "pass", "anneal", "off"])
@pytest.mark.parametrize("name", [*FIXED_RECIPES, *USER_RECIPES])
def test_the_text_fits_80_columns(name: str, schedule: str, run: Run) -> None:
    assert max(map(len, run(name, "--schedule", schedule).splitlines())) <= 80


def test_a_rate_that_falls_within_a_phase(run: Run, values: Callable[..., Any]) -> None:
    assert " 6.4 to 6.25\n" in run(f"{KINETICS}-cosine")
    first = values(f"{KINETICS}-cosine")["phases"][0]
    assert first["learning_rate"] == pytest.approx(6.4)
    assert first["last_learning_rate"] == pytest.approx(6.249, abs=1e-3)


def test_notes_give_the_reasons(run: Run, values: Callable[..., Any]) -> None:
    text = run("finetune", "--num-videos", "200", "--gpus", "2")
    assert "- batch size 16: a norm group of 8 clips on each of 2 GPUs" in text
    large = run("finetune", "--num-videos", "200", "--batch-size", "64")
    assert "- schedule off: the anneal's first batches of 1,024 clips are more" in large
    assert "- schedule anneal, one pass from coarse to fine, as many times more clips" in text
    assert "; its root was no better): in 5/9 of the steps" in text.replace("\n  ", " ")
    assert "baseline's steps" not in text  # which change with --time
    few = run("finetune", "--num-videos", "60", "--epochs", "10").replace("\n  ", " ")
    assert "- schedule off: 75 steps are few: no pass of fewer than 221 was compared" in few
    assert "- training starts from kinetics400 weights: give --weights FILE" in text
    assert "give --weights" not in run("finetune", "--weights", "weights.pyth")
    assert "slowfast_r50_8x8 takes SLOWFAST_8x8_R50.pyth of" in text.replace("\n  ", " ")
    other = values("scratch", "--model", "i3d_r50")["notes"][-1]
    assert "with --weights FILE, i3d_r50 takes I3D_8x8_R50.pyth of" in other
    tiny = run("finetune", "--model", "resnet3d_tiny")
    assert "none are known for resnet3d_tiny" in tiny.replace("\n  ", " ")
    assert values("scratch")["notes"][0].startswith("10,000 training videos are assumed: give ")


def video_of(num_frames: int) -> Video:
    return Video(
        path="a.mp4",
        labels=(0,),
        split="train",
        num_frames=num_frames,
        frame_rate=30.0,
        duration_seconds=num_frames / 30,
        width=320,
        height=240,
    )


def test_own_videos_are_counted_in_the_manifest(tmp_path: Path, values: Callable[..., Any]) -> None:
    video = video_of(90)
    held_out = replace(video, path="b.mp4", split="val")
    Manifest(tmp_path, ("one",), (video,) * 700 + (held_out,) * 50).write()
    arguments = ("finetune", "--data.manifest", str(tmp_path))
    counted = values(*arguments, "--gpus", "2")
    assert counted["num_videos"] == 700
    assert counted["notes"][:2] == [
        "700 training videos",
        "batch size 16: a norm group of 8 clips on each of 2 GPUs",
    ]
    assert values(*arguments, "--num-videos", "900")["num_videos"] == 900
    assert values("k400-slowfast-r50", *arguments[1:])["num_videos"] == 240_000


def test_list(run: Run, values: Callable[..., Any]) -> None:
    lines = run("--list").splitlines()
    names = [line.split()[0] for line in lines if not line.startswith(" ")]
    assert names == [*FIXED_RECIPES, *USER_RECIPES]
    assert max(map(len, lines)) <= 80
    assert not any("``" in line for line in lines)
    assert list(values("--list")) == [*FIXED_RECIPES, *USER_RECIPES]


@pytest.mark.parametrize(
    ("arguments", "steps", "epochs"),
    [
        # Figure 3: epoch factors of the baseline and of multigrid.
        ((KINETICS, "--epoch-factor", "0.25"), 5_447, 60),
        ((KINETICS, "--epoch-factor", "3"), 65_371, 717),
        ((KINETICS, "--baseline"), 112_000, 239),
        ((KINETICS, "--baseline", "--epoch-factor", "0.25"), 28_000, 60),
        ((KINETICS, "--baseline-steps", "32685"), 32_685, 70),
        ((KINETICS, "--baseline", "--baseline-steps", "32685"), 32_685, 70),
        # Figure 3's variants: an epoch factor with one of the cycles.
        ((KINETICS, "--long-cycle-shapes", "1", "--epoch-factor", "1.5"), 72_000, 358),
        ((KINETICS, "--short-cycle-shapes", "1", "--epoch-factor", "1.5"), 51_551, 358),
        # Tables 1a and 1b: in as many steps as the default.
        ((KINETICS, "--long-cycle-shapes", "1"), 32_685, 163),
        ((KINETICS, "--long-cycle-shapes", "2"), 32_685, 230),
        ((KINETICS, "--long-cycle-shapes", "3"), 32_685, 265),
        ((KINETICS, "--long-cycle-shapes", "4"), 32_685, 358),
        ((KINETICS, "--short-cycle-shapes", "1"), 32_685, 227),
        ((KINETICS, "--short-cycle-shapes", "2"), 32_685, 255),
        ((KINETICS, "--short-cycle-shapes", "3"), 32_685, 358),
        ((KINETICS, "--no-fine-tuning"), 32_685, 401),
        # Tables 5 and 6.
        (("ssv2-slowfast-r50", "--epoch-factor", "1"), 44_611, 22),
        (("ssv2-slowfast-r50", "--epoch-factor", "2"), 89_220, 44),
        (("charades-slowfast-r50", "--epoch-factor", "1"), 5_397, 57),
        (("charades-slowfast-r50", "--epoch-factor", "2"), 10_794, 114),
        # Any recipe and any field.
        (("k400-i3d-r50-1gpu", "--baseline"), 1_200_000, 40),
        (("k400-slowfast-r50-small-baseline", "--epoch-factor", "2"), 56_000, 478),
        ((KINETICS, "--multigrid.batch_exponent", "0"), 168_000, 358),
        ((KINETICS, "--multigrid.long_cycle", "null"), 72_000, 358),
        ((KINETICS, "--baseline.batch_size=64", "--baseline-steps", "896000"), 896_000, 239),
    ],
)
def test_flags(
    arguments: tuple[str, ...], steps: int, epochs: int, values: Callable[..., Any]
) -> None:
    found = values(*arguments)
    assert found["steps"] == pytest.approx(steps, abs=3)
    assert round(found["epochs"]) == epochs


@pytest.mark.parametrize(
    ("fields", "shapes"),
    [
        (["--baseline.shape.height", "180", "--baseline.shape.width", "320"], "8x127x226"),
        (["--multigrid.rule.side_multiple", "32"], "8x160x160"),
        (["--multigrid.long_cycle.factors", "[[1, 0.5], [1, 1]]"], "32x112x112"),
        (["--multigrid.long_cycle.factors", "[[0.25, 1], [1, 1]]"], "8x224x224"),
        (
            [
                *("--model.name", "c2d_r50_8x8"),
                *("--baseline.shape.frames", "1", "--multigrid.rule.min_frames", "1"),
                *("--multigrid.rule.frame_multiple", "1"),
                *("--multigrid.long_cycle.factors", "[[1, 0.5], [1, 1]]"),
            ],
            "1x112x112",
        ),
    ],
)
def test_beyond_the_paper(fields: list[str], shapes: str, values: Callable[..., Any]) -> None:
    first = values(KINETICS, *fields)["phases"][0]
    assert f"{first['frames']}x{first['height']}x{first['width']}" == shapes


@pytest.mark.parametrize(
    "all_shapes",
    [["--long-cycle-shapes", "4"], ["--short-cycle-shapes", "3", "--long-cycle-shapes", "4"]],
)
@pytest.mark.parametrize("fields", [[], ["--multigrid.epoch_factor", "0.7"]])
@pytest.mark.parametrize("name", [KINETICS, "charades-slowfast-r50"])
def test_all_shapes_are_the_default(
    name: str, fields: list[str], all_shapes: list[str], values: Callable[..., Any]
) -> None:
    assert values(name, *fields, *all_shapes)["phases"] == values(name, *fields)["phases"]


def test_a_model_brings_its_own_shape_rule(values: Callable[..., Any]) -> None:
    def frames(*arguments: str) -> list[int]:
        return [phase["frames"] for phase in values(KINETICS, *arguments)["phases"][:4]]

    eight_to_one = ("--model", "slowfast_r50_4x16")
    assert frames("--baseline.shape.frames", "48") == [12, 24, 24, 48]
    assert frames("--baseline.shape.frames", "48", *eight_to_one) == [16, 24, 24, 48]
    alpha = ("--model.options", "{alpha: 8}")
    assert frames("--baseline.shape.frames", "48", *alpha) == [16, 24, 24, 48]
    own = ("--multigrid.rule.frame_multiple", "24", "--multigrid.rule.min_frames", "1")
    assert frames("--baseline.shape.frames", "48", *eight_to_one, *own) == [24, 24, 24, 48]
    assert frames("--model", "resnet3d_tiny", "--baseline.shape.frames", "8") == [2, 4, 4, 8]


def test_a_batch_by_flag_moves_rate_and_steps(values: Callable[..., Any]) -> None:
    for flag in ("--batch-size", "--baseline.batch_size"):
        found = values(KINETICS, flag, "64")
        assert found["baseline_steps"] == 112_000 * 8
        assert found["baseline_epochs"] == pytest.approx(239, abs=0.1)
        assert found["phases"][0]["learning_rate"] == pytest.approx(6.4 / 8)
        last = found["phases"][-1]
        assert found["steps"] == pytest.approx(32_685 * 8, rel=1e-3)
        assert last["learning_rate"] == pytest.approx(0.0001)
        assert "learning rate 0.1 instead of 0.8, in proportion to the batch" in found["notes"]
    file_of_one = values(KINETICS, "--batch-size", "64", "--lr", "0.4", "--baseline.steps", "7000")
    assert file_of_one["baseline_steps"] == 7_000
    assert file_of_one["phases"][3]["learning_rate"] == 0.4


def test_a_batch_from_a_file_is_scaled_too(tmp_path: Path, values: Callable[..., Any]) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(config_text(recipe("finetune", num_videos=1000)))
    found = values("--config", str(file), "--batch-size", "16", "--epochs", "50")
    assert found["baseline_steps"] == 3125
    assert found["phases"][-1]["learning_rate"] == pytest.approx(0.03)


def test_epochs_and_batch_of_own_videos_are_in_the_notes(values: Callable[..., Any]) -> None:
    size = ("--num-videos", "4800", "--batch-size", "32", "--epochs", "20", "--lr", "0.01")
    found = values("finetune", *size)
    assert (found["baseline_steps"], found["baseline_epochs"]) == (3_000, 20)
    assert found["phases"][-1]["learning_rate"] == pytest.approx(0.01)
    assert found["notes"][1:3] == [
        "batch size 32, as asked",
        "learning rate 0.01, as asked",
    ]
    assert "20 epochs of the baseline, as asked" in found["notes"]
    for gpus, size, said in ((1, 7, "1; a multiple of 8 has"), (2, 8, "4; a multiple of 16 has")):
        flags = ("--num-videos", "4800", "--batch-size", str(size), "--gpus", str(gpus))
        assert f"in norm groups of {said} the paper's" in values("finetune", *flags)["notes"][1]
    batch = values("scratch", "--num-videos", "4800", "--batch-size", "32")
    assert batch["baseline_epochs"] == pytest.approx(239, abs=0.01)
    assert any(note.startswith("learning rate 0.05: the paper's 0.8") for note in batch["notes"])


def test_a_runs_file_with_other_epochs_is_the_recipe_with_them(tmp_path: Path) -> None:
    own = ("scratch", "--num-videos", "400", "--model", "resnet3d_tiny")
    file = tmp_path / "config.yaml"
    file.write_text(config_text(config_of(*own)))
    for flags in (("--epochs", "60"), ("--batch-size", "16"), ("--baseline.steps", "900")):
        again, asked = config_of("--config", str(file), *flags), config_of(*own, *flags)
        sizes = [(each.baseline.steps, each.baseline.batch_size) for each in (again, asked)]
        assert sizes[0] == sizes[1]
        assert again.plan().num_clips == pytest.approx(asked.plan().num_clips, rel=0.01)
        assert not again.schedule_notes  # its reasons were of the other length
    assert config_of("--config", str(file)).schedule_notes
    longer = config_of(*own, "--multigrid.epoch_factor", "2")
    assert longer.plan() == config_of(*own, "--epoch-factor", "2").plan()


def test_a_runs_file_keeps_the_notes_that_are_true_of_what_it_is_changed_to(
    tmp_path: Path,
) -> None:
    own = ("scratch", "--num-videos", "300", "--model", "resnet3d_tiny", "--epochs", "40")
    file = tmp_path / "config.yaml"
    file.write_text(config_text(config_of(*own, "--shape", "4x32x32")))
    saved = ("--config", str(file))
    reason, grids = config_of(*saved).schedule_notes
    assert grids.startswith("grids of 1x16x16 are smaller than any that was tried")
    assert config_of(*saved, "--shape", "16x112x112").schedule_notes == (reason,)
    for flags in (("--model", "video_vit_tiny"), ("--optimizer.name", "sgd")):
        assert not config_of(*saved, *flags, "--lr", "0.001").schedule_notes
    file.write_text(config_text(config_of(KINETICS, "--shape", "16x112x112")))
    assert config_of(*saved, "--shape", "32x224x224").notes == (
        "short sides of 256 to 340 pixels, in proportion to 32x224x224",
        "stride 2: 32 frames span 63 of a video",
    )
    few = ("scratch", "--num-videos", "20", "--model", "resnet3d_tiny", "--batch-size", "8")
    file.write_text(config_text(config_of(*few)))
    assert "more than twice the 20 videos" in config_of(*saved).schedule_notes[0]
    assert not config_of(*saved, "--baseline.num_videos", "5000").schedule_notes


@pytest.mark.parametrize("schedule", [(), ("--schedule", "anneal")])
def test_the_pass_of_a_runs_file_is_fitted_to_another_shape(
    tmp_path: Path, schedule: tuple[str, ...]
) -> None:
    """As a fresh one, whether it began later for its network before, or does now."""
    own = ("scratch", "--num-videos", "60", "--model", "slowfast_tiny", *schedule, "--shape")
    file = tmp_path / "config.yaml"
    for shape, other in (("4x16x16", "8x96x96"), ("8x96x96", "4x16x16")):
        file.write_text(config_text(config_of(*own, shape)))
        for asked in (shape, other):
            flags = ("--shape", asked) if asked == other else ()
            again, fresh = config_of("--config", str(file), *flags), config_of(*own, asked)
            assert again.multigrid.long_cycle == fresh.multigrid.long_cycle
            begins = [
                [note for note in (*each.notes, *each.schedule_notes) if "pass begins" in note]
                for each in (again, fresh)
            ]
            assert begins[0] == begins[1]
            assert len(begins[0]) == (asked == "4x16x16")


def test_a_baseline_keeps_the_rule_of_the_rate(tmp_path: Path) -> None:
    """So that its file, given another schedule or batch, scales the rate as its recipe does."""
    own = ("scratch", "--num-videos", "400", "--model", "resnet3d_tiny")
    for flags in (("--baseline",), ("--baseline-steps", "300"), ("--schedule", "off")):
        config = config_of(*own, *flags)
        assert config.multigrid.rate_exponent == 0.5
        assert config.multigrid.long_cycle is None
    rule = ("--lr", "0.1", "--multigrid.rate_exponent", "0.5")
    config = config_of(KINETICS, "--baseline", "--optimizer.name", "adamw", *rule)
    assert config.multigrid.rate_exponent == 0.5


def test_a_runs_file_is_planned_where_its_videos_are_not(tmp_path: Path) -> None:
    config = config_of("scratch", "--num-videos", "60")
    gone = replace(config, data=replace(config.data, manifest=str(tmp_path / "gone")))
    (tmp_path / "config.yaml").write_text(config_text(gone))
    assert main(["plan", "--config", str(tmp_path / "config.yaml")]) == 0
    assert main(["plan", "--config", str(tmp_path / "config.yaml"), "--data", "gone"]) == 2


def test_batches_of_one_shape_fit_each_by_itself() -> None:
    """The short cycle of one base shape visits the shape of another, with more clips."""
    cycle = LongCycle(batch_factors=(16, 4, 4, 1))
    baseline = Baseline(Shape(16, 224, 224), 8, 1000, 1000, LearningRate(0.1), (500,))
    plan = Plan(baseline, Multigrid(long_cycle=cycle))
    steps = [
        cost.MeasuredStep(
            each.shape, each.batch_size, 1.0, 10 * each.batch_size * each.shape.num_pixels
        )
        for each in plan.mini_batches()
    ]
    memory = cost.batch_memory(plan, steps, available_bytes=1e8)
    table = plan_table(plan, {}, memory).partition("The short cycle")[2]
    cells = [re.split(r"\s{2,}", line.strip()) for line in table.splitlines()]
    said = {
        (row[-4], int(row[-3])): row[-1] for row in cells if len(row) >= 5 and row[-3].isdigit()
    }
    for row in memory:
        expected = "yes" if row.fits else f"{row.micro_batch} at a time"
        assert said[str(row.shape), row.batch_size] == expected
    shapes = [str(row.shape) for row in memory]
    assert len(shapes) > len(set(shapes))


def config_of(*arguments: str) -> RunConfig:
    parser = FlagParser(word="recipe")
    add_plan_flags(parser)
    return run_config(parser.parse_args(arguments))


def test_a_shape_brings_its_short_sides_and_stride() -> None:
    small = config_of("scratch", "--model", "resnet3d_tiny", "--shape", "8x96x96")
    assert (str(small.baseline.shape), small.data.short_side) == ("8x96x96", (110, 146))
    assert small.data.stride == 8
    own = config_of(
        "scratch", "--shape", "16x112x112", "--data.stride=3", "--data.short_side=[9,9]"
    )
    assert (own.data.stride, own.data.short_side) == (3, (9, 9))
    wide = config_of("scratch", "--model", "resnet3d_tiny", "--shape", "32x128x96")
    assert wide.data.short_side == small.data.short_side  # by the shorter side of the clip
    segments = config_of("ssv2-slowfast-r50", "--shape", "32x112")
    assert segments.data.stride == 2
    one_side = config_of(KINETICS, "--baseline.shape.height", "112")
    assert one_side.data.short_side == (128, 170)


def test_a_shape_keeps_its_clips_within_the_videos(
    tmp_path: Path, values: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    Manifest(tmp_path, ("one",), (video_of(30),) * 40).write()
    own = ("scratch", "--data", str(tmp_path), "--shape", "8x96x96", "--model", "resnet3d_tiny")
    assert "stride 4: 8 frames span 29 of a video" in values(*own)["notes"]
    assert "decoding" not in values(*own)  # it was not measured: people are told how
    assert main(["plan", *own]) == 0
    assert "`vcycle bench loader --json` as --step-seconds" in " ".join(
        capsys.readouterr().out.split()
    )


def test_clips_larger_than_the_videos_are_noted(tmp_path: Path, values: Callable[..., Any]) -> None:
    def notes(*, height: int, shape: str) -> list[str]:
        video = replace(video_of(90), width=192, height=height)
        Manifest(tmp_path, ("one",), (video,) * 40).write()
        found = values("scratch", "--data", str(tmp_path), "--shape", shape)["notes"]
        return [note for note in found if "larger than videos" in note]

    assert notes(height=144, shape="32x144x160") == []
    (note,) = notes(height=144, shape="32x224x224")
    assert note == (
        "clips are larger than videos: the short side of half of these has 144 pixels or fewer, "
        "that of clips 224; --shape 32x128x128 has 33% of the pixels"
    )
    (note,) = notes(height=144, shape="32x224x320")
    assert note.endswith("; --shape 32x128x192 has 34% of the pixels")
    (note,) = notes(height=20, shape="32x32x32")
    assert note.endswith("that of clips 32")
    file = tmp_path / "config.yaml"
    config = recipe("scratch", num_videos=40)
    config = replace(config, notes=("clips are larger than videos: of another shape",))
    file.write_text(config_text(config))
    words = ("--config", str(file), "--data", str(tmp_path), "--shape", "32x32x32")
    assert [n for n in values(*words)["notes"] if "larger than videos" in n] == [note]


@pytest.mark.parametrize("name", sorted(USER_RECIPES))
def test_few_videos_have_a_plan(name: str, values: Callable[..., Any]) -> None:
    for num_videos, group in ((2, 2), (4, 2), (29, 2), (30, 4), (59, 4), (60, 8)):
        found = values(name, "--num-videos", str(num_videos))
        assert {phase["norm_group"] for phase in found["phases"]} == {group}
        assert max(phase["batch_size"] for phase in found["phases"]) <= num_videos * 128 / 60
        planned = any(note.startswith("schedule anneal") for note in found["notes"])
        assert planned == (num_videos > 4)
        few = f"not the paper's 8, as {num_videos} videos leave an epoch few steps"
        assert any(few in note for note in found["notes"]) == (group < 8)


def test_flags_win_over_a_file(tmp_path: Path, values: Callable[..., Any]) -> None:
    file = tmp_path / "config.yaml"
    config = recipe(KINETICS)
    shortened = replace(config.multigrid, steps=5_000)
    file.write_text(config_text(replace(config, multigrid=shortened)))
    assert values("--config", str(file))["steps"] == 5_000
    assert values("--config", str(file), "--epoch-factor", "1.5")["steps"] == 32_685
    assert values("--config", str(file), "--baseline")["steps"] == 112_000
    kept = ("--multigrid.norm_group", "16", "--multigrid.rule.side_multiple", "32", "--baseline")
    assert values(KINETICS, *kept)["phases"][0]["norm_group"] == 16


def test_ablations_keep_the_last_shapes(values: Callable[..., Any]) -> None:
    found = values(KINETICS, "--long-cycle-shapes", "2", "--short-cycle-shapes", "2")
    shapes = [(phase["frames"], phase["height"]) for phase in found["phases"]]
    assert shapes == [(16, 224), (32, 224)] * 3 + [(32, 224)] * 2
    heights = [short["height"] for short in found["phases"][0]["short_cycle"]]
    assert heights == [158, 224]
    kinds = {phase["kind"] for phase in values(KINETICS, "--no-fine-tuning")["phases"]}
    assert kinds == {"cycle"}


def test_a_saved_configuration(tmp_path: Path, values: Callable[..., Any]) -> None:
    file = tmp_path / "config.yaml"
    for name in ("k400-i3d-r50-1gpu", "finetune"):
        file.write_text(config_text(recipe(name)))
        found = values("--config", str(file))
        assert found.pop("flags") == [f"--config {file}"]
        expected = values(name)
        del expected["flags"]
        if name == "finetune":  # its notes are of numbers, which a file may have others of
            assert set(found.pop("notes")) < set(expected.pop("notes"))
        assert found == expected
    longer = values("--config", str(file), "--epoch-factor", "2")
    assert longer["epochs"] == pytest.approx(2 * longer["baseline_epochs"], rel=1e-3)


@pytest.mark.parametrize("seed", [["--seed", "5"], ["--seed=5"], ["--seed", "5", "--threads", "2"]])
def test_the_value_of_a_field_is_no_recipe(
    tmp_path: Path, synthetic_videos: Path, seed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(config_text(recipe("k400-slowfast-r50")))
    configs: list[RunConfig] = []
    monkeypatch.setattr("vcycle.train.run.train", lambda config, *_, **__: configs.append(config))
    name = "k400-slowfast-r50"
    for arguments in (["--config", str(file), *seed], [name, *seed], [*seed, name]):
        assert main(["plan", *arguments]) == 0
        assert main(["train", *arguments, "--data", str(synthetic_videos)]) == 0
        assert configs.pop().seed == 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], NO_RECIPE),
        (["--seed", "5"], NO_RECIPE),
        (
            [KINETICS, "--config", "config.yaml"],
            f"recipe {KINETICS} and --config config.yaml: each is a whole run; give one",
        ),
        (
            ["k400-slowfast-r50-16"],
            "recipe k400-slowfast-r50-16: no such recipe; did you mean k400-slowfast-r50-16f?",
        ),
        (
            [KINETICS, "--baseline", "--long-cycle-shapes", "2"],
            "--baseline and --long-cycle-shapes: a baseline has no cycles; leave one out",
        ),
        (
            [KINETICS, "--baseline-steps", "5000", "--no-fine-tuning"],
            "--baseline-steps and --no-fine-tuning: a baseline has no cycles; leave one out",
        ),
        (
            [KINETICS, "--baseline-steps", "5000", "--epoch-factor", "2"],
            "--baseline-steps and --epoch-factor: both fix the steps; leave one out",
        ),
        (
            [KINETICS, "--baseline-steps", "5000", "--baseline.steps", "600"],
            "--baseline-steps and --baseline.steps: both fix the steps; leave one out",
        ),
        (
            [KINETICS, "--multigrid.steps", "5000", "--epoch-factor", "2"],
            "--multigrid.steps and --epoch-factor: both fix the steps; leave one out",
        ),
        (
            [KINETICS, "--multigrid.epoch_factor", "2", "--multigrid.steps=3000"],
            "--multigrid.steps and --multigrid.epoch_factor: both fix the steps; leave one out",
        ),
        (
            [KINETICS, "--multigrid.steps=5000", "--baseline"],
            "--baseline and --multigrid.steps: a baseline has no cycles; leave one out",
        ),
        (
            [KINETICS, "--multigrid.steps", "5000", "--baseline-steps", "6000"],
            "--baseline-steps and --multigrid.steps: a baseline has no cycles; leave one out",
        ),
        (
            [KINETICS, "--baseline", "--multigrid.batch_exponent", "0.5"],
            "--baseline and --multigrid.batch_exponent: a baseline has no cycles; leave one out",
        ),
        (
            [KINETICS, "--baseline", "--multigrid.long_cycle.factors", "[[1, 1]]"],
            "--baseline and --multigrid.long_cycle.factors: a baseline has no cycles; leave one "
            "out",
        ),
        (
            [KINETICS, "--no-fine-tuning", "--multigrid.fine_tuning", "true"],
            "--no-fine-tuning and --multigrid.fine_tuning: both decide on fine-tuning; leave one "
            "out",
        ),
        (
            ["finetune", "--num-videos", "1000", "--baseline.num_videos", "50"],
            "--baseline.num_videos: recipe finetune is sized by --num-videos; give that instead",
        ),
        (
            [KINETICS, "--epochs", "10", "--baseline.steps", "500"],
            "--epochs and --baseline.steps: both fix the steps; leave one out",
        ),
        (
            [KINETICS, "--epochs", "10", "--baseline-steps", "500"],
            "--epochs and --baseline-steps: both fix the steps; leave one out",
        ),
        ([KINETICS, "--epochs", "0"], "--epochs 0: give a positive number"),
        (
            ["finetune", "--num-videos", "40", "--epochs", "0.1"],
            "steps 1: too few for 3 learning-rate stages; give more epochs or steps, or a smaller "
            "batch",
        ),
        (
            ["scratch", "--num-videos", "10", "--epochs", "8", "--schedule", "paper"],
            "--epochs 8: 40 steps are too few for the schedule; give --epochs 12 or more, or "
            "--baseline for no cycles",
        ),
        (
            ["finetune", "--gpus", "2", "--batch-size", "9"],
            "batch_size 9: 2 GPUs do not share it evenly; give a multiple of 2",
        ),
        (
            [KINETICS, "--shape", "8"],
            "shape '8': write frames x height x width, such as 16x224x224",
        ),
        (
            [KINETICS, "--long-cycle-shapes", "5"],
            "long-cycle shapes 5: choose 1 to 4, the shapes of this cycle",
        ),
        (
            [KINETICS, "--short-cycle-shapes", "0"],
            "short-cycle shapes 0: choose 1 to 3, the shapes of this cycle",
        ),
        (
            ["k400-slowfast-r50-small-baseline", "--long-cycle-shapes", "2"],
            "--long-cycle-shapes: the schedule has no long cycle; leave it out",
        ),
        (
            ["k400-slowfast-r50-small-baseline", "--short-cycle-shapes", "2"],
            "--short-cycle-shapes: the schedule has no short cycle; leave it out",
        ),
        (
            [KINETICS, "--epoch-factor", "0.0005"],
            "epoch_factor 0.0005 of baseline.steps 112000: none of the plan's is left for "
            "8x158x158 in learning-rate stage 2 of 4; give more, such as an epoch_factor of "
            "0.0011, or fewer long-cycle shapes, or a larger share for it",
        ),
        ([KINETICS, "--epoch-factor", "-1"], "epoch_factor -1.0: give a positive number"),
        (
            [KINETICS, "--epoch-factor", "x"],
            "--epoch-factor x: give a number",
        ),
        ([KINETICS, "--baseline-steps", "0"], "steps 0: give a whole number of at least 1"),
        (
            [KINETICS, "--epoch-facto", "2"],
            "--epoch-facto: no such flag; did you mean --epoch-factor?",
        ),
        (
            [KINETICS, "--steps", "9"],
            "--steps: no such flag; did you mean --baseline.steps or --multigrid.steps or "
            "--checkpoint.steps?",
        ),
        (
            [KINETICS, "--baseline.step=2"],
            "--baseline.step: no such flag; did you mean --baseline.steps?",
        ),
        (
            [KINETICS, "another"],
            "another: one word too many; vcycle plan --help says what it takes",
        ),
        (
            [KINETICS, "--baseline.stage_ends", "[72000, 44000]"],
            "stage_ends [72000, 44000]: give rising steps between 1 and 111999, the steps at which "
            "the learning rate drops",
        ),
        (
            [KINETICS, "--baseline.shape.frames", "8"],
            "frames 8 x 0.25 is 2, and the model takes at least 4; start from more frames, or "
            "leave that factor out of the cycle",
        ),
        (
            [KINETICS, "--num-videos", "7"],
            "--num-videos and --gpus: recipe k400-slowfast-r50 has a batch and epochs of its own; "
            "leave them out, or give --baseline.num_videos or --batch-size",
        ),
        (["--list", "--seed", "3"], "--seed 3: --list takes only --json; leave it out"),
        (
            [KINETICS, "--model", "slowfast_r5"],
            "model slowfast_r5: no such model, and no package.module:function of your own; did "
            "you mean slowfast_r50?",
        ),
        (["--list", "--xyzzy"], "--xyzzy: no such flag; vcycle plan --help lists them"),
        ([KINETICS, "--learning-rate", "1"], "--learning-rate: no such flag; did you mean --lr?"),
        ([KINETICS, "--bf16"], "--bf16: no such flag; did you mean --precision bf16-mixed?"),
        (
            [KINETICS, "--weight-decay", "0"],
            "--weight-decay: no such flag; did you mean --optimizer.weight_decay?",
        ),
        (
            ["scratch", "--num-videos", "300", "--baseline.learning_rate.warmup_steps", "5"],
            "--baseline.learning_rate.warmup_steps: an anneal warms up and falls by itself, and "
            "this would change nothing; give --multigrid.anneal.warmup, .share, .form or .final, "
            "or --schedule pass or off",
        ),
        (
            ["scratch", "--num-videos", "300", "--baseline.stage_ends", "[100]"],
            "--baseline.stage_ends: an anneal warms up and falls by itself, and this would change "
            "nothing; give --multigrid.anneal.warmup, .share, .form or .final, or --schedule pass "
            "or off",
        ),
        (["--list", KINETICS], f"{KINETICS}: --list takes only --json; leave it out"),
        (
            [KINETICS, "--memory-gib", "80"],
            "--memory-gib: it needs the bytes of --step-seconds FILE; give both",
        ),
        (
            [KINETICS, "--loader", "loader.json"],
            "--loader: it is compared with --step-seconds FILE; give both",
        ),
        (
            [KINETICS, "--plot", "plan.jpeg"],
            "--plot plan.jpeg: name a file that ends in .png or .svg",
        ),
    ],
)
def test_messages(arguments: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        plan(*arguments)


def test_a_folder_of_videos_is_no_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "strokes").mkdir()
    message = "recipe strokes: a folder, and no recipe; .* and --data strokes"
    with pytest.raises(ValueError, match=f"^{message} after vcycle data index folder strokes$"):
        plan("strokes")
    (tmp_path / "strokes" / "manifest.csv").touch()
    with pytest.raises(ValueError, match=f"^{message}$"):
        plan("strokes")


@pytest.mark.parametrize("arguments", [[KINETICS], [KINETICS, "--baseline.batch_size", "64"]])
def test_it_needs_no_torch(arguments: list[str]) -> None:
    blocked = ["torch", "torchmetrics", "lightning_fabric", "av", "numpy", "matplotlib"]
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({blocked}, None))\n"
        f"from vcycle.config.flag_parser import FlagParser\n"
        f"from vcycle.cli.plan import add_plan_flags, run_plan_command\n"
        f"parser = FlagParser(word='recipe')\n"
        f"add_plan_flags(parser)\n"
        f"run_plan_command(parser.parse_args({arguments}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "fine-tuning" in done.stdout


@pytest.mark.parametrize("arguments", [[KINETICS], [KINETICS, "--baseline"], ["finetune"]])
def test_plots(tmp_path: Path, run: Run, arguments: list[str]) -> None:
    files = [tmp_path / name for name in ("a.svg", "b.svg", "c.png")]
    for file in files:
        run(*arguments, "--plot", str(file))
    assert files[0].read_bytes() == files[1].read_bytes()
    # Clip paths are not named after the last bits of the layout, nor the file after its maker.
    assert set(re.findall(r"url\(#(\w+)\)", files[0].read_text())) <= {"p0", "p1", "p2"}
    assert "matplotlib v" not in files[0].read_text().lower()
    assert files[2].read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "bands"),
    [
        ([], True),
        (["--multigrid.short_cycle", "null"], False),
        # Frames alone: boxes have no bands, as all heights are the same.
        (["--multigrid.short_cycle.factors", "[[0.5, 1]]"], False),
    ],
)
def test_bands_are_named_where_there_are_some(
    arguments: list[str], bands: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, run: Run
) -> None:
    titles: list[str] = []
    monkeypatch.setattr(Axes, "set_title", lambda _, title, **__: titles.append(title))
    run(KINETICS, *arguments, "--plot", str(tmp_path / "a.svg"))
    assert titles == ["bands: what the short cycle visits"] * bands


def test_a_plot_of_odd_plans(tmp_path: Path, run: Run) -> None:
    """Rectangles, equal batches, a single stage, phases too short for a label, titles as typed."""
    plans = {
        r"--data.cache_folder '/a$\b{$'": recipe("k400-slowfast-r50").plan(),
        "small": recipe("finetune", num_videos=64).plan(),
        "baseline": recipe("k400-slowfast-r50-small-baseline").plan(),
    }
    draw_plans(plans, tmp_path / "three.png")
    fields = ["--baseline.shape.width", "320", "--baseline.stage_ends", "[200, 4000]"]
    run(KINETICS, *fields, "--epoch-factor", "1", "--plot", str(tmp_path / "odd.png"))
    assert (tmp_path / "odd.png").stat().st_size > 10_000


def test_a_file_gives_no_rate_to_another_network_nor_reasons_for_changed_numbers(
    tmp_path: Path, values: Callable[..., Any]
) -> None:
    file = tmp_path / "config.yaml"
    small = ("scratch", "--num-videos", "60", "--model", "resnet3d_tiny", "--shape", "8x96x96")
    text = config_text(config_of(*small))
    file.write_text(text.replace("batch_size: 8", "batch_size: 4", 1))
    with pytest.raises(ValueError, match=r"muon's rate for resnet3d_tiny; give slowfast_tiny its"):
        plan("--config", str(file), "--model", "slowfast_tiny")
    notes = values("--config", str(file))["notes"]
    assert not any("batch size 8" in note or "chosen from random" in note for note in notes)


def test_a_plain_baseline_of_ones_own_videos_says_how_its_rate_falls(run: Run) -> None:
    out = " ".join(run("scratch", "--num-videos", "300", "--schedule", "off").split())
    assert "rate: 0.1 times itself after 39%, 64%, 82% of the steps, as in the paper" in out
    own = ("finetune", "--num-videos", "1000", "--schedule")
    tuned = " ".join(run(*own, "paper").split())  # half of the last stage is at the rate before
    assert "rate: 0.1 times itself after 65%, 91% of the steps, as in the paper" in tuned
    assert "- rate:" not in run(*own, "off", "--baseline.stage_ends", "[]")


def test_a_plan_whose_epochs_are_of_other_videos_says_so(
    synthetic_videos: Path, values: Callable[..., Any]
) -> None:
    count = len(Manifest.read(synthetic_videos).split("train"))
    note = f"{count} training videos; the plan counts its epochs in 240000 (--baseline.num_videos)"
    assert note in values(KINETICS, "--data", str(synthetic_videos))["notes"]
    flags = ("--data", str(synthetic_videos), "--baseline.num_videos", str(count))
    assert not any("counts its epochs" in each for each in values(KINETICS, *flags)["notes"])


def test_norm_groups_that_are_asked_for_are_not_those_of_a_note(run: Run) -> None:
    flags = ("--batch-size", "12", "--multigrid.norm_group")
    assert "norm groups of 4 clips instead of 8" in run(KINETICS, *flags[:2])
    out = run(KINETICS, *flags, "6")
    assert "Norm groups of 6 clips." in out
    assert "norm groups of" not in out
