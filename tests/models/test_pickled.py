"""What a pickle would have torch do is known before torch reads it."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch

from vcycle.evaluate.checkpoint import check_loads, find_trained_model, load_checkpoint
from vcycle.models.checkpoint_files import read_state_dict
from vcycle.models.pickled import load_pickled

MANY = "its lists and tuples stand for over 4,194,304 values"


def written(path: Path, content: bytes, *, is_zip: bool = True) -> Path:
    """A file of torch's, of now or before version 1.6, with a pickle made by hand."""
    if is_zip:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a/data.pkl", content)
            archive.writestr("a/version", "3")
    else:
        start = (torch.serialization.MAGIC_NUMBER, torch.serialization.PROTOCOL_VERSION, {})
        dumped = [pickle.dumps(each, 2) for each in start]
        path.write_bytes(b"".join([*dumped, content, pickle.dumps([], 2)]))
    return path


def nested(kind: type, depth: int, width: int) -> Any:
    each = kind()
    for _ in range(depth):
        each = kind([each] * width)
    return each


def dictionaries_of_one_list() -> bytes:
    """Some kilobytes that make a gigabyte of dictionaries."""
    pairs = pickle.dumps([[number, number] for number in range(2000)], 2)[2:-1]
    make = b"ccollections\nOrderedDict\nh\xff\x85R"
    return b"\x80\x02](" + pairs + b"q\xff" + make * 3000 + b"e."


def dictionaries_of_one_state() -> bytes:
    """The same, of what is set on them."""
    state = pickle.dumps({str(number): number for number in range(2000)}, 2)[2:-1]
    make = b"ccollections\nOrderedDict\n)Rh\xffb"
    return b"\x80\x02](" + state + b"q\xff" + make * 3000 + b"e."


@pytest.mark.parametrize("is_zip", [True, False])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickle.dumps({"w": bytearray(9)}, 2), "plain values: '__builtin__ bytearray'"),
        (b"\x80\x02ctorch\nTensor\nJ\0\0\0\x7f\x85R.", "plain values: 'torch Tensor'"),
        (pickle.dumps({"w": nested(tuple, 60, 2)}, 2), MANY),
        (pickle.dumps({"w": nested(tuple, 3, 2000)}, 2), MANY),
        (pickle.dumps({"w": nested(list, 60, 2)}, 2), MANY),
        (dictionaries_of_one_list(), MANY),
        (dictionaries_of_one_state(), MANY),
        (b"\x80\x02]q\0h\0h\0\x86q\1K\1\x86a.", "it fills a list or dictionary that another holds"),
    ],
    ids=["bytes", "tensor", "deep tuple", "wide tuple", "list", "items", "state", "own member"],
)
def test_what_takes_more_than_the_file_has_is_refused(
    content: bytes, message: str, is_zip: bool, tmp_path: Path
) -> None:
    path = written(tmp_path / "a.pt", content, is_zip=is_zip)
    with pytest.raises(ValueError, match=message) as caught:
        read_state_dict(path)
    assert str(caught.value).startswith(f"{path}: refused")
    assert "\n" not in str(caught.value)
    if is_zip:
        assert find_trained_model(path) is None
        for read in (load_checkpoint, check_loads):
            with pytest.raises(ValueError, match=message) as caught:
                read(path)
            assert str(path) in str(caught.value)


def test_a_second_pickle_is_looked_at_under_any_name(tmp_path: Path) -> None:
    path = written(tmp_path / "a.pt", pickle.dumps({}, 2))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("B/DATA.PKL", pickle.dumps(bytearray(9), 2))
    with pytest.raises(ValueError, match="bytearray"):
        load_pickled(path)


def test_the_last_pickle_of_an_old_file_is_looked_at_too(tmp_path: Path) -> None:
    path = written(tmp_path / "a.pt", pickle.dumps({}, 2), is_zip=False)
    of_names = pickle.dumps([], 2)
    path.write_bytes(path.read_bytes()[: -len(of_names)] + pickle.dumps(bytearray(9), 2))
    with pytest.raises(ValueError, match="bytearray"):
        load_pickled(path)


def test_a_pickle_may_hold_as_many_values_as_it_has_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long history beside the weights is written once, and takes no more than the file."""
    history = [float(number) for number in range(1000)]
    torch.save({"loss": history}, tmp_path / "a.pt")
    monkeypatch.setattr("vcycle.models.pickled.MOST_VALUES", 10)
    assert load_pickled(tmp_path / "a.pt") == {"loss": history}


def test_a_pickle_longer_than_any_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "a.pt", pickle.dumps({"note": "x" * 99}, 2))
    assert load_pickled(path) == {"note": "x" * 99}
    monkeypatch.setattr("vcycle.models.pickled.MOST_BYTES", 99)
    with pytest.raises(ValueError, match=r"99 bytes|exhausted"):
        load_pickled(path)


def test_methods_of_a_dictionary_are_its_own(tmp_path: Path) -> None:
    state = OrderedDict(w=1)
    vars(state).update(itemz=1, _metadata=OrderedDict({"": {"version": 1}}))
    vars(vars(state)["_metadata"]).update(gets=1)
    content = pickle.dumps([{"model": state}], 2).replace(b"itemz", b"items")
    loaded = load_pickled(written(tmp_path / "a.pt", content))[0]["model"]
    assert list(loaded.items()) == [("w", 1)]
    assert loaded._metadata == {"": {"version": 1}}
    assert vars(loaded._metadata) == {}


@pytest.mark.filterwarnings("ignore:Detected pickle protocol 3")
@pytest.mark.parametrize("is_zip", [True, False])
def test_what_checkpoints_hold_is_read(is_zip: bool, tmp_path: Path) -> None:
    model = torch.nn.BatchNorm1d(3).half()
    optimizer = torch.optim.AdamW(
        [{"params": [each]} for each in model.parameters()], betas=(0.8, 0.9)
    )
    model(torch.ones(2, 3).half()).sum().backward()
    optimizer.step()
    shared = torch.arange(4.0)
    content = {
        "model_state": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "schedule": {"milestones": Counter({3: 1}), "dtype": torch.bfloat16},
        "tensors": [shared, shared[1:], shared.to(torch.uint8) > 1, torch.tensor(1j)],
        # torch does not read its own old files of this kind.
        "unsigned": shared.to(torch.uint16) if is_zip else None,
        "parameter": torch.nn.Parameter(shared),
        "plain": [None, True, 1, -(2**70), 0.5, 1j, "é", (1, (2,)), {3}, {}, [], (), set()],
        "torch": [torch.device("cpu"), torch.Size([1, 2])],
        "names": [f"class {number}" for number in range(5000)],
    }
    torch.save(content, tmp_path / "a.pt", _use_new_zipfile_serialization=is_zip)
    expected = torch.load(tmp_path / "a.pt", weights_only=True)
    for source in (tmp_path / "a.pt", io.BytesIO((tmp_path / "a.pt").read_bytes())):
        found = load_pickled(source)
        assert repr(found) == repr(expected)
    assert load_pickled(tmp_path / "a.pt")["model_state"]._metadata
    torch.save(content, tmp_path / "b.pt", pickle_protocol=3)
    assert repr(load_pickled(tmp_path / "b.pt")) == repr(expected)
