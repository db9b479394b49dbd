"""What a process that fails tells the others, here in one process that has their store."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]

from vcycle.devices import processes


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (SystemExit(0), "process 1: SystemExit 0"),
        (KeyboardInterrupt(), "process 1: KeyboardInterrupt"),
        (RuntimeError("no clip like this"), "process 1: no clip like this"),
        (RuntimeError(), "process 1: RuntimeError"),
    ],
)
def test_the_others_read_what_ended_a_process(
    error: BaseException, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = HashStore()
    monkeypatch.setattr(processes, "_store", lambda _: store)
    fabric: Any = SimpleNamespace(world_size=2, global_rank=1, broadcast=lambda name: name)
    with pytest.raises(type(error)), processes.ending_together(fabric, advice="begin again"):
        raise error
    assert store.get("failed").decode() == said
