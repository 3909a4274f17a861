"""Binomial, Poisson-binomial and clustered sampling: the master table and worked examples of client-sampling.md."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from small_server import EXAMPLE_A, EXAMPLE_B, Law, drawn_law, near, sample, server_of, weights_of

import turnout
from support import local, mlp
from support import population as small_population
from turnout import Bernoulli, UserError
from turnout.sampling._clusters import Clustered
from turnout.sampling._sampler import FloatArray, IntArray, Sampler, water_fill
from turnout.sampling.binomial import Binomial
from turnout.sampling.clustered_similarity import ClusteredSimilarity
from turnout.sampling.clustered_size import ClusteredSize
from turnout.sampling.poisson_binomial import PoissonBinomial
from turnout.sampling.target import Target
from turnout.server.server import Server
from turnout.server.updates import Updates

ROUNDS = 10_000
CIFAR = np.repeat([100.0, 250, 500, 750, 1000], [10, 30, 30, 20, 10]) / 48_500


def rows(m: int, importance: Sequence[float] | FloatArray, seed: int = 0) -> FloatArray:
    return allocation(ClusteredSize(m), importance, seed)


def allocation(sampler: Clustered, importance: Sequence[float] | FloatArray, seed: int = 0) -> FloatArray:
    """`[m, n]` the rows it draws from."""
    server = server_of(np.asarray(importance).tolist(), seed=seed)
    return sampler.allocate(server).matrix(sampler.clients_per_round, len(importance))


def clustered_variance(r: FloatArray) -> FloatArray:
    """p_i / m - sum_k r_ki^2 / m^2."""
    m = len(r)
    return np.asarray(r.sum(0) / m**2 - np.square(r).sum(0) / m**2)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [((4, 3, 2, 1), [[8, 2, 0, 0], [0, 4, 4, 2]]), ((6, 2, 1, 1), [[10, 0, 0, 0], [2, 4, 2, 2]])],
)
def test_allocations_of_the_worked_examples(sizes: Sequence[int], expected: list[list[int]]) -> None:
    np.testing.assert_allclose(10 * rows(2, np.array(sizes) / 10), expected, atol=1e-12)


@pytest.mark.parametrize("m", [1, 2, 3, 7, 20, 130])
@pytest.mark.parametrize("seed", range(3))
def test_o12_rows_and_columns_add_up(m: int, seed: int) -> None:
    sizes = np.random.default_rng(seed).integers(1, 400, 60).astype(float)
    p = sizes / sizes.sum()
    r = rows(m, p, seed)
    np.testing.assert_allclose(r.sum(1), 1, atol=1e-12)
    np.testing.assert_allclose(r.sum(0), m * p, atol=1e-11)
    assert ((r > 1e-12).sum(0) <= np.floor(m * p) + 2).all()


@pytest.mark.parametrize(("m", "total"), [(5, 0.18732065), (10, 0.08749070), (20, 0.03823467)])
def test_total_variance_of_the_unbalanced_population(m: int, total: float) -> None:
    """client-sampling.md 4.4."""
    assert clustered_variance(rows(m, CIFAR)).sum() == pytest.approx(total, abs=1e-8)


@pytest.mark.parametrize("m", [2, 5, 10])
def test_o4_o5_and_o10_against_md_and_coins(m: int) -> None:
    r = rows(m, CIFAR)
    clustered, md = clustered_variance(r), CIFAR * (1 - CIFAR) / m
    coins = CIFAR / m - CIFAR**2
    assert (clustered <= md + 1e-15).all()
    assert (coins <= clustered + 1e-15).all()
    assert (1 - np.prod(1 - r, axis=0) >= 1 - (1 - CIFAR) ** m - 1e-15).all()


def test_o11_equal_importance() -> None:
    """Where m divides n everybody sits in one row; else it is worse than uniform."""
    r = rows(5, np.full(20, 0.05))
    assert ((r > 1e-12).sum(0) == 1).all()
    assert clustered_variance(r) == pytest.approx(np.full(20, (20 / 5 - 1) / 400))
    assert clustered_variance(rows(2, np.full(5, 0.2))).sum() == pytest.approx(0.32)


def test_ties_are_not_in_the_order_of_the_list() -> None:
    """Clients listed class by class must not fall into rows class by class."""
    first = np.flatnonzero(rows(10, np.full(100, 0.01))[0])
    assert not np.array_equal(first, np.arange(10))
    assert not np.array_equal(first, np.flatnonzero(rows(10, np.full(100, 0.01), seed=1)[0]))


EXACT = {
    "binomial": (Binomial(2), EXAMPLE_A, [0.16, 0.09, 0.04, 0.01], 0.30, [0.5] * 4, 1.0),
    "poisson_binomial": (PoissonBinomial(2), EXAMPLE_A, [0.04, 0.06, 0.06, 0.04], 0.20, [0.8, 0.6, 0.4, 0.2], 0.8),
    "clustered": (ClusteredSize(2), EXAMPLE_A, [0.04, 0.10, 0.06, 0.04], 0.0, [0.8, 0.52, 0.4, 0.2], None),
    "clustered, one large": (ClusteredSize(2), EXAMPLE_B, [0.04, 0.06, 0.04, 0.04], 0.0, None, None),
}


@pytest.mark.parametrize("name", EXACT)
def test_o1_and_o13_the_master_table(name: str) -> None:
    sampler, p, variance, sum_variance, contacted, distinct_variance = EXACT[name]
    law: Law = drawn_law(sampler, server_of(p, seed=3), ROUNDS)
    assert near(law.weights, np.array(p))
    centred = law.weights - np.array(p)
    assert near(centred**2, np.array(variance))
    assert near((law.weights.sum(1) - 1)[:, None] ** 2, sum_variance)
    if contacted is not None:
        assert near(law.contacted.astype(float), np.array(contacted))
    if distinct_variance is not None:
        assert law.distinct[1] == pytest.approx(distinct_variance, rel=0.05)


def test_o3_clustered_weights_sum_to_one() -> None:
    server = server_of(EXAMPLE_A)
    for version in range(50):
        assert sample(ClusteredSize(3), server, version).weights.sum() == pytest.approx(1, abs=1e-15)


def test_clustered_covariances_of_example_a() -> None:
    """client-sampling.md E4: they are not all below those of md."""
    law = drawn_law(ClusteredSize(2), server_of(EXAMPLE_A, seed=1), ROUNDS)
    assert law.covariance[0, 1] == pytest.approx(-0.04, abs=0.003)
    assert law.covariance[0, 2] == pytest.approx(0, abs=0.003)


@pytest.mark.parametrize(
    ("norms", "expected"),
    [
        ((1, 1, 1, 1), (0.8, 0.6, 0.4, 0.2)),
        ((1, 2, 3, 4), (0.4, 0.6, 0.6, 0.4)),
        ((5, 1, 1, 1), (1, 0.5, 1 / 3, 1 / 6)),
    ],
)
def test_water_filling(norms: Sequence[float], expected: Sequence[float]) -> None:
    """client-sampling.md 3.6."""
    assert water_fill(np.array(EXAMPLE_A) * np.array(norms), 2) == pytest.approx(np.array(expected))


def test_poisson_binomial_refuses_a_client_that_is_too_large() -> None:
    with pytest.raises(UserError, match=r"sampler\.clients_per_round.*sampler\.cap"):
        PoissonBinomial(2).sample(server_of(EXAMPLE_B))


def test_poisson_binomial_with_a_cap() -> None:
    """q = min(1, c p) and weight p / q: still unbiased."""
    law = drawn_law(PoissonBinomial(2, cap=True), server_of(EXAMPLE_B, seed=2), ROUNDS)
    assert near(law.weights, np.array(EXAMPLE_B))
    assert law.contacted[:, 0].all()
    assert near(law.contacted.astype(float), np.array([1, 0.5, 0.25, 0.25]))


@pytest.mark.parametrize(("sampler", "size"), [(Binomial, 5), (Binomial, 0), (PoissonBinomial, 0), (ClusteredSize, 0)])
def test_impossible_numbers_of_clients(sampler: type[Sampler], size: int) -> None:
    with pytest.raises(UserError, match=r"sampler\.clients_per_round"):
        sampler(size).sample(server_of(EXAMPLE_A))  # type: ignore[call-arg]


def test_more_draws_than_clients() -> None:
    """Legal for clustered sampling: every client is in several rows."""
    drawn = weights_of(ClusteredSize(40).sample(server_of(EXAMPLE_A)), 4)
    assert drawn == pytest.approx(np.array(EXAMPLE_A), abs=1 / 40)


@pytest.mark.parametrize("sampler", [Binomial(3), PoissonBinomial(3), ClusteredSize(3)])
def test_only_those_online_are_drawn(sampler: Sampler) -> None:
    server = server_of([1 / 12] * 12, availability=Bernoulli(0.4))
    for version in range(200):
        chosen = sample(sampler, server, version)
        assert server.online().contains(chosen.clients).all()
        if isinstance(sampler, ClusteredSize) and len(chosen.clients):
            assert chosen.weights.sum() == pytest.approx(1)


# -- groups and similarity ------------------------------------------------------------------------------------


class Deltas:
    """What `observe` looks at of updates."""

    def __init__(self, clients: IntArray, deltas: torch.Tensor) -> None:
        self.clients, self.deltas = clients, deltas

    def __len__(self) -> int:
        return len(self.clients)


def having_seen(sampler: ClusteredSimilarity, importance: FloatArray, deltas: torch.Tensor) -> Server:
    """A server before a round in which everybody's last update is known."""
    server = server_of(importance.tolist())
    sampler.allocate(server)
    sampler.observe(cast(Updates, Deltas(np.arange(len(deltas)), deltas)))
    return server


@pytest.fixture
def no_permutation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Clustered, "ties", staticmethod(lambda server: np.arange(server.population.size)))


@pytest.mark.usefixtures("no_permutation")
@pytest.mark.parametrize("distance", ["arccos", "l2", "l1"])
@pytest.mark.parametrize("tree", ["profile", "condensed"])
def test_worked_example_c(distance: Any, tree: Any) -> None:
    """client-sampling.md 4.3: gradients at 0, 90, 2, 92, 180, 181 degrees; l1 and l2 find the same groups."""
    angles = torch.deg2rad(torch.tensor([0.0, 90, 2, 92, 180, 181]))
    sampler = ClusteredSimilarity(3, distance=distance, tree=tree)
    server = having_seen(sampler, np.array([3, 3, 2, 2, 1, 1]) / 12, torch.stack([angles.cos(), angles.sin()], 1))
    r = sampler.allocate(server).matrix(3, 6)
    np.testing.assert_allclose(12 * r, [[9, 0, 0, 3, 0, 0], [0, 9, 0, 3, 0, 0], [0, 0, 6, 0, 3, 3]], atol=1e-9)
    np.testing.assert_allclose(
        clustered_variance(r), [0.0208333, 0.0208333, 0.0277778, 0.0416667, 0.0208333, 0.0208333], atol=1e-7
    )
    np.testing.assert_allclose(1 - np.prod(1 - r, axis=0), [0.75, 0.75, 0.5, 0.4375, 0.25, 0.25], atol=1e-9)


def test_a_client_above_capacity_has_rows_of_its_own() -> None:
    """Worked example B: the same as by size, before anybody has answered."""
    r = allocation(ClusteredSimilarity(2), EXAMPLE_B)
    np.testing.assert_allclose(10 * r, [[10, 0, 0, 0], [2, 4, 2, 2]], atol=1e-9)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("m", [1, 2, 5, 12, 40])
def test_o12_similarity_and_target_add_up(m: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 300, 40).astype(float)
    p = sizes / sizes.sum()
    similar = ClusteredSimilarity(m)
    server = having_seen(similar, p, torch.from_numpy(rng.normal(size=(40, 7))))
    for sampler in (similar, Target(m, groups=rng.integers(0, 6, 40).tolist())):
        r = sampler.allocate(server).matrix(m, 40)
        np.testing.assert_allclose(r.sum(1), 1, atol=1e-9)
        np.testing.assert_allclose(r.sum(0), m * p, atol=1e-9)


def test_o7_no_noise_within_rows_of_identical_clients() -> None:
    """Ten groups of ten identical clients: a row is a group, with similarity as with the target."""
    group = np.repeat(np.arange(10), 10)
    shuffled = np.random.default_rng(0).permutation(group)
    similar = ClusteredSimilarity(10)
    server = having_seen(similar, np.full(100, 0.01), torch.eye(10, dtype=torch.float64)[torch.from_numpy(shuffled)])
    for sampler in (similar, Target(10, groups=shuffled.tolist())):
        r = sampler.allocate(server).matrix(10, 100)
        assert {tuple(np.unique(shuffled[np.flatnonzero(row)])) for row in r} == {(digit,) for digit in range(10)}
        drawn = sampler.sample(server)
        assert sorted(shuffled[drawn.clients]) == list(range(10))


def test_those_who_have_said_nothing_are_alike() -> None:
    """Distance 0 between two of them, a right angle to everybody else."""
    sampler = ClusteredSimilarity(2)
    server = server_of([0.25] * 4)
    sampler.allocate(server)
    sampler.observe(cast(Updates, Deltas(np.array([1, 3]), torch.tensor([[1.0, 0.0], [-2.0, 0.0]]))))
    half, whole = np.pi / 2, np.pi
    expected = [[0, half, 0, half], [half, 0, half, whole], [0, half, 0, half], [half, whole, half, 0]]
    np.testing.assert_allclose(sampler.distances, expected, atol=1e-7)


def test_an_update_that_is_not_finite_is_not_remembered() -> None:
    sampler = ClusteredSimilarity(1)
    server = server_of([0.5, 0.5])
    sampler.allocate(server)
    sampler.observe(cast(Updates, Deltas(np.array([0, 1]), torch.tensor([[1.0], [2.0]]))))
    sampler.observe(cast(Updates, Deltas(np.array([1]), torch.tensor([[float("nan")]]))))
    assert sampler.seen.flatten().tolist() == [1.0, 2.0]
    assert np.isfinite(sampler.distances).all()


def test_target_by_region_and_without_any() -> None:
    with pytest.raises(UserError, match=r"sampler\.groups: none for 4 clients"):
        Target(2).sample(server_of(EXAMPLE_A))
    with pytest.raises(UserError, match=r"sampler\.groups: 3 for 4 clients"):
        Target(2, groups=[0, 1, 1]).sample(server_of(EXAMPLE_A))


@pytest.mark.parametrize("options", [{"distance": "cosine"}, {"tree": "average"}])
def test_unknown_options_of_similarity(options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"sampler.{next(iter(options))}"):
        ClusteredSimilarity(2, **options)


def test_similarity_resumes_to_the_same_bits(tmp_path: Path) -> None:
    """What was seen of the clients is in the checkpoint."""

    def experiment(rounds: int) -> turnout.Experiment:
        algorithm = turnout.FedAvg(local(), ClusteredSimilarity(3))
        stop = turnout.Stopping(rounds)
        return turnout.Experiment(turnout.Task(mlp, seed=3), small_population(), algorithm, stopping=stop)

    whole = turnout.execute(experiment(6))
    turnout.execute(experiment(3), tmp_path / "run", checkpoint_every=1)
    resumed = turnout.execute(experiment(6), tmp_path / "run", checkpoint_every=1, resume=True)
    assert torch.equal(whole.model, resumed.model)
