"""The fields of a configuration: read from a file, changed by dotted flags, and checked.

In: a run's config.yaml or a recipe's values, and flags such as ``--baseline.steps 5000``. Out: a
RunConfig, or a ValueError of one line that names the field, its value and what it must be.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import is_dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import yaml

from vcycle.config.run import RunConfig

MOST_BYTES = 1_000_000
"""Of a configuration file: a run's own has about two thousand."""

_IN_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "tuple": "a list",
    "dict": "a mapping",
    "NoneType": "null",
}


def read_values(file: Path) -> dict[str, Any]:
    """What a configuration file says, not checked beyond being a mapping."""
    with file.open("rb") as stream:
        content = stream.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"{file}: more than {MOST_BYTES:,} bytes; give a run's config.yaml")
    try:
        text = content.decode()
        # An alias can refer to itself, or grow a short file without end.
        if "*" in text and any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text)):
            raise ValueError("it has an alias")
        values = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{file}: not YAML ({reason}); give a run's config.yaml") from error
    if not isinstance(values, dict):
        raise ValueError(f"{file}: no configuration in it; give a run's config.yaml")
    return values


def config_from(
    values: dict[str, Any], fields: Sequence[str], *, other_flags: Sequence[str] = ()
) -> RunConfig:
    """``values`` changed by dotted flags, checked and turned into a RunConfig.

    ``other_flags`` may be meant where a flag is unknown.
    """
    # Imported here: it takes longer than planning, and most plans need no field changed.
    from jsonargparse import ArgumentError, ArgumentParser

    _check_sections(RunConfig, values)
    parser = ArgumentParser(exit_on_error=False, allow_abbrev=False)
    parser.add_class_arguments(RunConfig, None)
    try:
        parser.set_defaults(parser.parse_object(values).as_dict())
        chosen = parser.instantiate(parser.parse_args(list(fields)))
        return RunConfig(**vars(chosen))
    except (ArgumentError, LookupError, TypeError, AttributeError, ValueError) as error:
        if "unrecognized arguments" in str(error):
            message = _unknown_flag([*other_flags, *_names(values)], fields)
        else:
            message = _clean(str(error))
        raise ValueError(message) from error
    except (OverflowError, RecursionError) as error:
        raise ValueError(f"configuration: {_clean(str(error))}") from error


def _check_sections(section: type, values: Any, prefix: str = "") -> None:
    """ValueError unless every section of a configuration is a mapping with fields that it has."""
    hints = get_type_hints(section)
    if not isinstance(values, dict):
        raise ValueError(
            f"{prefix.rstrip('.')} {_shown(values)}: give a mapping of its fields "
            f"({', '.join(hints)})"
        )
    for key, value in values.items():
        if key not in hints:
            nearest = get_close_matches(str(key), hints, n=1)
            guess = f"; did you mean {prefix}{nearest[0]}?" if nearest else ""
            raise ValueError(f"unknown field {prefix}{_shown(key)}{guess}")
        hint = hints[key]
        if isinstance(hint, type) and is_dataclass(hint):
            _check_sections(hint, value, f"{prefix}{key}.")
        elif value is None and type(None) not in get_args(hint):  # the field parser lets it pass
            plain = hint if get_origin(hint) in (None, Literal) else get_origin(hint)
            raise ValueError(f"{prefix}{key} null: give {_in_words(str(plain))}")


def _unknown_flag(known: Sequence[str], fields: Sequence[str]) -> str:
    given = [field.partition("=")[0] for field in fields if field.startswith("-")]
    unknown = next((flag for flag in given if flag not in known), fields[0])
    if not unknown.startswith("-"):
        return f"unknown argument {unknown}: no flag before it takes a value"
    nearest = get_close_matches(unknown, known, n=1)
    return f"unknown argument {unknown}" + (f"; did you mean {nearest[0]}?" if nearest else "")


def _names(values: dict[str, Any], prefix: str = "--") -> list[str]:
    """Dotted flags of all fields."""
    names = []
    for key, value in values.items():
        names.append(f"{prefix}{key}")
        if isinstance(value, dict):
            names += _names(value, f"{prefix}{key}.")
    return names


def _clean(message: str) -> str:
    """The field parser's message in one line: field, value, and what is expected instead."""
    keys = list(dict.fromkeys(re.findall(r'Parser key "([^"]+)"', message)))
    name = ".".join(keys[:2])
    if found := re.search(r"arguments are required: (.*)", message):
        return f"missing fields: {found[1]}"
    if found := re.search(r"Unable to load config '(.*)'", message):
        return f"{name} {_shown(found[1])}: give a mapping of its fields, or set one by its name"
    if found := re.search(r"Errors:\s+- (?!Expected|Problem)(.*)", message):
        return found[1]  # a section's own
    if found := re.search(r"Expected an? (.+)\. Got value: (.*)", message):
        return f"{name} {_shown(found[2])}: give {_in_words(found[1])}"
    subtypes = re.search(r"Subtypes: \[(.*)\]", message)
    value = re.search(r"Given value: (.*)", message)
    if subtypes and value:
        types = re.findall(r"<class '[^']+'>|typing\.Literal\[[^\]]*\]", subtypes[1])
        return f"{name} {_shown(value[1])}: give {' or '.join(map(_in_words, types))}"
    return " ".join(message.split())


def _in_words(type_text: str) -> str:
    """A type in the field parser's messages as a user calls it."""
    if type_text.startswith("typing.Literal"):
        return " or ".join(re.findall(r"'([^']+)'", type_text))
    name = type_text.removeprefix("<class '").removesuffix("'>")
    return _IN_WORDS.get(name, f"a {name.rpartition('.')[2].replace('tuple', 'list')}")


def _shown(value: object) -> str:
    text = " ".join(str(value).split())
    text = {"None": "null"}.get(text, text)
    return text if len(text) <= 60 else f"{text[:57]}..."
