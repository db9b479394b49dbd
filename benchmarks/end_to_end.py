"""What a user gains in all: a plain PyTorch loop beside this package's, on the study's real sets.

    python benchmarks/end_to_end.py --datasets DIR [--dataset weizmann10] [--folds 0 1 2]

In: the study's file, whose clips, folds, rates and lengths these are. Out: a row of
docs/results/end_to_end.json for each form and fold, as it is done; what is there is not done again.
All forms read the same videos, each in one worker process, train the same network on one thread and
are scored alike, by three views a video. Seconds are wall-clock, from before the first batch to the
last optimizer step, without validations. ``load`` is the machine's at the start, when the
form before has just ended: much above 1.5, others worked on it, and the seconds are not to be
compared.

The plain loop is as people write it: batch norm over whole batches, a DataLoader that shuffles, the
baseline's shape throughout. ``contiguous float32`` is PyTorch's default. All other forms take what
``vcycle train --time`` would: channels-last, and bfloat16 on a CPU that has instructions for it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the forms are compared on this CPU

import torch
from rich.console import Console
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from study_file import Run, read_study
from study_provenance import commit, machine
from study_runs import StudyFolder
from vcycle.config.run import RunConfig
from vcycle.data.atomic import write_atomic
from vcycle.data.batch import normalize
from vcycle.data.dataset import ClipDataset
from vcycle.data.request import ClipRequest
from vcycle.devices.launch import make_fabric
from vcycle.devices.precision import fastest_precision
from vcycle.evaluate.evaluate import score_videos, summary
from vcycle.evaluate.loaders import make_dataset, make_eval_loader
from vcycle.evaluate.setup import read_manifest
from vcycle.models import build_model
from vcycle.schedule.shape import Shape
from vcycle.train.run import train

ROOT = Path(__file__).parents[1]
STUDY = ROOT / "benchmarks" / "study" / "proof.yaml"
TABLE = ROOT / "docs" / "results" / "study.json"


DATASETS = ("isl_emergency8", "weizmann10")


@dataclass(frozen=True)
class Form:
    """A way to train: the plain loop, or this package's with a method of the study."""

    title: str
    method: str
    lengths: tuple[float, float] = (1, 1)
    """On each of ``DATASETS``: one that came to the whole baseline's top-1 in the study.

    Not so of the paper's cycles, which have its own 1.5 times the epochs on the first, and on the
    second as many as take fewer steps than the whole baseline.
    """
    is_plain: bool = False
    is_contiguous: bool = False


FORMS = {
    "plain": Form("plain loop, contiguous", "baseline", is_plain=True, is_contiguous=True),
    "plain-fast": Form("plain loop, channels-last", "baseline", is_plain=True),
    "baseline": Form("vcycle, baseline", "baseline"),
    "paper": Form("vcycle, paper", "paper", (1.5, 3)),
    "pass": Form("vcycle, pass", "pass", (0.276, 0.555)),
    "anneal": Form("vcycle, anneal", "anneal", (0.276, 0.555)),
    "muon": Form("vcycle, half the baseline, Muon", "baseline-muon", (0.5, 0.5)),
    "anneal-muon": Form("vcycle, anneal, Muon", "anneal-muon", (0.167, 0.276)),
}


class Shuffled(Dataset[tuple[Tensor, int]]):
    """A ``ClipDataset`` as plain loops know datasets: an integer in, (clip, label) out."""

    def __init__(self, clips: ClipDataset, shape: Shape) -> None:
        self.clips, self.shape = clips, shape

    def __len__(self) -> int:
        return len(self.clips)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        clip = self.clips[ClipRequest(index, self.shape, int(torch.randint(2**62, ())))]
        return clip.pixels, int(clip.label)


def plain_loop(config: RunConfig, layout: torch.memory_format) -> dict[str, Any]:
    """Train the baseline and score it; the rate as the study has it, a cosine after a warm-up."""
    torch.manual_seed(config.seed)
    fabric, manifest = make_fabric(config), read_manifest(config)
    videos, baseline = manifest.split("train"), config.baseline
    in_bfloat16 = config.precision == "bf16-mixed"
    model = build_model(config.model.name, num_classes=manifest.num_classes)
    model.to(memory_format=layout)  # type: ignore[call-overload]
    rates = [step.learning_rate for step in config.plan()]
    optimizer = torch.optim.AdamW(
        model.parameters(), rates[0], weight_decay=config.optimizer.weight_decay
    )
    loader = DataLoader(
        Shuffled(make_dataset(config, videos), baseline.shape),
        batch_size=baseline.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=1,
        persistent_workers=True,
    )
    batches = _endless(loader)
    began = time.perf_counter()
    for rate in rates:
        pixels, labels = next(batches)  # (N, T, H, W, 3)
        optimizer.param_groups[0]["lr"] = rate
        clips = normalize(pixels.movedim(-1, 1), memory_format=layout)
        with torch.autocast("cpu", torch.bfloat16, enabled=in_bfloat16):
            loss = F.cross_entropy(model(clips), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    seconds = time.perf_counter() - began
    held_out = manifest.split("val")
    with closing(make_eval_loader(config, held_out, fabric)) as views:
        scores = summary(score_videos(model, views, held_out, fabric=fabric), held_out)
    return {"seconds": seconds, **scores}


def _endless(loader: DataLoader[Any]) -> Iterator[Any]:
    while True:
        yield from loader


def own_loop(config: RunConfig, folder: Path) -> dict[str, Any]:
    """Train with ``vcycle.train``."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".log").open("w") as log:
        return train(config, folder, console=Console(file=log))


def row(name: str, dataset: str, fold: int, studied: StudyFolder, folder: Path) -> dict[str, Any]:
    """Carry out one run."""
    form, study = FORMS[name], studied.study
    task = next(each for each in study.tasks if (each.dataset, each.regime) == (dataset, "scratch"))
    method = next(each for each in study.methods if each.name == form.method)
    length = form.lengths[DATASETS.index(dataset)]
    run = Run(task, method, length, seed=0, fold=fold)
    config = studied.config(run)
    if config is None:
        raise ValueError(f"{TABLE}: no rate of {run.point} yet; carry out its tuning (make proof)")
    least_frames = min(step.shape.frames for step in config.plan())
    precision = fastest_precision(config.model.name, least_frames=least_frames)
    config = replace(
        config,
        data=replace(config.data, num_workers=1),
        evaluation=replace(config.evaluation, times=1),
        precision="32-true" if form.is_contiguous else precision,
    )
    load = os.getloadavg()[0]
    if form.is_plain:
        layout = torch.contiguous_format if form.is_contiguous else torch.channels_last_3d
        result = plain_loop(config, layout)
    else:
        result = own_loop(config, folder / f"{dataset}-{name}-fold{fold}")
    number = "bfloat16" if config.precision == "bf16-mixed" else "float32"
    return {
        "form": name,
        "title": f"{form.title} {number}" if form.is_plain else form.title,
        "dataset": dataset,
        "fold": fold,
        "rate": config.baseline.learning_rate.base,
        "steps": len(config.plan()),
        "precision": config.precision,
        "machine": machine(on_gpu=False),
        "load": load,
        "commit": commit(),
        **{key: result[key] for key in ("seconds", "videos", "top1", "loss")},
    }


def main(arguments: list[str]) -> int:
    """Carry out the runs that the file does not hold; 2 for what a user has to change."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--datasets", type=Path, default=Path("datasets"))
    parser.add_argument("--dataset", choices=DATASETS, default=DATASETS[0])
    parser.add_argument("--folds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--forms", nargs="+", choices=list(FORMS), default=list(FORMS))
    parser.add_argument("--folder", type=Path, default=Path("runs/end-to-end"))
    parser.add_argument("--out", type=Path, default=TABLE.with_name("end_to_end.json"))
    options = parser.parse_args(arguments)
    study = read_study(STUDY)
    published = json.loads(TABLE.read_text())
    studied = StudyFolder(study, options.folder / "study", options.datasets, published)
    values = json.loads(options.out.read_text()) if options.out.is_file() else {"rows": []}
    dataset = options.dataset
    done = {(each["form"], each["dataset"], each["fold"]) for each in values["rows"]}
    others = {each["machine"] for each in values["rows"] if each["dataset"] == dataset}
    if others - {machine(on_gpu=False)}:
        print(
            f"end_to_end: {options.out}: its rows of {dataset} are another machine's "
            f"({', '.join(sorted(others))}); write to another file, with --out",
            file=sys.stderr,
        )
        return 2
    torch.set_num_threads(1)
    for fold in options.folds:
        for name in options.forms:
            if (name, dataset, fold) in done:
                continue
            try:
                values["rows"].append(row(name, dataset, fold, studied, options.folder))
            except ValueError as error:
                print(f"end_to_end: {error}", file=sys.stderr)
                return 2
            write_atomic(options.out, json.dumps(values, indent=1) + "\n")
            found = values["rows"][-1]
            print(
                f"{found['title']}, fold {fold}: {found['seconds']:.0f} s, top-1 "
                f"{found['top1']:.1%}, loss {found['loss']:.3f}, load {found['load']:.1f}",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
