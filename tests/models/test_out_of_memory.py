"""Memory that ran out is known by one name, whoever could not allocate."""

from __future__ import annotations

import pytest
import torch

from vcycle.models.out_of_memory import out_of_memory_by_name


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronous"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)"),
    ],
)
def test_it_has_one_name(error: Exception) -> None:
    with (
        pytest.raises(torch.OutOfMemoryError, match=r"memory|ALLOC_FAILED"),
        out_of_memory_by_name(),
    ):
        raise error


@pytest.mark.parametrize("error", [RuntimeError("an illegal access"), ValueError("out of memory")])
def test_other_errors_stay_what_they_are(error: Exception) -> None:
    with pytest.raises(type(error)) as found, out_of_memory_by_name():
        raise error
    assert found.value is error
