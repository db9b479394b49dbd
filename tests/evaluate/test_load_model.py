"""A checkpoint back as a plain module: the same scores as the network that was trained."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

import vcycle
from vcycle.data.batch import normalize
from vcycle.data.manifest import Manifest
from vcycle.evaluate.checkpoint import load_checkpoint
from vcycle.evaluate.export import write_weights
from vcycle.evaluate.trained_model import TrainedModel
from vcycle.models import SubBatchNorm3d
from vcycle.schedule.shape import Shape, ShapeRule
from vcycle.train.checkpoint import write_checkpoint


def test_it_is_the_network_that_was_trained_with_plain_norms(trained_run: Path) -> None:
    state = load_checkpoint(trained_run / "checkpoint.pt")
    network = vcycle.convert_batch_norm(
        vcycle.build_model("resnet3d_tiny", num_classes=len(state["trained"]["classes"]), width=4)
    )
    network.load_state_dict(state["model"])
    clips = torch.randint(0, 256, (3, 3, 4, 24, 40), dtype=torch.uint8)
    for path in (
        trained_run,
        trained_run / "checkpoint.pt",
        trained_run / "checkpoint.safetensors",
    ):
        model = vcycle.load_model(path)
        norms = [each for each in model.module.modules() if isinstance(each, nn.BatchNorm3d)]
        assert norms
        assert not any(isinstance(each, SubBatchNorm3d) for each in norms)
        assert not model.module.training
        torch.testing.assert_close(model.normalize(clips), normalize(clips))
        with pytest.raises(ValueError, match="give uint8"):  # it would write into floats
            model.normalize(clips.float())
        torch.testing.assert_close(
            model.module(model.normalize(clips)), network.eval()(normalize(clips))
        )


def test_it_knows_its_classes_and_its_clips(trained_run: Path, synthetic_videos: Path) -> None:
    model = vcycle.load_model(trained_run)
    assert model.classes == Manifest.read(synthetic_videos).classes
    assert model.shape == Shape(8, 32, 32)
    assert (model.grid_range.stride, model.grid_range.short_side) == (1, (36, 48))


def test_the_best_checkpoint_is_another_file(trained_run: Path) -> None:
    assert vcycle.load_model(trained_run, best=True).path.name == "best.safetensors"


def test_loading_draws_nothing_from_the_random_state(trained_run: Path) -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    vcycle.load_model(trained_run)
    torch.testing.assert_close(torch.rand(4), expected)


def rewritten(source: Path, file: Path, *, extra: str = "{}", **changes: object) -> Path:
    """A copy of a safetensors file whose metadata say something else."""
    with safe_open(source, framework="pt") as weights:
        values = json.loads(weights.metadata()["vcycle"])
    metadata = {"vcycle": json.dumps({**values, **changes}), "vcycle_extra_state": extra}
    save_file(load_file(source), file, {"format": "pt", **metadata})
    return file


@pytest.mark.parametrize("dtype", [torch.int8, torch.complex64, torch.float8_e4m3fn])
def test_numbers_of_another_kind_are_not_cast(
    dtype: torch.dtype, trained_run: Path, tmp_path: Path
) -> None:
    file = trained_run / "checkpoint.safetensors"
    with safe_open(file, framework="pt") as weights:
        metadata = weights.metadata()
    tensors = load_file(file)
    name = next(name for name, each in tensors.items() if each.is_floating_point())
    save_file({**tensors, name: tensors[name].to(dtype)}, tmp_path / "a.safetensors", metadata)
    with pytest.raises(ValueError, match=rf"'{name}' holds {dtype}, .* takes torch\.float32"):
        vcycle.load_model(tmp_path / "a.safetensors")
    halves = {name: each.half() for name, each in tensors.items() if each.is_floating_point()}
    save_file({**tensors, **halves}, tmp_path / "b.safetensors", metadata)
    loaded = vcycle.load_model(tmp_path / "b.safetensors").module.state_dict()
    torch.testing.assert_close(loaded[name], halves[name].float())


def test_a_file_of_a_version_that_kept_no_rule_is_read(trained_run: Path, tmp_path: Path) -> None:
    values = vcycle.load_model(trained_run).trained.to_dict()
    del values["rule"]
    assert TrainedModel.from_dict(values).rule == ShapeRule()
    with pytest.raises(ValueError, match="frames 8: the model takes multiples of 1000000000"):
        TrainedModel.from_dict({**values, "rule": {"frame_multiple": 10**9}})
    with pytest.raises(ValueError, match="height 32 x 1 is 32, and the model takes at least 4096"):
        TrainedModel.from_dict({**values, "rule": {"min_side": 4096}})
    del values["steps"]
    with pytest.raises(ValueError, match="no steps in its metadata"):
        TrainedModel.from_dict(values)


class Keeping(nn.Linear):
    """It keeps more than its tensors."""

    def __init__(self, num_classes: int) -> None:
        super().__init__(3, num_classes)
        self.kept: object = None

    def get_extra_state(self) -> object:
        return self.kept

    def set_extra_state(self, state: dict[str, object] | None) -> None:
        self.kept = None if state is None else {"calls": state["calls"]}


def written(folder: Path, run: Path, kept: object) -> Path:
    """The weights of a network that keeps more, and its checkpoint beside them."""
    trained = vcycle.load_model(run).trained
    values = {**trained.to_dict(), "name": f"{__name__}:Keeping", "options": {}}
    network = Keeping(len(trained.classes))
    network.kept = kept
    state = {"format": 2, "model": network.state_dict(), "next_step": 5, "trained": values}
    write_checkpoint(folder, state, keep=1)
    return folder / "checkpoint.safetensors"


@pytest.mark.parametrize("kept", [{"calls": [3, 0.5, None]}, {"calls": (3, torch.ones(2))}])
def test_extra_state_is_loaded(kept: dict[str, object], trained_run: Path, tmp_path: Path) -> None:
    """From the weights alone if JSON can say it, else from the checkpoint beside them."""
    file = written(tmp_path, trained_run, kept)
    for path in (tmp_path, tmp_path / "checkpoint.pt", file):
        model = vcycle.load_model(path, trust_code=True)
        assert repr(model.module.kept) == repr(kept)
    alone = Path(shutil.copy(file, tmp_path / "alone.safetensors"))
    if isinstance(kept["calls"], list):
        assert vcycle.load_model(alone, trust_code=True).module.kept == kept
        write_weights(model, alone)
        assert vcycle.load_model(alone, trust_code=True).module.kept == kept
        return
    with pytest.raises(ValueError, match=r"it lacks '_extra_state' of .*; give the run folder"):
        vcycle.load_model(alone, trust_code=True)
    with pytest.raises(ValueError, match=r"^export: '_extra_state' of .* a safetensors file"):
        write_weights(model, tmp_path / "x.safetensors")


def test_only_what_the_weights_lack_is_taken_from_beside_them(
    trained_run: Path, tmp_path: Path
) -> None:
    file = written(tmp_path, trained_run, {"calls": (3,)})
    expected = vcycle.load_model(file, trust_code=True).module.weight.detach()
    whole = load_checkpoint(tmp_path / "checkpoint.pt")
    whole["model"]["weight"] += 1
    torch.save(whole, tmp_path / "checkpoint.pt")
    model = vcycle.load_model(file, trust_code=True)
    torch.testing.assert_close(model.module.weight.detach(), expected, rtol=0, atol=0)
    assert model.module.kept == {"calls": (3,)}
    other = Path(shutil.copy(tmp_path / "checkpoint.pt", tmp_path / "other.pt"))
    del whole["model"]["_extra_state"]
    torch.save(whole, tmp_path / "checkpoint.pt")
    rewritten(file, other.with_suffix(".safetensors"), steps=model.trained.steps + 1)
    for path in (file, other.with_suffix(".safetensors")):
        with pytest.raises(ValueError, match=r"lacks '_extra_state' .* is not of its \d+ steps; "):
            vcycle.load_model(path, trust_code=True)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ("[" * 100_000, "it is damaged"),
        ("[]", "it is damaged"),
        ("3", "it is damaged"),
        ('{"weight": 5}', "it is damaged"),
        ('{"_extra_state": {}}', r"not those of .*:Keeping .* \(KeyError\('calls'\)\)"),
        ('{"_extra_state": 3}', r"not those of .*:Keeping .* \(TypeError\("),
    ],
    ids=["nested too deeply", "a list", "a number", "a tensor", "another one", "no dictionary"],
)
def test_extra_state_that_is_none_is_refused(
    extra: str, message: str, trained_run: Path, tmp_path: Path
) -> None:
    file = written(tmp_path, trained_run, {"calls": 3})
    with pytest.raises(ValueError, match=message) as error:
        vcycle.load_model(rewritten(file, tmp_path / "x.safetensors", extra=extra), trust_code=True)
    assert "\n" not in str(error.value)


def test_metadata_that_are_nested_too_deeply_are_refused(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(1)}, tmp_path / "x.safetensors", {"vcycle": "[" * 100_000})
    with pytest.raises(ValueError, match="it is damaged"):
        vcycle.load_model(tmp_path / "x.safetensors")


def test_code_that_a_file_names_runs_only_if_it_is_trusted(
    trained_run: Path, tmp_path: Path
) -> None:
    file = rewritten(
        trained_run / "checkpoint.safetensors",
        tmp_path / "foreign.safetensors",
        name="tempfile:mkdtemp",
        options={"prefix": "made", "dir": str(tmp_path)},
    )
    with pytest.raises(ValueError, match="trust_code"):
        vcycle.load_model(file)
    assert not list(tmp_path.glob("made*"))
    with pytest.raises(ValueError, match="returned a str"):
        vcycle.load_model(file, trust_code=True)
    assert list(tmp_path.glob("made*"))


def test_weights_of_other_classes_are_refused(trained_run: Path, tmp_path: Path) -> None:
    file = rewritten(
        trained_run / "checkpoint.safetensors", tmp_path / "x.safetensors", classes=["a", "b"]
    )
    with pytest.raises(ValueError, match="not those of resnet3d_tiny with 2 classes") as error:
        vcycle.load_model(file)
    assert "\n" not in str(error.value)


def test_what_is_no_model_is_refused(trained_run: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such run folder"):
        vcycle.load_model(tmp_path / "none")
    with pytest.raises(ValueError, match=r"no checkpoint\.pt in it"):
        vcycle.load_model(tmp_path)
    save_file({"a": torch.zeros(1)}, tmp_path / "a.safetensors")
    with pytest.raises(ValueError, match="not written by vcycle train"):
        vcycle.load_model(tmp_path / "a.safetensors")
    for name in ("a.onnx", "a.PT2"):
        (tmp_path / name).touch()
        with pytest.raises(ValueError, match="an export, made for other programs"):
            vcycle.load_model(tmp_path / name)
    for content in ({"a": torch.zeros(1)}, {"state_dict": {"a": torch.zeros(1)}, "epoch": 3}):
        torch.save(content, tmp_path / "a.pt")  # as a loop of one's own may
        with pytest.raises(
            ValueError, match=r"not a checkpoint of .*vcycle.load_weights\(model, \."
        ):
            vcycle.load_model(tmp_path / "a.pt")
    cut = tmp_path / "cut.pt"
    shutil.copy(trained_run / "checkpoint.pt", cut)
    cut.write_bytes(cut.read_bytes()[:5000])
    with pytest.raises(ValueError, match="damaged"):
        vcycle.load_model(cut)


def test_tensors_in_place_of_plain_values_are_refused(trained_run: Path, tmp_path: Path) -> None:
    state = torch.load(trained_run / "checkpoint.pt", weights_only=True)
    options = {"trained": {**state["trained"], "options": {"dropout": torch.zeros(3)}}}
    for changes, reason in (
        ({"format": torch.zeros(3)}, "not of this version"),
        (options, "a value of type Tensor in its metadata"),
    ):
        torch.save({**state, **changes}, tmp_path / "a.pt")
        with pytest.raises(ValueError, match=rf"checkpoint .*a\.pt: .*{reason}"):
            vcycle.load_model(tmp_path / "a.pt")
