"""Command-line flags whose values have the types of configuration fields.

In: words of a command line. Out: argparse's options, or a ValueError of one line; argparse itself
prints a usage text and exits.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from vcycle.config.fields import typed
from vcycle.schedule.arguments import nearest


class FlagParser(argparse.ArgumentParser):
    """An argparse parser whose errors are a ValueError of one line.

    Args:
        word: name of an option that takes one word wherever it stands among the flags. argparse
            gives an optional positional argument its value only before the first flag.
    """

    def __init__(self, *, word: str | None = None, **settings: Any) -> None:
        # An abbreviated flag could be the dotted name of a field.
        super().__init__(**{"allow_abbrev": False, **settings})
        self._word = word
        self._elsewhere: dict[str, str] = {}

    def know_all_flags(self) -> None:
        """Let the parser of each command name the one that an unknown flag belongs to."""
        parsers = list(self._of_commands())
        owners: dict[str, list[str]] = {}
        for parser in parsers:
            for flag in parser._option_string_actions:
                owners.setdefault(flag, []).append(f"`{parser.prog}`")
        for parser in parsers:
            parser._elsewhere = {flag: _some(of) for flag, of in owners.items()}

    def _of_commands(self) -> Iterator[FlagParser]:
        yield self
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                for parser in action.choices.values():
                    yield from parser._of_commands()

    def error(self, message: str) -> NoReturn:
        """Raise ValueError instead of printing a usage text and exiting."""
        raise ValueError(message.removeprefix("argument "))

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """As argparse's; whatever it leaves over, and is not the one word, is a ValueError."""
        options, rest = super().parse_known_args(args, namespace)
        for flag in (each.partition("=")[0] for each in rest if each.startswith("-")):
            guess = nearest(flag, self._option_string_actions)
            meant = _MEANT.get(flag.lstrip("-").replace("-", "_"), "")
            if meant.partition(" ")[0] in self._option_string_actions:
                guess = f"; did you mean {meant}?"
            elif flag in self._elsewhere:
                raise ValueError(f"{flag}: no flag of {self.prog}, but of {self._elsewhere[flag]}")
            raise ValueError(f"{flag}: no such flag{guess or f'; {self.prog} --help lists them'}")
        if self._word is not None:
            setattr(options, self._word, rest.pop(0) if rest else None)
        if rest:
            raise ValueError(f"{rest[0]}: one word too many; {self.prog} --help says what it takes")
        return options, []


_MEANT = {
    **dict.fromkeys(("learning_rate", "optimizer.lr", "optimizer.learning_rate"), "--lr"),
    **dict.fromkeys(("amp", "bf16", "bfloat16", "mixed_precision"), "--precision bf16-mixed"),
    **dict.fromkeys(("fp16", "half", "float16"), "--precision 16-mixed"),
    **dict.fromkeys(("wd", "decay"), "--optimizer.weight_decay"),
    **dict.fromkeys(("size", "resolution", "crop_size", "frames", "num_frames"), "--shape TxHxW"),
    **dict.fromkeys(("optim", "opt", "optimizer"), "--optimizer.name"),
    **dict.fromkeys(("cosine", "lr_schedule"), "--baseline.learning_rate.decay cosine"),
    **dict.fromkeys(("device", "devices", "num_gpus", "ngpus"), "--gpus"),
    **dict.fromkeys(("output", "output_dir", "out", "save_dir", "run_dir"), "--folder"),
    **dict.fromkeys(("workers", "num_workers"), "--data.num_workers"),
    **dict.fromkeys(("pretrained", "checkpoint", "init"), "--weights"),
    "tensorboard": "--log tensorboard",
    "wandb": "--log wandb",
}
"""What other programs call some flags."""


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


class TypedFlag(argparse.Action):
    """A flag whose text becomes a value of ``hint``; ``options.given`` lists it as it was typed.

    With ``store`` it gives ``options.fields`` the values that this returns by their dotted names.
    """

    def __init__(
        self,
        option_strings: Sequence[str],
        dest: str,
        *,
        hint: Any,
        store: Callable[[Any], dict[str, Any]] | None = None,
        **settings: Any,
    ) -> None:
        settings["nargs"] = None
        if hint is bool:  # a field may also be turned off: --compile, --compile false
            settings |= {"nargs": 0} if store is None else {"nargs": "?", "const": "true"}
        super().__init__(option_strings, dest, **settings)
        self._hint = hint
        self._store = store

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Check the text, keep its value."""
        flag = option_string or self.option_strings[0]
        value = True if self.nargs == 0 else typed(self._hint, values, flag)
        namespace.given = (*namespace.given, flag if self.nargs == 0 else f"{flag} {values}")
        if self._store is None:
            setattr(namespace, self.dest, value)
        else:
            namespace.fields = {**namespace.fields, **self._store(value)}
