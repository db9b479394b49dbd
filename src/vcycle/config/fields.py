"""The fields of a configuration: read from a file, changed by name, and checked.

In: a run's config.yaml or a recipe's values, and values of fields such as ``baseline.steps``. Out:
a RunConfig, or a ValueError of one line that names the field, its value and what it must be. The
types in the dataclasses decide what is accepted; nothing is listed a second time here.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

from vcycle.config.run import RunConfig
from vcycle.schedule.arguments import nearest
from vcycle.schedule.messages import shortened

T = TypeVar("T")

_MOST_BYTES = 2**18
_UNIONS = (Union, UnionType)
_PLAIN = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


class _PlainLoader(yaml.SafeLoader):
    """Values as they are written: a few lines of aliases stand for as many values as one likes."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("an alias (*); write the value out")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        names = Counter(each.value for each, _ in node.value if isinstance(each, yaml.ScalarNode))
        for name in (name for name, times in names.items() if times > 1):
            raise yaml.YAMLError(f"{shortened(name, 40)!r} is there twice; leave one out")
        return super().construct_mapping(node, deep)


def _loaded(text: str) -> Any:
    """YAML of plain values. Raises yaml.YAMLError, or ValueError, if it is not."""
    try:
        return yaml.load(text, Loader=_PlainLoader)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except (LookupError, AttributeError, TypeError):  # of a tag, such as !!bool, that does not fit
        raise ValueError("a tag (!!) that does not fit its value; leave it out") from None


def read_values(file: Path) -> dict[str, Any]:
    """What a configuration file says, not checked beyond being a mapping."""
    if file.exists() and not file.is_file():  # a pipe would be waited for
        raise ValueError(f"{file}: no file of text; give a run's config.yaml")
    with file.open("rb") as content:
        text = content.read(_MOST_BYTES + 1)
    if len(text) > _MOST_BYTES:
        raise ValueError(
            f"{file}: over {_MOST_BYTES:,} bytes are no configuration; give a run's config.yaml"
        )
    try:
        values = _loaded(text.decode())
    except (yaml.YAMLError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{file}: not YAML ({reason}); give a run's config.yaml") from error
    if not isinstance(values, dict):
        raise ValueError(f"{file}: no configuration in it; give a run's config.yaml")
    return values


def read_saved(file: Path) -> dict[str, Any]:
    """What the ``config.yaml`` of a run says. Raises ValueError unless it can be one."""
    problem = f"{file}: no configuration of a run; restore it, or start anew in another folder"
    try:
        values = read_values(file)
        if all(isinstance(values[name], dict) for name in ("data", "model")):
            return values
    except (FileNotFoundError, LookupError, ValueError) as error:
        raise ValueError(problem) from error
    raise ValueError(problem)


def config_text(config: RunConfig) -> str:
    """The configuration as YAML, which ``read_values`` and ``config_from`` read.

    Raises ValueError if Python gave a field what YAML has no word for, such as a Path.
    """
    try:
        return yaml.safe_dump(dataclasses.asdict(config), sort_keys=False)
    except yaml.representer.RepresenterError as error:
        value = error.args[-1]
        raise ValueError(
            f"configuration: {value!r} is a {type(value).__name__}; give text, a number of "
            f"Python's own, a truth value, or a list or dict of these"
        ) from None


def config_from(values: Mapping[str, Any], changes: Mapping[str, Any]) -> RunConfig:
    """``values``, nested as in a file, with fields changed by their dotted names, as a RunConfig.

    Raises ValueError if a field is unknown or missing, or its value is not accepted.
    """
    changed = copy.deepcopy(dict(values))
    for name, value in sorted(changes.items(), key=lambda each: each[0].count(".")):
        *sections, last = name.split(".")
        section = changed
        for key in sections:
            if not isinstance(section.get(key), dict):
                section[key] = {}  # an optional section that was null
            section = section[key]
        is_section = dataclasses.is_dataclass(value) and not isinstance(value, type)
        section[last] = dataclasses.asdict(value) if is_section else value
    return _built(RunConfig, changed, "")


def changed(config: RunConfig, fields: dict[str, Any]) -> RunConfig:
    """A configuration with fields changed; another model brings its own shape rule."""
    model = {name: value for name, value in fields.items() if name.startswith("model.")}
    before = config.model.name, config.model.options
    config = config_from(dataclasses.asdict(config), model)
    if (config.model.name, config.model.options) != before:
        multigrid = dataclasses.replace(config.multigrid, rule=config.model.rule)
        config = dataclasses.replace(config, multigrid=multigrid)
    return config_from(dataclasses.asdict(config), fields)


def read_config(file: Path) -> RunConfig:
    """The configuration in a run's ``config.yaml``."""
    values = read_values(file)
    try:
        return config_from(values, {})
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error


def check_own_code(config: RunConfig, fields: Mapping[str, Any], file: Path) -> None:
    """Raise ValueError if ``file``, and no flag, names a function of other code as the model.

    Whoever wrote the file would choose what runs.
    """
    name = config.model.name
    if ":" in name and fields.get("model.name") != name:
        raise ValueError(
            f"{file}: its model is the function {name}, which is code of its own; if you know it, "
            f"give --model {name}"
        )


def field_types(section: type = RunConfig, prefix: str = "") -> dict[str, Any]:
    """Dotted name -> type of every field, and of every section that may be null."""
    found: dict[str, Any] = {}
    for key, hint in get_type_hints(section).items():
        plain, optional = _without_none(hint)
        if not dataclasses.is_dataclass(plain) or optional:
            found[f"{prefix}{key}"] = hint
        if isinstance(plain, type) and dataclasses.is_dataclass(plain):
            found |= field_types(plain, f"{prefix}{key}.")
    return found


def typed(hint: Any, value: object, name: str) -> Any:
    """``value`` as the type ``hint``: of a file, or the text of a flag.

    Raises ValueError that starts with ``name`` if it is not one.
    """
    plain, optional = _without_none(hint)
    origin, inner = get_origin(plain), get_args(plain)
    if origin in _UNIONS:
        for each in inner:
            with suppress(ValueError):
                return typed(each, value, name)
    if optional and value in (None, "null"):
        return None
    parsed = value
    if isinstance(value, str) and plain is not str and origin is not Literal:
        parsed = _parsed(value)
    if origin is tuple and isinstance(parsed, str) and inner[0] is not str:
        parsed = parsed.split(",")  # 36,48 as well as [36, 48]
    if isinstance(plain, type) and dataclasses.is_dataclass(plain) and isinstance(parsed, Mapping):
        return _built(plain, parsed, f"{name}.")
    if origin is Literal and isinstance(parsed, bool) and "on" in inner:
        parsed = "on" if parsed else "off"  # as YAML reads these words
    if origin is Literal and parsed in inner:
        return parsed
    if origin is tuple and isinstance(parsed, list | tuple):
        each = [inner[0]] * len(parsed) if inner[-1] is Ellipsis else inner
        if len(each) == len(parsed):
            return tuple(typed(h, v, name) for h, v in zip(each, parsed, strict=True))
    if origin is dict and isinstance(parsed, dict):
        return parsed
    if plain is float and isinstance(parsed, int | float | str) and not isinstance(parsed, bool):
        with suppress(ValueError, OverflowError):
            return float(parsed)  # YAML 1.1 reads 1e-3 as text
    if plain in _PLAIN and type(parsed) is plain:
        return parsed
    raise ValueError(f"{name} {_shown(value)}: give {_accepted(hint)}")


def _built(section: type[T], values: Mapping[str, Any], prefix: str) -> T:
    hints = get_type_hints(section)
    for key in values:
        if key not in hints:
            guess = nearest(f"{prefix}{key}", [f"{prefix}{each}" for each in hints])
            known = f"; its section has {', '.join(hints)}"
            raise ValueError(f"{prefix}{_shown(key)}: no such field{guess or known}")
    missing = [
        f"{prefix}{field.name}"
        for field in dataclasses.fields(section)  # type: ignore[arg-type]
        if field.name not in values
        and field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise ValueError(f"{', '.join(missing)}: missing; give every one of them")
    return section(
        **{key: typed(hints[key], value, f"{prefix}{key}") for key, value in values.items()}
    )


def _without_none(hint: Any) -> tuple[Any, bool]:
    """``X | None`` as X and whether it may be None; ``X | Y`` stays as it is."""
    if get_origin(hint) not in _UNIONS or type(None) not in get_args(hint):
        return hint, False
    (plain,) = (each for each in get_args(hint) if each is not type(None))
    return plain, True


def _parsed(text: str) -> object:
    """The value of a flag, written as in a file: ``[0.5, 1]``, ``{alpha: 8}``, ``true``."""
    try:
        return _loaded(text)
    except (yaml.YAMLError, ValueError):
        return text


def _accepted(hint: Any) -> str:
    """A type as a user calls it."""
    plain, optional = _without_none(hint)
    inner = get_args(plain)
    if optional:
        return f"{_accepted(plain)} or null"
    if get_origin(plain) is Literal:
        return " or ".join(inner)
    if get_origin(plain) in _UNIONS:
        return " or ".join(map(_accepted, inner))
    if get_origin(plain) is tuple:
        return "a list" if inner[-1] is Ellipsis else f"a list of {len(inner)}"
    if dataclasses.is_dataclass(plain):
        return f"a mapping of its fields ({', '.join(get_type_hints(plain))})"
    return _PLAIN.get(plain, "a mapping")


def _shown(value: object) -> str:
    words = {None: "null", True: "true", False: "false"}  # as YAML writes them
    text = words[value] if value is None or isinstance(value, bool) else str(value)
    text = " ".join(text.split())
    return text if len(text) <= 60 else f"{text[:57]}..."
