"""Optimizers as configured; LARS, LAMB and Muon against their equations, tensor by tensor."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from vcycle.config import run as settings
from vcycle.train.large_batch import Lamb, Lars, Muon
from vcycle.train.optim import make_optimizer

RATES = (0.5, 2.0, 0.1)


def model() -> nn.Module:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3), nn.Linear(3, 2)).double()
    nn.init.zeros_(network[2].weight)
    return network


def run(network: nn.Module, optimizer: Optimizer, rates: tuple[float, ...] = RATES) -> None:
    for number, rate in enumerate(rates):
        x = torch.randn(6, 4, generator=torch.Generator().manual_seed(number)).double()
        optimizer.zero_grad()
        network(x).cos().sum().backward()
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()


def brute_force(network: nn.Module, step: Callable[[str, Tensor, Tensor, int], Tensor]) -> None:
    """Change each parameter by what ``step`` says of its name, value, gradient and step number."""
    for number, rate in enumerate(RATES):
        x = torch.randn(6, 4, generator=torch.Generator().manual_seed(number)).double()
        network.zero_grad()
        network(x).cos().sum().backward()
        for name, w in network.named_parameters():
            assert w.grad is not None
            w.data -= step(name, w.data, w.grad, number) * (rate if step.__name__ != "lars" else 1)


def check_equal(one: nn.Module, other: nn.Module, *, rtol: float = 1e-12) -> None:
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=1e-14)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("sgd", {"momentum": 0.8, "nesterov": True}),
        ("lars", {"momentum": 0.8}),
        ("adamw", {"betas": (0.8, 0.999)}),
        ("lamb", {"betas": (0.8, 0.999)}),
        ("muon", {"betas": (0.8, 0.999)}),
    ],
)
def test_every_optimizer_has_the_momentum_that_is_asked_for(
    name: Any, expected: dict[str, Any]
) -> None:
    optimizer = make_optimizer(model(), settings.Optimizer(name, momentum=0.8))
    for group in optimizer.param_groups:
        assert {key: group[key] for key in expected} == expected


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_lars(momentum: float) -> None:
    ours, theirs = model(), model()
    run(ours, Lars(ours.parameters(), momentum=momentum, weight_decay=0.1, trust=0.02))
    moved: dict[str, Tensor] = {}

    def lars(name: str, w: Tensor, g: Tensor, number: int) -> Tensor:
        local = 0.02 * w.norm() / (g.norm() + 0.1 * w.norm())
        if w.ndim < 2 or w.norm() == 0 or g.norm() == 0:
            local = torch.ones((), dtype=w.dtype)
        moved[name] = momentum * moved.get(name, 0) + RATES[number] * local * (g + 0.1 * w)
        return moved[name]

    brute_force(theirs, lars)
    check_equal(ours, theirs)


def test_lamb() -> None:
    ours, theirs = model(), model()
    run(ours, Lamb(ours.parameters(), betas=(0.8, 0.9), weight_decay=0.1))
    means: dict[str, Tensor] = {}
    squares: dict[str, Tensor] = {}

    def lamb(name: str, w: Tensor, g: Tensor, number: int) -> Tensor:
        means[name] = 0.8 * means.get(name, 0) + 0.2 * g
        squares[name] = 0.9 * squares.get(name, 0) + 0.1 * g * g
        mean, square = (
            means[name] / (1 - 0.8 ** (number + 1)),
            squares[name] / (1 - 0.9 ** (number + 1)),
        )
        u = mean / (square.sqrt() + 1e-6) + 0.1 * w
        adapts = w.ndim > 1 and w.norm() > 0 and u.norm() > 0
        return u * (w.norm() / u.norm() if adapts else 1.0)

    brute_force(theirs, lamb)
    check_equal(ours, theirs)


def test_muon() -> None:
    ours, theirs = model(), model()
    run(ours, Muon(ours.parameters(), betas=(0.8, 0.9), weight_decay=0.1))
    means: dict[str, Tensor] = {}
    squares: dict[str, Tensor] = {}

    def muon(name: str, w: Tensor, g: Tensor, number: int) -> Tensor:
        means[name] = 0.8 * means.get(name, 0) + 0.2 * g
        if w.ndim == 1:
            squares[name] = 0.9 * squares.get(name, 0) + 0.1 * g * g
            mean = means[name] / (1 - 0.8 ** (number + 1))
            square = squares[name] / (1 - 0.9 ** (number + 1))
            return mean / (square.sqrt() + 1e-8) + 0.1 * w
        u, sizes, v = torch.linalg.svd(0.2 * g + 0.8 * means[name], full_matrices=False)
        sizes /= sizes.norm().clamp(min=1e-7)
        for _ in range(5):
            sizes = 3.4445 * sizes - 4.7750 * sizes**3 + 2.0315 * sizes**5
        return 0.2 * max(w.shape) ** 0.5 * (u * sizes) @ v + 0.1 * w

    brute_force(theirs, muon)
    check_equal(ours, theirs, rtol=1e-9)  # small singular values grow


def test_muon_takes_a_row_for_each_output_channel_and_steps_about_as_far_as_adamw() -> None:
    weight = torch.nn.Parameter(torch.zeros(6, 4, 1, 3, 3))
    weight = torch.nn.Parameter(weight.to(memory_format=torch.channels_last_3d))
    weight.grad = torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
    weight.grad[0] *= 100  # one channel's gradient is large: its step is not
    Muon([weight], lr=0.5).step()
    sizes = torch.linalg.svdvals(weight.detach().flatten(1)) / (0.5 * 0.2 * 36**0.5)
    assert sizes.shape == (6,)
    assert sizes.min() > 0.6
    assert sizes.max() < 1.3
    assert weight.detach().square().mean().sqrt() == pytest.approx(0.5 * 0.2, rel=0.3)


@pytest.mark.parametrize("shape", [(6, 4), (4, 6)])
def test_muon_makes_complex_matrices_orthogonal(shape: tuple[int, int]) -> None:
    weight = nn.Parameter(torch.zeros(shape, dtype=torch.complex128))
    weight.grad = torch.randn(
        shape, dtype=torch.complex128, generator=torch.Generator().manual_seed(0)
    )
    u, _, vh = torch.linalg.svd(weight.grad, full_matrices=False)
    Muon([weight], lr=1.0).step()
    moved = -u.mH @ weight.detach() @ vh.mH / (0.2 * 6**0.5)
    sizes = moved.diagonal()
    torch.testing.assert_close(moved, sizes.diag())
    assert sizes.real.min() > 0.6
    assert sizes.real.max() < 1.3
    assert sizes.imag.abs().max() < 1e-12


@pytest.mark.parametrize("kind", [Lamb, Muon])
def test_complex_vectors_take_adams_steps_by_their_parts(kind: type[Optimizer]) -> None:
    weight, theirs = (nn.Parameter(torch.zeros(5, dtype=torch.complex128)) for _ in range(2))
    optimizers = kind([weight], lr=0.1), torch.optim.Adam([theirs], lr=0.1, eps=1e-12)
    for number in range(3):
        drawn = torch.Generator().manual_seed(number)
        weight.grad = torch.randn(5, dtype=torch.complex128, generator=drawn)
        theirs.grad = weight.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    torch.testing.assert_close(weight, theirs, rtol=1e-4, atol=0)


@pytest.mark.parametrize("kind", [Lars, Lamb, Muon])
def test_going_on_from_a_state_dict_changes_nothing(kind: type[Optimizer]) -> None:
    whole, parts = model(), model()
    run(whole, kind(whole.parameters()))
    first = kind(parts.parameters())
    run(parts, first, RATES[:1])
    second = kind(parts.parameters())
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for number, rate in list(enumerate(RATES))[1:]:
        x = torch.randn(6, 4, generator=torch.Generator().manual_seed(number)).double()
        second.zero_grad()
        parts(x).cos().sum().backward()
        second.param_groups[0]["lr"] = rate
        second.step()
    assert all(
        torch.equal(a, b) for a, b in zip(whole.parameters(), parts.parameters(), strict=True)
    )


@pytest.mark.parametrize(
    ("kind", "mark", "is_taken"),
    [
        *((kind, "_fsdp_flattened", False) for kind in (Lars, Lamb, Muon)),
        *((Lars, "device_mesh", False), (Lamb, "device_mesh", False), (Muon, "device_mesh", True)),
    ],
)
def test_parts_of_parameters_are_refused(kind: type[Optimizer], mark: str, is_taken: bool) -> None:
    """As FullyShardedDataParallel and fully_shard mark them."""
    part = nn.Parameter(torch.zeros(5))
    setattr(part, mark, True)
    if is_taken:
        kind([part])
        return
    with pytest.raises(ValueError, match=f"{kind.__name__}: it takes parameters as a whole, and "):
        kind([part])


@pytest.mark.parametrize("kind", [Lamb, Muon])
def test_a_state_dict_with_the_count_of_a_group_is_read(kind: type[Optimizer]) -> None:
    """As older versions wrote it; a parameter without a state had no step."""
    states = []
    for is_old in (False, True):
        one, late = (nn.Parameter(torch.zeros(5)) for _ in range(2))
        optimizer = kind([one, late])
        for number in range(4):
            one.grad = torch.full((5,), 1.0 + number)
            late.grad = one.grad if number > 2 else None
            if number == 2 and is_old:
                state = copy.deepcopy(optimizer.state_dict())
                state["param_groups"][0]["num_steps"] = int(state["state"][0].pop("step"))
                optimizer.load_state_dict(state)
            optimizer.step()
        states.append(torch.stack([one.detach(), late.detach()]))
    assert torch.equal(*states)


@pytest.mark.parametrize("kind", [Lamb, Muon])
def test_a_first_gradient_that_comes_late_is_a_first_step(kind: type[Optimizer]) -> None:
    early, late = (nn.Parameter(torch.zeros(5)) for _ in range(2))
    optimizer = kind([early, late], lr=0.1)
    for number in range(20):
        early.grad = torch.ones(5)
        late.grad = torch.ones(5) if number == 19 else None
        optimizer.step()
    torch.testing.assert_close(late, torch.full_like(late, -0.1))


@pytest.mark.parametrize("kind", [Lars, Lamb, Muon])
def test_parameters_without_gradients_stay(kind: type[Optimizer]) -> None:
    network = model()
    before = copy.deepcopy(network.state_dict())
    optimizer = kind([{"params": [network[0].weight]}, {"params": [network[1].weight]}])
    network[1].weight.grad = torch.ones_like(network[1].weight)
    assert optimizer.step(lambda: 3.0) == 3.0
    assert torch.equal(network[0].weight, before["0.weight"])
    assert not torch.equal(network[1].weight, before["1.weight"])
