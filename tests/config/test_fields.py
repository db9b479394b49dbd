"""Configurations from files and dotted flags: what is not one is refused in one line."""

import copy
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from vcycle.cli.main import main
from vcycle.config.fields import (
    config_from,
    config_text,
    field_types,
    read_saved,
    read_values,
    typed,
)
from vcycle.config.flag_parser import FlagParser
from vcycle.config.flags import add_config_flags
from vcycle.config.from_flags import run_config
from vcycle.config.recipes import FIXED_RECIPES, USER_RECIPES, recipe
from vcycle.config.run import Data
from vcycle.schedule.multigrid import Anneal
from vcycle.train.same_run import check_config

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
    assert config_from(read_values(file), {}) == recipe(name)


def test_values_are_those_of_the_right_type() -> None:
    config = config_from(changed("seed", 7), {"threads": "2", "data.frame_rate": "1e1"})
    assert (config.seed, config.threads, config.data.frame_rate) == (7, 2, 10.0)
    values = asdict(recipe(KINETICS))
    text = config_from(values, {"data.manifest": "2020", "multigrid.fine_tuning": "no"})
    assert (text.data.manifest, text.multigrid.fine_tuning) == ("2020", False)
    factors = config_from(values, {"multigrid.long_cycle.factors": "[[0.5, 1], [1, 1]]"})
    assert factors.multigrid.long_cycle is not None
    assert factors.multigrid.long_cycle.factors == ((0.5, 1.0), (1.0, 1.0))
    assert config_from(changed("model.options", {"alpha": 8}), {}).model.options == {"alpha": 8}
    assert config_from(changed("multigrid.long_cycle", None), {}).multigrid.long_cycle is None
    none = changed("multigrid.short_cycle", None)
    again = config_from(none, {"multigrid.short_cycle.factors": "[]"})
    assert again.multigrid.short_cycle is not None


def test_every_field_is_a_flag_by_its_type() -> None:
    types = field_types()
    assert types["baseline.shape.frames"] is int
    assert types["data.short_side"] == tuple[int, int]
    assert {"multigrid.long_cycle", "multigrid.long_cycle.factors"} <= types.keys()
    assert not {"baseline", "baseline.shape", "data"} & types.keys()


def test_a_value_that_a_section_refuses() -> None:
    with pytest.raises(ValueError, match=r"^data.num_workers -1: give 0 or more, or auto$"):
        typed(Data, {"num_workers": -1}, "data")


@pytest.mark.parametrize("name", SECTIONS)
@pytest.mark.parametrize(("value", "shown"), [(None, "null"), ([1], "[1]"), ("x", "x")])
def test_a_section_that_is_no_mapping(name: str, value: object, shown: str) -> None:
    pattern = rf"^{re.escape(f'{name} {shown}: give a mapping of its fields (')}[a-z_, ]+\)$"
    with pytest.raises(ValueError, match=pattern):
        config_from(changed(name, value), {})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("seed", "x", "seed x: give a whole number"),
        ("seed", None, "seed null: give a whole number"),
        ("precision", None, "precision null: give 32-true or tf32 or bf16-mixed or 16-mixed"),
        ("notes", None, "notes null: give a list"),
        ("data.num_workers", None, "data.num_workers null: give a whole number or auto"),
        ("precision", "fp8", "precision fp8: give 32-true or tf32 or bf16-mixed or 16-mixed"),
        (
            "optimizer.name",
            "lion",
            "optimizer.name lion: give sgd or adamw or muon or lars or lamb",
        ),
        ("optimizer.weight_decay", "lots", "optimizer.weight_decay lots: give a number"),
        ("notes", "hello", "notes hello: give a list"),
        ("multigrid.steps", "x", "multigrid.steps x: give a whole number or null"),
        (
            "multigrid.anneal",
            "x",
            "multigrid.anneal x: give a mapping of its fields (form, share, final, warmup) or null",
        ),
        ("baseline.steps", True, "baseline.steps true: give a whole number"),
        ("baseline.steps", 1.5, "baseline.steps 1.5: give a whole number"),
        ("multigrid.fine_tuning", 1, "multigrid.fine_tuning 1: give true or false"),
        ("data.short_side", [1], "data.short_side [1]: give a list of 2"),
        (
            "multigrid.long_cycle",
            {"factors": [[1, 2, 3]]},
            "multigrid.long_cycle.factors [1, 2, 3]: give a list of 2",
        ),
        (
            "multigrid.long_cycle",
            {"factors": [[2, 1], [1, 1]]},
            "long_cycle.factors [2, 1]: give one for the frames and one for the height and "
            "width, each above 0 and at most 1",
        ),
        ("model.options", [1], "model.options [1]: give a mapping"),
        ("model.options", {1: 2}, "model.options: 1 is no name of an option; give text"),
        (
            "model.options",
            {"name": "resnet50"},
            "model.options: name is model.name's; call the builder's another",
        ),
        ("model.pretrained_on", "x", "model.pretrained_on x: give imagenet or kinetics400 or null"),
        ("baselin", {}, "baselin: no such field; did you mean baseline?"),
        ("data.strid", 2, "data.strid: no such field; did you mean data.stride?"),
    ],
)
def test_values_of_the_wrong_type(name: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        config_from(changed(name, value), {})
    if not isinstance(value, dict) and "no such" not in message:
        text = yaml.safe_dump(value, default_flow_style=True).splitlines()[0]
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            config_from(asdict(recipe(KINETICS)), {name: text})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2]", "no configuration in it; give a run's config.yaml"),
        ("x", "no configuration in it; give a run's config.yaml"),
        ("", "no configuration in it; give a run's config.yaml"),
        ("a: [", "not YAML"),
        ("day: 2020-13-45", "not YAML"),
        ("seed: 1\nseed: 2\n", r"not YAML \('seed' is there twice; leave one out\)"),
        ("data: {stride: 1, stride: 2}", r"not YAML \('stride' is there twice; leave one out\)"),
        (f"notes: [{'x, ' * 100_000}]", r"config\.yaml: over 262,144 bytes are no configuration"),
        *(
            (f"recipe: {text}", r"config\.yaml: not YAML \(a tag \(!!\) that does not fit")
            for text in ("!!int ''", "!!timestamp x", "!!bool q")
        ),
        ("1: 2\n", r"config\.yaml: 1: no such field; its section has recipe, baseline, "),
        ("recipe: x\n", r"config\.yaml: baseline: missing; give every one of them$"),
        ("{}", r"config\.yaml: recipe, baseline: missing; "),
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


def test_what_is_wrong_with_the_configuration_of_a_run_is_the_cause(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("data: [\n")
    with pytest.raises(ValueError, match="no configuration of a run; restore it") as caught:
        read_saved(file)
    assert "line 2" in str(caught.value.__cause__)


def test_a_section_that_may_be_null_is_a_flag() -> None:
    parser = FlagParser(word="recipe")
    add_config_flags(parser)
    flags = ["--multigrid.anneal", "{form: cosine, share: 0.5}", "--multigrid.anneal.final", "0.1"]
    for each in (flags, flags[2:] + flags[:2]):
        config = run_config(parser.parse_args([KINETICS, "--schedule", "anneal", *each]))
        assert config.multigrid.anneal == Anneal("cosine", share=0.5, final=0.1)
    config = run_config(parser.parse_args([KINETICS, "--multigrid.short_cycle", "null"]))
    assert config.multigrid.short_cycle is None


def test_layers_to_freeze_are_a_flag_with_commas() -> None:
    parser = FlagParser(word="recipe")
    add_config_flags(parser)
    for flags in (["--freeze", "s1,s2.*"], ["--model.freeze", "[s1, s2.*]"]):
        options = parser.parse_args([KINETICS, *flags])
        assert run_config(options).model.freeze == ("s1", "s2.*")


def test_words_that_yaml_reads_as_truth_are_choices(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    for word in ("off", "on"):
        text = config_text(recipe(KINETICS)).replace("cuda_graphs: auto", f"cuda_graphs: {word}")
        file.write_text(text)
        assert config_from(read_values(file), {}).cuda_graphs == word


def test_whole_numbers_of_python_are_those_of_a_runs_file(tmp_path: Path) -> None:
    """A run that Python began goes on from the command line, which reads them as floats."""
    file = tmp_path / "config.yaml"
    begun = recipe(KINETICS)
    begun = replace(begun, ema_decay=0, multigrid=replace(begun.multigrid, epoch_factor=2))
    file.write_text(config_text(begun))
    check_config(read_values(file), config_from(read_values(file), {}), source="--resume")
    other = replace(begun, ema_decay=0.5)
    with pytest.raises(ValueError, match=r"ema_decay is 0 in it, 0.5 now"):
        check_config(read_values(file), other, source="--resume")
