"""The evaluation of given weights: what a model card may say of them.

In: a model and where it came from, or the JSON of ``vcycle eval``. Out: metrics, their intervals,
the protocol and the dataset. Figures of other weights are refused.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from vcycle.config.fields import read_config
from vcycle.data.json_lines import read_object, read_rows
from vcycle.evaluate.load_model import LoadedModel
from vcycle.evaluate.metric_names import METRICS
from vcycle.evaluate.run_manifest import run_of


def figures_of(model: LoadedModel, evaluation: Path | None) -> dict[str, Any]:
    """What ``evaluation`` says, the JSON of ``vcycle eval``; else the model's own run folder.

    Of a run folder it is the final evaluation, or the validation after as many steps. Raises
    ValueError if there is none of these weights.
    """
    if evaluation is None:
        return _of_run(model)
    found = _of_file(evaluation)
    if found["steps"] != model.trained.steps:
        raise ValueError(
            f"--evaluation {evaluation}: it is of weights after {found['steps']} steps, these have "
            f"had {model.trained.steps}; evaluate {model.path} and give what it says"
        )
    return found


def _of_file(file: Path) -> dict[str, Any]:
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"--evaluation {file}: no JSON; {_ADVICE}") from error
    needed = ("steps", "videos", "coverage", "protocol", "dataset", "split")
    is_one = isinstance(values, dict) and all(name in values for name in needed)
    if not is_one or not METRICS.keys() & values.keys():
        raise ValueError(f"--evaluation {file}: no evaluation of one model; {_ADVICE}")
    return dict(values)


def _of_run(model: LoadedModel) -> dict[str, Any]:
    steps, folder = model.trained.steps, run_of(model.path)
    if folder is not None and (folder / "validation.jsonl").is_file():
        config = read_config(folder / "config.yaml")
        manifest = Path(config.data.manifest)
        named = {
            "steps": steps,
            "split": "val",
            "dataset": (manifest.parent if manifest.suffix == ".csv" else manifest).name,
            "protocol": config.protocol,
        }
        result = folder / "result.json"
        values = read_object(result) if result.is_file() else {}
        if values.get("steps") == steps and "final" in values:
            return {**named, **values["final"]}
        for row in read_rows(folder / "validation.jsonl", numbers=("step",)):
            if row["step"] + 1 == steps:
                return {**named, **row}
    raise ValueError(f"{model.path}: no evaluation of these weights beside it; {_ADVICE}")


_ADVICE = "give --evaluation FILE with what `vcycle eval RUN --json` prints"
