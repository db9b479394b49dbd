"""The label that a dataset of anybody's returned, as a tensor, checked.

In: a number, array, list or tensor. Out: a class or a multi-hot vector, or an error that names the
video. It is checked before labels are stacked, when the video is still known.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def checked_label(label: Any, *, video: int, num_classes: int | None = None) -> Tensor:
    """() int64, a class from 0; or (classes,) float32, a value from 0 to 1 for each class.

    Vectors are float or bool: one of whole numbers may as well be a list of classes. With
    ``num_classes`` the class, or the length of the vector, is checked against it.

    Raises ValueError if ``label`` is neither.
    """
    try:
        found = torch.as_tensor(label)
    except (TypeError, ValueError, RuntimeError):  # strings, None, dicts, ragged lists
        raise _neither(type(label).__name__, video) from None
    is_float_or_bool = found.is_floating_point() or found.dtype == torch.bool
    if found.ndim == 0 and not found.is_floating_point() and not found.is_complex():
        number = int(found)
        if number < 0 or (num_classes is not None and number >= num_classes):
            upper = "" if num_classes is None else f" to {num_classes - 1}"
            raise ValueError(f"label {number} of video {video}: number the classes from 0{upper}")
        return found.to(torch.int64)
    if found.ndim != 1 or not is_float_or_bool or not len(found):
        raise _neither(f"{found.dtype} {tuple(found.shape)}", video)
    if num_classes is not None and len(found) != num_classes:
        raise ValueError(f"label of {len(found)} classes of video {video}: give {num_classes}")
    vector = found.to(torch.float32)
    if not bool(((vector >= 0) & (vector <= 1)).all()):
        raise ValueError(f"label of video {video}: give a vector of values from 0 to 1")
    return vector


def _neither(found: str, video: int) -> ValueError:
    return ValueError(
        f"label {found} of video {video}: give a whole number, the class from 0, or a float vector "
        f"of zeros and ones, one a class"
    )
