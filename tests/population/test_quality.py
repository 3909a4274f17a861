"""Damaged data: who is hit, how, and that everything follows from the seed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from support import images, population
from turnout import Population, Ragged, UserError
from turnout.clients.quality import KINDS, Pool, degrade, triggered
from turnout.core.random import FloatArray

SIZES = (40,) * 20


def damaged(kind: str, **strengths: float) -> tuple[FloatArray, FloatArray, Population, Population]:
    """Inputs of the one kind of client before and after, and both populations; half of the clients are hit."""
    before = images(SIZES)
    after, tags = degrade(before, {kind: 0.5}, seed=3, **strengths)
    rows = np.concatenate([before.train.row(i) for i in np.flatnonzero(tags == kind).tolist()])
    assert len(rows) == 400
    others = np.setdiff1d(np.arange(800), rows)
    assert torch.equal(before.inputs[others], after.inputs[others])
    assert torch.equal(before.targets[others], after.targets[others])
    return before.inputs[rows].numpy(), after.inputs[rows].numpy(), before, after


def test_shares_and_tags() -> None:
    shares = {"irrelevant": 0.15, "blur": 0.2, "salt_and_pepper": 0.25}
    _, tags = degrade(images(SIZES), shares, seed=1)
    counts = dict(zip(*np.unique(tags, return_counts=True), strict=True))
    assert counts == {"irrelevant": 3, "blur": 4, "salt_and_pepper": 5, "normal": 8}
    assert not np.array_equal(tags, degrade(images(SIZES), shares, seed=2)[1])


def test_gaussian_noise() -> None:
    before, after, *_ = damaged("gaussian_noise", gaussian_noise=0.5)
    noise = after - before
    assert abs(noise.mean()) < 0.02
    assert noise.std() == pytest.approx(0.5, rel=0.02)


def test_blur_keeps_the_mean_and_takes_the_detail() -> None:
    before, after, *_ = damaged("blur", blur=1.0)
    assert after.var() < 0.3 * before.var()
    assert after.mean() == pytest.approx(before.mean(), abs=0.02)
    constant = Population(torch.ones(4, 1, 6, 6), torch.zeros(4).long(), Ragged(np.array([0, 4]), np.arange(4)))
    assert torch.allclose(degrade(constant, {"blur": 1.0})[0].inputs, constant.inputs)


def test_salt_and_pepper() -> None:
    before, after, people, _ = damaged("salt_and_pepper")
    low, high = float(people.inputs.min()), float(people.inputs.max())
    changed = before != after
    assert changed.mean() == pytest.approx(0.3, abs=0.02)
    assert set(np.unique(after[changed]).tolist()) == {low, high}
    assert (after[changed] == low).mean() == pytest.approx(0.5, abs=0.03)


def test_irrelevant() -> None:
    before, after, people, degraded = damaged("irrelevant")
    assert (before != after).all()
    low, high = float(people.inputs.min()), float(people.inputs.max())
    assert after.std() == pytest.approx((high - low) / np.sqrt(12), rel=0.02)  # uniform
    hit = (people.inputs != degraded.inputs).flatten(1).any(1)
    agree = (people.targets[hit] == degraded.targets[hit]).float().mean()
    assert 0.4 < float(agree) < 0.6  # two classes, drawn at random


def test_label_noise() -> None:
    before, after, people, degraded = damaged("label_noise")
    assert (before == after).all()
    wrong = people.targets != degraded.targets
    assert int(wrong.sum()) == pytest.approx(0.4 * 400, abs=40)
    assert set(degraded.targets.unique().tolist()) == {0, 1}


def test_label_flip() -> None:
    before, after, people, degraded = damaged("label_flip")
    assert (before == after).all()
    changed = people.targets != degraded.targets
    assert int(changed.sum()) == 400
    assert torch.equal(degraded.targets[changed], 1 - people.targets[changed])


def test_backdoor() -> None:
    before, after, people, degraded = damaged("backdoor")
    hit = (before != after).any((1, 2, 3))
    assert hit.mean() == pytest.approx(0.5, abs=0.07)
    assert (after[hit][..., -3:, -3:] == float(people.inputs.max())).all()
    assert np.array_equal(after[..., :-3, :], before[..., :-3, :])
    moved = (people.inputs != degraded.inputs).flatten(1).any(1)
    assert (degraded.targets[moved] == 0).all()
    assert torch.equal(degraded.targets[~moved], people.targets[~moved])
    flat = triggered(torch.zeros(2, 5), Pool(torch.ones(1, 5), torch.zeros(1)))
    assert flat.tolist() == [[0.0, 0.0, 1.0, 1.0, 1.0]] * 2


@pytest.mark.parametrize("kind", KINDS)
def test_the_seed_decides_and_nothing_is_changed_in_place(kind: str) -> None:
    people = images((5, 6, 7))
    inputs, targets = people.inputs.clone(), people.targets.clone()
    one, two, other = (degrade(people, {kind: 1.0}, seed=seed)[0] for seed in (1, 1, 2))
    assert torch.equal(people.inputs, inputs)
    assert torch.equal(people.targets, targets)
    assert torch.equal(one.inputs, two.inputs)
    assert torch.equal(one.targets, two.targets)
    if kind not in ("blur", "label_flip"):  # which leave nothing to chance
        assert not (torch.equal(one.inputs, other.inputs) and torch.equal(one.targets, other.targets))


def test_mistakes() -> None:
    people = population()
    for shares, words in (
        ({"blurr": 0.1}, "did you mean blur"),
        ({"blur": 0.7, "irrelevant": 0.6}, r"sum to 1\.3"),
        ({"irrelevant": -0.1}, "at least 0"),
        ({"blur": 0.5}, "blur needs images"),
    ):
        with pytest.raises(UserError, match=words):
            degrade(people, shares)
    shared = Population(people.inputs, people.targets, Ragged(np.array([0, 2, 4]), np.array([0, 1, 1, 2])))
    with pytest.raises(UserError, match="clients share samples"):
        degrade(shared, {"irrelevant": 0.5})
    numbers = Population(people.inputs, people.targets.float(), people.train)
    for kind in ("label_noise", "label_flip", "backdoor"):
        with pytest.raises(UserError, match=f"{kind} needs classes"):
            degrade(numbers, {kind: 0.5})
