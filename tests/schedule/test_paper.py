"""The plan against the paper's numbers: section 3.2, and the runs of sections 4 to 7."""

import pickle

import pytest

from vcycle.schedule.baseline import Baseline, LearningRate
from vcycle.schedule.cycles import LongCycle, ShortCycle
from vcycle.schedule.multigrid import Multigrid
from vcycle.schedule.plan import Plan
from vcycle.schedule.shape import Shape


def kinetics() -> Baseline:
    """Section 4: SlowFast R50 on 128 GPUs with 4 clips each."""
    return Baseline(
        Shape(32, 224, 224),
        512,
        112_000,
        240_000,
        LearningRate(0.8, warmup_steps=16_000, warmup_start=0.002),
        (44_000, 72_000, 92_000),
    )


def i3d() -> Baseline:
    """Section 4.4: 128 GPUs with 2 clips each, no warm-up."""
    rate = LearningRate(0.04)
    return Baseline(Shape(16, 224, 224), 256, 100_000, 240_000, rate, (37_500, 75_000))


def i3d_one_gpu() -> Baseline:
    """Section 5."""
    rate = LearningRate(0.00125)
    return Baseline(Shape(8, 224, 224), 8, 1_200_000, 240_000, rate, (600_000, 1_000_000))


def something() -> Baseline:
    """Section 6."""
    rate = LearningRate(0.03)
    return Baseline(Shape(64, 224, 224), 16, 230_000, 168_913, rate, (150_000, 190_000))


def charades() -> Baseline:
    """The official configuration: drops at 41 and 49 of 57 epochs of 499 steps."""
    return Baseline(
        Shape(64, 224, 224),
        16,
        57 * 499,
        7_985,
        LearningRate(0.0375, warmup_steps=4 * 499, warmup_start=0.0001),
        (41 * 499, 49 * 499),
    )


# The last column is the closed form of the reduction: the mean over base shapes of a step's clips
# is 23/4 B, that of fine-tuning 7/3 B, and phi is the last stage's share of the steps.
@pytest.mark.parametrize(
    ("baseline", "epoch_factor", "printed", "closed_form"),
    [
        (kinetics(), 1.5, "3.4", 3.4266),
        (i3d(), 1.5, "3.3", 3.2639),
        (something(), 1.0, "5.2", 5.1558),
        (something(), 1.5, "3.4", 3.4372),
        (something(), 2.0, "2.6", 2.5779),
        (charades(), 1.0, "5.3", 5.2705),
        (charades(), 1.5, "3.5", 3.5136),
        (charades(), 2.0, "2.6", 2.6352),
    ],
)
def test_step_reductions_are_the_printed_ones(
    baseline: Baseline, epoch_factor: float, printed: str, closed_form: float
) -> None:
    plan = Plan(baseline, Multigrid(epoch_factor=epoch_factor))
    assert f"{plan.step_reduction:.1f}" == printed
    assert plan.step_reduction == pytest.approx(closed_form, abs=1e-3)
    last_share = 1 - baseline.stage_ends[-1] / baseline.steps
    formula = (23 / 4 * (1 - last_share) + 7 / 3 * last_share) / epoch_factor
    assert plan.step_reduction == pytest.approx(formula, abs=1e-3)
    assert abs(plan.num_clips - epoch_factor * baseline.num_clips) <= baseline.batch_size
    assert plan.epochs == pytest.approx(epoch_factor * baseline.epochs, rel=1e-4)


@pytest.mark.parametrize(
    ("baseline", "epochs"), [(kinetics(), 239), (i3d(), 107), (i3d_one_gpu(), 40)]
)
def test_epochs_of_the_baselines(baseline: Baseline, epochs: int) -> None:
    assert round(baseline.epochs) == epochs


def test_every_phase_of_kinetics() -> None:
    coarse = [((8, 158, 158), 8), ((16, 158, 158), 4), ((16, 224, 224), 2), ((32, 224, 224), 1)]
    steps = [*[3210, 3210, 3211, 3210], *[2043, 2042, 2043, 2043], *[1459, 1459, 1460, 1459]]
    stages = [0] * 4 + [1] * 4 + [2] * 4 + [3, 3]
    factors = [0.8] * 4 + [0.08] * 4 + [0.008] * 4 + [0.008, 0.0008]
    plan = Plan(kinetics(), Multigrid())
    rows = [*coarse * 3, coarse[-1], coarse[-1]]
    first_step = 0
    for phase, ((frames, height, width), batch), stage, rate, count in zip(
        plan.to_dict()["phases"], rows, stages, factors, [*steps, 2918, 2918], strict=True
    ):
        assert phase["stage"] == stage
        assert (phase["first_step"], phase["steps"]) == (first_step, count)
        assert (phase["frames"], phase["height"], phase["width"]) == (frames, height, width)
        assert phase["batch_size"] == batch * 512
        assert phase["learning_rate"] == pytest.approx(rate * batch, rel=1e-12)
        assert phase["norm_group"] == 8
        assert phase["kind"] == ("fine-tuning" if stage == 3 else "cycle")
        first_step += count
    assert len(plan) == first_step == 32_685


def short_cycle_of(plan: Plan, number: int) -> list[tuple[str, int, int | None]]:
    """(shape, clips relative to B, norm group) from the first whole short cycle of a phase."""
    start = -(-plan.phases[number].first_step // 3) * 3
    return [
        (str(step.shape), step.batch_size // 512, step.norm_group)
        for step in plan[start : start + 3]
    ]


def test_short_cycle_in_every_base_shape_of_kinetics() -> None:
    plan = Plan(kinetics(), Multigrid())
    assert short_cycle_of(plan, 0) == [("8x112x112", 16, 16), *[("8x158x158", 8, 8)] * 2]
    assert short_cycle_of(plan, 1) == [("16x112x112", 8, 16), *[("16x158x158", 4, 8)] * 2]
    assert short_cycle_of(plan, 2) == [
        ("16x112x112", 8, 32),
        ("16x158x158", 4, 16),
        ("16x224x224", 2, 8),
    ]
    fine = [("32x112x112", 4, 32), ("32x158x158", 2, 16), ("32x224x224", 1, 8)]
    assert short_cycle_of(plan, 3) == fine
    assert short_cycle_of(plan, 12) == fine
    assert short_cycle_of(plan, 13) == fine


def test_long_cycle_alone_and_short_cycle_alone() -> None:
    baseline = kinetics()
    long_only = Plan(baseline, Multigrid(short_cycle=None))
    assert {step.norm_group for step in long_only[::997]} == {8}
    share = 20_000 / 112_000
    formula = (15 / 4 * (1 - share) + share) / 1.5
    assert long_only.step_reduction == pytest.approx(formula, abs=1e-3)
    short_only = Plan(baseline, Multigrid(long_cycle=None))
    assert short_only.step_reduction == pytest.approx(7 / 3 / 1.5, abs=1e-3)
    # The short cycle leaves the rate alone (section 3.2).
    start = short_only.warmup_steps
    assert {step.learning_rate for step in short_only[start : start + 30]} == {0.8}


def test_the_baseline_is_a_plan() -> None:
    plan = Plan(kinetics(), Multigrid.off())
    assert len(plan) == 112_000
    assert plan.num_clips == 112_000 * 512
    assert plan.step_reduction == 1
    assert [phase.first_step for phase in plan.phases] == [0, 44_000, 72_000, 92_000]
    assert plan[0].learning_rate == 0.002
    assert plan[8_000].learning_rate == pytest.approx((0.002 + 0.8) / 2)
    rates = [plan[i].learning_rate for i in (16_000, 43_999, 44_000, 71_999, 72_000, 92_000)]
    assert rates == pytest.approx([0.8, 0.8, 0.08, 0.08, 0.008, 0.0008])
    assert {(step.shape, step.batch_size, step.norm_group) for step in plan[::991]} == {
        (Shape(32, 224, 224), 512, 8)
    }


def test_a_shortened_baseline_keeps_the_shares_of_its_stages() -> None:
    plan = Plan(kinetics(), Multigrid.off(steps=32_685))
    assert len(plan) == 32_685
    edges = [round(end * 32_685 / 112_000) for end in (0, 44_000, 72_000, 92_000)]
    assert [phase.first_step for phase in plan.phases] == edges
    assert plan.warmup_steps == pytest.approx(16_000 * 32_685 / 112_000, abs=1)


def test_warmup_covers_the_baselines_clips_and_ends_at_the_scaled_rate() -> None:
    plan = Plan(kinetics(), Multigrid())
    assert plan.warmup_steps == 1_500  # of 32/3 B clips each: 16,000 B
    assert plan.first_sample(1_500) == 16_000 * 512
    assert plan[0].learning_rate == 0.002
    assert plan[750].learning_rate == pytest.approx((0.002 + 6.4) / 2)
    assert plan[1_500].learning_rate == pytest.approx(8 * 0.8)


def test_ablations_take_the_last_shapes() -> None:
    assert LongCycle().last(4) == LongCycle()
    assert LongCycle().last(1).factors == ((1.0, 1.0),)
    assert LongCycle().last(2).factors == ((0.5, 1.0), (1.0, 1.0))
    assert ShortCycle().last(3) == ShortCycle()
    assert ShortCycle().last(1).factors == ()
    assert ShortCycle().last(2).factors == ((1.0, 0.5**0.5),)
    steps = len(Plan(kinetics(), Multigrid()))
    # A step's clips relative to B, averaged over the last 1, 2, 3, 4 base shapes.
    for num_shapes, clips in [(1, 7 / 3), (2, 7 / 2), (3, 37 / 9), (4, 23 / 4)]:
        cycle = LongCycle().last(num_shapes)
        plan = Plan(kinetics(), Multigrid(long_cycle=cycle, steps=steps))
        assert len(plan) == steps
        mean_clips = 512 * (92 / 112 * clips + 20 / 112 * 7 / 3)
        assert plan.num_clips == pytest.approx(steps * mean_clips, rel=1e-3)
    assert Plan(kinetics(), Multigrid(short_cycle=ShortCycle().last(1), steps=steps)).phases == (
        Plan(kinetics(), Multigrid(short_cycle=None, steps=steps)).phases
    )


def test_without_fine_tuning_every_stage_has_the_long_cycle() -> None:
    plan = Plan(kinetics(), Multigrid(fine_tuning=False))
    assert len(plan.phases) == 16
    assert {phase.kind for phase in plan.phases} == {"cycle"}
    assert plan.step_reduction == pytest.approx(23 / 4 / 1.5, abs=1e-3)


def test_planning_holds_no_steps() -> None:
    # The plan of ten times the steps is not larger.
    plan, long = Plan(kinetics(), Multigrid()), Plan(i3d_one_gpu(), Multigrid())
    assert (len(plan), len(long)) == (32_685, 347_452)
    assert len(pickle.dumps(long)) <= len(pickle.dumps(plan)) < 10_000
