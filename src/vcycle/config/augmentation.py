"""What is done to the clips of a batch on the device: off in every recipe, as in the paper.

In: a recipe's values. Out: an Augmentation, which ``vcycle.augment`` applies.
"""

from __future__ import annotations

from dataclasses import dataclass

_MOST_OPS = 100


@dataclass(frozen=True)
class Augmentation:
    """Colour, geometry, erasing and mixing of clips, each drawn for the clip's place in the run.

    Args:
        num_ops: operations of RandAugment for each clip, the same on all its frames; 0 for none
            (Cubuk et al., 2020).
        magnitude: of these operations, from 0 to 10.
        erase: share of clips from which a box is erased, in all frames (Zhong et al., 2020).
        mixup: alpha of the Beta distribution that clips are mixed by; 0 for none (Zhang et al.,
            2018).
        cutmix: alpha of the Beta distribution of the share of a clip that a box of another one
            replaces; 0 for none (Yun et al., 2019). With mixup, every clip gets one of the two.
        grow: multiply magnitude, erase and both alphas by the share of the baseline's pixels that
            the clips of a step have, so that coarse grids are changed less (as image sizes in
            EfficientNetV2; Tan and Le, 2021).
    """

    num_ops: int = 0
    magnitude: float = 9.0
    erase: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0
    grow: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.num_ops <= _MOST_OPS:
            most = f" and at most {_MOST_OPS}" if self.num_ops > 0 else ""
            raise ValueError(f"augmentation.num_ops {self.num_ops}: give 0 or more{most}")
        if not 0 <= self.magnitude <= 10:
            raise ValueError(f"augmentation.magnitude {self.magnitude}: give a number from 0 to 10")
        if not 0 <= self.erase <= 1:
            raise ValueError(f"augmentation.erase {self.erase}: give a share from 0 to 1")
        for name in ("mixup", "cutmix"):
            alpha = getattr(self, name)
            if not 0 <= alpha < float("inf"):
                raise ValueError(f"augmentation.{name} {alpha}: give 0 or more, such as 0.8")

    @property
    def mixes(self) -> bool:
        """Whether clips are mixed with others, so that labels are shares of classes."""
        return self.mixup > 0 or self.cutmix > 0
