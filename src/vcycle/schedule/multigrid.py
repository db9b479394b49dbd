"""How a run changes a baseline: its grids, its batches, its rate and its length.

In: nothing; every schedule is a value of the types here. Out: a Multigrid that a Plan turns into
steps. The named ones are the paper's, a single pass, an anneal, and none; progressive resizing is
one more value.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from vcycle.schedule.arguments import check_type, keep, nearest, number, truth, whole_number
from vcycle.schedule.cycles import SQRT_HALF, Factors, LongCycle, ShortCycle
from vcycle.schedule.shape import ShapeRule


@dataclass(frozen=True)
class Anneal:
    """One curve of the rate for the whole run, in place of the baseline's decay and warm-up.

    The rate rises in a line from the baseline's ``warmup_start``, stays at the peak, and falls. The
    peak is the baseline's base rate times the rate factor of the phase. Raises ValueError if the
    fall is longer than the run.

    Args:
        form: of the fall, a line or half a period of a cosine.
        share: of the steps, the last ones, in which the rate falls: 1 falls from the first step,
            None while the run is on the full grid at its end.
        final: the last rate, as a share of the peak.
        warmup: the share of the steps, the first ones, in which the rate rises.

    >>> Anneal(share=0.5).at(0.75, start=0.5)
    0.5
    """

    form: Literal["linear", "cosine"] = "linear"
    share: float | None = None
    final: float = 0.0
    warmup: float = 0.1

    def __post_init__(self) -> None:
        if self.form not in ("linear", "cosine"):
            raise ValueError(f"anneal.form {self.form!r}: choose linear or cosine")
        for name in ("share", "final", "warmup"):
            if getattr(self, name) is not None or name != "share":
                keep(self, **{name: number(f"anneal.{name}", getattr(self, name))})
        if self.share is not None and not self.share > 0:
            raise ValueError(
                f"anneal.share {self.share:g}: give a share of the steps above 0 and at most 1, or "
                f"null for the steps on the full grid"
            )
        if self.share is not None and self.share > 1:
            raise ValueError(
                f"anneal.share {self.share:g}: the anneal is longer than the run; give a share of "
                f"the steps of at most 1, or null for the steps on the full grid"
            )
        if not 0 <= self.final <= 1:
            raise ValueError(f"anneal.final {self.final:g}: give a share of the peak from 0 to 1")
        if not 0 <= self.warmup < 1:
            raise ValueError(
                f"anneal.warmup {self.warmup:g}: give a share of the steps from 0 to below 1"
            )

    def at(self, progress: float, *, start: float) -> float:
        """The share of the peak, ``progress`` in [0, 1) through a run that falls from ``start``."""
        if progress <= start:
            return 1.0
        done = (progress - start) / (1 - start)
        left = 1 - done if self.form == "linear" else (1 + math.cos(math.pi * done)) / 2
        return self.final + (1 - self.final) * left


@dataclass(frozen=True)
class Multigrid:
    """How multigrid changes a baseline; the defaults are the paper's.

    Args:
        long_cycle: the base shapes; None for none.
        short_cycle: the shapes within each of them, step by step; None for none.
        epoch_factor: the clips of the run as a multiple of the baseline's, which fixes the steps.
        steps: of the run, in place of the epoch factor (tables 1a and 1b).
        fine_tuning: the last learning-rate stage stays on the baseline's shape.
        norm_group: the sub-mini-batch of batch norm in clips, None for a model without batch norm.
        batch_exponent: p, with which batches grow as (THW / thw)^p, rounded to whole multiples of
            B: 1 is equation 1, 0 keeps the batch.
        rate_exponent: q, with which the rate grows as the long cycle's batch factor to the power
            q: 1 is the linear scaling rule, 0.5 the square-root rule that suits Adam.
        rule: the clips that the model accepts.
        anneal: replaces the baseline's decay; None keeps it.

    >>> Multigrid(norm_group=None, rate_exponent=0.5).epoch_factor
    1.5
    """

    long_cycle: LongCycle | None = LongCycle()
    short_cycle: ShortCycle | None = ShortCycle()
    epoch_factor: float = 1.5
    steps: int | None = None
    fine_tuning: bool = True
    norm_group: int | None = 8
    batch_exponent: float = 1.0
    rate_exponent: float = 1.0
    rule: ShapeRule = ShapeRule()
    anneal: Anneal | None = None

    def __post_init__(self) -> None:
        for name, kind in (
            ("long_cycle", LongCycle),
            ("short_cycle", ShortCycle),
            ("anneal", Anneal),
        ):
            if getattr(self, name) is not None:
                check_type(name, getattr(self, name), kind, example=f"{kind.__name__}(), or None")
        check_type("rule", self.rule, ShapeRule, example="ShapeRule(side_multiple=16)")
        keep(self, fine_tuning=truth("fine_tuning", self.fine_tuning))
        for name in ("epoch_factor", "batch_exponent", "rate_exponent"):
            keep(self, **{name: number(name, getattr(self, name))})
        if not 0 < self.epoch_factor < float("inf"):
            raise ValueError(f"epoch_factor {self.epoch_factor}: give a positive number")
        if self.steps is not None:
            keep(self, steps=whole_number("steps", self.steps))
        if self.norm_group is not None:
            group = whole_number("norm_group", self.norm_group, give="at least 1 clip, or none")
            keep(self, norm_group=group)
        for name in ("batch_exponent", "rate_exponent"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} {getattr(self, name)}: give a number from 0 to 1")
        if self.fine_tuning and self.long_cycle is not None and self.long_cycle.once:
            raise ValueError(
                "fine_tuning true: a long cycle that is gone through once has no last stage to "
                "fine-tune in; give false"
            )

    @classmethod
    def off(
        cls,
        *,
        steps: int | None = None,
        norm_group: int | None = 8,
        rule: ShapeRule = ShapeRule(),
    ) -> Multigrid:
        """No cycles: the baseline itself, or shortened to ``steps`` steps."""
        return cls(
            long_cycle=None,
            short_cycle=None,
            epoch_factor=1.0,
            steps=steps,
            fine_tuning=False,
            norm_group=norm_group,
            rule=rule,
        )

    @classmethod
    def one_pass(
        cls,
        factors: Factors,
        shares: tuple[float, ...] | None,
        *,
        anneal: Anneal | None = None,
        epoch_factor: float = 1.5,
    ) -> Multigrid:
        """A single pass over the shapes, coarse to fine, for ``shares`` of the steps (None: equal).

        No short cycle. Without ``anneal`` the rate is the baseline's.
        """
        return cls(
            long_cycle=LongCycle(factors, shares=shares, once=True),
            short_cycle=None,
            epoch_factor=epoch_factor,
            fine_tuning=False,
            anneal=anneal,
        )

    @classmethod
    def named(cls, name: str) -> Multigrid:
        """The schedule called ``name``, one of ``SCHEDULES``.

        ``paper``: V-cycles in every learning-rate stage, then fine-tuning (section 3.2), for 1.5
        times the baseline's epochs. ``pass``: T/4 x H/2 for half the steps, T/2 x H/sqrt(2) for
        30%, T x H for 20%, under one cosine, for 3.5 times the epochs. ``anneal``: the same shapes
        for 45, 30 and 25%, at a constant rate that falls to 0 in a line on the full grid, for 3.25
        times. Either is three eighths of the baseline's steps: by equation 1 a step at T/4 x H/2
        has 16 times the clips. ``off``: the baseline. Raises ValueError if it is none of these.
        """
        if name not in SCHEDULES:
            guess = nearest(name, SCHEDULES)
            raise ValueError(f"schedule {name!r}: choose {', '.join(SCHEDULES)}{guess}")
        return SCHEDULES[name]

    @classmethod
    def progressive_resizing(cls) -> Multigrid:
        """All frames at H/2, then H/sqrt(2), then H, for equal shares, with B and the rate kept."""
        sides = ((1.0, 0.5), (1.0, SQRT_HALF), (1.0, 1.0))
        return replace(cls.one_pass(sides, None, epoch_factor=1.0), batch_exponent=0.0)

    def with_schedule(self, name: str) -> Multigrid:
        """The named schedule for the same model and data.

        It keeps the shape rule, the norm group, the exponents of batch and rate, and the number of
        steps if that is fixed, but for ``paper`` and ``off`` in place of a single pass. The epoch
        factor is the named schedule's own.
        """
        chosen = Multigrid.named(name)
        passes = self.long_cycle is not None and self.long_cycle.once
        return replace(
            chosen,
            steps=None if passes and name in ("paper", "off") else self.steps,
            norm_group=self.norm_group,
            batch_exponent=self.batch_exponent,
            rate_exponent=self.rate_exponent,
            rule=self.rule,
        )


COARSE_TO_FINE: Factors = ((0.25, 0.5), (0.5, SQRT_HALF), (1.0, 1.0))
"""16B x T/4 x H/2, 4B x T/2 x H/sqrt(2), B x T x H: the shapes of ``pass`` and ``anneal``."""
SCHEDULES = {
    "paper": Multigrid(),
    "pass": Multigrid.one_pass(
        COARSE_TO_FINE, (0.5, 0.3, 0.2), anneal=Anneal("cosine", share=1.0), epoch_factor=3.5
    ),
    "anneal": Multigrid.one_pass(
        COARSE_TO_FINE, (0.45, 0.3, 0.25), anneal=Anneal("linear"), epoch_factor=3.25
    ),
    "off": Multigrid.off(),
}
