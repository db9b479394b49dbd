"""Every recipe against the paper's numbers."""

import re
from dataclasses import replace
from fractions import Fraction

import pytest
import torch

from vcycle.config.compute import compute
from vcycle.config.flag_parser import FlagParser
from vcycle.config.flags import add_config_flags
from vcycle.config.from_flags import run_config
from vcycle.config.paper_recipes import PAPER_RECIPES
from vcycle.config.recipes import FIXED_RECIPES, USER_RECIPES, recipe, summaries
from vcycle.config.run import Model, RunConfig
from vcycle.config.schedule_choice import timed
from vcycle.config.sizing import Asked
from vcycle.data.sampler import PlanSampler
from vcycle.schedule import cost
from vcycle.schedule.norm_groups import check_norm_group
from vcycle.schedule.shape import Shape, ShapeRule

NAMES = [*FIXED_RECIPES, *USER_RECIPES]
SMALL = "k400-slowfast-r50-small-baseline"


@pytest.mark.parametrize(
    ("name", "shape", "stride", "batch_size", "steps", "stage_ends", "rate", "epochs", "printed"),
    [
        (
            "k400-slowfast-r50",
            *("32x224x224", 2, 512, 112_000, (44_000, 72_000, 92_000), 0.8, 239, "3.4"),
        ),
        (
            "k400-slowfast-r50-16f",
            *("16x224x224", 2, 512, 112_000, (44_000, 72_000, 92_000), 0.8, 239, "3.4"),
        ),
        (
            "k400-slowfast-r50-64f",
            *("64x224x224", 2, 512, 112_000, (44_000, 72_000, 92_000), 0.8, 239, "3.4"),
        ),
        (
            "k400-slowfast-r50-320px",
            *("32x320x320", 2, 512, 112_000, (44_000, 72_000, 92_000), 0.8, 239, "3.4"),
        ),
        (
            "k400-slowfast-r50-pretrained",
            *("32x224x224", 2, 512, 112_000, (44_000, 72_000, 92_000), 0.8, 239, "3.4"),
        ),
        (
            "k400-slowfast-r50-cosine",
            *("32x224x224", 2, 512, 112_000, (44_000, 72_000, 92_000), 0.8, 239, "3.4"),
        ),
        (
            "k400-slowfast-r101",
            *("32x224x224", 2, 512, 112_000, (44_000, 72_000, 92_000), 0.8, 239, "3.4"),
        ),
        (
            "k400-i3d-r50",
            *("16x224x224", 4, 256, 100_000, (37_500, 75_000), 0.04, 107, "3.3"),
        ),
        (
            "k400-i3d-nl-r50",
            *("16x224x224", 4, 256, 100_000, (37_500, 75_000), 0.04, 107, "3.3"),
        ),
        (
            "k400-i3d-r50-1gpu",
            *("8x224x224", 8, 8, 1_200_000, (600_000, 1_000_000), 0.00125, 40, "3.5"),
        ),
        (
            "ssv2-slowfast-r50",
            *("64x224x224", 2, 16, 230_000, (150_000, 190_000), 0.03, 22, "3.4"),
        ),
        (
            "charades-slowfast-r50",
            *("64x224x224", 2, 16, 28_443, (20_459, 24_451), 0.0375, 57, "3.5"),
        ),
        (
            SMALL,
            *("16x158x158", 4, 2048, 28_000, (11_000, 18_000, 23_000), 3.2, 239, "1.0"),
        ),
    ],
)
def test_what_the_paper_states(
    name: str,
    shape: str,
    stride: int,
    batch_size: int,
    steps: int,
    stage_ends: tuple[int, ...],
    rate: float,
    epochs: int,
    printed: str,
) -> None:
    config = recipe(name)
    baseline = config.baseline
    assert config.recipe == name
    assert str(baseline.shape) == shape
    assert config.data.stride == stride
    assert (baseline.batch_size, baseline.steps) == (batch_size, steps)
    assert baseline.stage_ends == stage_ends
    assert baseline.learning_rate.base == rate
    assert round(baseline.epochs) == epochs
    # The 1-GPU run's reduction is not printed; its training time is: 6.7 days to 2.0.
    assert f"{config.plan().step_reduction:.1f}" == printed


def test_every_paper_recipe_is_checked_above() -> None:
    marks = test_what_the_paper_states.pytestmark  # type: ignore[attr-defined]
    assert {row[0] for row in marks[0].args[1]} == set(PAPER_RECIPES)


@pytest.mark.parametrize(
    ("name", "model", "pretrained_on"),
    [
        ("k400-slowfast-r50", "slowfast_r50_8x8", None),
        ("k400-slowfast-r50-16f", "slowfast_r50_16f_alpha2_paper", None),
        ("k400-slowfast-r50-pretrained", "slowfast_r50_8x8", "imagenet"),
        ("k400-slowfast-r101", "slowfast_r101_101_101_8x8", None),
        ("k400-i3d-r50", "i3d_r50_16f_paper", "imagenet"),
        ("k400-i3d-nl-r50", "i3d_nln_r50_16f_dot_paper", "imagenet"),
        ("k400-i3d-r50-1gpu", "i3d_r50_8x8", "imagenet"),
        ("ssv2-slowfast-r50", "slowfast_r50_16x8_ssv2", "kinetics400"),
        ("charades-slowfast-r50", "slowfast_r50_16x8_charades", "kinetics400"),
    ],
)
def test_models_and_where_they_start(name: str, model: str, pretrained_on: str | None) -> None:
    config = recipe(name)
    assert config.model.name == model
    assert config.model.pretrained_on == pretrained_on


def test_details_of_the_runs() -> None:
    kinetics = recipe("k400-slowfast-r50")
    warmup = kinetics.baseline.learning_rate
    assert (warmup.warmup_steps, warmup.warmup_start) == (16_000, 0.002)
    assert kinetics.optimizer.weight_decay == 1e-4
    assert kinetics.data.short_side == (256, 340)
    assert recipe("k400-i3d-r50").baseline.learning_rate.warmup_steps == 0
    one_gpu = recipe("k400-i3d-r50-1gpu")
    assert one_gpu.model.options == {"dropout": 0.0}
    assert one_gpu.data.short_side == (256, 256)
    assert recipe("ssv2-slowfast-r50").optimizer.weight_decay == 1e-6
    assert recipe("k400-slowfast-r50-cosine").baseline.learning_rate.decay == "cosine"
    # The same length in clips as the default run, of a quarter of the steps.
    assert recipe(SMALL).baseline.num_clips == kinetics.baseline.num_clips
    assert recipe(SMALL).baseline.steps * 4 == kinetics.baseline.steps
    assert f"a quarter of the default baseline's {kinetics.baseline.steps:,} steps" in str(
        recipe(SMALL).notes
    )
    assert {phase.kind for phase in recipe(SMALL).plan().phases} == {"constant"}


def test_cosine_with_long_cycles() -> None:
    plan = recipe("k400-slowfast-r50-cosine").plan()
    for i in range(plan.warmup_steps, len(plan), 100):
        cosine = 0.8 * (1 + torch.cos(torch.tensor(torch.pi * i / len(plan), dtype=torch.float64)))
        factor = plan.phases[plan[i].phase].base.short_cycle[-1].batch_factor
        assert plan[i].learning_rate == pytest.approx(factor * float(cosine) / 2)


def test_frames_that_leave_slowfast_no_slow_frame() -> None:
    rule = recipe("k400-slowfast-r50").multigrid.rule
    assert rule.scale(Shape(16, 224, 224), frames=0.25, side=1) == Shape(4, 224, 224)
    with pytest.raises(ValueError, match=r"frames 8 x 0\.25 is 2, and the model takes at least 4"):
        rule.scale(Shape(8, 224, 224), frames=0.25, side=1)


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_has_its_multiply_adds(name: str) -> None:
    config = recipe(name)
    computed, unit = compute(config.plan(), config.model)
    assert unit == "multiply-adds"
    # Convolutions round sizes up, so that small shapes cost a little more than equation 1 says;
    # attention grows faster than it says.
    assert computed.reduction == pytest.approx(config.plan().step_reduction, rel=0.1)


def test_compute_of_another_shape_or_model_is_in_pixels() -> None:
    plan = recipe("k400-slowfast-r50").plan()
    assert compute(plan, Model("resnet3d_tiny"))[1] == "pixels"
    assert compute(plan, Model("slowfast_r50_16f_alpha2_paper"))[1] == "pixels"


def test_compute_of_a_model_with_options() -> None:
    plan = recipe("k400-slowfast-r50").plan()
    assert compute(plan, Model("slowfast_r50_8x8", {"dropout": 0.1}))[1] == "multiply-adds"
    for options in ({"alpha": 8}, {"dropout": 0.1, "depth": 101}):
        computed, unit = compute(plan, Model("slowfast_r50_8x8", options))
        assert unit == "pixels"
        assert computed == cost.pixels(plan)


@pytest.mark.parametrize(
    ("model", "alpha"),
    [(Model("slowfast_r50_4x16"), 8), (Model("slowfast_r50_8x8", {"alpha": 16}), 16)],
)
def test_a_plan_that_leaves_slowfast_no_slow_frame(model: Model, alpha: int) -> None:
    config = replace(recipe("k400-slowfast-r50-16f"), model=model)
    message = (
        f"frames 4 at 4x112x112: model {model.name} takes a slow frame of every {alpha}; start "
        f"from more frames, or from a cycle of longer clips"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        config.plan()
    enough = replace(config.baseline, shape=Shape(64, 224, 224))
    assert min(replace(config, baseline=enough).plan().shapes).frames == 16
    assert replace(config, model=Model("i3d_r50_8x8")).plan() == recipe(config.recipe).plan()


@pytest.mark.parametrize("name", NAMES)
def test_the_shape_rule_is_that_of_the_model(name: str) -> None:
    config = recipe(name)
    assert config.multigrid.rule == config.model.rule


def test_models_that_are_not_known() -> None:
    message = (
        "model slowfast_r5: no such model, and no package.module:function of your own; did you "
        "mean slowfast_r50?"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Model("slowfast_r5")
    assert Model("my.module:build").rule == ShapeRule()


def test_unknown_names() -> None:
    message = "recipe k400-slowfast-r5: no such recipe; did you mean k400-slowfast-r50?"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        recipe("k400-slowfast-r5")
    with pytest.raises(ValueError, match="--num-videos and --gpus: recipe ssv2-slowfast-r50 has"):
        recipe("ssv2-slowfast-r50", num_videos=100)


def test_a_summary_is_one_sentence() -> None:
    assert list(summaries()) == NAMES
    for summary in summaries().values():
        assert 20 < len(summary) < 100
        assert not summary.endswith(".")
        assert "``" not in summary


def recipe_or_message(name: str, *, num_videos: int, num_gpus: int) -> RunConfig | str:
    try:
        return recipe(name, num_videos=num_videos, num_gpus=num_gpus)
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize("name", sorted(USER_RECIPES))
@pytest.mark.parametrize("num_gpus", range(1, 9))
def test_the_stated_gpus_share_every_batch_in_whole_groups(name: str, num_gpus: int) -> None:
    sizes: set[tuple[int, bool]] = set()
    for num_videos in (*range(2, 601), *range(1000, 4001, 500)):  # batches grow up to 480
        config = recipe_or_message(name, num_videos=num_videos, num_gpus=num_gpus)
        if num_videos < 2 * num_gpus:
            assert isinstance(config, str)
            assert config.endswith(f"use at most {num_videos // 2}")
            continue
        assert isinstance(config, RunConfig), config
        batch = (config.baseline.batch_size, config.multigrid.long_cycle is None)
        if batch in sizes and num_videos % 500:
            continue  # the same batches, and only a few steps more
        sizes.add(batch)
        plan = config.plan()
        most = max(each.batch_size for each in plan.mini_batches())
        assert most <= max(128 / 60 * num_videos, config.baseline.batch_size)
        for rank in range(num_gpus):
            PlanSampler(plan, num_videos, 0, rank=rank, world_size=num_gpus)
        for phase in plan.phases:
            for short in phase.base.short_cycle:
                assert short.norm_group is not None
                assert short.batch_size % (num_gpus * short.norm_group) == 0
                check_norm_group(short.norm_group, batch_clips=short.batch_size, num_parts=num_gpus)


def test_the_fewest_videos_for_the_gpus() -> None:
    message = recipe_or_message("finetune", num_videos=9, num_gpus=8)
    assert message == "--gpus 8: 9 videos are fewer than two for each GPU; use at most 4"
    shared = recipe("finetune", num_videos=300, num_gpus=8)
    assert (shared.baseline.batch_size, shared.multigrid.norm_group) == (32, 4)


@pytest.mark.parametrize("name", sorted(USER_RECIPES))
@pytest.mark.parametrize("num_gpus", [1, 2, 8])
@pytest.mark.parametrize("num_videos", [512, 1_000, 7_985, 50_000, 168_913, 1_000_000])
def test_own_videos_of_any_number(name: str, num_gpus: int, num_videos: int) -> None:
    config = recipe(name, num_videos=num_videos, num_gpus=num_gpus)
    plan = config.plan()
    assert config.baseline.num_videos == num_videos
    assert config.baseline.batch_size == 8 * num_gpus
    # Never dearer than the baseline, and said for every number that was chosen.
    assert compute(plan, config.model)[0].reduction > 1.5
    text = " ".join([*config.notes, config.steps_note])
    for word in ("batch size", "learning rate", "epochs"):
        assert word in text
    assert config.multigrid.batch_exponent == 1


def test_own_videos_of_the_papers_sizes() -> None:
    """The rules pass through the paper's two fine-tuning runs and its Kinetics run."""
    charades = recipe("finetune", num_videos=7_985, num_gpus=2).baseline
    assert round(charades.epochs) == 57
    something = recipe("finetune", num_videos=168_913, num_gpus=2).baseline
    assert round(something.epochs) == 22
    assert something.learning_rate.base == 0.03
    assert [round(end / something.steps * 23) for end in something.stage_ends] == [15, 19]
    for num_videos, epochs in ((60, 100), (10**6, 15)):  # the power would say 262 and 13
        assert round(recipe("finetune", num_videos=num_videos).baseline.epochs) == epochs
    kinetics = recipe("scratch", num_videos=240_000, num_gpus=8).baseline
    assert round(kinetics.epochs) == 239
    assert kinetics.learning_rate.base == pytest.approx(0.8 * 64 / 512)


@pytest.mark.parametrize("name", sorted(USER_RECIPES))
def test_a_small_network_takes_the_optimizer_that_has_a_rate_for_it(name: str) -> None:
    small = recipe(name, num_videos=300, num_gpus=4, model="resnet3d_tiny")
    assert small.optimizer.name == ("muon" if name == "scratch" else "adamw")
    assert small.baseline.learning_rate.base == pytest.approx(0.012 * 2)  # at 32 clips
    assert small.multigrid.rate_exponent == 0.5
    title = "Muon" if name == "scratch" else "AdamW"
    assert any(f"learning rate 0.024: {title}'s 0.012 at 8 clips" in each for each in small.notes)
    asked = recipe(name, num_videos=300, model="resnet3d_tiny", optimizer="adamw")
    assert asked.optimizer.name == "adamw"
    assert asked.optimizer.weight_decay == 0.05
    assert recipe(name, num_videos=300, model="video_vit_tiny").optimizer.name == "adamw"
    asked = recipe(
        name, num_videos=300, model="resnet3d_tiny", optimizer="lars", asked=Asked(rate=0.1)
    )
    nearest = "a 3D ResNet from another task's" if name == "finetune" else "a narrow SlowFast from"
    assert nearest in asked.schedule_notes[0]
    if name == "finetune":
        with pytest.raises(ValueError, match=r"optimizer\.name muon: no learning rate is known"):
            recipe(name, num_videos=300, model="resnet3d_tiny", optimizer="muon")
    chosen = recipe(name, num_videos=300, model="resnet3d_tiny", asked=Asked(rate=0.1))
    assert chosen.baseline.learning_rate.base == 0.1
    assert "learning rate 0.1, as asked" in chosen.notes
    for model, optimizer in (("resnet3d_tiny", "sgd"), ("slowfast_r50", None), ("i3d_r50", None)):
        paper = recipe(name, num_videos=300, model=model, optimizer=optimizer)
        assert paper.optimizer.name == "sgd"
        assert paper.multigrid.rate_exponent == 1
        assert any("in proportion to the batch" in note for note in paper.notes)


@pytest.mark.parametrize(
    ("model", "num_videos", "said"),
    [("slowfast_r50", 300, True), ("slowfast_r50", 50_000, False), ("resnet3d_tiny", 300, False)],
)
def test_few_videos_are_sent_to_finetune_if_there_are_weights(
    model: str, num_videos: int, said: bool
) -> None:
    notes = recipe("scratch", num_videos=num_videos, model=model).notes
    assert any(note.endswith("compare with finetune") for note in notes) == said


@pytest.mark.parametrize(
    ("name", "model", "share"),
    [
        ("scratch", "resnet3d_tiny", 5 / 9),
        ("scratch", "video_vit_tiny", 5 / 9),
        ("scratch", "slowfast_r50", 5 / 9),
        ("scratch", "mine:network", 5 / 9),
        ("finetune", "resnet3d_tiny", 5 / 9),
        ("finetune", "slowfast_r50", 5 / 9),
    ],
)
@pytest.mark.parametrize("baseline_steps", [220, 221, 260, 360, 7200])
def test_own_videos_save_steps_down_to_the_fewest_that_were_compared(
    name: str, model: str, share: float, baseline_steps: int
) -> None:
    steps = max(share * baseline_steps, min(221, baseline_steps))
    asked = Asked(steps=baseline_steps)
    config = recipe(name, num_videos=300, model=model, asked=asked)
    plan = config.plan()
    assert len(plan) == steps
    assert len(plan.shapes) == (1 if baseline_steps == 220 else 3)
    why, *others = config.schedule_notes
    assert [each.startswith("not shown for a baseline this long") for each in others] == (
        [True] if baseline_steps == 7200 else []
    )
    start = "schedule anneal, one pass from coarse to fine, as many times more clips a batch as a "
    start += "clip has fewer pixels (equation 1; its root was no better): in "
    begins = {
        220: "schedule off: 220 steps are few",
        221: f"{start}as many steps it was ahead",
        260: f"{start}221 steps, the fewest in which it was ahead",
        7200: f"{start}{Fraction(share).limit_denominator(10)} of the steps it",
    }
    assert why.startswith(begins.get(baseline_steps, "schedule anneal"))
    asked = Asked(steps=baseline_steps, is_timed=True)
    timed = recipe(name, num_videos=300, model=model, asked=asked)
    assert len(timed.plan()) == pytest.approx(share * baseline_steps, rel=0.02, abs=2)


@pytest.mark.parametrize(
    ("model", "optimizer"),
    [
        ("resnet3d_tiny", None),
        ("resnet3d_tiny", "adamw"),
        ("video_vit_tiny", None),
        ("slowfast_r50", None),
    ],
)
def test_few_videos_take_the_share_that_was_enough_for_as_few(
    model: str, optimizer: str | None
) -> None:
    asked = Asked(steps=7200)
    adamw = model == "video_vit_tiny" or optimizer == "adamw"
    for num_videos in (60, 249, 250):
        config = recipe(
            "scratch", num_videos=num_videos, model=model, optimizer=optimizer, asked=asked
        )
        few = num_videos < 250
        is_short = adamw and not few and model == "resnet3d_tiny"
        assert len(config.plan()) == 7200 * (3 / 8 if is_short else 5 / 9)
        assert config.schedule_notes[0].endswith("60 to 70 videos") == (
            few and (adamw or model == "slowfast_r50")
        )
        assert ("under Muon" in config.schedule_notes[0]) == (
            model == "resnet3d_tiny" and not adamw
        )


@pytest.mark.parametrize("name", sorted(USER_RECIPES))
@pytest.mark.parametrize("is_timed", [False, True])
def test_no_batch_is_larger_over_the_videos_than_was_tried(name: str, is_timed: bool) -> None:
    asked = Asked(steps=7200, batch_size=8, is_timed=is_timed)
    config = recipe(name, num_videos=60, asked=asked)
    assert max(each.batch_size for each in config.plan().mini_batches()) == 128
    config = recipe(name, num_videos=59, asked=asked)
    assert len(config.plan().shapes) == 1
    assert len(config.plan()) == 7200
    assert config.schedule_notes == (
        "schedule off: the anneal's first batches of 128 clips are more than twice the 59 videos, "
        "which was not tried; it is planned for batches of 7 or fewer",
    )
    smaller = replace(asked, batch_size=7)
    assert len(recipe(name, num_videos=59, asked=smaller).plan().shapes) == 3
    (why,) = recipe(name, num_videos=5, asked=replace(asked, batch_size=1)).schedule_notes
    assert why.endswith("the 5 videos, which was not tried")


def test_of_a_time_in_which_few_steps_fit_the_baseline_makes_the_most() -> None:
    config = recipe("scratch", num_videos=60, asked=Asked(is_timed=True))
    assert (
        "in the same time it was ahead of the baseline on average, with" in config.schedule_notes[0]
    )
    few = recipe("finetune", num_videos=60, model="resnet3d_tiny", asked=Asked(is_timed=True))
    assert "was ahead of the baseline on average, by" in few.schedule_notes[0]
    assert timed(config, 221, baseline_steps=220) == config
    short = timed(config, 220, baseline_steps=220)
    assert short.multigrid.anneal is None
    assert short.multigrid.long_cycle is None
    (timed_alike,) = short.plan().mini_batches()
    assert replace(timed_alike, steps=0) in [
        replace(each, steps=0) for each in config.plan().mini_batches()
    ]
    (why,) = short.schedule_notes
    assert why.startswith("schedule off: 220 steps of the anneal fit into the time")
    parser = FlagParser(word="recipe")
    add_config_flags(parser)
    asked = run_config(parser.parse_args(["scratch", "--num-videos", "60", "--schedule", "anneal"]))
    assert asked.multigrid.anneal is not None
    assert timed(asked, 220, baseline_steps=9999) == asked
    assert timed(short, 100, baseline_steps=9999) == short


def test_of_a_time_in_which_far_more_of_the_baseline_s_steps_fit_it_makes_the_most() -> None:
    config = recipe(
        "scratch",
        num_videos=300,
        model="resnet3d_tiny",
        optimizer="adamw",
        asked=Asked(is_timed=True),
    )
    assert timed(config, 300, baseline_steps=799) == config
    for waits in (False, True):
        plain = timed(config, 300, baseline_steps=801, waits=waits)
        assert plain.multigrid.anneal is None
        (why,) = plain.schedule_notes
        assert why.startswith("schedule off: 300 steps of the anneal or 801 of the baseline fit")
        assert ("vcycle data prepare" in why) == waits
    _, long = timed(config, 1501, baseline_steps=1501).schedule_notes
    assert long.startswith("not shown for runs this long: the longest anneal that was ahead of a")
    muon = recipe("scratch", num_videos=60, model="resnet3d_tiny", asked=Asked(is_timed=True))
    assert timed(muon, 1500, baseline_steps=0) == muon
    *_, long = timed(muon, 1501, baseline_steps=0).schedule_notes
    assert long.startswith("nothing is known of runs this long: the longest anneal that was comp")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_gpus": 9}, "--gpus 9: give 1 to 8; change the batch size for more"),
        ({"num_gpus": 0}, "--gpus 0: give 1 to 8; change the batch size for more"),
        ({"num_videos": 1}, "num_videos 1: give at least 2 training videos"),
    ],
)
def test_own_videos_out_of_range(arguments: dict[str, int], message: str) -> None:
    for name in USER_RECIPES:
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            recipe(name, **arguments)


def test_an_assumed_number_of_videos_is_said() -> None:
    assert (
        recipe("finetune").notes[0]
        == "10,000 training videos are assumed: give --data or --num-videos"
    )
    assert recipe("finetune").baseline.num_videos == 10_000


@pytest.mark.parametrize("name", sorted(USER_RECIPES))
def test_another_optimizer_than_sgd_needs_a_rate(name: str) -> None:
    for optimizer in ("adamw", "muon", "lamb", "lars"):
        with pytest.raises(
            ValueError,
            match=f"^optimizer.name {optimizer}: no learning rate is known for slowfast_r50_8x8; "
            f"give one with --lr$",
        ):
            recipe(name, num_videos=300, optimizer=optimizer)
        config = recipe(name, num_videos=300, optimizer=optimizer, asked=Asked(rate=0.001))
        assert config.baseline.learning_rate.base == 0.001
        assert config.optimizer.name == optimizer
        assert config.multigrid.rate_exponent == (1.0 if optimizer == "lars" else 0.5)
    assert recipe(name, num_videos=300, optimizer="sgd") == recipe(name, num_videos=300)
