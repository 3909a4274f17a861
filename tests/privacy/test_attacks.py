"""Membership inference on losses: closed forms, brute force, and what each attack can see that a simpler one cannot."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import norm

from turnout import UserError
from turnout.core.random import FloatArray, key, normal, uniform
from turnout.trust.attacks import FEWEST, Leakage, attack, attack_groups, membership_scores


def draws(name: str, count: int) -> FloatArray:
    return normal(key(3, name), count)


def test_shifted_normal_scores() -> None:
    """Scores N(mu, 1) of members and N(0, 1) of others: accuracy Phi(mu / 2), AUC Phi(mu / sqrt 2), TPR at 1 % false
    positives 1 - Phi(z_0.99 - mu)."""
    count, mu = 20_000, 1.5
    found = attack(draws("members", count) + mu, draws("others", count))
    assert found.accuracy == pytest.approx(norm.cdf(mu / 2), abs=4 * found.noise)
    assert found.auc == pytest.approx(norm.cdf(mu / np.sqrt(2)), abs=0.01)
    assert found.tpr == pytest.approx(norm.sf(norm.ppf(0.99) - mu), abs=0.03)
    assert found.noise == pytest.approx(0.5 / np.sqrt(count))


@pytest.mark.parametrize("decimals", [1, 9])
def test_brute_force_with_ties(decimals: int) -> None:
    """AUC counts pairs, a tie as half; the TPR is the best of all thresholds that 1 % of the others pass at most."""
    members, others = (np.round(part, decimals) for part in (draws("members", 150) + 0.7, draws("others", 230)))
    found = attack(members, others)
    pairs = (members[:, None] > others) + 0.5 * (members[:, None] == others)
    assert found.auc == pytest.approx(pairs.mean(), rel=1e-12)
    cuts = [*np.concatenate([members, others]), np.inf]
    assert found.tpr == max(np.mean(members >= cut) for cut in cuts if np.mean(others >= cut) <= 0.01)
    assert (found.members, found.non_members) == (150, 230)


@pytest.mark.parametrize(("shift", "accuracy", "auc"), [(100.0, 1.0, 1.0), (0.0, 0.5, 0.5), (-100.0, 0.5, 0.0)])
def test_extremes(shift: float, accuracy: float, auc: float) -> None:
    """Told apart perfectly, all alike, and scores the wrong way round: then the threshold calls everybody a member."""
    spread = 0.0 if shift == 0 else 1.0
    found = attack(spread * draws("members", 40) + shift, spread * draws("others", 80))
    assert found.accuracy == pytest.approx(accuracy, abs=0.05 if shift < 0 else 1e-12)
    assert found.auc == auc
    assert found.tpr == (1.0 if shift > 0 else 0.0)


def test_the_threshold_comes_from_the_other_half() -> None:
    """Noise has a best threshold too, and on the half it was chosen on it looks better than guessing; over many draws
    the attack is right half of the time, with the spread that `noise` says."""
    found = [attack(draws("members", 30), draws("others", 30), seed=seed) for seed in range(200)]
    alike = attack(draws("members", 30), draws("others", 30), seed=7)
    assert alike == found[7]
    assert len({one.accuracy for one in found}) > 5
    fresh = [attack(draws(f"m{n}", 30), draws(f"o{n}", 30)).accuracy for n in range(400)]
    assert np.mean(fresh) == pytest.approx(0.5, abs=4 * found[0].noise / np.sqrt(400))
    assert np.std(fresh) <= 1.1 * found[0].noise


def test_unequal_counts_are_made_equal() -> None:
    """Others outnumber members a hundredfold: to call everybody an outsider still is a guess."""
    found = attack(draws("members", 100), draws("others", 10_000))
    assert abs(found.accuracy - 0.5) <= 3 * found.noise
    assert found.noise == pytest.approx(0.5 / np.sqrt(2 * 50))


@pytest.mark.parametrize("counts", [(FEWEST - 1, 100), (100, FEWEST - 1), (0, 0)])
def test_too_few_are_nan_with_a_warning(counts: tuple[int, int]) -> None:
    with pytest.warns(UserWarning, match=f"{counts[0]} members and {counts[1]} non-members"):
        found = attack(draws("members", counts[0]), draws("others", counts[1]))
    assert np.isnan([found.accuracy, found.auc, found.tpr, found.noise]).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert attack(draws("members", FEWEST), draws("others", FEWEST)).known


def test_a_memoriser() -> None:
    """Oracle 7: a nearest neighbour model whose loss is the squared distance to what it remembers leaks everything, and
    a model that has seen nothing leaks nothing."""
    points = draws("points", 400 * 8).reshape(400, 8)
    memory, fresh = points[:200], points[200:]

    def loss(x: FloatArray, known: FloatArray) -> FloatArray:
        return np.asarray(((x[:, None] - known) ** 2).sum(2).min(1))

    found = attack(membership_scores(loss(memory, memory)), membership_scores(loss(fresh, memory)))
    assert min(found.accuracy, found.auc, found.tpr) > 0.95
    elsewhere = draws("elsewhere", 200 * 8).reshape(200, 8)
    blind = attack(membership_scores(loss(memory, elsewhere)), membership_scores(loss(fresh, elsewhere)))
    assert abs(blind.accuracy - 0.5) <= 3 * blind.noise


# -- attacks that know out-models -----------------------------------------------------------------------------


def known_difficulty(count: int = 2000) -> tuple[FloatArray, FloatArray, NDArray[np.bool_]]:
    """Losses that differ far more between samples than training changes them; by 8 models without the sample."""
    difficulty = 3 + draws("difficulty", count)
    out = difficulty + 0.1 * draws("models", 8 * count).reshape(8, count)
    member = np.arange(count) < count // 2
    return difficulty - 0.3 * member + 0.1 * draws("this model", count), out, member


def test_calibration_sees_through_difficulty() -> None:
    losses, out, member = known_difficulty()
    plain, calibrated = (membership_scores(losses, kind, out) for kind in ("loss", "calibrated"))
    assert attack(plain[member], plain[~member]).auc < 0.62
    found = attack(calibrated[member], calibrated[~member])
    expected = norm.cdf(0.3 / (np.sqrt(2) * 0.1 * np.sqrt(1 + 1 / 8)))
    assert found.auc == pytest.approx(expected, abs=0.01)
    moved = membership_scores(losses + draws("any", len(losses)), "calibrated", out + draws("any", len(losses)))
    np.testing.assert_allclose(moved, calibrated, atol=1e-12)


def test_shadows_see_through_spread() -> None:
    """Some samples' losses hardly vary between models, and on those a small difference says much. Scores are those of
    the formula, on logits of confidences."""
    count = 2000
    member, scale = np.arange(count) < count // 2, np.where(draws("scale", count) > 0, 0.1, 3.0)
    logits = scale * draws("models", 16 * count).reshape(16, count)
    here = scale * (draws("this", count) + 1.5 * member)
    losses, out = np.log1p(np.exp(-here)), np.log1p(np.exp(-logits))
    shadow = membership_scores(losses, "shadow", out)
    told = np.log(logits.std(0, ddof=1))
    shown = (here - logits.mean(0)) / np.exp((16 * told + 4 * told.mean()) / 20)
    np.testing.assert_allclose(shadow, shown, rtol=1e-3, atol=1e-3)  # losses below 1e-7 are taken for rounding
    auc = {}
    for kind in ("loss", "calibrated", "shadow"):
        scores = membership_scores(losses, kind, out)
        auc[kind] = attack(scores[member], scores[~member]).auc
    assert auc["shadow"] > auc["calibrated"] + 0.02
    assert auc["shadow"] > auc["loss"] + 0.02


@pytest.mark.parametrize("kind", ["calibrated", "shadow"])
def test_models_trained_on_a_sample_do_not_count(kind: str) -> None:
    """NaN marks them: the score is that of the others alone."""
    losses, out, _ = known_difficulty(50)
    masked = np.concatenate([out[:4], np.full((3, 50), np.nan)])
    np.testing.assert_array_equal(membership_scores(losses, kind, masked), membership_scores(losses, kind, out[:4]))


def test_constant_losses_have_a_score() -> None:
    assert np.isfinite(membership_scores(np.zeros(5), "shadow", np.zeros((3, 5)))).all()
    assert np.isfinite(membership_scores(np.full(5, 800.0), "shadow", np.full((3, 5), 900.0))).all()


# -- groups ---------------------------------------------------------------------------------------------------


def test_a_group_that_leaks_is_not_averaged_away() -> None:
    rows = {
        name: (uniform(key(1, "in", name), 100) + 2.0 * (name == 4), uniform(key(1, "out", name), 100))
        for name in range(10)
    }
    pooled = attack(*(np.concatenate(part) for part in zip(*rows.values(), strict=True)))
    found = attack_groups(rows)
    assert list(found) == list(range(10))
    assert pooled.accuracy < 0.62
    assert found[4].accuracy == 1.0
    others = [leakage.accuracy for name, leakage in found.items() if name != 4]
    assert np.abs(np.array(others) - 0.5).max() <= 3.5 * found[0].noise


def test_one_warning_for_all_groups() -> None:
    rows = {name: (draws("in", name), draws("out", 100)) for name in (5, 10, 50)}
    with pytest.warns(UserWarning, match="2 of 3 groups have fewer than 20") as told:
        found = attack_groups(rows)
    assert len(told) == 1
    assert [found[name].known for name in (5, 10, 50)] == [False, False, True]
    assert attack_groups({}) == {}


# -- mistakes -------------------------------------------------------------------------------------------------


def test_mistakes() -> None:
    with pytest.raises(UserError, match=r"attack\.kind: unknown name 'los'; did you mean loss\?"):
        membership_scores(np.ones(3), "los")
    with pytest.raises(UserError, match="has the model diverged"):
        membership_scores(np.array([1.0, np.nan]))
    with pytest.raises(UserError, match="one finite loss"):
        attack(np.ones((30, 2)), np.ones(30))
    with pytest.raises(UserError, match="calibrated needs 1 models not trained on each sample; one has 0"):
        membership_scores(np.ones(3), "calibrated")
    with pytest.raises(UserError, match="shadow needs 2 models not trained on each sample; one has 1"):
        membership_scores(np.ones(2), "shadow", np.array([[1.0, 1.0], [1.0, np.nan]]))


def test_as_dict() -> None:
    found = Leakage(0.75, 0.8, 0.1, 50, 60)
    assert found.as_dict() == {
        "accuracy": 0.75, "auc": 0.8, "tpr": 0.1, "members": 50, "non_members": 60, "noise": 0.5 / np.sqrt(50),
    }  # fmt: skip
