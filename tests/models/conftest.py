"""Fixtures for tests of checkpoints."""

from __future__ import annotations

import pytest
import torch

from tests.models.checkpoints import SmallNet


@pytest.fixture
def small() -> SmallNet:
    torch.manual_seed(0)
    return SmallNet()
