"""The bound of kNN-Per and the lemma it stands on: oracles 12 to 14."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from turnout.core.errors import UserError
from turnout.core.random import key, uniform
from turnout.local.neighbours import nearest
from turnout_studies.theory.knn_bound import knn_generalisation_bound, nearest_distance


def bound(lam: float, **changed: Any) -> float:
    setting = {"n_t": 1000, "n": 10**5, "p": 2, "vc_dim": 10, "disc": 0.1, "gamma1": 0.05, "gamma2": 0.05}
    return knn_generalisation_bound(lam, **{**setting, **changed})


def test_golden_values_of_both_forms() -> None:
    merged, tighter = ([bound(lam, merged=form) for lam in (0, 0.5, 1)] for form in (True, False))
    assert merged == pytest.approx([0.329462, 0.214146, 0.098831], abs=1e-6)
    assert tighter == pytest.approx([0.329462, 0.192933, 0.056404], abs=1e-6)


@pytest.mark.parametrize("merged", [True, False])
def test_affine_in_lambda_so_an_end_is_best(merged: bool) -> None:
    for gamma in (0.05, 5.0):
        ends = [bound(lam, gamma1=gamma, best_risk=0.1, merged=merged) for lam in (0, 1)]
        assert bound(0.5, gamma1=gamma, best_risk=0.1, merged=merged) == pytest.approx(sum(ends) / 2)
        assert min(bound(lam / 10, gamma1=gamma, best_risk=0.1, merged=merged) for lam in range(11)) == min(ends)


@pytest.mark.parametrize("merged", [True, False])
def test_what_helps(merged: bool) -> None:
    for lam in (0.0, 0.3, 1.0):
        by_size = [bound(lam, n_t=size, merged=merged) for size in (10, 100, 1000, 10**5)]
        assert (np.diff(by_size) < 0).all() if lam else len(set(by_size)) == 1
        assert (np.diff([bound(lam, disc=disc, merged=merged) for disc in (0, 0.1, 0.5)]) > 0).all()
    assert bound(1, n_t=10**5, disc=0.0) < bound(0, n_t=10**5, disc=0.0)  # all alike: the memory still wins in the end
    assert bound(0.5, merged=False) < bound(0.5)


def test_the_best_risk_counts_once_and_lambda_times() -> None:
    assert bound(0.25, best_risk=0.2) - bound(0.25) == pytest.approx(1.25 * 0.2)


@pytest.mark.parametrize("p", [1, 2, 3, 5])
@pytest.mark.parametrize("n_t", [20, 200, 2000])
def test_the_nearest_of_half_the_samples_is_near(p: int, n_t: int) -> None:
    """Lemma: uniform on [0, 1]^p, n_t / 2 of them stored."""
    stored, asked = (
        torch.from_numpy(uniform(key(0, "lemma", n_t, p, part), size * p).reshape(size, p))
        for part, size in enumerate((n_t // 2, 500))
    )
    mean = float(nearest(stored, asked, 1)[0].mean())
    assert mean <= 6 * nearest_distance(n_t, p)
    assert nearest_distance(n_t, p) == pytest.approx(p**0.5 / n_t ** (1 / (p + 1)))


def test_out_of_range() -> None:
    with pytest.raises(UserError, match=r"lam: 1.5 must be between 0 and 1"):
        bound(1.5)
    with pytest.raises(UserError, match="1 <= n_t <= n"):
        bound(0.5, n_t=10**6)
