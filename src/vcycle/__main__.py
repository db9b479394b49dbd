"""``vcycle``, ``python -m vcycle`` and ``torchrun -m vcycle``: the command line."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from types import FrameType
from typing import Any, NoReturn


def run() -> NoReturn:
    """Run one command and exit with its code."""
    try:
        os.getcwd()  # noqa: PTH109  libraries end a process that has none
    except FileNotFoundError:
        print("vcycle: the working directory is gone; change to one that is there", file=sys.stderr)
        sys.exit(2)
    try:
        from vcycle.cli.launched import is_launched
        from vcycle.cli.main import main
        from vcycle.devices.slurm import adopt_srun_tasks

        adopt_srun_tasks()
    except ValueError as error:
        print(f"vcycle: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:  # while the commands are imported
        print("vcycle: interrupted", file=sys.stderr)
        sys.exit(130)
    if not is_launched():
        _handle(signal.SIGTERM, by=_terminate)
        code = main()
        for number in (signal.SIGINT, signal.SIGTERM):  # nothing is left that one could interrupt
            _handle(number, by=signal.SIG_DFL)
        sys.exit(code)
    # Of several processes: what torch's communication threads tear down at exit may abort, or
    # wait for processes that an error has ended.
    code = 1
    try:
        code = main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _handle(number: signal.Signals, *, by: Any) -> None:
    """Unless the signal is ignored, by who started this or by a run that has stopped."""
    if signal.getsignal(number) != signal.SIG_IGN:
        signal.signal(number, by)


def _terminate(number: int, _frame: FrameType | None) -> NoReturn:
    """End as by Ctrl-C, which has workers end and says so; the second time as by default."""
    signal.signal(number, signal.SIG_DFL)
    raise KeyboardInterrupt("terminated")


if __name__ == "__main__":
    run()
