"""The study of WERM: a run at its smallest size, and how its curves are compared."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import turnout_studies as studies
from turnout import Plan
from turnout_studies.study import Results
from turnout_studies.werm_tradeoff import Size, World, adversarial, at_stop, lead, over_advreg, until_stopped, weighted

SMALL = Size(samples=60, tested=100, steps=10, every=5, weights=(0.0, 0.5, 1.0), strengths=(1.0,))


def test_the_small_size_runs_and_is_read_back(tmp_path: Path) -> None:
    study = studies.find("werm_tradeoff")
    study.run("small", [0], tmp_path)
    judged = study.judge(study.read(tmp_path))
    assert {one.verdict for one in judged} == {"not judged"}  # the small size decides nothing
    assert all(np.isfinite(one.values).all() for one in judged)


def test_sets_are_disjoint_and_of_one_distribution() -> None:
    world = World(SMALL, seed=4)
    sets = (world.train, world.reference, world.test, world.validation)
    assert [len(labels) for _, labels in sets] == [60, 60, 100, 60]
    words = torch.from_numpy(2.0 * world.words - 1)
    for inputs, labels in sets:
        flipped = (inputs != words[labels]).double().mean()
        assert float(flipped) == pytest.approx(0.35, abs=0.02)
    assert not torch.equal(world.train[0][:60], world.reference[0][:60])


def test_without_an_adversary_the_model_learns_from_training_data_alone() -> None:
    """AdvReg of strength 0 is plain training: reference data cannot change a bit of it, and with strength they do."""
    world, other = World(SMALL, seed=4), World(SMALL, seed=4)
    other.reference = World(SMALL, seed=5).reference
    unread = (0, 1, 3)  # all but the leakage of reference data
    plain, same = (np.array(adversarial(one, 0.0, SMALL))[:, unread] for one in (world, other))
    np.testing.assert_array_equal(plain, same)
    strong, moved = (np.array(adversarial(one, 5.0, SMALL))[:, unread] for one in (world, other))
    assert not np.array_equal(strong, moved)
    assert not np.array_equal(strong, plain)


def test_weights_one_and_zero_swap_the_sets() -> None:
    world = World(Size(samples=60, tested=400, steps=60, every=60), seed=4)
    plan = Plan(threads=1)
    (_, alone), (_, lent) = (np.array(weighted(world, w, Size(samples=60, steps=60, every=60), plan)) for w in (1, 0))
    assert alone[1] > 0.7 > 0.65 > alone[2]
    assert lent[2] > 0.7 > 0.65 > lent[1]


def results(rows: dict[tuple[str, float], list[list[float]]]) -> Results:
    trials = [({"method": m, "knob": k, "seed": 0}, {"rows": values}) for (m, k), values in rows.items()]
    setting = {"weights": [0.0, 0.5, 1.0], "strengths": [1.0]}
    return Results("werm_tradeoff", "small", [0], setting, {}, trials)


def test_accuracies_are_compared_at_equal_leakage() -> None:
    """Columns are accuracy, leakage of training data, of reference data, and the validation loss to stop by."""
    found = results(
        {
            ("werm", 0.0): [[0.1, 0.5, 0.5, 3.0], [0.6, 0.5, 0.8, 1.0]],
            ("werm", 0.5): [[0.1, 0.5, 0.5, 3.0], [0.3, 0.6, 0.62, 2.0], [0.8, 0.7, 0.72, 1.0], [0.9, 1.0, 1.0, 2.0]],
            ("werm", 1.0): [[0.1, 0.5, 0.5, 3.0], [0.4, 0.6, 0.5, 2.0], [0.7, 0.8, 0.5, 1.0]],
            ("advreg", 1.0): [[0.1, 0.5, 0.5, 3.0], [0.5, 0.67, 0.5, 1.0], [0.9, 0.9, 0.9, 2.0]],
        }
    )
    (_, measures) = found.trials[1]
    assert (at_stop("accuracy", measures), at_stop("mia_reference", measures)) == (0.8, 0.72)
    leakage, accuracy = until_stopped(found, 0, 0.5)
    assert (leakage.tolist(), accuracy.tolist()) == ([0.62, 0.72], [0.3, 0.8])
    between = 0.6 + 0.2 * 0.17 / 0.2  # on the line from w = 0 to w = 0.5
    assert over_advreg(None, found).tolist() == pytest.approx([between - 0.5])
    assert over_advreg(0.5, found).tolist() == pytest.approx([0.3 + 0.5 * 0.5 - 0.5])
    assert over_advreg(1.0, found).tolist() == pytest.approx([0.4 + 0.3 * 0.35 - 0.5])
    assert lead((np.array([0.9, 0.5]), np.array([1.0, 0.0])), (np.array([0.7]), np.array([0.1]))) == pytest.approx(0.4)


def test_claims_can_fail() -> None:
    """With every curve of the rival a little better, nothing holds that says WERM is ahead."""
    werm = {("werm", w): [[0.1, 0.5, 0.5, 3.0], [0.3, 0.5 + w / 4, 0.75 - w / 4, 1.0]] for w in (0.0, 0.5, 1.0)}
    found = results(werm | {("advreg", 1.0): [[0.1, 0.5, 0.5, 3.0], [0.5, 0.5, 0.6, 1.0]]})
    values = {claim.name: float(claim.values(found)[0]) for claim in studies.find("werm_tradeoff").claims}
    assert values["w leaks training data"] == 1
    assert values["1 - w leaks reference data"] == -1
    assert values["reference privacy buys utility"] == 0
    assert values["ahead of AdvReg, public reference"] == pytest.approx(-0.2)
    assert values["ahead of AdvReg, equally private"] == pytest.approx(-0.2)
    assert values["AdvReg ahead, private reference"] == pytest.approx(0.2)
    assert values["AdvReg keeps reference data private"] == 0.6
