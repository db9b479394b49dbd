"""Which run a path belongs to."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from vcycle.evaluate.run_manifest import kept_manifest, run_of


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    (folder / "checkpoints").mkdir(parents=True)
    for name in ("config.yaml", "best.pt", "checkpoints/step_00000010.pt"):
        (folder / name).touch()
    return folder


def test_a_run_is_its_folder_and_each_of_its_checkpoints(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in (run, run / "best.pt", run / "checkpoints" / "step_00000010.pt"):
        assert run_of(path) == run
    monkeypatch.chdir(run / "checkpoints")
    assert run_of(Path("step_00000010.pt")) == run


def test_what_lies_elsewhere_is_of_no_run(run: Path) -> None:
    """Not of one whose configuration is in the folder above by chance, either."""
    (run / "weights").mkdir()
    (run / "weights" / "other.pt").touch()
    assert run_of(run / "weights" / "other.pt") is None
    assert run_of(run / "weights") is None
    assert run_of(run / "gone.pt") == run


def test_of_videos_that_were_moved_away_their_own_place_is_named(
    trained_run: Path, tmp_path: Path
) -> None:
    """Not the folder above, in which others may lie under the same names."""
    run = shutil.copytree(trained_run, tmp_path / "run")
    place = str(tmp_path / "gone")
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["data"]["manifest"] = place
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    for given in (place, f"{place}/manifest.csv"):
        config["data"]["manifest"] = given
        (run / "config.yaml").write_text(yaml.safe_dump(config))
        kept = kept_manifest(run, given)
        assert kept is not None
        assert kept.root == tmp_path / "gone"
