"""Checkpoints of four origins into our models; what does not fit is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file, save_model
from torch import Tensor, nn
from torch.nn import functional as F

from tests.models import reference
from tests.models.checkpoints import (
    HUB_MODELS,
    SmallNet,
    image_name,
    image_resnet,
    pytorchvideo_state,
)
from vcycle.models import build_model, convert_batch_norm
from vcycle.models.checkpoint_files import read_state_dict
from vcycle.models.weights import load_weights

FACTS = reference.read("models")


def image_forward(state: dict[str, Tensor], x: Tensor) -> Tensor:
    """ResNet-50 on (B, 3, H, W) up to the pooled features, straight from its definition."""

    def norm(x: Tensor, name: str) -> Tensor:
        statistics = (state[f"{name}.running_mean"], state[f"{name}.running_var"])
        return F.batch_norm(x, *statistics, state[f"{name}.weight"], state[f"{name}.bias"])

    x = F.relu(norm(F.conv2d(x, state["conv1.weight"], stride=2, padding=3), "bn1"))
    x = F.max_pool2d(x, 3, stride=2, padding=1)
    for layer, blocks in enumerate((3, 4, 6, 3), start=1):
        for i in range(blocks):
            b = f"layer{layer}.{i}"
            stride = 2 if i == 0 and layer > 1 else 1
            y = F.relu(norm(F.conv2d(x, state[f"{b}.conv1.weight"]), f"{b}.bn1"))
            y = F.conv2d(y, state[f"{b}.conv2.weight"], stride=stride, padding=1)
            y = F.relu(norm(y, f"{b}.bn2"))
            y = norm(F.conv2d(y, state[f"{b}.conv3.weight"]), f"{b}.bn3")
            if i == 0:
                x = F.conv2d(x, state[f"{b}.downsample.0.weight"], stride=stride)
                x = norm(x, f"{b}.downsample.1")
            x = F.relu(x + y)
    return x.mean((2, 3))


@pytest.mark.parametrize("name", ["slowfast_r50_8x8", "i3d_nln_r50_8x8"])
def test_pyslowfast_checkpoint(name: str, tmp_path: Path) -> None:
    """Keys and shapes from the reference, values by its rule: the model then gives its outputs."""
    facts = FACTS["models"][name]
    shapes = dict(FACTS["state_dicts"][facts["state_dict"]])
    template = {
        key: torch.empty(shape, dtype=torch.long if not shape else torch.float32)
        for key, shape in shapes.items()
    }
    holder = nn.Module()
    holder.state_dict = lambda: template  # type: ignore[method-assign, assignment]
    state = reference.ruled_state(holder)
    checkpoint = {"epoch": 195, "model_state": state, "optimizer_state": {}, "cfg": "BN: {}\n"}
    torch.save(checkpoint, tmp_path / "a.pyth")
    model = convert_batch_norm(build_model(name, num_classes=400)).eval()
    report = load_weights(model, tmp_path / "a.pyth")
    assert set(report.matched) == set(shapes)
    assert not report.dropped
    assert not report.missing
    assert "classifier loaded" in str(report)
    logits = reference.read("logits").get(name)
    if logits is not None:
        expected = logits["sizes"]["8x112x112"]
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            scores = model(torch.randn((1, 3, 8, 112, 112), generator=generator))[0]
        error = (scores[:16] - torch.tensor(expected["logits_first16"])).abs().max()
        assert error < 1e-5 * expected["logits_abs_max"]


def test_another_number_of_classes_drops_the_head(tmp_path: Path) -> None:
    source = build_model("resnet3d_tiny", num_classes=5, width=4)
    torch.save({"model_state": source.state_dict()}, tmp_path / "a.pyth")
    model = build_model("resnet3d_tiny", num_classes=3, width=4)
    fresh = model.head.weight.clone()
    report = load_weights(model, tmp_path / "a.pyth")
    assert report.dropped == report.missing == ("head.weight", "head.bias")
    assert "classifier dropped: 5 classes in the file, 3 in the model" in str(report)
    torch.testing.assert_close(model.head.weight, fresh)
    torch.testing.assert_close(model.stem.weight, source.stem.weight)


class TwoHeads(nn.Module):
    """Neither of its classifiers is the last linear layer."""

    def __init__(self, num_classes: int, frames: int = 4) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.randn(frames, 3))
        self.aux = nn.Linear(3, num_classes)
        self.classifier = nn.Conv3d(3, num_classes, 1)
        self.table = nn.Embedding(frames, 3)
        self.projection = nn.Linear(3, 3)


FRESH = ("aux.weight", "aux.bias", "classifier.weight", "classifier.bias")


@pytest.mark.parametrize("num_classes", [2, 3])
def test_every_classifier_of_another_number_of_classes_stays_fresh(
    num_classes: int, tmp_path: Path
) -> None:
    source, model = TwoHeads(5), TwoHeads(num_classes)
    torch.save(source.state_dict(), tmp_path / "a.pth")
    fresh = {name: model.state_dict()[name].clone() for name in FRESH}
    report = load_weights(model, tmp_path / "a.pth", num_classes=num_classes)
    assert report.dropped == report.missing == FRESH
    assert f"classifier dropped: 5 classes in the file, {num_classes} in the" in str(report)
    for name, value in model.state_dict().items():
        expected = fresh.get(name, source.state_dict()[name])
        torch.testing.assert_close(value, expected, rtol=0, atol=0)


class HeadFirst(nn.Module):
    """Its last linear layer is of the body, and comes after the classifier."""

    def __init__(self, num_classes: int, *, convolves: bool = False) -> None:
        super().__init__()
        head = nn.Conv3d(3, num_classes, 1) if convolves else nn.Linear(3, num_classes)
        self.classifier = head
        self.blur = nn.Conv3d(3, num_classes, 3)  # no classifier: it looks at its neighbours
        self.gate = nn.Linear(3, 3)


@pytest.mark.parametrize("convolves", [False, True])
def test_a_classifier_of_other_classes_is_known_by_their_number(
    convolves: bool, tmp_path: Path
) -> None:
    source, model = HeadFirst(5, convolves=convolves), HeadFirst(5, convolves=convolves)
    torch.save(source.state_dict(), tmp_path / "a.pth")
    fresh = model.classifier.weight.clone()
    report = load_weights(model, tmp_path / "a.pth", num_classes=5, keep_classifier=False)
    assert report.missing == ("classifier.weight", "classifier.bias")
    assert "classifier dropped: its classes are others" in str(report)
    assert torch.equal(model.gate.weight, source.gate.weight)
    assert torch.equal(model.classifier.weight, fresh)
    body = {k: v for k, v in source.state_dict().items() if "classifier" not in k}
    torch.save(body, tmp_path / "b.pth")
    report = load_weights(model, tmp_path / "b.pth", num_classes=5)
    assert "classifier fresh: the file has none" in str(report)
    torch.save({k: v for k, v in source.state_dict().items() if "gate" not in k}, tmp_path / "c.pt")
    with pytest.raises(ValueError, match="lacks 'gate"):
        load_weights(model, tmp_path / "c.pt", num_classes=5)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (TwoHeads(4, frames=9), "has 'positions' of shape"),  # 4 classes, and 4 positions
        (TwoHeads(3, frames=9), "has 'positions' of shape"),  # 3 classes, not 4
        (TwoHeads(5, frames=9), "has 'positions' of shape"),
    ],
)
def test_what_is_no_classifier_is_refused(source: nn.Module, message: str, tmp_path: Path) -> None:
    torch.save(source.state_dict(), tmp_path / "a.pth")
    with pytest.raises(ValueError, match=message):
        load_weights(TwoHeads(3), tmp_path / "a.pth", num_classes=3)
    with pytest.raises(ValueError, match=message):  # of 9 classes, beside those of 5 or 4
        load_weights(TwoHeads(4), tmp_path / "a.pth", num_classes=4)


class Prototypes(nn.Module):
    """Its classifier is no layer of torch's."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.projection = nn.Linear(3, 3)
        self.prototypes = nn.Parameter(torch.randn(num_classes, 3))


def test_a_classifier_that_is_no_layer_stays_fresh(tmp_path: Path) -> None:
    torch.save(Prototypes(5).state_dict(), tmp_path / "a.pth")
    report = load_weights(Prototypes(4), tmp_path / "a.pth", num_classes=4)
    assert report.dropped == report.missing == ("prototypes",)


@pytest.mark.parametrize(("name", "blocks", "checksum"), HUB_MODELS[:4])
def test_pytorchvideo_checkpoint(
    name: str, blocks: tuple[int, ...], checksum: int, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    source = build_model(name, num_classes=7)
    state = pytorchvideo_state(source, blocks)
    torch.save({"model_state": state}, tmp_path / "a.pyth")
    model = build_model(name, num_classes=7)
    report = load_weights(model, tmp_path / "a.pyth")
    assert "PyTorchVideo" in report.layout
    assert not report.dropped + report.missing
    for key, value in model.state_dict().items():
        torch.testing.assert_close(value, source.state_dict()[key], rtol=0, atol=0, msg=key)


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_image_resnet_into_c2d_is_the_image_resnet(suffix: str, tmp_path: Path) -> None:
    state = image_resnet()
    path = tmp_path / f"resnet50{suffix}"
    (save_file if suffix == ".safetensors" else torch.save)(state, path)
    model = build_model("c2d_r50", num_classes=5).eval()
    features: list[Tensor] = []
    model.head.projection.register_forward_pre_hook(lambda _, args: features.append(args[0]))
    report = load_weights(model, path)
    assert sorted(report.dropped) == ["fc.bias", "fc.weight"]
    assert report.missing == ("head.projection.weight", "head.projection.bias")
    assert "1000 image classes dropped" in report.head
    image = torch.rand(2, 3, 40, 48)
    with torch.no_grad():
        model(image.unsqueeze(2).expand(-1, -1, 4, -1, -1))
        expected = image_forward(state, image)
    error = (features[0] - expected).abs().max()
    assert error < 1e-5 * expected.abs().max()


@pytest.mark.parametrize("name", ["i3d_nl_r50", "slow_r50", "slowfast_r50"])
def test_inflation(name: str, tmp_path: Path) -> None:
    state = image_resnet()
    torch.save(state, tmp_path / "a.pth")
    torch.manual_seed(2)
    model = build_model(name, num_classes=5)
    fresh = {key: value.clone() for key, value in model.state_dict().items()}
    report = load_weights(model, tmp_path / "a.pth")
    loaded = model.state_dict()
    for key in report.matched:
        source = state[str(image_name(key))]
        value = loaded[key]
        if key in report.partial:
            width = source.shape[1]
            torch.testing.assert_close(value[:, width:], fresh[key][:, width:], rtol=0, atol=0)
            value = value[:, :width]
        if value.ndim == 5:
            torch.testing.assert_close(value, value.mean(2, keepdim=True).expand_as(value))
            value = value.sum(2)
        torch.testing.assert_close(value, source)
    for key in report.missing:
        torch.testing.assert_close(loaded[key], fresh[key], rtol=0, atol=0)
    kinds = {"i3d_nl_r50": ("nonlocal",), "slow_r50": (), "slowfast_r50": ("pathway1", "_fuse")}
    assert len(report.matched) == 318
    assert all(
        key.startswith("head.") or any(kind in key for kind in kinds[name])
        for key in report.missing
    )
    # branch1 and the first convolution of the first block of each of the four stages
    assert len(report.partial) == (8 if name == "slowfast_r50" else 0)


def test_image_resnets_of_other_inputs_and_odd_classifiers_are_refused(tmp_path: Path) -> None:
    state = image_resnet()
    model = build_model("slowfast_r50", num_classes=5)
    for key, value in (
        ("conv1.weight", state["conv1.weight"][:, :1]),  # of grey images
        ("fc.weight", torch.tensor(1.0)),
    ):
        torch.save({**state, key: value}, tmp_path / "a.pth")
        with pytest.raises(ValueError, match=f"has '{key}' of shape"):
            load_weights(model, tmp_path / "a.pth")


def test_two_keys_for_one_place_are_refused(tmp_path: Path) -> None:
    model = build_model("slow_r50", num_classes=5)
    head = model.state_dict()["head.projection.bias"]
    torch.save({"blocks.5.proj.bias": head, "blocks.6.proj.bias": head}, tmp_path / "a.pth")
    with pytest.raises(ValueError, match=r"'blocks.6.proj.bias' fills .* a second time"):
        load_weights(model, tmp_path / "a.pth", partial=True)


def test_wrapped_models_and_models_that_have_a_module(small: SmallNet, tmp_path: Path) -> None:
    """``module.`` in a key is a wrapper's, on either side, or the name of the user's own layer."""
    for i, source in enumerate((small, nn.ModuleDict({"module": small}))):
        torch.save(source.state_dict(), tmp_path / f"{i}.pth")
        once = nn.ModuleDict({"module": SmallNet()})
        twice = nn.ModuleDict({"module": nn.ModuleDict({"module": SmallNet()})})
        for model in (SmallNet(), once, twice):
            report = load_weights(model, tmp_path / f"{i}.pth")
            assert set(report.matched) == set(small.state_dict())
            own = list(model.state_dict().values())
            torch.testing.assert_close(own, list(small.state_dict().values()), rtol=0, atol=0)


def test_parts_that_were_wrapped_one_by_one(small: SmallNet, tmp_path: Path) -> None:
    """As ``torch.compile`` and FSDP leave the names of a model's blocks."""
    keys = small.state_dict()
    for part in ("_orig_mod", "_fsdp_wrapped_module"):
        torch.save({_within(key, part): value for key, value in keys.items()}, tmp_path / "a.pth")
        assert set(load_weights(SmallNet(), tmp_path / "a.pth").matched) == set(keys)


def _within(key: str, part: str) -> str:
    first, rest = key.split(".", 1)
    return f"{first}.{part}.{rest}"


def test_wrappers_and_containers(small: SmallNet, tmp_path: Path) -> None:
    state = {key: value + 1 for key, value in small.state_dict().items()}
    wrapped = {f"module._orig_mod.{key}": value.half() for key, value in state.items()}
    for i, content in enumerate(({"state_dict": wrapped, "epoch": 3}, {"model": wrapped}, wrapped)):
        torch.save(content, tmp_path / f"{i}.pt")
        report = load_weights(SmallNet(), tmp_path / f"{i}.pt")
        assert set(report.matched) == set(state)
    model = SmallNet()
    load_weights(model, tmp_path / "2.pt")
    torch.testing.assert_close(model.s1.weight, state["s1.weight"], rtol=1e-3, atol=1e-3)
    assert model.s1.weight.dtype == torch.float32


def test_new_nonlocal_blocks_stay_fresh(small: SmallNet, tmp_path: Path) -> None:
    state = {key: value for key, value in small.state_dict().items() if "nonlocal" not in key}
    torch.save(state, tmp_path / "a.pth")
    report = load_weights(SmallNet(), tmp_path / "a.pth")
    assert report.missing == ("nonlocal1.weight", "nonlocal1.bias")
    assert "not in the file 2 ('nonlocal1.weight', 'nonlocal1.bias')" in str(report)


def test_what_is_no_tensor_is_listed_as_dropped(small: SmallNet, tmp_path: Path) -> None:
    state = {"note": "mine", **small.state_dict(), 3: torch.zeros(1), "a\nb": None}
    for content in (state, {"state_dict": state, "epoch": 3}):
        torch.save(content, tmp_path / "a.pth")
        report = load_weights(SmallNet(), tmp_path / "a.pth")
        assert report.dropped == ("note", "3", "a\nb")
        assert set(report.matched) == set(small.state_dict())
        assert "left out 3 ('note', '3', 'a\\nb')" in str(report)


def test_counts_may_be_whole_numbers_of_any_kind(tmp_path: Path) -> None:
    state = {**nn.BatchNorm3d(2).state_dict(), "num_batches_tracked": torch.tensor(7).int()}
    for count in (state["num_batches_tracked"], torch.tensor(7.0)):
        torch.save({**state, "num_batches_tracked": count}, tmp_path / "a.pth")
        model = nn.BatchNorm3d(2)
        load_weights(model, tmp_path / "a.pth")
        assert model.num_batches_tracked == 7
        assert model.num_batches_tracked.dtype == torch.long
    torch.save({**state, "num_batches_tracked": torch.tensor(torch.inf)}, tmp_path / "a.pth")
    with pytest.raises(ValueError, match="'num_batches_tracked' holds values that are not finite"):
        load_weights(nn.BatchNorm3d(2), tmp_path / "a.pth", partial=True)


def test_averaged_counts_are_cut_to_whole_numbers_and_other_integers_are_not(
    tmp_path: Path,
) -> None:
    model = nn.BatchNorm3d(2)
    model.register_buffer("order", torch.arange(2))
    state = {**model.state_dict(), "num_batches_tracked": torch.tensor(1000.5)}
    torch.save(state, tmp_path / "a.pth")
    load_weights(model, tmp_path / "a.pth")
    assert model.num_batches_tracked == 1000
    torch.save({**state, "order": torch.tensor([0.0, 0.5])}, tmp_path / "a.pth")
    with pytest.raises(ValueError, match=r"holds values that .* does not, which takes torch.int64"):
        load_weights(model, tmp_path / "a.pth", partial=True)


def test_a_file_with_one_name_of_each_tied_tensor_is_whole(tmp_path: Path) -> None:
    """As ``safetensors.torch.save_model`` writes it."""
    models = []
    for _ in range(2):
        shared = nn.Linear(3, 3)
        models.append(nn.ModuleDict({"a": shared, "b": shared, "head": nn.Linear(3, 2)}))
    saved, model = models
    save_model(saved, str(tmp_path / "a.safetensors"))
    report = load_weights(model, tmp_path / "a.safetensors")
    assert not report.missing
    assert set(report.matched) == set(model.state_dict())
    torch.testing.assert_close(model.state_dict(), saved.state_dict(), rtol=0, atol=0)
    model["b"] = nn.Linear(3, 3)
    with pytest.raises(ValueError, match=r"it lacks 'b\.weight'|it lacks 'a\.weight'"):
        load_weights(model, tmp_path / "a.safetensors")


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int16, torch.complex64])
def test_buffers_of_any_usual_dtype_are_loaded(dtype: torch.dtype, tmp_path: Path) -> None:
    """As masks of attention and rotary frequencies are."""
    saved, model = nn.Linear(2, 3), nn.Linear(2, 3)
    saved.register_buffer("kept", torch.tensor([0, 1, 1]).to(dtype))
    model.register_buffer("kept", torch.zeros(3, dtype=dtype))
    save_file(saved.state_dict(), tmp_path / "a.safetensors")
    load_weights(model, tmp_path / "a.safetensors")
    torch.testing.assert_close(model.state_dict(), saved.state_dict(), rtol=0, atol=0)


def test_the_name_of_a_module_around_the_model_is_left_out(small: SmallNet, tmp_path: Path) -> None:
    """As of Lightning, whose module keeps its model under a name."""
    state = {f"model.{key}": value + 1 for key, value in small.state_dict().items()}
    torch.save({"epoch": 3, "state_dict": state}, tmp_path / "a.ckpt")
    report = load_weights(small, tmp_path / "a.ckpt")
    assert (report.dropped, report.missing) == ((), ())
    for key, value in small.state_dict().items():
        assert torch.equal(value, state[f"model.{key}"])
    torch.save({**state, "criterion.weight": torch.ones(4)}, tmp_path / "b.ckpt")
    with pytest.raises(ValueError, match=r"has 'criterion\.weight', which is not in this model"):
        load_weights(small, tmp_path / "b.ckpt")
    assert load_weights(small, tmp_path / "b.ckpt", partial=True).dropped == ("criterion.weight",)
    torch.save({**state, "s1.bias": state["model.s1.bias"]}, tmp_path / "c.ckpt")
    with pytest.raises(ValueError, match=r"has 'model\.s1\.weight'"):  # s1.bias is the model's own
        load_weights(small, tmp_path / "c.ckpt")


def _changed(**changes: Any) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    def change(state: dict[str, Tensor]) -> dict[str, Tensor]:
        state = dict(state)
        for key, value in changes.items():
            name = key.replace("__", ".")
            if value is None:
                del state[name]
            else:
                state[name] = value
        return state

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_changed(s1__weight=torch.zeros(3, 3, 1, 1, 1)), r"'s1.weight' of shape \(3, 3, 1, 1, 1"),
        (_changed(s1__bias=None), "lacks 's1.bias'"),
        (_changed(s2__weight=torch.zeros(3)), "has 's2.weight', which is not in this model"),
        (_changed(head__weight=torch.zeros(4, 9)), "'head.weight' of shape"),
        (_changed(head__weight=torch.zeros(9, 5)), r"'head.weight' of shape \(9, 5\)"),
        (_changed(s1__weight=torch.full((3, 3, 3, 1, 1), torch.nan)), "'s1.weight' holds values"),
        (_changed(s1__bias=torch.ones(3).int()), r"'s1.bias' holds torch.int32, .* torch.float32"),
        (_changed(s1__bias=torch.ones(3).bool()), r"'s1.bias' holds torch.bool"),
        (_changed(s1__bias=torch.ones(3) * 1j), r"'s1.bias' holds torch.complex64"),
        (lambda _: {"a.b": torch.zeros(3)}, "matches nothing in this model; the file has 'a.b'"),
        (lambda _: {}, "holds no state dict"),
        (lambda _: {"epoch": 3}, r"holds no state dict \(its keys: 'epoch'\)"),
        (lambda _: [torch.zeros(3)], "holds a list"),
        (
            lambda _: {"s1.weight": torch.zeros(3, 3).to_sparse()},
            r"more than dense tensors and plain values: 'torch\._utils _rebuild_sparse_tensor'",
        ),
        (_changed(s1__bias=torch.ones(3).to(torch.uint16)), "'s1.bias' is no tensor of a usual"),
        (lambda _: {"k\n" * 99: torch.zeros(3)}, "matches nothing"),
        (lambda _: {f"blocks.{'9' * 5000}.res_blocks.0.a": torch.zeros(3)}, "matches nothing"),
    ],
)
def test_what_does_not_fit_is_refused(
    small: SmallNet, tmp_path: Path, change: Callable[..., Any], message: str
) -> None:
    before = {key: value.clone() for key, value in small.state_dict().items()}
    state = {key: value + 1 for key, value in before.items()}
    torch.save(change(state), tmp_path / "a.pth")
    with pytest.raises(ValueError, match=message) as caught:
        load_weights(small, tmp_path / "a.pth")
    assert "a.pth" in str(caught.value)
    assert "\n" not in str(caught.value)
    torch.testing.assert_close(dict(small.state_dict()), before, rtol=0, atol=0)


def test_values_beyond_the_range_of_the_model_are_refused(small: SmallNet, tmp_path: Path) -> None:
    torch.save({**small.state_dict(), "s1.bias": torch.full((3,), 1e30)}, tmp_path / "a.pth")
    with pytest.raises(ValueError, match=r"'s1\.bias' holds values that are not finite"):
        load_weights(small.half(), tmp_path / "a.pth")


def test_partial_loads_what_fits(small: SmallNet, tmp_path: Path) -> None:
    state = {key: value + 1 for key, value in small.state_dict().items()}
    state["s1.bias"], state["other"] = torch.zeros(9), torch.zeros(1)
    torch.save(state, tmp_path / "a.pth")
    report = load_weights(small, tmp_path / "a.pth", partial=True)
    assert report.dropped == ("s1.bias", "other")
    assert report.missing == ("s1.bias",)
    torch.testing.assert_close(small.s1.weight, state["s1.weight"])
    torch.save({"s1.bias": torch.zeros(9)}, tmp_path / "b.pth")
    with pytest.raises(ValueError, match="nothing in it fits"):
        load_weights(small, tmp_path / "b.pth", partial=True)


def test_other_depths_and_kinds_are_refused(tmp_path: Path) -> None:
    def save(name: str) -> Path:
        with torch.device("meta"):
            state = build_model(name, num_classes=4).state_dict()
        zeros = {k: torch.zeros((), dtype=v.dtype).expand(v.shape) for k, v in state.items()}
        torch.save(zeros, tmp_path / name)
        return tmp_path / name

    i3d = build_model("i3d_r50", num_classes=4)
    for name, message in {
        "i3d_r101": "which is not in this model",
        "slow_r50": "'s1.pathway0_stem.conv.weight' of shape",
        "slowfast_r50": "another architecture",
        "i3d_nl_r50": "has 's3.pathway0_nonlocal1.conv_theta.weight', which",
    }.items():
        with pytest.raises(ValueError, match=message):
            load_weights(i3d, save(name))
    with pytest.raises(ValueError, match="matches nothing"):
        load_weights(build_model("resnet3d_tiny", num_classes=4), tmp_path / "slow_r50")


def test_large_shapes_on_small_storage_cost_nothing(small: SmallNet, tmp_path: Path) -> None:
    state = {"s1.weight": torch.zeros(1).expand(10**6, 10**6)}
    torch.save(state, tmp_path / "a.pth")
    with pytest.raises(ValueError, match="another architecture"):
        load_weights(small, tmp_path / "a.pth")


def test_large_image_kernels_on_small_storage_are_not_inflated(tmp_path: Path) -> None:
    """A terabyte by its shape."""
    kernel = torch.zeros(1).expand(64, 3, 7, 2 * 10**8)
    torch.save({**image_resnet(), "conv1.weight": kernel}, tmp_path / "a.pth")
    with pytest.raises(ValueError, match=r"has 'conv1\.weight' of shape"):
        load_weights(build_model("i3d_r50", num_classes=5), tmp_path / "a.pth")


@pytest.mark.parametrize("ema", [None, {"average": {}}, {"average": {"n": 3}, "decay": 0.9}])
@pytest.mark.parametrize("key", ["state_dict", "model"])
def test_an_average_of_another_program_is_not_taken_for_ours(
    tmp_path: Path, key: str, ema: object
) -> None:
    state = {"head.weight": torch.ones(2)}
    torch.save({key: state, "ema": ema}, tmp_path / "a.pth")
    assert read_state_dict(tmp_path / "a.pth")[0].keys() == state.keys()
