"""WERM: w L_T + (1 - w) L_R against closed forms; oracles 1 to 6 of the specification."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import turnout
from support import SIZES, mlp, population
from turnout import MD, FedAvg, Full, LocalSGD, Plan, Population, Ragged, Task, UserError
from turnout.algorithms.werm import WERM, weighted
from turnout.core.random import FloatArray, key, normal

EXACT = Plan(precision="float64", threads=1)
DRAWS = LocalSGD(0.2, steps=1, batch_size=4, batching="draws")
STEP = LocalSGD(0.25, steps=1, batching="full")
TRAIN, REFERENCE = 30, 12  # N_T, N_R
GRID = (0.0, 0.2, 0.5, TRAIN / (TRAIN + REFERENCE), 0.9, 1.0)


def werm(train_weight: float, local: LocalSGD = STEP, **options: Any) -> WERM:
    return WERM(local, Full(), train_weight=train_weight, **{"reference_clients": [1], **options})


def two_sets(swapped: bool = False) -> Population:
    """Linear regression in three dimensions: a training and a reference client."""
    total = TRAIN + REFERENCE
    x = torch.from_numpy(normal(key(1, "x"), total * 3)).reshape(total, 3)
    noise = torch.from_numpy(normal(key(1, "noise"), total))
    y = (x @ torch.tensor([1.0, -2.0, 0.5]).double() + noise)[:, None]
    rows = [np.arange(TRAIN), np.arange(TRAIN, total)]
    return Population(x, y, Ragged.from_rows(rows[::-1] if swapped else rows))


def regression() -> Task:
    return Task(lambda: nn.Linear(3, 1, bias=False), "mse", seed=2)


def sets(people: Population) -> list[tuple[Tensor, Tensor]]:
    return [(people.inputs[people.train.row(i)], people.targets[people.train.row(i)]) for i in range(2)]


def losses(model: Tensor, people: Population) -> list[float]:
    return [float(F.mse_loss(x @ model[:, None], y)) for x, y in sets(people)]


def minimiser(people: Population, w: float) -> Tensor:
    """Oracle 4."""
    left, right = torch.zeros(3, 3).double(), torch.zeros(3, 1).double()
    for (x, y), weight in zip(sets(people), (w, 1 - w), strict=True):
        left, right = left + weight * x.T @ x / len(x), right + weight * x.T @ y / len(x)
    return torch.linalg.solve(left, right)[:, 0]


@pytest.fixture(scope="module")
def trained() -> dict[float, Tensor]:
    """Trained to the end, by w."""
    people, rare = two_sets(), turnout.Evaluation(rounds=None)
    return {w: turnout.simulate(regression(), people, werm(w), 70, plan=EXACT, evaluation=rare).model for w in GRID}


@pytest.mark.parametrize("sampler", [Full(), MD(2)], ids=["full", "md"])
@pytest.mark.parametrize("w", [1.0, 0.0])
def test_one_set_alone(w: float, sampler: turnout.Full | MD) -> None:
    """Oracle 1: bit for bit as if the other set were not there, mini-batches included."""
    people = population((16, 24))
    algorithm = WERM(DRAWS, sampler, train_weight=w, reference_clients=[1 if w else 0])
    both = turnout.simulate(Task(mlp, seed=3), people, algorithm, 8, seed=5, plan=Plan(threads=1))
    rows = Ragged(np.array([0, 16]), people.train.row(0))
    alone = Population(people.inputs, people.targets, rows)
    one = turnout.simulate(Task(mlp, seed=3), alone, FedAvg(DRAWS, sampler), 8, seed=5, plan=Plan(threads=1))
    assert torch.equal(both.model, one.model)
    assert not torch.equal(both.model, both.server.task.initial)
    assert both.jobs()["client"].tolist() == [0] * 8


def test_several_clients_alone() -> None:
    """The same for clients of unequal sizes, up to the rounding of their importance."""
    algorithm = WERM(DRAWS, Full(), train_weight=1.0, reference_clients=[5, 6, 7])
    both = turnout.simulate(Task(mlp, seed=3), population(), algorithm, 5, plan=EXACT)
    some = population(SIZES[:5])
    people = Population(population().inputs, population().targets, some.train)
    one = turnout.simulate(Task(mlp, seed=3), people, FedAvg(DRAWS, Full()), 5, plan=EXACT)
    assert both.model.numpy() == pytest.approx(one.model.numpy(), rel=1e-12)


def test_the_pooled_weight_is_pooled_erm() -> None:
    """Oracle 2: with w = N_T / (N_T + N_R) and full batches every step is that of the union, for many clients too."""
    held = sum(SIZES[i] for i in (0, 4, 6))
    w = 1 - held / sum(SIZES)
    algorithm = WERM(STEP, Full(), train_weight=w, reference_clients=[4, 0, 6])
    ours = turnout.simulate(Task(mlp, seed=3), population(), algorithm, 4, plan=EXACT)
    pooled = turnout.simulate(Task(mlp, seed=3), population(), turnout.algorithms.Centralised(STEP), 4, plan=EXACT)
    assert ours.model.numpy() == pytest.approx(pooled.model.numpy(), abs=1e-12)
    skewed = WERM(STEP, Full(), train_weight=w / 2, reference_clients=[4, 0, 6])
    other = turnout.simulate(Task(mlp, seed=3), population(), skewed, 4, plan=EXACT)
    assert float((other.model - pooled.model).norm()) > 1e-3


@pytest.mark.parametrize("w", [0.25, 0.75])
def test_swapping_the_sets(w: float) -> None:
    """Oracle 3: the reference clients become the training clients and w becomes 1 - w."""
    first, second = (
        turnout.simulate(
            Task(mlp, seed=3),
            population(),
            WERM(DRAWS, Full(), train_weight=weight, reference_clients=clients),
            4,
            plan=EXACT,
        )
        for weight, clients in ((w, [1, 2, 3]), (1 - w, [0, 4, 5, 6, 7]))
    )
    assert torch.equal(first.model, second.model)


@pytest.mark.parametrize("w", GRID)
def test_least_squares(w: float, trained: dict[float, Tensor]) -> None:
    """Oracle 4: it ends at the minimiser of w L_T + (1 - w) L_R, of means and not of sums."""
    people = two_sets()
    assert trained[w].numpy() == pytest.approx(minimiser(people, w).numpy(), abs=1e-5)


def test_swapped_least_squares(trained: dict[float, Tensor]) -> None:
    """Oracle 3 for the minimisers."""
    swapped = two_sets(swapped=True)
    assert trained[0.2].numpy() == pytest.approx(minimiser(swapped, 0.8).numpy(), abs=1e-5)


def test_losses_are_monotone_in_w(trained: dict[float, Tensor]) -> None:
    """Oracle 5: at the minimisers L_T falls with w and L_R grows."""
    found = np.array([losses(trained[w], two_sets()) for w in GRID])
    assert (np.diff(found[:, 0]) < 0).all()
    assert (np.diff(found[:, 1]) > 0).all()


def effective_samples(people: Population) -> float:
    """1 / sum over samples of their squared weights, p_i / n_i each."""
    return float(1 / (people.base_importance**2 / people.train.counts).sum())


def test_effective_samples() -> None:
    """Oracle 6: 1 / N_eff = w^2 / N_T + (1 - w)^2 / N_R, largest (N_T + N_R) at the pooled weight; however many clients
    hold a set."""
    people = population((10, 20, 7, 5))
    assert people.train.counts[:2].sum() == TRAIN
    found = []
    for w in GRID:
        found.append(effective_samples(werm(w, reference_clients=[2, 3]).training_population(people)))
        assert found[-1] == pytest.approx(1 / (w**2 / TRAIN + (1 - w) ** 2 / REFERENCE))
    assert int(np.argmax(found)) == 3
    assert found[3] == pytest.approx(TRAIN + REFERENCE)


def test_groups_keep_their_proportions() -> None:
    """Importances of one's own are scaled within each group; evaluation still weighs the clients as given."""
    given = np.array([0.1, 0.2, 0.3, 0.4])
    people = population((10, 20, 7, 5), importance=given)
    shares = werm(0.75, reference_clients=[0, 3]).training_population(people).base_importance
    np.testing.assert_allclose(shares, [0.25 * 0.2, 0.75 * 0.4, 0.75 * 0.6, 0.25 * 0.8])
    ended = turnout.simulate(Task(mlp, seed=3), people, werm(0.75, reference_clients=[0, 3]), 2, plan=EXACT)
    np.testing.assert_allclose(ended.audit.intended, shares)
    np.testing.assert_allclose(ended.audit.realised, shares)
    mean = float(given @ ended.clients()["train_loss"])
    assert ended.measures["train_loss"] == pytest.approx(mean)


# -- who holds reference data ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("given", "count"), [(3, 3), (0.25, 2), (0.5, 4), (8, 8), (0, 0), (1, 1), ([2, 5], 2)])
def test_a_number_a_share_or_ids(given: float | list[int], count: int) -> None:
    people = population()
    held = werm(0.5, reference_clients=given).holds_reference(people)
    assert held.sum() == count
    if isinstance(given, list):
        assert np.flatnonzero(held).tolist() == given


def test_who_is_drawn_depends_on_the_population_alone() -> None:
    def drawn(seed: int, w: float) -> list[bool]:
        return list(werm(w, reference_clients=4).holds_reference(population(seed=seed)))

    assert drawn(1, 0.2) == drawn(1, 0.9)
    assert len({tuple(drawn(seed, 0.5)) for seed in range(10)}) > 3


@pytest.mark.parametrize("given", [-1, 9, 2.5, float("nan"), [8], [-1], [1, 1]])
def test_refused_clients(given: float | list[int]) -> None:
    with pytest.raises(
        UserError, match=r"algorithm\.reference_clients\S* .* must be (at least 0|a share below 1, a number of the 8)"
    ):
        werm(0.5, reference_clients=given).holds_reference(population())


@pytest.mark.parametrize("w", [-0.1, 1.1, float("nan")])
def test_refused_weights(w: float) -> None:
    with pytest.raises(UserError, match=r"algorithm\.train_weight: .* must be from 0 to 1"):
        werm(w)


@pytest.mark.parametrize(
    ("reference", "good", "bad", "words"), [(0, 1.0, 0.9, "to reference data"), (8, 0.0, 0.1, "to training data")]
)
def test_an_empty_set_has_no_weight(reference: int, good: float, bad: float, words: str) -> None:
    people = population()
    shares = werm(good, reference_clients=reference).training_population(people).base_importance
    np.testing.assert_allclose(shares, people.base_importance)
    with pytest.raises(UserError, match=rf"algorithm\.train_weight: {bad} gives weight {words}, but no client holds"):
        werm(bad, reference_clients=reference).training_population(people)


def test_weighted_is_a_distribution() -> None:
    shares: FloatArray = weighted(np.array([0.5, 0.3, 0.2]), np.array([False, True, True]), 0.9)
    np.testing.assert_allclose(shares, [0.9, 0.06, 0.04])
