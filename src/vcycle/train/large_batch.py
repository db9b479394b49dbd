"""LARS, LAMB and Muon: optimizers for large batches, such as those of coarse grids.

In: parameter groups and gradients. Out: changed parameters. The first two take steps in proportion
to each tensor's own norm: tensors whose gradients are large beside their weights would otherwise
limit the rate of all. Muon's are as long in every direction of a matrix.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class _ByGroup(Optimizer):
    """Changes the parameters of one group after the other.

    Raises ValueError if FSDP has cut parameters into parts, unless their steps are right in those.
    """

    _takes_dtensors = False

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        for param in self.param_groups[-1]["params"]:
            is_dtensor = hasattr(param, "device_mesh")
            # Those of FullyShardedDataParallel are flat.
            if hasattr(param, "_fsdp_flattened") or (is_dtensor and not self._takes_dtensors):
                other = " by torch.distributed.fsdp.fully_shard, or" if self._takes_dtensors else ""
                raise ValueError(
                    f"{type(self).__name__}: it takes parameters as a whole, and FSDP gives it "
                    f"parts; train{other} by DistributedDataParallel, or with another optimizer"
                )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Change the parameters that have a gradient; returns what ``closure`` returns."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            params = [param for param in group["params"] if param.grad is not None]
            if params:
                self._change(group, params)
        return loss

    def _change(self, group: dict[str, Any], params: list[Tensor]) -> None:
        """Change parameters of a group, each of which has a gradient."""
        raise NotImplementedError


class Lars(_ByGroup):
    """SGD with momentum and layer-wise rates (You, Gitman and Ginsburg, 2017, algorithm 1).

    v <- m v + lr r (g + b w) and w <- w - v, with momentum m, weight decay b and
    r = trust ||w|| / (||g|| + b ||w||). Vectors, such as biases and norm weights, and tensors whose
    weights or gradients are zero have r = 1.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 0.1,
        *,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 0.001,
    ) -> None:
        settings = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust}
        super().__init__(params, settings)

    def _change(self, group: dict[str, Any], params: list[Tensor]) -> None:
        grads, decay, rate = _gradients(params), group["weight_decay"], float(group["lr"])
        weights, lengths = _norms(params), _norms(grads)
        ratios = _ratios(params, group["trust"] * weights, lengths + decay * weights, lengths)
        steps = list(torch._foreach_add(grads, params, alpha=decay))
        torch._foreach_mul_(steps, (rate * ratios).unbind())
        if group["momentum"]:
            (moved,) = _state(self, params, ("momentum_buffer",))
            torch._foreach_mul_(moved, group["momentum"])
            torch._foreach_add_(moved, steps)
            steps = moved
        torch._foreach_sub_(params, steps)


class Lamb(_ByGroup):
    """Adam with layer-wise rates (You et al., ICLR 2020, algorithm 2).

    m and v are Adam's moments, corrected for their bias; u = m / (sqrt(v) + eps) + b w, with weight
    decay b; w <- w - lr (||w|| / ||u||) u. Vectors, such as biases and norm weights, and tensors
    whose weights or steps are zero take lr u.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 0.001,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        settings = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, settings)

    def _change(self, group: dict[str, Any], params: list[Tensor]) -> None:
        steps = _adam_steps(self, group, params)
        torch._foreach_add_(steps, params, alpha=group["weight_decay"])
        lengths = _norms(steps)
        ratios = _ratios(params, _norms(params), lengths, lengths)
        torch._foreach_mul_(steps, (float(group["lr"]) * ratios).unbind())
        torch._foreach_sub_(params, steps)


class Muon(_ByGroup):
    """Momentum whose matrices are made orthogonal (Jordan et al., 2024), and AdamW for vectors.

    A weight of two or more dimensions is a matrix, an output channel a row. m is the running mean
    of its gradients g, and u = (1 - beta1) g + beta1 m; w <- w - lr (s O(u) + b w), with weight
    decay b, s = 0.2 sqrt(the longer side) and O(u) = U V^T of u = U S V^T. By s the steps are about
    as long as AdamW's, whose rates and decay serve (Liu et al., 2025). Vectors, such as biases and
    norm weights, take AdamW's steps. (``torch.optim.Muon`` refuses whatever is no matrix,
    and with it the kernels of convolutions.)
    """

    _takes_dtensors = True

    def __init__(
        self,
        params: Any,
        lr: float = 0.001,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        settings = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, settings)

    def _change(self, group: dict[str, Any], params: list[Tensor]) -> None:
        matrices = [param for param in params if param.ndim > 1]
        vectors = [param for param in params if param.ndim < 2]
        for some, steps_of in ((matrices, _orthogonal_steps), (vectors, _adam_steps)):
            if some:
                steps = steps_of(self, group, some)
                torch._foreach_add_(steps, some, alpha=group["weight_decay"])
                torch._foreach_sub_(some, steps, alpha=float(group["lr"]))


def _adam_steps(optimizer: Optimizer, group: dict[str, Any], params: list[Tensor]) -> list[Tensor]:
    """Adam's steps before the rate, corrected for the bias of its moments; counts each parameter's.

    Of a complex number both parts are numbers of their own.
    """
    numbers = _counted(optimizer, group, params)
    beta1, beta2 = group["betas"]
    grads = _real(_gradients(params))
    means, squares = map(_real, _state(optimizer, params, ("exp_avg", "exp_avg_sq")))
    torch._foreach_lerp_(means, grads, 1 - beta1)
    torch._foreach_mul_(squares, beta2)
    torch._foreach_addcmul_(squares, grads, grads, value=1 - beta2)
    sizes = torch._foreach_sqrt(torch._foreach_div(squares, [1 - beta2**n for n in numbers]))
    torch._foreach_add_(sizes, group["eps"])
    steps = torch._foreach_div(torch._foreach_div(means, [1 - beta1**n for n in numbers]), sizes)
    return [
        torch.view_as_complex(step) if param.is_complex() else step
        for step, param in zip(steps, params, strict=True)
    ]


def _counted(optimizer: Optimizer, group: dict[str, Any], params: list[Tensor]) -> list[int]:
    """The number of each parameter's step, which this one is."""
    for state in (optimizer.state[param] for param in params):
        # Older state dicts have one count for all of a group that had steps.
        before = group.get("num_steps", 0) if "exp_avg" in state else 0
        state["step"] = state.get("step", torch.tensor(float(before))) + 1  # as torch's Adam does
    return [int(optimizer.state[param]["step"]) for param in params]


def _orthogonal_steps(
    optimizer: Optimizer, group: dict[str, Any], params: list[Tensor]
) -> list[Tensor]:
    """Muon's steps before the rate."""
    beta = group["betas"][0]
    grads = _gradients(params)
    (means,) = _state(optimizer, params, ("momentum_buffer",))
    torch._foreach_lerp_(means, grads, 1 - beta)
    ahead = torch._foreach_lerp(grads, means, beta)
    steps = [_orthogonal(each.flatten(1)).view(each.shape) for each in ahead]
    return [_placed_as(step, param) for step, param in zip(steps, params, strict=True)]


def _placed_as(step: Any, param: Any) -> Tensor:
    """As ``fully_shard`` places the parameter, if it does."""
    is_dtensor = hasattr(param, "device_mesh")
    placed: Tensor = step.redistribute(param.device_mesh, param.placements) if is_dtensor else step
    return placed


def _orthogonal(matrix: Tensor) -> Tensor:
    """(m, n) -> (m, n) with singular values near 1, times 0.2 sqrt(max(m, n)); of zeros, zeros.

    Five steps of the Newton-Schulz iteration of Jordan et al. (2024). Its coefficients bring
    singular values to between 0.7 and 1.2, but for those far below the others.
    """
    rows, columns = matrix.shape
    x: Tensor = matrix.T if rows > columns else matrix
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(5):
        gram = x @ x.mH  # a matrix may be complex
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    x = 0.2 * math.sqrt(max(rows, columns)) * x
    return x.T if rows > columns else x


def _gradients(params: list[Tensor]) -> list[Tensor]:
    return [param.grad for param in params if param.grad is not None]


def _real(tensors: list[Tensor]) -> list[Tensor]:
    """Those that are complex as views (..., 2) of their parts."""
    return [torch.view_as_real(each) if each.is_complex() else each for each in tensors]


def _state(
    optimizer: Optimizer, params: list[Tensor], names: tuple[str, ...]
) -> list[list[Tensor]]:
    """The tensors of each name that the optimizer keeps for the parameters, at first zeros."""
    for param in params:
        for name in names:
            if name not in optimizer.state[param]:
                optimizer.state[param][name] = torch.zeros_like(param)
    return [[optimizer.state[param][name] for param in params] for name in names]


def _norms(tensors: list[Tensor]) -> Tensor:
    """(n,) the Euclidean norm of each."""
    return torch.stack(torch._foreach_norm(tensors))


def _ratios(params: list[Tensor], over: Tensor, under: Tensor, lengths: Tensor) -> Tensor:
    """(n,) ``over`` / ``under`` of each tensor; 1 for vectors, and if one of the three is zero."""
    is_matrix = torch.tensor([param.ndim > 1 for param in params])
    is_matrix = is_matrix.to(over.device, non_blocking=True)
    adapts = is_matrix & (over > 0) & (under > 0) & (lengths > 0)
    return torch.where(adapts, over / under, torch.ones_like(over))
