"""Exported programs give the module's scores at shapes that they were not traced at."""

from __future__ import annotations

import json
import logging
import resource
import threading
from dataclasses import replace
from pathlib import Path
from typing import Literal
from unittest.mock import patch

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.export.passes import move_to_device_pass

import vcycle
from tests.conftest import small_run
from vcycle.cli.main import main
from vcycle.config.run import Model
from vcycle.data.manifest import Manifest
from vcycle.evaluate.export import export_model
from vcycle.evaluate.load_model import LoadedModel
from vcycle.evaluate.trained_model import TrainedModel
from vcycle.models.nonlocal_block import NonLocalBlock
from vcycle.models.slowfast import FastToSlow, _slow_frames, slow_frame_indices
from vcycle.schedule.multigrid import Multigrid
from vcycle.schedule.shape import ShapeRule

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


@pytest.fixture
def model(trained_run: Path) -> LoadedModel:
    return vcycle.load_model(trained_run)


def test_onnx_round_trip_from_pixels(model: LoadedModel, tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    export_model(model, file, format="onnx", normalise=True)
    session = onnxruntime.InferenceSession(file)
    for size in ((1, 3, 8, 32, 32), (3, 3, 4, 45, 61), (2, 3, 11, 64, 32)):
        pixels = torch.randint(0, 256, size, dtype=torch.uint8)
        clips = model.normalize(pixels)
        [scores] = session.run(["scores"], {"clips": pixels.float().numpy()})
        with torch.no_grad():
            torch.testing.assert_close(
                torch.from_numpy(scores), model.module(clips), rtol=1e-3, atol=1e-4
            )
    assert [each.name for each in session.get_inputs()] == ["clips"]
    facts = json.loads(session.get_modelmeta().custom_metadata_map["vcycle"])
    assert TrainedModel.from_dict(facts) == model.trained
    assert facts["input"] == "pixels from 0 to 255"
    assert [each.name for each in tmp_path.iterdir()] == ["model.onnx"]


def test_the_model_stays_where_it_is(
    model: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An export is on the CPU, the caller's model perhaps on a GPU."""
    model.module.to("meta")
    moved: list[int] = []

    def cpu(module: nn.Module) -> None:
        moved.extend(map(id, module.modules()))
        raise MemoryError

    monkeypatch.setattr(nn.Module, "cpu", cpu)
    with pytest.raises(ValueError, match="copied to the CPU"):
        export_model(model, tmp_path / "model.pt2", format="torch")
    assert moved
    assert not set(map(id, model.module.modules())) & set(moved)


def test_the_modes_and_buffers_of_the_model_stay(model: LoadedModel, tmp_path: Path) -> None:
    model.module.train()
    before = {key: value.clone() for key, value in model.module.state_dict().items()}
    export_model(model, tmp_path / "model.pt2", format="torch")
    assert all(layer.training for layer in model.module.modules())
    torch.testing.assert_close(model.module.state_dict(), before, rtol=0, atol=0)


class Pooled(nn.Module):
    """A small network; ``layer`` is its only one with weights."""

    def __init__(self, layer: nn.Module, *, pool: nn.Module | None = None) -> None:
        super().__init__()
        self.layer, self.pool = layer, pool or nn.AdaptiveAvgPool3d(1)

    def forward(self, clips: torch.Tensor) -> torch.Tensor:
        weight = next(self.layer.parameters())
        features = self.layer(clips.sub_(1).to(weight.dtype))
        return self.pool(features).float().mean((2, 3, 4))


def test_a_model_that_cannot_be_copied_and_changes_its_clips_is_exported(
    model: LoadedModel, tmp_path: Path
) -> None:
    module = Pooled(nn.Conv3d(3, 12, 1)).eval()
    module.lock = threading.Lock()  # type: ignore[assignment]
    export_model(replace(model, module=module), tmp_path / "x.pt2", format="torch")
    with pytest.raises(
        ValueError, match=r"copied to the CPU \(cannot pickle '_thread.lock' object"
    ):
        export_model(replace(model, module=module.to("meta")), tmp_path / "y.pt2", format="torch")


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Pooled(nn.Conv3d(3, 12, 1), pool=nn.AdaptiveAvgPool3d((1, 2, 2))), "No ONNX function"),
        (Pooled(nn.Conv3d(3, 12, 1).double()), "Could not find an implementation for Conv"),
    ],
)
def test_what_onnx_cannot_hold_is_told_in_one_line(
    model: LoadedModel, tmp_path: Path, module: nn.Module, message: str
) -> None:
    with pytest.raises(ValueError, match=rf"onnx cannot hold it \(.*{message}") as error:
        export_model(replace(model, module=module), tmp_path / "x.onnx", format="onnx")
    assert str(error.value).endswith("; export .pt2 or safetensors")
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())
    export_model(replace(model, module=module), tmp_path / "x.pt2", format="torch")


def test_torch_round_trip(
    model: LoadedModel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "model.pt2"
    with patch.object(logging.getLogger("torch"), "handlers", [caplog.handler]):
        export_model(model, file, format="torch")
    assert "Unable to load" not in caplog.text  # what was checked is what can be loaded
    extra = {"vcycle.json": ""}
    program = torch.export.load(file, extra_files=extra).module(check_guards=False)
    facts = json.loads(extra["vcycle.json"])
    assert TrainedModel.from_dict(facts) == model.trained
    assert facts["input"] == "(pixels / 255 - mean) / std"
    clips = torch.randn(3, 3, 5, 40, 33)
    with torch.no_grad():
        torch.testing.assert_close(program(clips), model.module(clips), rtol=1e-4, atol=1e-5)


def test_a_full_disk_ends_an_export_with_an_error(model: LoadedModel, tmp_path: Path) -> None:
    """And not the process, as torch's own writer does."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
        with pytest.raises(OSError, match=r"model\.pt2"):
            export_model(model, tmp_path / "model.pt2", format="torch")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("format", ["torch", "onnx"])
def test_a_transformer_is_exported_for_every_shape(
    model: LoadedModel, tmp_path: Path, format: Literal["torch", "onnx"]
) -> None:
    """Its positions and the padding of part tubelets follow the sizes of the clips."""
    options = {"width": 32, "depth": 1, "heads": 2}
    classes = len(model.classes)
    module = vcycle.build_model("video_vit_tiny", num_classes=classes, **options).eval()
    trained = replace(model.trained, name="video_vit_tiny", options=options)
    file = tmp_path / "model"
    shapes = export_model(replace(model, module=module, trained=trained), file, format=format)
    assert file.stat().st_size > 10_000
    assert len({str(shape) for shape in shapes}) == 4
    if format == "torch":  # its positions name the CPU
        program = move_to_device_pass(torch.export.load(file), "meta").module(check_guards=False)
        assert program(torch.zeros(2, 3, 5, 40, 33, device="meta")).device.type == "meta"


@pytest.mark.parametrize("shape", ["1x32x32", "2x16x16"])
def test_shapes_of_which_a_network_leaves_one_frame_or_pixel_are_exported(
    model: LoadedModel, tmp_path: Path, shape: str
) -> None:
    """Sizes of 1 are special to the tracer."""
    small = replace(model, trained=replace(model.trained, shape=shape))
    shapes = export_model(small, tmp_path / "model.pt2", format="torch")
    assert str(shapes[0]) == shape
    assert len({str(each) for each in shapes}) > 2


@pytest.mark.parametrize("name", ["model.safetensors", "MODEL.SAFETENSORS", "weights.bin"])
def test_safetensors_round_trip(model: LoadedModel, tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    assert export_model(model, file, format="safetensors") == []
    again = vcycle.load_model(file)
    assert again.trained == model.trained
    clips = torch.randn(1, 3, 8, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(again.module(clips), model.module(clips))


def test_the_runs_own_weights_are_not_written_over(model: LoadedModel, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").touch()
    with pytest.raises(ValueError, match=r"best.safetensors: it is the run's own; give another"):
        export_model(model, tmp_path / "best.safetensors", format="safetensors")
    export_model(model, tmp_path / "model.safetensors", format="safetensors")


class Counted(nn.Linear):
    """It keeps a number beside its tensors."""

    def get_extra_state(self) -> dict[str, int]:
        return {"calls": 3}

    def set_extra_state(self, state: dict[str, int]) -> None:
        pass


def test_safetensors_hold_the_tensors_of_a_model_that_keeps_more(
    model: LoadedModel, tmp_path: Path
) -> None:
    file = tmp_path / "model.safetensors"
    export_model(replace(model, module=Counted(2, 3)), file, format="safetensors")
    assert set(load_file(file)) == {"weight", "bias"}


class Parts(nn.Module):
    """It takes whole parts of four frames and eight pixels only."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 12)

    def forward(self, clips: torch.Tensor) -> torch.Tensor:
        n, c, t, h, w = clips.shape
        assert t % 4 == h % 8 == w % 8 == 0
        parts = clips.view(n, c, t // 4, 4, h // 8, 8, w // 8, 8)
        return self.head(parts.mean((3, 5, 7)).square().mean((2, 3, 4)))


def test_a_model_of_ones_own_is_checked_at_shapes_of_the_runs_rule(
    model: LoadedModel, synthetic_videos: Path, tmp_path: Path
) -> None:
    rule = ShapeRule(frame_multiple=4, side_multiple=8, min_side=24)
    config = replace(small_run(synthetic_videos), multigrid=Multigrid(norm_group=4, rule=rule))
    config = replace(config, model=Model("own:network"))
    trained = TrainedModel.of_run(config, Manifest.read(synthetic_videos), steps=1)
    own = replace(model, module=Parts(), trained=TrainedModel.from_dict(trained.to_dict()))
    shapes = export_model(own, tmp_path / "x.pt2", format="torch")
    assert list(map(str, shapes)) == ["8x32x32", "12x48x64", "8x24x24", "8x32x48"]


class FlattenedHead(nn.Module):
    """It fits one shape only."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3 * 8 * 32 * 32, 12)

    def forward(self, clips: torch.Tensor) -> torch.Tensor:
        return self.head(clips.flatten(1))


class Reshaped(nn.Module):
    """The tracer takes what ``len`` gives for a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 12)

    def forward(self, clips: torch.Tensor) -> torch.Tensor:
        return self.head(clips.reshape(len(clips), 3, -1).mean(2))


class Untruthful(nn.Module):
    """Its scores depend on what a trace keeps as it was."""

    def __init__(self, traced: float) -> None:
        super().__init__()
        self.traced = traced
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, clips: torch.Tensor) -> torch.Tensor:
        scale = self.traced if torch.compiler.is_compiling() else 2.0
        return clips.mean((2, 3, 4)) * self.scale * scale


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (FlattenedHead(), "cannot be exported for clips of every shape|does not run at"),
        (Reshaped(), r"write its forward .*, and x\.shape\[0\] for len\(x\)$"),
        (Untruthful(1.0), "differ from the module's"),
        (Untruthful(torch.nan), "differ from the module's by nan"),
    ],
)
def test_a_program_that_is_not_the_module_leaves_no_file(
    model: LoadedModel, tmp_path: Path, module: nn.Module, message: str
) -> None:
    with pytest.raises(ValueError, match=message) as error:
        export_model(replace(model, module=module), tmp_path / "x.pt2", format="torch")
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


def test_an_exported_slowfast_picks_the_frames_of_every_length() -> None:
    class Frames(nn.Module):
        def forward(self, clips: torch.Tensor) -> torch.Tensor:
            return _slow_frames(clips, 4)

    dynamic = {"clips": {2: torch.export.Dim.DYNAMIC}}
    exported = torch.export.export(Frames(), (torch.zeros(1, 1, 16, 1, 1),), dynamic_shapes=dynamic)
    assert all("device" not in node.kwargs for node in exported.graph.nodes)  # it runs on any
    program = exported.module(check_guards=False)
    for num_frames in (*range(5, 34), 64, 111):
        clips = torch.arange(float(num_frames)).view(1, 1, -1, 1, 1)
        expected = [float(i) for i in slow_frame_indices(num_frames, 4)]
        assert program(clips).flatten().tolist() == expected
        assert _slow_frames(clips, 4).flatten().tolist() == expected


@pytest.mark.parametrize("kind", ["softmax", "dot_product"])
def test_exported_nonlocal_blocks_take_single_pixels(kind: str) -> None:
    module = nn.Sequential(nn.Conv3d(3, 4, 1, stride=(1, 2, 2)), NonLocalBlock(4, kind=kind)).eval()
    nn.init.normal_(module[1].bn.weight)
    axes = dict.fromkeys((0, 2, 3, 4), torch.export.Dim.DYNAMIC)
    program = torch.export.export(
        module, (torch.zeros(2, 3, 4, 12, 14),), dynamic_shapes={"input": axes}
    ).module(check_guards=False)
    for size in ((2, 2), (2, 9), (6, 2), (5, 6)):
        clips = torch.randn(2, 3, 3, *size)
        with torch.no_grad():
            torch.testing.assert_close(program(clips), module(clips))


def test_exported_lateral_connections_meet_their_frames() -> None:
    class Lateral(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fuse = FastToSlow(3, alpha=4, kernel=7)

        def forward(self, clips: torch.Tensor) -> torch.Tensor:
            return self.fuse([_slow_frames(clips, 4), clips])[0]

    module = Lateral().eval()
    axes = dict.fromkeys((2, 3), torch.export.Dim.DYNAMIC)
    clips = torch.zeros(2, 3, 16, 6, 6)
    program = torch.export.export(module, (clips,), dynamic_shapes={"clips": axes})
    for num_frames in (5, 8, 11, 32):
        clips = torch.randn(2, 3, num_frames, 5, 6)
        with torch.no_grad():
            found = program.module(check_guards=False)(clips)
            torch.testing.assert_close(found, module(clips))


def test_the_command_says_what_it_checked(
    trained_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "model.pt2"
    assert main(["export", str(trained_run), "--out", str(out)]) == 0
    assert "same scores as PyTorch at 8x32x32" in capsys.readouterr().out
    assert main(["export", str(trained_run), "--format", "tf", "--out", str(out)]) == 2
    assert "--format tf: give safetensors, torch, onnx" in capsys.readouterr().err
    assert main(["export", str(trained_run), "--out", str(tmp_path / "model.bin")]) == 2
    assert "its ending names no format; end it in .safetensors, .pt2" in capsys.readouterr().err
    weights = ["export", str(trained_run), "--format", "safetensors", "--out", str(out)]
    assert main(weights) == 2
    assert f"--out {out}: it is there, and no .safetensors file" in capsys.readouterr().err
    weights[-1] = str(tmp_path / "model.safetensors")
    assert main([*weights, "--normalise"]) == 2
    assert "--normalise" in capsys.readouterr().err
    assert main([*weights[:-1], str(tmp_path / "no" / "model.safetensors")]) == 2
    assert f"there is no folder {tmp_path / 'no'}; make it" in capsys.readouterr().err
    assert main([*weights[:-1], str(tmp_path)]) == 2
    assert f"--out {tmp_path}: it is a folder; give a file in it" in capsys.readouterr().err
