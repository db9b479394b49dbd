"""The control groups that this process is in, which a container or a cluster's job sets limits on.

In: what the system says. Out: the folders of the groups, whose files hold the limits.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_OWN = Path("/proc/self/cgroup")
_ROOT = Path("/sys/fs/cgroup")


def own_groups(controller: str) -> Iterator[tuple[Path, bool]]:
    """Each group of this process, and around it, that may limit ``controller``, the inner first.

    Its folder, and whether it is of version 1, which has a tree for each controller.
    """
    own = dict.fromkeys(("", controller), "/")  # the outermost is there in any container
    for line in text_of(_OWN).splitlines():
        _, controllers, path = line.split(":", 2)
        own |= {name: path for name in controllers.split(",") if name in own}
    for name, path in own.items():
        folder = _ROOT / name / path.lstrip("/")
        for group in (folder, *folder.parents):
            if group.is_relative_to(_ROOT / name):
                yield group, bool(name)


def text_of(file: Path) -> str:
    """What a file of the system says; nothing if it is not there."""
    try:
        return file.read_text()
    except OSError:
        return ""
