"""Models from outside: built by an import path, and those of another library."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from vcycle.data.batch import normalize
from vcycle.models import (
    build_model,
    check_model,
    convert_batch_norm,
    load_weights,
    set_norm_group,
)
from vcycle.models.external import check_trained_precision
from vcycle.schedule.shape import Shape

SHAPES = [Shape(4, 16, 16), Shape(8, 32, 24)]

SOURCE = """
from torch import nn
def build(width=2, *, num_classes):
    return nn.Sequential(nn.Conv3d(3, width, 1), nn.AdaptiveAvgPool3d(1), nn.Flatten(),
                         nn.Linear(width, num_classes))
def without_classes():
    return nn.Conv3d(3, 1, 1)
def no_model(num_classes):
    return "model"
def any_options(**options):
    return nn.Linear(options["num_classes"], options["width"])
def wrapper(path, num_classes):
    return nn.Linear(len(path), num_classes)
def unfinished():
    raise NotImplementedError("first\\nsecond line")
constant = 3
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "own_model.py").write_text(SOURCE)
    (tmp_path / "typing_error.py").write_text("def build(:")
    (tmp_path / "script.py").write_text("import sys\nsys.exit()\n")
    (tmp_path / "late_script.py").write_text("def build():\n    raise SystemExit(3)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "own_model", raising=False)
    return tmp_path


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_what_is_trained_in_another_precision_is_refused(dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Conv3d(3, 4, 1).to(dtype), nn.Linear(4, 2))
    message = rf"'0.weight' in {dtype}; return it in float32 \(model.float\(\)\), and choose"
    with pytest.raises(ValueError, match=message):
        check_trained_precision(model, "own:build")
    model[0].requires_grad_(False)
    check_trained_precision(model, "own:build")


def test_build_by_import_path(here: Path) -> None:
    model = build_model("own_model:build", num_classes=5, width=3)
    check_model(model, SHAPES, num_classes=5)
    assert model[0].out_channels == 3
    assert isinstance(build_model("own_model:without_classes", num_classes=5), nn.Conv3d)
    assert build_model("own_model:any_options", num_classes=5, width=3).in_features == 5
    assert isinstance(build_model("torch.nn:Identity", num_classes=2), nn.Identity)
    assert build_model("own_model:wrapper", num_classes=5, path="x.pt").in_features == 4


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("own_modle:build", {}, "cannot import 'own_modle'"),
        (":build", {}, "cannot import ''"),
        ("own_model:biuld", {}, "has no function 'biuld'"),
        ("own_model:constant", {}, "has no function 'constant'"),
        ("own_model:build", {"depth": 3}, "unexpected keyword argument 'depth'"),
        ("own_model:any_options", {}, "it fails: KeyError: 'width'"),
        ("own_model:unfinished", {}, "it fails: NotImplementedError: first second line"),
        ("typing_error:build", {}, r"cannot import 'typing_error' \(SyntaxError: "),
        ("script:build", {}, r"cannot import 'script' \(SystemExit: sys.exit\(\) \(script.py, "),
        ("late_script:build", {}, "it fails: SystemExit: 3"),
        ("../own_model:build", {}, "cannot import '../own_model'"),
        ("own_model:no_model", {}, "returned a str; return a torch.nn.Module"),
        ("own_model:build", {"num_classes": 0}, "num_classes 0: "),
    ],
)
def test_paths_that_lead_nowhere(
    here: Path, name: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        build_model(name, **{"num_classes": 5, **options})
    assert "\n" not in str(caught.value)


def small_videomae(**options: Any) -> nn.Module:
    sizes = {"frames": 4, "side_pixels": 32, "width": 24, "layers": 2, "heads": 2}
    return build_model("examples.video_transformer:videomae", num_classes=5, **sizes | options)


def test_a_video_transformer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    monkeypatch.chdir(Path(__file__).parents[2])
    torch.manual_seed(0)
    model = small_videomae()
    layers = list(model.modules())
    convert_batch_norm(model)
    set_norm_group(model, 8)
    assert list(model.modules()) == layers
    check_model(model, [Shape(2, 16, 16), Shape(4, 32, 32), Shape(6, 48, 32)], num_classes=5)
    with pytest.raises(ValueError, match=r"layer 'videomae.embeddings' .* H is 24; give a mul"):
        check_model(model, [Shape(4, 24, 32)], num_classes=5)
    torch.save(model.state_dict(), tmp_path / "a.pth")
    report = load_weights(small_videomae(), tmp_path / "a.pth")
    assert not report.missing + report.dropped


def test_a_video_transformer_at_its_own_shape_is_the_original(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    transformers = pytest.importorskip("transformers")
    monkeypatch.chdir(Path(__file__).parents[2])
    torch.manual_seed(0)
    model = small_videomae().eval()
    original = transformers.VideoMAEForVideoClassification(model.config).eval()
    original.load_state_dict(model.state_dict())
    pixels = torch.randint(0, 256, (2, 3, 4, 32, 32), dtype=torch.uint8)
    clips = normalize(pixels)
    with torch.no_grad():
        # Pixels as the processor that comes with the published weights normalises them.
        mean, std = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]]).view(2, 3, 1, 1, 1)
        expected = original(((pixels / 255 - mean) / std).transpose(1, 2)).logits
        torch.testing.assert_close(model(clips), expected, rtol=1e-5, atol=1e-5)
        assert model(clips.flip(2)).sub(expected).abs().max() > 1e-4


def test_published_weights_of_a_video_transformer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Saving gives files their published names, which differ from those of the layers."""
    transformers = pytest.importorskip("transformers")
    monkeypatch.chdir(Path(__file__).parents[2])
    published = transformers.VideoMAEForVideoClassification(small_videomae().config)
    published.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"attention\.q_bias', which is not in this model"):
        load_weights(small_videomae(), tmp_path / "model.safetensors")
    read = transformers.VideoMAEForVideoClassification.from_pretrained(tmp_path)
    torch.save(read.state_dict(), tmp_path / "a.pth")
    model = small_videomae()
    assert not load_weights(model, tmp_path / "a.pth").missing
    torch.testing.assert_close(model.state_dict(), published.state_dict(), rtol=0, atol=0)


def test_a_video_transformer_is_saved_and_read_as_transformers_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which makes a model without values, and so without those that no state dict holds."""
    pytest.importorskip("transformers")
    monkeypatch.chdir(Path(__file__).parents[2])
    model = small_videomae().eval()
    model.save_pretrained(tmp_path)
    read = type(model).from_pretrained(tmp_path).eval()
    buffers = dict(model.named_buffers())
    assert len(buffers) == 3
    torch.testing.assert_close(dict(read.named_buffers()), buffers, rtol=0, atol=0)
    clips = torch.randn(2, 3, 4, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(read(clips), model(clips))
