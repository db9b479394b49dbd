"""What is used of Lightning Fabric; every module takes it from here.

Fabric looks at the version of torchmetrics, if that is installed, for its callback SpikeDetection,
which nothing here uses. To import that takes scipy and transformers along, wherever they are
installed: half of the seconds that a command needs to start. So there is no torchmetrics while
Fabric is imported, and in this process SpikeDetection stays without it.
"""

from __future__ import annotations

import sys

_hides = "torchmetrics" not in sys.modules
if _hides:
    sys.modules["torchmetrics"] = None  # type: ignore[assignment]  # so an import says it is not there
try:
    from lightning_fabric import Fabric
    from lightning_fabric.plugins import MixedPrecision, Precision
    from lightning_fabric.plugins.environments.lightning import LightningEnvironment
    from lightning_fabric.plugins.environments.slurm import SLURMEnvironment
    from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment
    from lightning_fabric.strategies.ddp import DDPStrategy
finally:
    if _hides:
        del sys.modules["torchmetrics"]

__all__ = [
    "DDPStrategy",
    "Fabric",
    "LightningEnvironment",
    "MixedPrecision",
    "Precision",
    "SLURMEnvironment",
    "TorchElasticEnvironment",
]
