"""The blocks of a network, compiled one by one: each is compiled once for each shape of a plan.

In: a network. Out: the same network, whose blocks ``torch.compile`` has taken in hand; parameters,
names and state dict are as before, and so an evaluation of the network runs the same code. Blocks
that are alike share their code, so the first step at a shape takes seconds and not minutes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

_LISTS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_OTHER_KINDS = 8
"""Kinds of batches beside a plan's: validations and the last of their batches, norm statistics."""


def compile_blocks(
    network: nn.Module, *, num_kinds: int, backend: str | Callable[..., Any] = "inductor"
) -> None:
    """Compile the blocks of ``network`` in place, for so many kinds of batches of a plan.

    Shapes are fixed in the code, which is faster than code for any shape. torch gives up on code
    that was compiled more often than a limit, which is raised to what the plan needs.
    """
    blocks = list(find_blocks(network)) or [network]
    # Modules that are compiled in place all count as the same code.
    most = (num_kinds + _OTHER_KINDS) * len(blocks)
    from torch._dynamo import config as limits  # takes seconds, and most runs do not compile

    for name in ("cache_size_limit", "accumulated_cache_size_limit"):
        setattr(limits, name, max(getattr(limits, name), most))
    for block in blocks:
        block.compile(backend=backend, dynamic=False)


def find_blocks(network: nn.Module) -> Iterator[nn.Module]:
    """The outermost modules of a class that a network has several of, such as residual blocks.

    A module that holds several of one such class is a stage, and is looked into; torch's own
    layers are no blocks.
    """
    numbers = Counter(type(module) for module in network.modules() if _is_composed(module))
    repeated = {each for each, number in numbers.items() if number > 1}

    def walk(module: nn.Module) -> Iterator[nn.Module]:
        inner = Counter(type(each) for each in module.modules() if each is not module)
        is_stage = any(inner[each] > 1 for each in repeated)
        if type(module) in repeated and not is_stage:
            yield module
            return
        for child in module.children():
            yield from walk(child)

    return walk(network)


def _is_composed(module: nn.Module) -> bool:
    """Whether a module is made of others by somebody's own class."""
    own = not type(module).__module__.startswith("torch.nn.")
    return own and any(True for _ in module.children()) and not isinstance(module, _LISTS)
