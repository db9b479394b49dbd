"""A trained model as a folder that the Hugging Face hub takes as it is.

    model.safetensors  the weights, with the TrainedModel in their metadata
    config.json        the TrainedModel, for people and for the hub
    README.md          the model card: what it is, how good it is and how to load it

In: a LoadedModel and the figures of its evaluation. Out: the folder, which ``load_model`` reads.
Uploading is left to the hub's own client.
"""

from __future__ import annotations

import json
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from vcycle.data.atomic import write_atomic
from vcycle.evaluate.export import write_weights
from vcycle.evaluate.frontier import multiply_adds_text
from vcycle.evaluate.load_model import HUB_WEIGHTS, LoadedModel
from vcycle.evaluate.metric_names import METRICS, metric_of

_HUB_TYPES = {"map": "mean_average_precision"}  # every other metric is an accuracy


def check_hub_folder(folder: str | Path, *, overwrite: bool) -> None:
    """Raise ValueError if the folder is a file, or holds anything, unless ``overwrite``."""
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--hub {folder}: it is a file; give the name of a folder")
    if folder.is_dir() and any(folder.iterdir()) and not overwrite:
        raise ValueError(f"--hub {folder}: it is not empty; give another, or add --overwrite")


def export_hub(
    model: LoadedModel, folder: str | Path, *, figures: dict[str, Any], overwrite: bool = False
) -> None:
    """Write ``model`` into ``folder``, with the ``figures`` that ``figures_of`` found.

    With ``overwrite`` these three files are replaced and others stay. Raises ValueError as
    ``check_hub_folder`` does, and for figures of other types.
    """
    folder = Path(folder)
    check_hub_folder(folder, overwrite=overwrite)
    try:
        card = model_card(model, figures, name=folder.resolve().name)
    except (TypeError, AttributeError, LookupError) as error:
        raise ValueError(
            f"--evaluation: its values are not of the types that `vcycle eval --json` writes "
            f"({error}); give what it wrote"
        ) from error
    folder.mkdir(parents=True, exist_ok=True)
    values = {"library_name": "vcycle", "vcycle_version": version("vcycle")}
    config = {**values, **model.trained.to_dict()}
    write_weights(model, folder / HUB_WEIGHTS)
    write_atomic(folder / "config.json", json.dumps(config, indent=1) + "\n")
    write_atomic(folder / "README.md", card)


def model_card(model: LoadedModel, figures: dict[str, Any], *, name: str) -> str:
    """The text of README.md: the hub's metadata, then what a person reads."""
    head = yaml.safe_dump(_metadata(figures, name=name), sort_keys=False, allow_unicode=True)
    parts = [
        f"---\n{head}# license: the hub shows it once you name it here, such as apache-2.0\n---",
        f"# {name}",
        _description(model),
        "## Results",
        _results(figures),
        *([_shapes(figures["shapes"])] if "shapes" in figures else []),
        "## Use",
        _use(model, name=name),
    ]
    return "\n\n".join(parts) + "\n"


def _metadata(figures: dict[str, Any], *, name: str) -> dict[str, Any]:
    """The front matter, with the results as the hub lists them."""
    dataset = figures["dataset"]
    metrics = [
        {"type": _HUB_TYPES.get(key, "accuracy"), "name": text, "value": round(figures[key], 4)}
        for key, text in METRICS.items()
        if key in figures
    ]
    result = {
        "task": {"type": "video-classification", "name": "Video Classification"},
        "dataset": {
            "type": re.sub(r"[^a-z0-9]+", "-", dataset.lower()).strip("-") or "videos",
            "name": dataset,
            "split": figures["split"],
        },
        "metrics": metrics,
    }
    return {
        "library_name": "vcycle",
        "pipeline_tag": "video-classification",
        "tags": ["video-classification", "multigrid"],
        "metrics": sorted({each["type"] for each in metrics}),
        "model-index": [{"name": name, "results": [result]}],
    }


def _description(model: LoadedModel) -> str:
    known = model.trained
    frames = f"frames {known.stride} apart"
    if known.frame_rate is not None:
        frames += f" at {known.frame_rate:g} a second"
    if known.segments:
        frames = "a frame of each segment of the video"
    of_ours = ":" not in known.name  # a function of one's own may build what takes one shape
    sizes = " The network takes smaller and larger clips too." if of_ours else ""
    several = ", of which a video may show several" if known.multi_label else ""
    return (
        f"`{known.name}` for {len(known.classes)} classes{several}, trained by vcycle for "
        f"{known.steps:,} steps.\nA clip is {known.shape} (frames x height x width), {frames}; "
        f"`config.json` lists the classes and the\nnormalisation of pixels.{sizes}"
    )


def _results(figures: dict[str, Any]) -> str:
    intervals = figures.get("intervals", {})
    rows = [
        f"| {text} | {figures[key]:.1%} | {_interval(intervals.get(key))} |"
        for key, text in METRICS.items()
        if key in figures
    ]
    return (
        f"On {figures['videos']:,} videos of `{figures['dataset']}`, split `{figures['split']}` "
        f"({figures['coverage']:.1%} of those\nlisted). Protocol: {figures['protocol']}.\n\n"
        "| metric | value | 95% interval (bootstrap over videos) |\n| --- | --- | --- |\n"
    ) + "\n".join(rows)


def _interval(ends: list[float] | None) -> str:
    return "not computed" if ends is None else f"{ends[0]:.1%} to {ends[1]:.1%}"


def _shapes(rows: list[dict[str, Any]]) -> str:
    metric = metric_of(rows[0])
    lines = [
        f"| {row['shape']} | {row[metric]:.1%} | {multiply_adds_text(row)} | "
        f"{row['milliseconds']:.2f} | {'yes' if 'multiply_adds' in row['frontier'] else 'no'} |"
        for row in rows
    ]
    return (
        f"At other shapes; milliseconds of a clip on the machine that evaluated it. On the "
        f"frontier, no shape of fewer\nmultiply-adds is as accurate.\n\n"
        f"| shape | {METRICS[metric]} | multiply-adds of a clip | milliseconds | on the frontier |"
        "\n| --- | --- | --- | --- | --- |\n"
    ) + "\n".join(lines)


def _use(model: LoadedModel, *, name: str) -> str:
    code = model.trained.name if ":" in model.trained.name else None
    trust = ", trust_code=True" if code else ""
    own = f"\n\nIts network is `{code}`, which has to be installed beside vcycle." if code else ""
    return (
        "```python\n"
        "import vcycle\n"
        "from huggingface_hub import snapshot_download\n\n"
        f'model = vcycle.load_model(snapshot_download("USER/{name}"){trust})\n'
        'for prediction in vcycle.predict(model, "video.mp4"):\n'
        "    print(prediction.video, prediction.top(5))\n"
        "```\n\n"
        "`model.module` is a plain `torch.nn.Module` that returns scores before softmax." + own
    )
