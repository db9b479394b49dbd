"""What this machine is made of, as far as it decides how fast videos train.

In: a folder, whose disk is measured. Out: versions, GPUs, decoders, memory, limits and disk speed
as plain values, and what to change about them.
"""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import av
import torch

from vcycle.data.decode.torchcodec import check_decoder
from vcycle.devices.cores import process_cores
from vcycle.devices.memory import memory_bytes
from vcycle.train.origin import versions

GIB = 2**30
_DISK_BYTES = 64 * 2**20
_LEAST_OPEN_FILES = 4096
_LEAST_DISK_MB = 100
"""Read per second: about what eight cores decode of H.264 at 256 pixels."""


@dataclass(frozen=True)
class Gpu:
    """One CUDA device."""

    name: str
    memory_gib: float
    compute_capability: str


@dataclass(frozen=True)
class Disk:
    """Of a folder: one file of 64 MiB, written and flushed, then read past the cache if allowed."""

    folder: str
    free_gib: float
    write_mb_per_second: float
    read_mb_per_second: float


@dataclass(frozen=True)
class Machine:
    """The facts; ``decoders`` says ``works``, or why one does not, and memory is in GiB."""

    versions: dict[str, str | None]
    cuda: str | None
    cudnn: str | None
    gpus: tuple[Gpu, ...]
    decoders: dict[str, str]
    cpus: int
    memory_gib: float
    shared_memory_gib: float
    open_files: int
    open_files_limit: int
    disk: Disk

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, with what to change."""
        return {**asdict(self), "advice": list(advice(self))}


def inspect_machine(folder: Path) -> Machine:
    """Look at everything, in a few seconds. Raises OSError if ``folder`` cannot be written to."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    return Machine(
        versions={
            **versions(),
            "ffmpeg": av.ffmpeg_version_info,
        },
        cuda=torch.version.cuda,
        cudnn=None if cudnn is None else str(cudnn),
        gpus=tuple(_gpu(index) for index in range(torch.cuda.device_count())),
        decoders={
            "pyav": "works",
            "torchcodec": _decoder("torchcodec", torch.device("cpu")),
            "nvdec": _decoder("nvdec", torch.device("cuda"))
            if torch.cuda.is_available()
            else "needs a CUDA GPU",
        },
        cpus=process_cores(),
        memory_gib=memory_bytes() / GIB,
        shared_memory_gib=_total_bytes(Path("/dev/shm")) / GIB,
        open_files=soft,
        open_files_limit=hard,
        disk=measure_disk(folder),
    )


def measure_disk(folder: Path) -> Disk:
    """Write and read one file in ``folder``, which is removed."""
    block = os.urandom(2**20)
    with tempfile.NamedTemporaryFile(dir=folder, prefix="vcycle-doctor-", buffering=0) as file:
        start = time.perf_counter()
        for _ in range(_DISK_BYTES // len(block)):
            file.write(block)
        os.fsync(file.fileno())
        written = time.perf_counter()
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        file.seek(0)
        opened = time.perf_counter()
        while file.read(len(block)):
            pass
        read = time.perf_counter()
    return Disk(
        folder=str(folder),
        free_gib=shutil.disk_usage(folder).free / GIB,
        write_mb_per_second=_DISK_BYTES / 1e6 / (written - start),
        read_mb_per_second=_DISK_BYTES / 1e6 / (read - opened),
    )


def advice(machine: Machine) -> Iterator[str]:
    """What to change, a line each; none if all is well."""
    if not machine.gpus and machine.cuda is None and Path("/proc/driver/nvidia").exists():
        yield "torch: built without CUDA, though there is an NVIDIA driver; install a CUDA build"
    elif not machine.gpus:
        yield "GPUs: none; on CPUs take a small model and shape: --model resnet3d_tiny --shape 8x96"
    elif machine.cpus < 4 * len(machine.gpus):
        yield (
            f"CPUs {machine.cpus}: few to decode for {len(machine.gpus)} GPUs; prepare the videos "
            f"(vcycle data prepare)"
        )
    if len(machine.gpus) > 1 and machine.shared_memory_gib < 1:
        yield (
            f"shared memory {machine.shared_memory_gib:.2g} GiB: several GPUs exchange gradients "
            f"there; start the container with --shm-size 8g"
        )
    if machine.open_files < _LEAST_OPEN_FILES:
        yield f"open files {machine.open_files}: workers may run out; ulimit -n {_LEAST_OPEN_FILES}"
    if machine.disk.read_mb_per_second < _LEAST_DISK_MB:
        yield (
            f"disk of {machine.disk.folder}: {machine.disk.read_mb_per_second:.0f} MB/s; keep the "
            f"videos on a local disk"
        )


def _gpu(index: int) -> Gpu:
    facts = torch.cuda.get_device_properties(index)
    return Gpu(facts.name, facts.total_memory / GIB, f"{facts.major}.{facts.minor}")


def _decoder(name: str, device: torch.device) -> str:
    if versions()["torchcodec"] is None:
        return "torchcodec is not installed; pip install 'vcycle[torchcodec]'"
    try:
        check_decoder(name, device)
    except ValueError as error:
        return str(error)
    return "works"


def _total_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).total if folder.is_dir() else 0
