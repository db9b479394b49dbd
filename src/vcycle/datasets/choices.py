"""What a user chose when indexing a dataset, kept for the next time that it is indexed.

Flags go in, ``index.json`` beside the manifest comes out. A choice holds until another is made.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from vcycle.data.atomic import write_atomic

CHOICES_FILE = "index.json"


@dataclass(frozen=True)
class Choices:
    """Whether clips may be mirrored, and how videos are divided; None for what was not chosen.

    ``source`` is the folder or table that was indexed, as a path from the manifest's folder; empty
    if these were a published dataset's files. ``manifest_sha256`` is of the manifest as indexing
    wrote it, with its classes; empty while it is written.
    """

    flip: bool | None = None
    val_share: float | None = None
    group_pattern: str | None = None  # empty for none
    source: str = ""
    manifest_sha256: str | None = None

    def __post_init__(self) -> None:
        fit = (
            isinstance(self.flip, bool | None)
            and isinstance(self.val_share, float | int | None)
            and isinstance(self.group_pattern, str | None)
            and isinstance(self.source, str)
            and isinstance(self.manifest_sha256, str | None)
        )
        if not fit:
            raise TypeError(f"{self}: other types than choices have")

    @property
    def given(self) -> dict[str, bool | float | str]:
        """Those that were made, by their flags."""
        values = {
            "--no-flip" if self.flip is False else "--flip": self.flip,
            "--val-share": self.val_share,
            "--group-pattern": self.group_pattern,
        }
        return {flag: value for flag, value in values.items() if value is not None}

    @classmethod
    def read(cls, folder: Path) -> Choices:
        """The choices kept in a folder. Raises ValueError if its file is not ours."""
        file = folder / CHOICES_FILE
        if not file.is_file():
            return cls()
        try:
            return cls(**json.loads(file.read_text(encoding="utf-8")))
        except (TypeError, ValueError, RecursionError):
            known = ", ".join(field.name for field in fields(cls))
            raise ValueError(f"{file}: is not JSON of {known}; correct or remove it") from None

    def with_earlier(self, earlier: Choices) -> Choices:
        """These choices, and an earlier one for each that is not made."""
        made = {name: value for name, value in asdict(self).items() if value is not None}
        return Choices(**{**asdict(earlier), **made})

    def keep(self, folder: Path) -> None:
        """Keep the choices for the next run."""
        write_atomic(folder / CHOICES_FILE, json.dumps(asdict(self)) + "\n")
