"""Named runs: every run of the paper, the demo's, and those on a folder of one's own videos.

In: a name; for one's own videos, their number and that of the GPUs. Out: the configuration of the
run, whose plan can be printed before anything is trained.
"""

from __future__ import annotations

from collections.abc import Callable

from vcycle.config.paper_recipes import PAPER_RECIPES
from vcycle.config.run import Data, Evaluation, Model, Optimizer, RunConfig
from vcycle.config.sizing import Asked, rescaled
from vcycle.config.user_recipes import finetune, scratch
from vcycle.schedule.arguments import nearest
from vcycle.schedule.baseline import Baseline, LearningRate
from vcycle.schedule.multigrid import Multigrid
from vcycle.schedule.shape import Shape


def demo(*, quick: bool = False) -> RunConfig:
    """The generated videos of ``vcycle demo``: a small 3D ResNet on two CPU cores.

    AdamW with the square-root rule: the whole demo has fewer steps than the warm-up of a Kinetics
    run. One thread trains while the worker decodes on the other core.
    """
    steps, num_videos = (400, 320) if quick else (1800, 1200)
    baseline = Baseline(
        shape=Shape(16, 64, 64),
        batch_size=8,
        steps=steps,
        num_videos=num_videos,
        learning_rate=LearningRate(0.008, warmup_steps=steps // 20),
        stage_ends=(steps * 7 // 10, steps * 9 // 10),
    )
    return RunConfig(
        recipe="demo",
        baseline=baseline,
        multigrid=Multigrid(rate_exponent=0.5),
        data=Data(stride=1, short_side=(66, 84), num_workers=1),
        model=Model("resnet3d_tiny"),
        optimizer=Optimizer("adamw", weight_decay=0.05),
        evaluation=Evaluation(times=2 if quick else 8, batch_size=24),
        threads=1,
    )


FIXED_RECIPES: dict[str, Callable[[], RunConfig]] = {**PAPER_RECIPES, "demo": demo}
USER_RECIPES: dict[str, Callable[..., RunConfig]] = {"finetune": finetune, "scratch": scratch}


def recipe(
    name: str,
    *,
    num_videos: int | None = None,
    num_gpus: int | None = None,
    model: str | None = None,
    optimizer: str | None = None,
    asked: Asked = Asked(),
) -> RunConfig:
    """The configuration of the run called ``name``, at the size that is asked for.

    All but ``asked`` are for the recipes of one's own videos, which are sized by them: a paper's
    recipe has its own batch, and ignores ``model`` and ``optimizer``, which are fields of it.
    Raises ValueError if a paper's recipe is given a number, or the name is unknown (it names the
    nearest).
    """
    if name in USER_RECIPES:
        given = {"num_videos": num_videos, "num_gpus": num_gpus, "model": model}
        given |= {"optimizer": optimizer}
        known = {key: value for key, value in given.items() if value is not None}
        return USER_RECIPES[name](asked=asked, **known)
    if name not in FIXED_RECIPES:
        guess = nearest(name, [*FIXED_RECIPES, *USER_RECIPES])
        raise ValueError(
            f"recipe {name}: no such recipe{guess or '; vcycle plan --list shows all'}"
        )
    if num_videos is not None or num_gpus is not None:
        raise ValueError(
            f"--num-videos and --gpus: recipe {name} has a batch and epochs of its own; leave them "
            f"out, or give --baseline.num_videos or --batch-size"
        )
    return rescaled(FIXED_RECIPES[name](), asked)


def summaries() -> dict[str, str]:
    """Every recipe's name with what it is, in one line."""
    return {
        name: (build.__doc__ or "").splitlines()[0].rstrip(".").replace("``", "")
        for name, build in {**FIXED_RECIPES, **USER_RECIPES}.items()
    }
