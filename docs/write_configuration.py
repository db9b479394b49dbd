"""Write docs/configuration.md: every field of a run's configuration, from the dataclasses.

    python docs/write_configuration.py           write the page
    python docs/write_configuration.py --check   exit 1 if the page is out of date

A field's type is its annotation, its default the dataclass's, its text the docstring's under
``Args``. A field without a text there is an error.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from functools import reduce
from operator import or_
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from vcycle.config.flags import short_flag
from vcycle.config.run import RunConfig

PAGE = Path(__file__).parent / "configuration.md"
HEAD = """\
# Configuration

This page lists every field of a run's configuration, as `config.yaml` in a run folder has them.

- Each field is a flag of `vcycle plan` and `vcycle train` by its dotted name, such as
  `--data.stride 4`, and of `vcycle eval` unless it is about training alone.
- Lists and mappings are written as in YAML: `--data.short_side '[128, 170]'`.
- To make a section that may be null, set one of its fields.
- A recipe sets the fields without a default, and others too. `vcycle plan RECIPE` prints what it
  makes of them.
- Some flags change other fields as well: that of the batch size, for example, the rate and the
  steps ([which ones](plans.md#change-a-recipe-by-flags)).
"""
WORDS = {int: "whole number", float: "number", str: "text", bool: "true or false"}


def page() -> str:
    """The whole page: a section of fields for each dataclass."""
    return "\n".join([HEAD, *section(RunConfig, "", is_optional=False)]).rstrip() + "\n"


def section(kind: type, prefix: str, *, is_optional: bool) -> list[str]:
    """The heading and table of a dataclass, then those of the dataclasses in it."""
    texts, hints = argument_texts(kind), get_type_hints(kind)
    name = prefix.rstrip(".")
    summary = (inspect.getdoc(kind) or "").split("\n\n")[0].replace("\n", " ").replace("``", "`")
    lines = [f"## {name or 'A run'}", "", summary + (" May be null." if is_optional else "")]
    lines += ["", "| field | type | default | |", "| --- | --- | --- | --- |"]
    inner: list[str] = []
    for field in dataclasses.fields(kind):
        plain, optional = without_none(hints[field.name])
        if dataclasses.is_dataclass(plain):
            inner += ["", *section(plain, f"{prefix}{field.name}.", is_optional=optional)]
            continue
        if field.name not in texts:
            raise ValueError(f"{kind.__name__}.{field.name}: give it a text under Args")
        dotted = f"{prefix}{field.name}"
        short = short_flag(dotted)
        shown = f"`{dotted}`" + (f", `{short}`" if short else "")
        row = (shown, words(hints[field.name]), default(field), texts[field.name])
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |")
    return [*lines, *inner]


def argument_texts(kind: type) -> dict[str, str]:
    """What the docstring says of each argument, in one line each."""
    _, _, arguments = (inspect.getdoc(kind) or "").partition("\nArgs:\n")
    found: dict[str, str] = {}
    last = ""
    for line in arguments.splitlines():
        match = re.match(r"    (\w+): (.*)", line)
        if match:
            last = match[1]
            found[last] = match[2]
        elif line.startswith("        ") and last:
            found[last] += " " + line.strip()
        elif line.strip():
            break  # the next part of the docstring
    return {name: as_yaml(text.replace("``", "`")) for name, text in found.items()}


def as_yaml(text: str) -> str:
    """Python's constants as a configuration file has them."""
    constants = {"None": "null", "True": "true", "False": "false"}
    return re.sub(r"\b(None|True|False)\b", lambda match: constants[match[0]], text)


def without_none(hint: Any) -> tuple[Any, bool]:
    """``X | None`` as X and whether it may be None; other unions as they are."""
    if get_origin(hint) not in (Union, UnionType):
        return hint, False
    rest = [each for each in get_args(hint) if each is not NoneType]
    return reduce(or_, rest), len(rest) < len(get_args(hint))


def words(hint: Any) -> str:
    """A type as a person calls it."""
    plain, optional = without_none(hint)
    inner = get_args(plain)
    if optional:
        return f"{words(plain)}, or null"
    if get_origin(plain) in (Union, UnionType):
        return " or ".join(words(each) for each in inner)
    if get_origin(plain) is Literal:
        return " or ".join(f"`{each}`" for each in inner)
    if get_origin(plain) is tuple:
        if inner[-1] is Ellipsis:
            return f"list of {plural(words(inner[0]))}"
        return f"list of {len(inner)} {plural(words(inner[0]))}"
    return WORDS.get(plain, "mapping")


def plural(text: str) -> str:
    """Of a type's words, if they have one."""
    return f"({text})" if " of " in text else f"{text}s" if text.endswith("number") else text


def default(field: dataclasses.Field[Any]) -> str:
    """As YAML writes it; empty if the recipe has to give it."""
    if field.default_factory is not dataclasses.MISSING:
        return f"`{field.default_factory()}`"
    if field.default is dataclasses.MISSING:
        return ""
    if isinstance(field.default, tuple):
        return f"`{nested(field.default)}`"
    return f"`{as_yaml(str(field.default))}`" if field.default != "" else ""


def nested(value: Any) -> Any:
    """Tuples as lists."""
    return [nested(each) for each in value] if isinstance(value, tuple) else value


def main(arguments: list[str]) -> int:
    """Write the page, or only check it."""
    text = page()
    if "--check" in arguments:
        return int(not PAGE.exists() or PAGE.read_text() != text)
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
