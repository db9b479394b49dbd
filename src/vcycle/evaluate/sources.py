"""What ``vcycle eval`` scores: a run folder, a file of ``vcycle train``, or published weights.

In: a path, and fields of the configuration that flags set. Out: the configuration of its
evaluation, and its weights in a network. A run folder says everything; a file of one says its
model, its clips and its classes; published weights say nothing, so flags must.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from torch import nn

from vcycle.config.fields import changed, check_own_code, read_config
from vcycle.config.flags import short_flag
from vcycle.config.run import Data, Model, RunConfig
from vcycle.data.manifest import Manifest
from vcycle.evaluate.checkpoint import find_trained_model, load_tensors
from vcycle.evaluate.load_model import HUB_WEIGHTS, check_size
from vcycle.evaluate.run_manifest import run_of
from vcycle.evaluate.trained_model import TrainedModel
from vcycle.models import load_weights
from vcycle.models.checkpoint_files import read_state_dict
from vcycle.schedule.baseline import Baseline, LearningRate
from vcycle.schedule.messages import shortened
from vcycle.schedule.shape import Shape

FROM_A_FILE = "weights"
"""The recipe of a configuration that no run folder gave: which shapes were trained is not known."""
_OF_TRAINING = (
    *("baseline.learning_rate", "baseline.stage_ends", "baseline.steps", "baseline.num_videos"),
    *("optimizer", "augmentation", "label_smoothing", "ema_decay", "nonfinite"),
    *("checkpoint", "log", "model.weights", "model.freeze", "compile", "cuda_graphs"),
    "accumulate",
    *("evaluation.times", "evaluation.final_clips", "evaluation.final_crops", "data.frames_gib"),
)
"""Fields of training alone, with all that begins so: a flag would change no score. Norms that the
run froze stay so, as its ``model.freeze`` says."""


def evaluation_config(
    path: Path, fields: Mapping[str, Any], *, trust_code: bool = False
) -> RunConfig:
    """The configuration to score ``path`` by, with the fields that flags set.

    With ``trust_code`` the function of other code that it may name as its model is called.
    Raises ValueError if it does not follow from the path and the fields, or a field decides no
    score.
    """
    for field in fields:
        if any(field == each or field.startswith(f"{each}.") for each in _OF_TRAINING):
            flag = short_flag(field) or f"--{field}"
            raise ValueError(f"{flag}: it is about training, and changes no score; leave it out")
    is_run = (path / "config.yaml").exists()
    if not is_run and (path / HUB_WEIGHTS).is_file():
        path = path / HUB_WEIGHTS
    config = _scored_config(path, fields, trust_code=trust_code)
    if "evaluation.precise_bn" in fields:
        return config
    # A complete run's checkpoint has the norm statistics that it estimated.
    return replace(config, evaluation=replace(config.evaluation, precise_bn=0))


def _scored_config(path: Path, fields: Mapping[str, Any], *, trust_code: bool) -> RunConfig:
    if not path.is_file():
        if not (path / "config.yaml").is_file():
            problem = "no config.yaml in it" if path.exists() else "not found"
            raise ValueError(
                f"run folder {path}: {problem}; give a folder or a file of vcycle "
                f"train, or published weights"
            )
        return _config_of(path / "config.yaml", fields, trust_code=trust_code)
    trained = find_trained_model(path)
    if trained is None:
        return _imported_config(path, fields)
    if (run := run_of(path)) is not None:
        return _config_of(run / "config.yaml", fields, trust_code=trust_code)
    if ":" not in trained.name:
        check_size(path, trained)
    data = Data(
        stride=trained.stride,
        short_side=trained.short_side,
        frame_rate=trained.frame_rate,
        segments=trained.segments,
    )
    shape = Shape.parse(trained.shape)
    _check_shape(path, shape, fields)
    config = changed(_config(shape, data, Model(trained.name, trained.options)), dict(fields))
    if not trust_code:
        check_own_code(config, fields, path)
    if not config.data.manifest:
        raise ValueError(f"{path}: it says its model, not its videos; give --data MANIFEST")
    return config


def _config_of(file: Path, fields: Mapping[str, Any], *, trust_code: bool) -> RunConfig:
    own = read_config(file)
    _check_shape(file.parent, own.baseline.shape, fields)
    config = changed(own, dict(fields))
    if not trust_code:
        check_own_code(config, fields, file)
    return config


def _check_shape(path: Path, own: Shape, fields: Mapping[str, Any]) -> None:
    """Raise ValueError for another shape alone: its crops show less of a frame, or do not fit."""
    sides = asdict(own).items()
    asked = {side: fields.get(f"baseline.shape.{side}", value) for side, value in sides}
    if Shape(**asked) != own and "data.short_side" not in fields:
        raise ValueError(
            f"--shape: clips of {path} are {own}; give --shapes {Shape(**asked)}, which shows as "
            f"much of a frame, or --data.short_side too"
        )


def _imported_config(path: Path, fields: Mapping[str, Any]) -> RunConfig:
    """Of weights without metadata: all that decides a score must be given."""
    read_state_dict(path)  # says what is wrong with a file that is none
    needed = {
        "model.name": "--model NAME",
        "data.manifest": "--data MANIFEST",
        "baseline.shape.frames": "--shape TxHxW",
        "data.stride": "--data.stride FRAMES",
    }
    missing = [flag for field, flag in needed.items() if field not in fields]
    if missing:
        raise ValueError(
            f"{path}: no metadata of vcycle train in it; give what it was trained with: "
            f"{', '.join(missing)}"
        )
    shape = Shape(*(fields[f"baseline.shape.{side}"] for side in ("frames", "height", "width")))
    least, most = (round(side * min(shape.height, shape.width) / 224) for side in (256, 340))
    data = Data(stride=fields["data.stride"], short_side=(least, most))
    return changed(_config(shape, data, Model(fields["model.name"])), dict(fields))


def _config(shape: Shape, data: Data, model: Model) -> RunConfig:
    """A configuration that is evaluated and never trained: its plan is a step."""
    baseline = Baseline(shape, 1, 1, 1, LearningRate(1.0))
    return RunConfig(FROM_A_FILE, baseline, data=data, model=model)


def load_scored(
    network: nn.Module,
    config: RunConfig,
    manifest: Manifest,
    file: Path,
    trained: TrainedModel | None,
) -> None:
    """Load the weights in ``file`` into ``network``; ``trained`` is what they say of themselves.

    Raises ValueError if they are of another model or of other classes than the manifest.
    """
    if trained is None:
        _load_imported(network, manifest, file)
        return
    if trained.classes != manifest.classes:
        raise ValueError(
            f"{manifest.root / 'classes.txt'}: its classes are not those that {file} was "
            f"trained on; give the manifest of that run or one with the same classes"
        )
    if (config.model.name, config.model.options) != (trained.name, trained.options):
        # A function of other code is called only if it is named.
        fix = f"give --model {trained.name}" if ":" in trained.name else "leave --model out"
        raise ValueError(
            f"model {config.model.name}: {file} is of {trained.name} with options "
            f"{shortened(trained.options)}; {fix}"
        )
    load_tensors(network, file, trained)


def labelled_as(trained: TrainedModel | None, videos: Manifest, file: Path) -> Manifest:
    """Videos to score as of one class or of several, whichever the weights were trained on.

    Raises ValueError if they were trained on one class a video, and one here has not one.
    """
    if trained is None or trained.multi_label == videos.multi_label:
        return videos
    several = [video for video in videos.videos if len(video.labels) != 1 or video.spans]
    if several and not trained.multi_label:
        raise ValueError(
            f"{videos.root}: {file} was trained on videos of one class each, and "
            f"{several[0].path} has {len(several[0].labels)} labels, or times for them; leave it "
            f"out of the manifest"
        )
    return replace(videos, multi_label=trained.multi_label)


def _load_imported(network: nn.Module, manifest: Manifest, file: Path) -> None:
    report = load_weights(network, file, num_classes=manifest.num_classes)
    fresh = [name for name in report.missing if not name.endswith("num_batches_tracked")]
    if fresh:
        raise ValueError(
            f"{file}: {report.head}; it leaves {fresh[0]} untrained, so there is nothing to "
            f"score: give weights of this model with the {manifest.num_classes} classes of "
            f"{manifest.root / 'classes.txt'}, in their order"
        )
