"""A study's file: which runs it is made of, in which order, and how each is configured.

In: a YAML file that names methods, rates, folds, and tasks (a data set in a regime), with the
lengths and seeds of each method there. Out: a ``Study``, whose ``runs()`` are the whole grid in the
order in which it is carried out. Nothing here trains.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

from study_trials import Trial
from vcycle.config.fields import config_from
from vcycle.config.run import RunConfig
from vcycle.schedule.multigrid import Multigrid

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Method:
    """A schedule, at the lengths that a task gives it.

    Args:
        unit: of a length: a share of the baseline's steps, or a multiple of its epochs.
        schedule: one of the named ones.
        tuned: which lengths have a rate chosen for them: each, or the first, whose rate serves the
            others.
        rate_of: the method that a variant takes its rate from, times ``rate_factor``; it has none
            of its own.
        against: the methods that its saving is counted over, if not the baseline alone.
        joins: a method whose first length, tuned alike, belongs to its curve, too.
        controls: a method whose saving is counted over this one, too, which has a part of it.
        config: further fields of a run's configuration.
        coarse_steps: a share of the baseline's steps that coarse grids have at every length, in the
            schedule's proportions; the full grid has the others.
        full_shape: those that change for a second evaluation, at the full shape.
        trial: what no configuration has (study_trials).
    """

    name: str
    title: str
    schedule: str
    unit: Literal["steps", "epochs"]
    tuned: Literal["each", "first"] = "first"
    rate_of: str | None = None
    rate_factor: float = 1.0
    against: tuple[str, ...] = ()
    joins: str | None = None
    controls: str | None = None
    config: Values = field(default_factory=dict)
    coarse_steps: float | None = None
    full_shape: Values | None = None
    trial: Trial | None = None

    def __post_init__(self) -> None:
        Multigrid.named(self.schedule)
        if self.tuned not in ("each", "first"):
            raise ValueError(f"tuned {self.tuned!r}: give each or first")
        if self.unit not in ("steps", "epochs"):
            raise ValueError(f"unit {self.unit!r}: give steps or epochs")
        if not 0 < self.rate_factor < math.inf or (self.rate_factor != 1 and self.rate_of is None):
            raise ValueError(f"rate_factor {self.rate_factor}: give a positive number, of rate_of")
        if self.coarse_steps is not None and (
            self.schedule not in ("pass", "anneal") or self.unit != "steps"
        ):
            raise ValueError(
                f"coarse_steps of {self.schedule} in {self.unit}: give them to a pass or an anneal "
                f"in steps"
            )
        if self.trial not in (None, *get_args(Trial)):
            raise ValueError(f"trial {self.trial!r}: give one of {', '.join(get_args(Trial))}")


@dataclass(frozen=True)
class Task:
    """A data set in a regime: what the methods are compared on.

    ``videos`` says how a folder of clips is parted: by ``people`` or by ``clips``; or, for
    generated videos, how many there are to train and to validate. ``methods`` names those that
    run here, each with its lengths and their numbers of seeds; ``rates`` are tried instead of the
    study's. ``pretrained_on`` names the task whose baseline's runs give the weights to start from.
    """

    dataset: str
    regime: str
    videos: Literal["people", "clips"] | Mapping[str, int]
    methods: Mapping[str, Mapping[float, int]]
    config: Values = field(default_factory=dict)
    rates: tuple[float, ...] = ()
    pretrained_on: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.videos, str) and self.videos not in ("people", "clips"):
            raise ValueError(
                f"videos {self.videos!r}: give people, clips, or numbers of train and val"
            )
        for name, lengths in self.methods.items():
            if not lengths or min(*lengths, *lengths.values()) <= 0:
                raise ValueError(
                    f"task {self.name}: {name} {dict(lengths)}: give lengths, each with its number "
                    f"of seeds"
                )

    def first_length(self, method: str) -> float:
        """Of a method that runs here: the one that its rate is chosen at, if it is at one."""
        return next(iter(self.methods[method]))

    @property
    def name(self) -> str:
        return f"{self.dataset}/{self.regime}"

    def has(self, row: Mapping[str, Any]) -> bool:
        """Whether a row of the study's table is of this task."""
        return (row["dataset"], row["regime"]) == (self.dataset, self.regime)


@dataclass(frozen=True)
class Run:
    """One run of the grid: it tries a ``rate``, or it is the final one of a ``fold``."""

    task: Task
    method: Method
    length: float
    seed: int
    fold: int | None = None
    rate: float | None = None

    @property
    def role(self) -> Literal["tuning", "final"]:
        return "final" if self.rate is None else "tuning"

    @property
    def point(self) -> str:
        """The method at its length: a point of a curve."""
        return f"{self.task.name}/{self.method.name}-{self.length:g}"

    @property
    def name(self) -> str:
        """Its folder under the study's, and what ``--only`` selects by."""
        return run_name(self.point, rate=self.rate, seed=self.seed, fold=self.fold)

    @property
    def part(self) -> str:
        """Which part of the data set it trains and validates on."""
        return "tuning" if self.role == "tuning" else f"fold{self.fold}"


def run_name(point: str, *, rate: float | None, seed: int, fold: int | None) -> str:
    """Of the run that tries a ``rate``, or of the final one of a seed and fold."""
    return f"{point}/seed{seed}-fold{fold}" if rate is None else f"{point}/rate{rate:g}"


def row_name(row: Mapping[str, Any]) -> str:
    """The name of the run whose row of the study's table that is."""
    point = f"{row['dataset']}/{row['regime']}/{row['method']}-{row['length']:g}"
    tried = row["rate"] if row["role"] == "tuning" else None
    return run_name(point, rate=tried, seed=row["seed"], fold=row["fold"])


@dataclass(frozen=True)
class Study:
    """The grid: tasks x methods x lengths x seeds x folds, and the tuning before them.

    The first method, at its first length, is the baseline of every task.
    """

    name: str
    folds: int
    rates: tuple[float, ...]
    config: Values
    tasks: tuple[Task, ...]
    methods: tuple[Method, ...]

    def __post_init__(self) -> None:
        if self.folds < 1:
            raise ValueError(f"folds {self.folds}: give a number of at least 1")
        for rates in (self.rates, *(task.rates for task in self.tasks if task.rates)):
            if not rates or not all(0 < rate < math.inf for rate in rates):
                raise ValueError(f"rates {list(rates)}: give positive numbers")
        known = {method.name: method for method in self.methods}
        for task in self.tasks:
            if unknown := [name for name in task.methods if name not in known]:
                raise ValueError(f"task {task.name}: no method {', '.join(unknown)} in the study")
            for method in (self.method(name) for name in task.methods):
                least, coarse = min(task.methods[method.name]), method.coarse_steps
                if coarse is not None and not 0 < coarse < least:
                    raise ValueError(
                        f"task {task.name}: {method.name}: its coarse_steps are {coarse:g}, and "
                        f"its shortest length {least:g}; give coarse_steps above 0 and longer "
                        f"lengths"
                    )
                for other in (*method.against, method.joins, method.controls):
                    if other not in (None, *task.methods):
                        raise ValueError(
                            f"task {task.name}: {method.name} is compared with {other}; add it"
                        )
                if method.rate_of not in (None, *task.methods):
                    raise ValueError(
                        f"task {task.name}: {method.name} takes the rate of {method.rate_of}; add "
                        f"that method"
                    )
                if method.rate_of is not None and known[method.rate_of].rate_of is not None:
                    raise ValueError(
                        f"method {method.name}: {method.rate_of} has no rate of its own; name the "
                        f"method whose rate it takes"
                    )
            if self.baseline.name not in task.methods:
                raise ValueError(f"task {task.name}: add {self.baseline.name}, the baseline")
            if task.pretrained_on not in (None, *(other.name for other in self.tasks)):
                raise ValueError(f"task {task.name}: no task {task.pretrained_on} in the study")
            before = [each for each in self.tasks if each.name == task.pretrained_on]
            if any(each.pretrained_on is not None for each in before):
                raise ValueError(
                    f"task {task.name}: {task.pretrained_on} starts from weights itself; name a "
                    f"task that starts from random ones"
                )
        names = [run.name for run in self.runs()]
        known_runs = set(names)
        if twice := next((name for name, count in Counter(names).items() if count > 1), None):
            raise ValueError(
                f"run {twice}: it is there twice; name tasks, methods and lengths once"
            )
        for run in self.runs():
            if (needed := self.pretraining(run)) is not None and needed.name not in known_runs:
                raise ValueError(
                    f"run {run.name}: no run {needed.name}; give the baseline as many seeds"
                )

    @property
    def baseline(self) -> Method:
        return self.methods[0]

    def method(self, name: str) -> Method:
        """The method of that name, which there is."""
        return next(method for method in self.methods if method.name == name)

    def runs(self) -> list[Run]:
        """All runs, in order: one seed of every method comes before the second of any.

        The tuning of a length comes before its final runs.
        """
        placed: list[tuple[tuple[int, ...], Run]] = []
        for number, task in enumerate(self.tasks):
            for place, (method, length, seeds) in enumerate(self._lengths(task)):
                is_tuned = method.tuned == "each" or length == task.first_length(method.name)
                if is_tuned and method.rate_of is None:
                    tuning = self.tuning(task, method, length)
                    placed += [((0, number, -1, place), run) for run in tuning]
                placed += [
                    ((seed, number, fold, place), Run(task, method, length, seed, fold))
                    for seed in range(seeds)
                    for fold in range(self.folds)
                ]
        placed.sort(key=lambda pair: pair[0])
        return [run for _, run in placed]

    def tuning(self, task: Task, method: Method, length: float) -> list[Run]:
        """The runs that choose a length's rate, one for each rate that may be tried."""
        if method.rate_of is not None:
            other = self.method(method.rate_of)
            return self.tuning(task, other, task.first_length(other.name))
        at = length if method.tuned == "each" else task.first_length(method.name)
        return [Run(task, method, at, 0, rate=rate) for rate in task.rates or self.rates]

    def pretraining(self, run: Run) -> Run | None:
        """The baseline's run of the same seed, first fold, on the task to start from."""
        if run.task.pretrained_on is None:
            return None
        task = next(task for task in self.tasks if task.name == run.task.pretrained_on)
        return Run(task, self.baseline, task.first_length(self.baseline.name), run.seed, 0)

    def selected(self, prefixes: Sequence[str]) -> list[Run]:
        """The runs whose names begin with one of ``prefixes``, and those that they need."""
        runs = self.runs()
        chosen = {run.name for run in runs if run.name.startswith(tuple(prefixes))}
        more = chosen
        while more:
            needed = [each for run in runs if run.name in more for each in self._needed_by(run)]
            more = {run.name for run in needed} - chosen
            chosen |= more
        return [run for run in runs if run.name in chosen]

    def _needed_by(self, run: Run) -> list[Run]:
        before = self.pretraining(run)
        tuning = self.tuning(run.task, run.method, run.length) if run.role == "final" else []
        return tuning if before is None else [*tuning, before]

    def baseline_clips(self, task: Task) -> int:
        """Clips of the whole baseline of a task."""
        whole = Run(task, self.baseline, task.first_length(self.baseline.name), 0, 0)
        return self.config_of(whole, rate=1.0).plan().num_clips

    def _lengths(self, task: Task) -> Iterator[tuple[Method, float, int]]:
        for method in self.methods:
            for length, seeds in task.methods.get(method.name, {}).items():
                yield method, length, seeds

    def config_of(
        self,
        run: Run,
        *,
        rate: float,
        manifest: str = "manifest",
        num_videos: int = 1,
        weights: str | None = None,
    ) -> RunConfig:
        """The configuration of one run; ValueError for a field that no run has."""
        schedule = {"multigrid": asdict(Multigrid.named(run.method.schedule))}
        values = _merged(schedule, self.config, run.task.config, run.method.config)
        if run.method.coarse_steps is not None:
            long_cycle = values["multigrid"]["long_cycle"]
            shares = _with_coarse(long_cycle["shares"], run.method.coarse_steps / run.length)
            values = _merged(values, {"multigrid": {"long_cycle": {"shares": shares}}})
        if run.method.unit == "epochs":
            length: dict[str, Any] = {"epoch_factor": run.length}
        else:
            length = {"steps": round(values["baseline"]["steps"] * run.length)}
        values = _merged(
            values,
            {
                "recipe": run.point,
                "seed": run.seed,
                "data": {"manifest": manifest},
                "model": {"weights": weights},
                "multigrid": length,
                "baseline": {"num_videos": num_videos, "learning_rate": {"base": rate}},
            },
        )
        return config_from(values, {})


def _with_coarse(shares: Sequence[float], coarse: float) -> list[float]:
    """``shares`` of phases of which all but the last have ``coarse`` of the steps in all."""
    *others, _ = shares
    return [*(share * coarse / sum(others) for share in others), 1 - coarse]


def at_full_shape(run: Run, config: RunConfig) -> RunConfig | None:
    """``config`` changed for a second evaluation; None for a method that needs none."""
    if run.method.full_shape is None:
        return None
    return config_from(_merged(asdict(config), run.method.full_shape), {})


def read_study(file: Path) -> Study:
    """Read a study's file; ValueError names what is wrong with it."""
    try:
        values = yaml.safe_load(file.read_text())
        methods = tuple(
            Method(**{**fields, "name": name, "against": tuple(fields.get("against", ()))})
            for name, fields in values.pop("methods").items()
        )
        tasks = tuple(
            Task(**{**fields, "rates": tuple(fields.get("rates", ()))})
            for fields in values.pop("tasks")
        )
        rates = tuple(values.pop("rates"))
        study = Study(name=file.stem, rates=rates, methods=methods, tasks=tasks, **values)
        for run in {run.point: run for run in study.runs()}.values():
            study.config_of(run, rate=1.0)
        return study
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror}; name a study's file") from error
    except (yaml.YAMLError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file}: no study in it ({' '.join(str(error).split())})") from error
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error


def _merged(*layers: Values) -> dict[str, Any]:
    """The layers over one another, mappings merged field by field."""
    merged: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            below = merged.get(key)
            both = isinstance(value, Mapping) and isinstance(below, Mapping)
            merged[key] = _merged(below or {}, value) if both else value
    return merged
