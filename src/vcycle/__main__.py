"""``python -m vcycle`` and ``torchrun -m vcycle``: the command line."""

from __future__ import annotations

import os
import sys

from vcycle.cli.main import main

if __name__ == "__main__":
    code = main()
    if "WORLD_SIZE" in os.environ:
        # Of torchrun's processes: what torch's communication threads tear down at exit may abort.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
