"""Build a model of the user's by its import path.

In: ``package.module:function``, and its options. Out: an ``nn.Module``, or one line that says why
there is none.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vcycle.schedule.messages import raised_text


def build_external(path: str, /, *, num_classes: int, **options: Any) -> nn.Module:
    """Build a model by calling the function at ``path``, ``package.module:function``.

    The function gets ``options``, and ``num_classes`` if it has that parameter. The current
    directory is searched for modules too.

    Raises ValueError if the module cannot be imported, has no such function, or either raises; if
    the function does not take an option; or if it does not return an ``nn.Module``. The message is
    one line.
    """
    module_name, _, function_name = path.partition(":")
    module = _module(path, module_name)
    function = getattr(module, function_name, None)
    if not callable(function):
        raise ValueError(
            f"model {path!r}: {module_name!r} has no function {function_name!r}; name one it has"
        )
    parameters = inspect.signature(function).parameters.values()
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    if takes_any or any(parameter.name == "num_classes" for parameter in parameters):
        options["num_classes"] = num_classes
    try:
        inspect.signature(function).bind(**options)
    except TypeError as error:
        raise ValueError(f"model {path!r}: {error}; check model.options") from error
    try:
        model = function(**options)
    except (Exception, SystemExit) as error:
        raise ValueError(
            f"model {path!r}: it fails: {raised_text(error)}; fix the function or its options"
        ) from error
    if not isinstance(model, nn.Module):
        raise ValueError(
            f"model {path!r}: returned a {type(model).__name__}; return a torch.nn.Module"
        )
    return model


def check_trained_precision(model: nn.Module, path: str) -> None:
    """Raise ValueError if a parameter that is trained is in half precision or in double."""
    for name, each in model.named_parameters():
        if each.requires_grad and each.is_floating_point() and each.dtype != torch.float32:
            raise ValueError(
                f"model {path!r}: trains {name!r} in {each.dtype}; return it in float32 "
                f"(model.float()), and choose the precision of its steps by --precision"
            )


def _module(path: str, name: str) -> Any:
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)  # console scripts, unlike ``python -m``, do not search it
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # a script without a main guard may end itself
        raise ValueError(
            f"model {path!r}: cannot import {name!r} ({raised_text(error)}); write "
            "package.module:function, of an installed package or a file in the current directory"
        ) from error
