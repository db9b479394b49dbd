"""What a user gains in all: a plain PyTorch loop beside this package's, on the study's first task.

    python benchmarks/end_to_end.py --datasets DIR [--folds 0 1 2] [--forms plain anneal]

In: the study's file, whose clips, folds, rates and lengths these are. Out: a row of
docs/results/end_to_end.json for each form and fold, as it is done; what is there is not done again.
All forms read the same videos, each in one worker process, train the same network on one thread and
are scored alike, by three views a video. Seconds are wall-clock, from before the first batch to the
last optimizer step, without validations. ``load`` is the machine's at the start, when the
form before has just ended: much above 1.5, others worked on it, and the seconds are not to be
compared.

The plain loop is as people write it: batch norm over whole batches, a DataLoader that shuffles, the
baseline's shape throughout. ``contiguous float32`` is PyTorch's default.
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
from vcycle.evaluate.evaluate import score_videos, summary
from vcycle.evaluate.loaders import make_dataset, make_eval_loader
from vcycle.evaluate.setup import read_manifest
from vcycle.models import build_model
from vcycle.schedule.shape import Shape
from vcycle.train.run import train

ROOT = Path(__file__).parents[1]
STUDY = ROOT / "benchmarks" / "study" / "proof.yaml"
TABLE = ROOT / "docs" / "results" / "study.json"


@dataclass(frozen=True)
class Form:
    """A way to train: the plain loop, or this package's with a method of the study."""

    title: str
    method: str
    length: float
    bfloat16: bool
    is_plain: bool = False


FORMS = {
    "plain": Form("plain loop, contiguous float32", "baseline", 1, bfloat16=False, is_plain=True),
    "plain-fast": Form(
        "plain loop, channels-last bfloat16", "baseline", 1, bfloat16=True, is_plain=True
    ),
    "baseline": Form("vcycle, baseline", "baseline", 1, bfloat16=True),
    "paper": Form("vcycle, paper", "paper", 1.5, bfloat16=True),
    "pass": Form("vcycle, pass", "pass", 0.276, bfloat16=True),
    "anneal": Form("vcycle, anneal", "anneal", 0.276, bfloat16=True),
    "muon": Form("vcycle, half the baseline, Muon", "baseline-muon", 0.5, bfloat16=True),
    "anneal-muon": Form("vcycle, anneal, Muon", "anneal-muon", 0.167, bfloat16=True),
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


def plain_loop(config: RunConfig, form: Form) -> dict[str, Any]:
    """Train the baseline and score it; the rate as the study has it, a cosine after a warm-up."""
    torch.manual_seed(config.seed)
    fabric, manifest = make_fabric(config), read_manifest(config)
    videos, baseline = manifest.split("train"), config.baseline
    layout = torch.channels_last_3d if form.bfloat16 else torch.contiguous_format
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
        with torch.autocast("cpu", torch.bfloat16, enabled=form.bfloat16):
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


def own_loop(config: RunConfig, form: Form, folder: Path) -> dict[str, Any]:
    """Train with ``vcycle.train``."""
    config = replace(config, precision="bf16-mixed" if form.bfloat16 else "32-true")
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".log").open("w") as log:
        return train(config, folder, console=Console(file=log))


def row(name: str, fold: int, studied: StudyFolder, folder: Path) -> dict[str, Any]:
    """Carry out one run."""
    form, study = FORMS[name], studied.study
    method = next(each for each in study.methods if each.name == form.method)
    run = Run(study.tasks[0], method, form.length, seed=0, fold=fold)
    config = studied.config(run)
    if config is None:
        raise ValueError(f"{TABLE}: no rate of {run.point} yet; carry out its tuning (make proof)")
    config = replace(
        config,
        data=replace(config.data, num_workers=1),
        evaluation=replace(config.evaluation, times=1),
    )
    load = os.getloadavg()[0]
    if form.is_plain:
        result = plain_loop(config, form)
    else:
        result = own_loop(config, form, folder / f"{name}-fold{fold}")
    return {
        "form": name,
        "title": form.title,
        "dataset": run.task.dataset,
        "fold": fold,
        "rate": config.baseline.learning_rate.base,
        "steps": len(config.plan()),
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
    parser.add_argument("--folds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--forms", nargs="+", choices=list(FORMS), default=list(FORMS))
    parser.add_argument("--folder", type=Path, default=Path("runs/end-to-end"))
    parser.add_argument("--out", type=Path, default=TABLE.with_name("end_to_end.json"))
    options = parser.parse_args(arguments)
    study = read_study(STUDY)
    published = json.loads(TABLE.read_text())
    studied = StudyFolder(study, options.folder / "study", options.datasets, published)
    values = json.loads(options.out.read_text()) if options.out.is_file() else {"rows": []}
    done = {(each["form"], each["fold"]) for each in values["rows"]}
    torch.set_num_threads(1)
    for fold in options.folds:
        for name in options.forms:
            if (name, fold) in done:
                continue
            try:
                values["rows"].append(row(name, fold, studied, options.folder))
            except ValueError as error:
                print(f"end_to_end: {error}", file=sys.stderr)
                return 2
            values |= {"machine": machine(on_gpu=False)}
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
