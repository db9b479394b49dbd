"""Configurations from files and dotted flags: what is not one is refused in one line."""

import copy
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from vcycle.cli.main import main
from vcycle.config.fields import MOST_BYTES, config_from, read_values
from vcycle.config.recipes import FIXED_RECIPES, USER_RECIPES, recipe
from vcycle.train.run_folder import config_text

KINETICS = "k400-slowfast-r50"
SECTIONS = ("baseline", "multigrid", "multigrid.rule", "data", "model", "baseline.learning_rate")


def changed(name: str, value: object) -> dict[str, Any]:
    """The values of a recipe with one of them replaced."""
    values = copy.deepcopy(asdict(recipe(KINETICS)))
    section = values
    *outer, last = name.split(".")
    for key in outer:
        section = section[key]
    section[last] = value
    return values


@pytest.mark.parametrize("name", [*FIXED_RECIPES, *USER_RECIPES])
def test_every_recipe_comes_back_from_its_file(name: str, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(config_text(recipe(name)))
    assert config_from(read_values(file), []) == recipe(name)


def test_values_are_those_of_the_right_type() -> None:
    config = config_from(changed("seed", "7"), ["--threads", "2"])
    assert (config.seed, config.threads) == (7, 2)
    assert config_from(changed("model.options", {"alpha": 8}), []).model.options == {"alpha": 8}
    assert config_from(changed("multigrid.long_cycle", None), []).multigrid.long_cycle is None


@pytest.mark.parametrize("name", SECTIONS)
@pytest.mark.parametrize(("value", "shown"), [(None, "null"), ([1], "[1]"), ("x", "x")])
def test_a_section_that_is_no_mapping(name: str, value: object, shown: str) -> None:
    pattern = rf"^{re.escape(f'{name} {shown}: give a mapping of its fields (')}[a-z_, ]+\)$"
    with pytest.raises(ValueError, match=pattern):
        config_from(changed(name, value), [])


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("seed", "x", "seed x: give a whole number"),
        ("seed", None, "seed null: give a whole number"),
        ("precision", None, "precision null: give 32-true or bf16-mixed"),
        ("notes", None, "notes null: give a list"),
        ("data.num_workers", None, "data.num_workers null: give a whole number"),
        ("precision", "fp8", "precision fp8: give 32-true or bf16-mixed"),
        ("optimizer.name", "lamb", "optimizer.name lamb: give sgd or adamw"),
        ("optimizer.weight_decay", "lots", "optimizer.weight_decay lots: give a number"),
        ("notes", "hello", "notes hello: give a list"),
        ("multigrid.steps", "x", "multigrid.steps x: give a whole number or null"),
        ("multigrid.long_cycle", "x", "multigrid.long_cycle x: give a LongCycle or null"),
        (
            "multigrid.long_cycle",
            {"factors": [[1, 2, 3]]},
            "multigrid.long_cycle.factors [1, 2, 3]: give a list with 2 elements",
        ),
        (
            "multigrid.long_cycle",
            {"factors": [[2, 1], [1, 1]]},
            "long_cycle.factors [2, 1]: give one for the frames and one for the height and "
            "width, each above 0 and at most 1",
        ),
        ("model.options", [1], "model.options [1]: give a mapping"),
        ("model.pretrained_on", "x", "model.pretrained_on x: give imagenet or kinetics400 or null"),
        ("baselin", {}, "unknown field baselin; did you mean baseline?"),
        ("data.strid", 2, "unknown field data.strid; did you mean data.stride?"),
    ],
)
def test_values_of_the_wrong_type(name: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        config_from(changed(name, value), [])
    if not isinstance(value, dict) and "unknown" not in message:
        flags = [f"--{name}", yaml.safe_dump(value).splitlines()[0]]
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            config_from(asdict(recipe(KINETICS)), flags)


@pytest.mark.parametrize("value", ["null", "x"])
@pytest.mark.parametrize("name", SECTIONS)
def test_a_flag_for_a_whole_section(name: str, value: str) -> None:
    message = f"{name} {value}: give a mapping of its fields, or set one by its name"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        config_from(asdict(recipe(KINETICS)), [f"--{name}", value])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2]", "no configuration in it; give a run's config.yaml"),
        ("x", "no configuration in it; give a run's config.yaml"),
        ("", "no configuration in it; give a run's config.yaml"),
        ("a: [", "not YAML"),
        ("recipe: x\nbaseline: &a [*a]\n", r"not YAML \(it has an alias\)"),
        ("recipe: x\nbaseline: " + "[" * 3000, "not YAML"),
        ("seed: " + "9" * 5000, "not YAML"),
        ("day: 2020-13-45", "not YAML"),
        ("a" * (MOST_BYTES + 1), r"more than 1,000,000 bytes; give a run's config.yaml"),
        ("1: 2\n", "^vcycle: unknown field 1$"),
        ("recipe: x\n", r"^vcycle: missing fields: baseline\.shape\.frames, "),
        ("{}", r"^vcycle: missing fields: recipe, "),
    ],
)
def test_files_that_are_no_configuration(
    tmp_path: Path, text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    assert main(["plan", "--config", str(file)]) == 2
    error = capsys.readouterr().err
    assert re.search(message, error)
    assert error.count("\n") == 1
