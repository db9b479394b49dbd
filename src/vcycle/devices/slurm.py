"""The processes that SLURM's ``srun`` starts, under the names that torchrun gives its own.

In: the variables of a job step with several tasks. Out: ``RANK``, ``WORLD_SIZE`` and the others, so
that ``srun vcycle train ...`` needs no launcher in between and nothing else knows of SLURM.
"""

from __future__ import annotations

import os
import re


def adopt_srun_tasks() -> None:
    """Set torchrun's variables from those of ``srun``; nothing without it, or if they are set.

    Variables of the job step tell: a batch script has those of the job, and is one process.
    ``MASTER_ADDR`` and ``MASTER_PORT`` are kept if they are set. Raises ValueError unless every
    node has as many tasks.
    """
    tasks = int(os.environ.get("SLURM_STEP_NUM_TASKS", 1))
    if tasks == 1 or "WORLD_SIZE" in os.environ:
        return
    counts = os.environ["SLURM_STEP_TASKS_PER_NODE"]  # such as 8(x4), or 8(x3),2
    if "," in counts:
        raise ValueError(
            f"SLURM_STEP_TASKS_PER_NODE {counts}: every node needs as many tasks; give srun "
            f"--ntasks-per-node"
        )
    from vcycle.devices.fabric import SLURMEnvironment  # stands on torch

    nodes = os.environ["SLURM_STEP_NODELIST"]
    job, step = (int(os.environ.get(f"SLURM_{name}_ID", 0)) for name in ("JOB", "STEP"))
    os.environ |= {
        "WORLD_SIZE": str(tasks),
        "LOCAL_WORLD_SIZE": re.sub(r"\(.*", "", counts),
        "RANK": os.environ["SLURM_PROCID"],
        "LOCAL_RANK": os.environ["SLURM_LOCALID"],
        "GROUP_RANK": os.environ["SLURM_NODEID"],
    }
    os.environ.setdefault("MASTER_ADDR", SLURMEnvironment.resolve_root_node_address(nodes))
    os.environ.setdefault("MASTER_PORT", str(15000 + (job + step) % 10000))
