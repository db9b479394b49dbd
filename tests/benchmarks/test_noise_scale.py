"""The gradient noise scale, of gradients whose noise is known."""

from __future__ import annotations

import pytest
import torch

from noise_scale import noise_scale


def gaussian_gradients(*, groups: int, clips: int, spread: float) -> torch.Tensor:
    """(groups, 400) of signal (3, 4, 0, ...), each the mean of ``clips`` clips of that spread."""
    noise = torch.randn(groups, 400, generator=torch.Generator().manual_seed(0))
    signal = torch.zeros(400)
    signal[:2] = torch.tensor([3.0, 4.0])
    return signal + noise * spread / clips**0.5


@pytest.mark.parametrize(("clips", "spread"), [(8, 2.0), (8, 5.0), (1, 2.0)])
def test_it_is_the_variance_of_a_clip_over_the_squared_signal(clips, spread):
    gradients = gaussian_gradients(groups=200, clips=clips, spread=spread)
    found, error = noise_scale(gradients, clips=clips)
    expected = 400 * spread**2 / 25
    assert 0 < error < 0.1 * expected
    assert abs(found - expected) < 3 * error


def test_it_is_the_paper_s_estimate_from_two_batch_sizes():
    """Appendix A.1: |G|^2 and tr(Sigma) from the squared norms of small and of big gradients."""
    gradients = gaussian_gradients(groups=16, clips=8, spread=3.0)
    small, big = gradients.square().sum(1).mean(), gradients.mean(0).square().sum()
    signal = (128 * big - 8 * small) / (128 - 8)
    noise = (small - big) / (1 / 8 - 1 / 128)
    assert noise_scale(gradients, clips=8)[0] == pytest.approx((noise / signal).item(), rel=1e-4)


def test_its_error_is_how_far_estimates_scatter():
    found, errors = zip(
        *(noise_scale(part, clips=8) for part in _parts(of=64)),
        strict=True,
    )
    scatter = torch.tensor(found).std().item()
    assert torch.tensor(errors).mean().item() == pytest.approx(scatter, rel=0.3)


def _parts(*, of: int) -> tuple[torch.Tensor, ...]:
    return gaussian_gradients(groups=40 * of, clips=8, spread=3.0).split(of)
