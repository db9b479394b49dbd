"""The gradient noise scale of each grid of an anneal: are equation 1's larger batches of use?

    python benchmarks/noise_scale.py --datasets DIR

Carries out one run of the published study, and at its checkpoints estimates
B_simple = tr(Sigma) / |G|^2 in clips (McCandlish et al. 2018, section 2.2): a gradient of so many
clips is as much noise as signal. Far below it a batch of twice the clips does nearly the work of
two steps; far above it the clips are better spent on more steps. Writes
docs/results/noise_scale.jsonl, a line a phase.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from study_file import read_study
from study_provenance import commit
from study_runs import StudyFolder
from vcycle.config.run import Checkpoint, RunConfig
from vcycle.data.atomic import write_atomic
from vcycle.data.batch import normalize
from vcycle.data.dataset import ClipDataset
from vcycle.data.sampler import PlanSampler
from vcycle.devices.launch import make_fabric
from vcycle.evaluate.checkpoint import load_checkpoint
from vcycle.evaluate.loaders import make_dataset
from vcycle.evaluate.setup import make_network, read_manifest
from vcycle.models import set_dropout_seeds, set_norm_group
from vcycle.schedule.plan import Plan
from vcycle.train.run import train

ROOT = Path(__file__).parents[1]
STUDY = ROOT / "benchmarks" / "study" / "proof.yaml"
RESULTS = ROOT / "docs" / "results"
RUN = "isl_emergency8/scratch/anneal-0.276/seed0-fold0"
PLACES = {"early": 0.1, "middle": 0.5, "late": 0.9}
"""How far through a phase it is measured, to the nearest checkpoint."""
CHECKPOINT_STEPS = 10
GROUPS = 256
"""Norm groups that an estimate takes, each an independent draw of videos and grids."""


def main() -> None:
    """Train, or take the run that is there; measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--datasets", type=Path, default=Path("datasets"))
    parser.add_argument("--folder", type=Path, default=Path("runs/noise-scale"))
    options = parser.parse_args()
    study = read_study(STUDY)
    published = json.loads((RESULTS / "study.json").read_text())
    folder = StudyFolder(study, options.folder, options.datasets, published)
    config = folder.config(next(run for run in study.runs() if run.name == RUN))
    assert config is not None, "its rate is among the published"
    config = replace(config, checkpoint=Checkpoint(steps=CHECKPOINT_STEPS, keep=len(config.plan())))
    result = train(config, options.folder / "run", resume="auto")
    print(f"{RUN}: top-1 {result['top1']:.1%}, loss {result['loss']:.3f}", flush=True)

    fabric, plan, manifest = make_fabric(config), config.plan(), read_manifest(config)
    network = make_network(config, num_classes=manifest.num_classes, fabric=fabric)
    dataset = make_dataset(config, manifest.split("train"))
    lines = []
    for phase in plan.phases:
        line: dict[str, Any] = {
            "run": RUN,
            "commit": commit(),
            "shape": str(phase.base.shape),
            "batch_size": phase.base.batch_size,
            "group": config.multigrid.norm_group,
            "groups": GROUPS,
        }
        for place, share in PLACES.items():
            exact = phase.first_step + share * phase.steps
            step = CHECKPOINT_STEPS * round(exact / CHECKPOINT_STEPS)
            file = options.folder / "run" / "checkpoints" / f"step_{step:08d}.pt"
            network.load_state_dict(load_checkpoint(file)["model"])
            gradients = group_gradients(network, dataset, config, plan, step=step)
            scale, error = noise_scale(gradients, clips=plan[step].norm_group or 1)
            line[place] = {"step": step, "noise_scale": round(scale), "error": round(error)}
        lines.append(json.dumps(line) + "\n")
        print(lines[-1], end="", flush=True)
    write_atomic(RESULTS / "noise_scale.jsonl", "".join(lines))


def group_gradients(
    network: nn.Module, dataset: ClipDataset, config: RunConfig, plan: Plan, *, step: int
) -> Tensor:
    """(GROUPS, parameters) float32: of the mean loss of a norm group each, at a step's shape.

    A batch's gradient is the mean of its groups': batch norm ties the clips of a group together.
    """
    group = plan[step].norm_group
    assert group is not None, "the study's runs have norm groups"
    network.train()
    set_norm_group(network, group)
    rows = []
    for number in range(GROUPS):
        # Other seeds than the run's, and no group shares a permutation of the videos with another.
        seed = config.seed + 1 + number
        sampler = PlanSampler(plan, len(dataset), seed, first_step=step)
        clips = [dataset[request] for request in next(iter(sampler))[:group]]
        pixels = torch.stack([clip.pixels for clip in clips]).permute(0, 4, 1, 2, 3)
        labels = torch.tensor([clip.labels[0] for clip in clips])
        part = clips[0].request.part
        assert part is not None, "a training clip is part of a step"
        set_dropout_seeds(network, part.dropout_seeds[:group])
        loss = F.cross_entropy(network(normalize(pixels)), labels)
        found = torch.autograd.grad(loss, list(network.parameters()))
        rows.append(torch.cat([each.flatten() for each in found]))
    return torch.stack(rows)


def noise_scale(gradients: Tensor, *, clips: int) -> tuple[float, float]:
    """B_simple in clips and its standard error, from (n, P) gradients of ``clips`` clips each.

    The unbiased estimates of appendix A.1, of one small batch against all of them: |G|^2 is the
    mean product of two different rows. The error is the jackknife's, over rows.
    """
    products = (gradients @ gradients.T).double()  # (n, n)
    n = len(products)
    squares = products.diagonal()
    across = products.sum(1) - squares  # with all other rows

    def scale(square: Tensor, product: Tensor) -> Tensor:
        return clips * (square - product) / product

    whole = scale(squares.mean(), across.sum() / (n * (n - 1)))
    without = scale(
        (squares.sum() - squares) / (n - 1),
        (across.sum() - 2 * across) / ((n - 1) * (n - 2)),
    )
    error = ((n - 1) / n * (without - without.mean()).square().sum()).sqrt()
    return whole.item(), error.item()


if __name__ == "__main__":
    main()
