"""The study's first set of real clips, made of images as they are published."""

import sys
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from encode_signs import main


def encode(monkeypatch: pytest.MonkeyPatch, images: Path, out: Path) -> None:
    monkeypatch.setattr(sys, "argv", ["encode_signs.py", str(images), str(out)])
    main()


def test_a_clip_of_each_person_sign_and_take_with_frames_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frame 12 comes after frame 6, though its name comes before it."""
    grey = {("call", 1, 1): [40, 80, 120, 160], ("call", 2, 1): [200], ("hot", 1, 2): [20, 220]}
    for (sign, person, take), values in grey.items():
        (tmp_path / "images" / sign).mkdir(parents=True, exist_ok=True)
        for number, value in enumerate(values, start=1):
            name = f"colored_{sign}_{person:03d}_{take:02d}_{6 * number}_image.png"
            pixels = np.full((256, 256, 3), value, np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / sign / name)
    (tmp_path / "images" / "call" / "notes.png").write_bytes(b"not of a clip")
    for _ in range(2):  # the second time everything is there
        encode(monkeypatch, tmp_path / "images", tmp_path / "out")
    found = {}
    for path in (tmp_path / "out").rglob("*.*"):
        with av.open(str(path)) as container:
            frames = [frame.to_ndarray(format="gray") for frame in container.decode(video=0)]
            assert container.streams.video[0].average_rate == 5
        assert {frame.shape for frame in frames} == {(128, 128)}
        found[path.relative_to(tmp_path / "out").as_posix()] = [
            round(float(frame.mean())) for frame in frames
        ]
    names = {
        (sign, person, take): f"{sign}/p{person:03d}_{sign}_t{take:02d}.mp4"
        for sign, person, take in grey
    }
    assert set(found) == set(names.values())
    for clip, values in grey.items():
        assert found[names[clip]] == pytest.approx(values, abs=4)


def test_a_folder_without_such_images_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as error:
        encode(monkeypatch, tmp_path, tmp_path / "out")
    assert error.value.code == 2
    assert "no images SIGN/colored_SIGN" in capsys.readouterr().err
