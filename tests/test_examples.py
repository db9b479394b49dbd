"""Each example runs and trains as ``vcycle train`` does, and the public names are there."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import mean
from types import ModuleType
from typing import Any

import pytest

import vcycle
from tests.processes import PATIENCE
from vcycle.config.run import Data, Evaluation, Model, Optimizer, RunConfig
from vcycle.data.json_lines import read_rows
from vcycle.train.run import train

pytestmark = pytest.mark.xdist_group("processes")
ROOT = Path(__file__).parents[1]
STEPS = 66  # crosses every phase
QUIET = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
LIGHTNING = {"accelerator": "cpu", "devices": 2, "strategy": "ddp", **QUIET}


def example(name: str) -> ModuleType:
    """The module of an example; they lie beside the package."""
    return importlib.import_module(f"examples.{name}")


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(str(ROOT))


def own_losses(
    videos: Path, folder: Path, *, plan: vcycle.Plan, model: Model, **fields: Any
) -> list[float]:
    """Those of ``vcycle train`` for the same plan, network and seed."""
    config = RunConfig(
        recipe="test",
        baseline=plan.baseline,
        multigrid=plan.multigrid,
        data=Data(str(videos), stride=1, short_side=(36, 48), num_workers=0),
        model=model,
        evaluation=Evaluation(times=1),
        channels_last=False,
        threads=1,
        **fields,
    )
    assert len(plan.phases) > 5
    train(config, folder)
    return [row["loss"] for row in read_rows(folder / "metrics.jsonl")]


def by_step(losses: list[float], micro_batches: int) -> list[float]:
    """Means over a step's micro-batches."""
    rest = iter(losses)
    return [mean(part) for part in iter(lambda: list(islice(rest, micro_batches)), [])]


@pytest.fixture(scope="module", params=[1, 2])
def run(
    request: pytest.FixtureRequest, synthetic_videos: Path, tmp_path_factory: Any
) -> tuple[int, list[float]]:
    """A number of micro-batches, and the losses of ``vcycle train`` with it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        patch.syspath_prepend(str(ROOT))
        plan = example("small_run").small_plan(24, steps=STEPS)
        folder = tmp_path_factory.mktemp("run") / "run"
        model = Model("examples.small_run:small_network")
        own = own_losses(synthetic_videos, folder, plan=plan, model=model, accumulate=request.param)
    return request.param, own


def test_a_plain_loop_trains_as_vcycle_train_does(
    synthetic_videos: Path, run: tuple[int, list[float]]
) -> None:
    micro_batches, own = run
    losses = example("own_loop").main(
        str(synthetic_videos), steps=STEPS, micro_batches=micro_batches
    )
    assert losses == pytest.approx(own, rel=1e-6, abs=0)


def test_accelerate_trains_as_vcycle_train_does(
    synthetic_videos: Path, run: tuple[int, list[float]]
) -> None:
    pytest.importorskip("accelerate")
    micro_batches, own = run
    losses = example("accelerate_loop").main(
        str(synthetic_videos), steps=STEPS, micro_batches=micro_batches
    )
    assert losses == pytest.approx(own, rel=1e-5, abs=0)


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")
def test_lightning_trains_and_resumes_as_vcycle_train_does(
    synthetic_videos: Path, tmp_path: Path, run: tuple[int, list[float]]
) -> None:
    pytest.importorskip("torchdata")
    callbacks = pytest.importorskip("pytorch_lightning").callbacks
    micro_batches, own = run
    train_on = partial(
        example("lightning_trainer").main,
        str(synthetic_videos),
        steps=STEPS,
        micro_batches=micro_batches,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        default_root_dir=tmp_path,
    )
    kept = callbacks.ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=5, save_top_k=-1)
    module = train_on(callbacks=[kept])
    assert by_step(module.losses, micro_batches) == pytest.approx(own, rel=1e-5, abs=0)
    for done in (5, 15):  # of 20 steps
        resumed = train_on(
            enable_checkpointing=False, ckpt_path=str(tmp_path / f"step={done}.ckpt")
        )
        losses = by_step(resumed.losses, micro_batches)
        assert losses == pytest.approx(own[done:], rel=1e-5, abs=0)


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_transformers_trains_as_vcycle_train_does(
    synthetic_videos: Path, tmp_path: Path, micro_batches: int
) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    small = example("small_run")
    plan = small.small_plan(24, steps=2 * STEPS, rate=0.001, multigrid=small.FOR_TRANSFORMERS)
    own = own_losses(
        *(synthetic_videos, tmp_path / "run"),
        plan=plan,
        model=Model("examples.small_run:small_videomae"),
        optimizer=Optimizer("adamw"),
        accumulate=micro_batches,
    )
    arguments: dict[str, Any] = {
        "output_dir": str(tmp_path),
        "use_cpu": True,
        "report_to": "none",
        "disable_tqdm": True,
        "save_strategy": "no",
        "logging_strategy": "no",
    }
    losses = example("transformers_trainer").main(
        str(synthetic_videos),
        steps=2 * STEPS,
        micro_batches=micro_batches,
        **arguments,
    )
    assert by_step(losses, micro_batches) == pytest.approx(own, rel=1e-5, abs=0)
    if micro_batches == 2:
        losses = losses_of_two(
            "transformers_trainer",
            *(synthetic_videos, tmp_path),
            steps=2 * STEPS,
            num_steps=len(plan),
            options=arguments,
        )
        assert losses == pytest.approx(own, rel=1e-5, abs=0)


TWO_PROCESSES = """
import importlib, json, os, pathlib, sys
import torch.distributed as dist
root, name, videos, steps, folder, options = sys.argv[1:]
sys.path.insert(0, root)
if name == "own_loop":
    dist.init_process_group("gloo")
main = importlib.import_module(f"examples.{name}").main
done = main(videos, steps=int(steps), micro_batches=2, **json.loads(options))
losses = done if isinstance(done, list) else done.losses
(pathlib.Path(folder) / f"{os.environ['RANK']}.json").write_text(json.dumps(losses))
sys.stdout.flush()
# A DDP model that outlives its group may hang in its destructor (pytorch/pytorch#179291).
os._exit(0)
"""


def losses_of_two(
    name: str,
    videos: Path,
    folder: Path,
    *,
    steps: int,
    num_steps: int,
    options: dict[str, Any],
) -> list[float]:
    """The mean loss of each step of an example, by two processes with two micro-batches each."""
    script = folder / "script.py"
    script.write_text(TWO_PROCESSES)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    arguments = [str(ROOT), name, str(videos), str(steps), str(folder), json.dumps(options)]
    done = subprocess.run(
        [sys.executable, *torchrun, str(script), *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"},
    )
    assert done.returncode == 0, done.stderr
    first, second = (json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1))
    losses = [(a + b) / 2 for a, b in zip(first, second, strict=True)]
    return by_step(losses, len(losses) // num_steps)


@pytest.mark.parametrize(
    ("name", "options"),
    [("own_loop", {}), ("accelerate_loop", {}), ("lightning_trainer", LIGHTNING)],
)
def test_two_processes_train_as_one_does(
    synthetic_videos: Path,
    tmp_path: Path,
    name: str,
    options: dict[str, Any],
    run: tuple[int, list[float]],
) -> None:
    """With two micro-batches each: four parts of a batch, and norm groups that span processes."""
    micro_batches, own = run
    if micro_batches == 1:
        pytest.skip("two processes are compared with two micro-batches")
    losses = losses_of_two(
        name, synthetic_videos, tmp_path, steps=STEPS, num_steps=len(own), options=options
    )
    assert losses == pytest.approx(own, rel=1e-5, abs=0)


def test_loops_are_short() -> None:
    for name in ("own_loop", "lightning_trainer", "accelerate_loop", "transformers_trainer"):
        assert len((ROOT / "examples" / f"{name}.py").read_text().splitlines()) <= 65, name


def test_public_names_exist_and_plans_need_no_torch() -> None:
    for name in vcycle.__all__:
        assert callable(getattr(vcycle, name))
        assert getattr(vcycle, name) is getattr(vcycle, name)
    assert {name for name in dir(vcycle) if not name.startswith("__")} == set(vcycle.__all__)
    code = "import sys, vcycle; vcycle.Plan; dir(vcycle); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="no attribute 'Plann'"):
        _ = vcycle.Plann
