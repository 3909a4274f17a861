"""HybridFL: who is woken, when a round closes, what is aggregated. edge-hierarchy-hybridfl.md O8 to O16, O21, O22, 3.5.

Clients are quadratics and take one whole step, so that client k returns its optimum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from toy_problems import EXACT, SELDOM, clients, point, simulate, steps

import turnout
from turnout import Crashes, Detection, FedAvg, Full, Links, Population, Ragged, devices
from turnout.algorithms.hybridfl import HybridFL
from turnout.clients.power import Power
from turnout.core.errors import UserError
from turnout.core.random import FloatArray, key, normal, uniform
from turnout.server.jobs import Job
from turnout.server.observer import Event, Observer, Round
from turnout.server.server import Server
from turnout.server.updates import Updates
from turnout.theory.slack import Counts

WORK = steps(1, 1.0)
LATE = 100.0  # a deadline nobody misses


@dataclass
class Seen:
    """One aggregation: what was there before, what came, and what was made of it."""

    regional: NDArray[Any]  # [M, P] before
    before: NDArray[Any]  # [P]
    clients: NDArray[np.int64]
    returned: NDArray[Any]  # [k, P]
    regional_after: NDArray[Any] = field(default_factory=lambda: np.zeros(0))
    after: NDArray[Any] = field(default_factory=lambda: np.zeros(0))


@dataclass
class Watched(HybridFL):
    """HybridFL that remembers its aggregations."""

    seen: list[Seen] = field(default_factory=list)

    def aggregate(self, server: Server, updates: Updates) -> None:
        seen = Seen(self.models.numpy(), server.model.numpy(), updates.clients, updates.returned().numpy())
        super().aggregate(server, updates)
        seen.regional_after, seen.after = self.models.numpy(), server.model.numpy()
        self.seen.append(seen)


class Notes(Observer):
    """Rounds, events, and every job begun."""

    def __init__(self) -> None:
        self.rounds: list[Round] = []
        self.events: list[Event] = []
        self.invited: list[list[int]] = []
        self.theta: list[FloatArray] = []

    def on_invite(self, server: Server, jobs: Sequence[Job]) -> None:
        self.invited.append([job.client for job in jobs])

    def on_round(self, server: Server, record: Round) -> None:
        self.rounds.append(record)
        self.theta.append(server.algorithm.estimator.theta)  # type: ignore[attr-defined]

    def on_event(self, server: Server, event: Event) -> None:
        self.events.append(event)

    @property
    def lengths(self) -> FloatArray:
        return np.diff([0.0, *(record.time for record in self.rounds)])


def people(
    regions: Sequence[int], times: Sequence[float] | None = None, crash: Any = 0.0, **columns: Any
) -> Population:
    """A client for each region named, with its own optimum; all equally important unless said otherwise."""
    size = len(regions)
    columns.setdefault("optima", np.arange(1.0, size + 1).tolist())
    columns.setdefault("importance", "equal")
    return clients(
        columns.pop("optima"),
        columns.pop("importance"),
        devices=devices.table([1.0] * size if times is None else times),
        regions=np.array(regions),
        crashes=Crashes(np.asarray(crash, np.float64), clock="round"),
        **columns,
    )


def crowd(size: int = 30, regions: int = 3, crash: float = 0.3, seed: int = 0, **columns: Any) -> Population:
    """Unequal clients in regions of unequal size, which drop out."""
    region = np.sort((uniform(key(seed, "crowd"), size) ** 1.5 * regions).astype(int))
    weights = 1 + uniform(key(seed, "crowd weights"), size)
    return people(
        region.tolist(),
        (1 + uniform(key(seed, "crowd times"), size)).tolist(),
        crash,
        optima=normal(key(seed, "crowd optima"), size * 2).reshape(size, 2).tolist(),
        importance=(weights / weights.sum()).tolist(),
        **columns,
    )


def play(algorithm: HybridFL, world: Population, rounds: int, start: Any = 0.0, **options: Any) -> Notes:
    notes = Notes()
    simulate(algorithm, world, rounds, start, observers=[notes], **options)
    return notes


# -- aggregation ----------------------------------------------------------------------------------------------


def gammas(world: Population, seen: Seen) -> FloatArray:
    """`[N]` EDC_r / EDC * n_k / |D_r|, of everybody."""
    assert world.regions is not None
    weights, regions = world.base_importance, world.regions
    covered = np.bincount(regions[seen.clients], weights[seen.clients], minlength=regions.max() + 1)
    held = np.bincount(regions, weights)
    return np.asarray((covered / covered.sum())[regions] * weights / held[regions])


@pytest.mark.parametrize("fallback", ["regional", "global"])
def test_edges_then_cloud_is_one_weighted_sum(fallback: Any) -> None:
    """O8, O9: the weights of all clients are at least 0 and sum to 1; idle clients count as their fallback, nobody of a
    region without a submission counts; the audit has the weights of those that submitted."""
    world = crowd(crash=0.5)
    assert world.regions is not None
    algorithm = Watched(WORK, 1.6, 0.2, idle_fallback=fallback)
    notes = play(algorithm, world, 25, (0.0, 0.0))
    starved = 0
    for seen, record in zip(algorithm.seen, notes.rounds, strict=True):
        gamma = gammas(world, seen)
        assert gamma.sum() == pytest.approx(1)
        assert (gamma >= 0).all()
        came = np.bincount(world.regions[seen.clients], minlength=3)
        assert (gamma[came[world.regions] == 0] == 0).all()
        starved += int((came == 0).sum())
        models = seen.regional[world.regions] if fallback == "regional" else np.tile(seen.before, (30, 1))
        models[seen.clients] = seen.returned
        np.testing.assert_allclose(seen.after, gamma @ models, rtol=1e-12, atol=1e-14)
        used = {job.client: weight for job, weight in zip(record.jobs, record.weights, strict=True) if weight}
        assert used == pytest.approx({k: gamma[k] for k in seen.clients.tolist()})
    assert starved
    assert sum(event.kind == "region_starved" for event in notes.events) <= starved


def test_a_regional_model_moves_only_by_its_own_clients() -> None:
    """(4.19), and 3.5: without a submission it stays."""
    world = crowd(crash=0.5)
    assert world.regions is not None
    algorithm = Watched(WORK, 1.6, 0.2)
    play(algorithm, world, 25, (0.0, 0.0))
    stayed = 0
    for seen in algorithm.seen:
        for r in range(3):
            mine = np.flatnonzero(world.regions == r)
            models = np.tile(seen.regional[r], (30, 1))
            models[seen.clients] = seen.returned
            share = world.base_importance[mine] / world.base_importance[mine].sum()
            np.testing.assert_allclose(seen.regional_after[r], share @ models[mine], rtol=1e-12, atol=1e-14)
            stayed += not np.isin(mine, seen.clients).any()
    assert stayed


@pytest.mark.parametrize("fallback", ["regional", "global"])
def test_one_region_is_keep_global_fedavg_over_the_submitted(fallback: Any) -> None:
    """O10."""
    world = crowd(regions=1)
    algorithm = Watched(WORK, LATE, 0.3, idle_fallback=fallback)
    play(algorithm, world, 12, (0.0, 0.0))
    for seen in algorithm.seen:
        share = world.base_importance[seen.clients]
        assert len(seen.clients) == 9
        np.testing.assert_allclose(seen.after, seen.before + share @ (seen.returned - seen.before), rtol=1e-12)


def test_one_region_without_a_quota_is_fedavg_with_a_deadline() -> None:
    """O10, the same run by FedAvg: everybody is woken, those that answer in time count, the deadline is waited for."""
    world = crowd(regions=1, crash=0.4)
    ours = simulate(HybridFL(WORK, 1.7, 1.0), world, 8, (0.0, 0.0))
    theirs = simulate(FedAvg(WORK, Full(), deadline=1.7, wait_for_crashed=True), world, 8, (0.0, 0.0))
    torch.testing.assert_close(ours.model, theirs.model, rtol=1e-12, atol=1e-14)
    np.testing.assert_array_equal(ours.rounds()["time"], theirs.rounds()["time"])
    assert ours.rounds()["used"][1:].min() > 0
    assert ours.rounds()["used"].max() < 30


@pytest.mark.parametrize("regions", [1, 2, 5])
def test_everybody_is_fedavg(regions: int) -> None:
    """O11: C = 1, nobody drops out or is late: EDC_r = |D_r| and w = sum_k n_k / n w_k."""
    world = crowd(regions=regions, crash=0.0)
    algorithm = HybridFL(steps(1, 0.3), LATE, 1.0)
    ours, theirs = (simulate(a, world, 6, (0.0, 0.0)) for a in (algorithm, FedAvg(steps(1, 0.3), Full())))
    torch.testing.assert_close(ours.model, theirs.model, rtol=1e-12, atol=1e-14)
    assert ours.rounds()["weight"][1:] == pytest.approx(1)
    assert ours.server.now == pytest.approx(theirs.server.now)


def test_a_fixed_point_stays() -> None:
    """O12: every client returns the model it was sent."""
    world = people([0, 0, 0, 1, 1, 2], [1.0, 1.1, 1.2, 1.3, 1.4, 1.5], 0.4, optima=[[2.5, -1.0]] * 6)
    algorithm = Watched(WORK, 1.45, 0.5)
    play(algorithm, world, 10, (2.5, -1.0))
    assert any(len(seen.clients) for seen in algorithm.seen)
    for seen in algorithm.seen:
        np.testing.assert_allclose(seen.after, [2.5, -1.0], rtol=1e-14)


def test_the_weight_of_news() -> None:
    """O13: with the global fallback sum_r EDC_r^2 / (EDC |D_r|) of the step is new; C where all regions cover C."""
    world = crowd(crash=0.4)
    assert world.regions is not None
    algorithm = Watched(WORK, LATE, 0.2, idle_fallback="global")
    notes = play(algorithm, world, 10, (0.0, 0.0))
    held = np.bincount(world.regions, world.base_importance)
    for seen, record in zip(algorithm.seen, notes.rounds, strict=True):
        covered = np.bincount(world.regions[seen.clients], world.base_importance[seen.clients], minlength=3)
        assert record.facts["weight"] == pytest.approx((covered**2 / held).sum() / covered.sum())
    even = people([0, 0, 0, 0, 1, 1, 1, 1])
    notes = play(HybridFL(WORK, LATE, 0.5, slack="fixed", theta_init=1.0, idle_fallback="global"), even, 3)
    assert [record.facts["weight"] for record in notes.rounds] == pytest.approx([0.5] * 3)


def test_regions_count_by_the_data_behind_their_submissions() -> None:
    """O16: three clients against one, all of equal size: .75 and .25. Each region's own model has three in four, or one
    in four, of the new."""
    world = people([0, 0, 0, 0, 1, 1, 1, 1], [1, 1, 1, 9, 9, 9, 9, 1], optima=[4.0] * 4 + [8.0] * 4)
    algorithm = Watched(WORK, LATE, 0.5)  # all are woken, four close the round
    play(algorithm, world, 1)
    (seen,) = algorithm.seen
    assert seen.clients.tolist() == [0, 1, 2, 7]
    assert seen.regional_after[:, 0] == pytest.approx([3.0, 2.0])
    assert seen.after[0] == pytest.approx(0.75 * 3 + 0.25 * 2)


def test_only_shares_of_data_matter() -> None:
    """O22: three times as many samples everywhere."""

    def model(times: int) -> torch.Tensor:
        counts = np.array([1, 2, 3, 1, 4]) * times
        rows = Ragged(np.concatenate([[0], np.cumsum(counts)]), np.arange(counts.sum()))
        targets = torch.repeat_interleave(torch.arange(5.0), torch.as_tensor(counts))[:, None]
        world = Population(
            torch.ones(len(targets), 1), targets, rows, regions=np.array([0, 0, 1, 1, 1]), crashes=Crashes(0.3, "round")
        )
        return simulate(HybridFL(WORK, LATE, 0.4), world, 6).model

    torch.testing.assert_close(model(3), model(1), rtol=1e-12, atol=1e-14)


# -- the close ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_never_more_than_the_quota_is_merged(seed: int) -> None:
    """O14: min(quota, survivors) while nobody is slower than the deadline."""
    world = crowd(crash=0.6, seed=seed)
    algorithm = Watched(WORK, LATE, 0.4)
    notes = play(algorithm, world, 20, (0.0, 0.0))
    merged = [len(seen.clients) for seen in algorithm.seen]
    for number, invited in enumerate(notes.invited):
        crashed, _ = world.crashes.draw(world.seed, np.array(invited), number)
        assert merged[number] == min(12, int((~crashed).sum()))
    assert set(merged) != {12}
    assert max(merged) == 12


def test_ties_are_broken_by_client() -> None:
    """3.5: five answer at the same instant, three are wanted."""
    world = people([0, 1, 0, 1, 0], optima=[1.0, 2.0, 3.0, 4.0, 5.0])
    algorithm = Watched(WORK, LATE, 0.6)
    play(algorithm, world, 2)
    assert algorithm.seen[0].clients.tolist() == [0, 1, 2]


def test_round_lengths() -> None:
    """The quota-th arrival, or the deadline where there is none; to the cloud and back, 3 * 2 edges * 8 bit / 24."""
    links = Links(backhaul=24.0)
    world = people([0, 0, 1, 1], [1.0, 2.0, 3.0, 4.0], links=links, model_bytes=1)
    assert play(HybridFL(WORK, LATE, 0.75), world, 3).lengths == pytest.approx([3 + 2] * 3)
    assert play(HybridFL(WORK, 2.5, 0.75), world, 3).lengths == pytest.approx([2.5 + 2] * 3)
    dead = people([0, 0, 1, 1], crash=1.0, links=links, model_bytes=1)
    assert play(HybridFL(WORK, 7.0, 0.5), dead, 3).lengths == pytest.approx([7 + 2] * 3)


def test_a_round_without_any_submission_changes_nothing() -> None:
    """3.5."""
    dead = people([0, 0, 1, 1], crash=1.0)
    algorithm = Watched(WORK, 7.0, 0.5)
    notes = play(algorithm, dead, 3, start=3.0)
    assert [event.kind for event in notes.events] == ["empty_round"] * 3
    for seen in algorithm.seen:
        assert seen.after.tolist() == [3.0]
        assert seen.regional_after.tolist() == [[3.0], [3.0]]
    assert notes.invited[-1] != []
    assert len(notes.invited[-1]) == 4  # nobody survives: all are woken
    assert (notes.theta[-1] < 0.25).all()


def test_a_region_without_a_place_among_the_first_is_named() -> None:
    """3.5: the quota is reached by one region alone. Regions are called what the population calls them."""
    world = people([7, 7, 9, 9], [1.0, 1.0, 5.0, 5.0])
    notes = play(HybridFL(WORK, LATE, 0.5), world, 2)
    starved = [event.facts["region"] for event in notes.events if event.kind == "region_starved"]
    assert starved == [9, 9]
    short = play(HybridFL(WORK, 2.0, 1.0), world, 2)  # the deadline closes it: slow, but nobody took their place
    assert not any(event.kind == "region_starved" for event in short.events)


def test_regions_without_clients_are_dropped() -> None:
    """3.5: they are logged, and no model travels to them."""
    world = people([0, 0, 3, 3], links=Links(backhaul=24.0), model_bytes=1)
    algorithm = Watched(WORK, LATE, 1.0)
    notes = play(algorithm, world, 2)
    assert [(event.kind, event.facts["region"]) for event in notes.events] == [("empty_region", 1), ("empty_region", 2)]
    assert algorithm.seen[0].regional.shape == (2, 1)
    assert notes.lengths == pytest.approx([1 + 2] * 2)


def test_without_regions_there_is_one_edge() -> None:
    world = replace(people([0, 0, 0, 0], crash=0.2), regions=None)
    notes = play(HybridFL(WORK, LATE, 0.5), world, 5)
    assert notes.events == []
    assert notes.theta[-1].shape == (1,)


@pytest.mark.parametrize("seed", range(5))
def test_waking_more_never_closes_later(seed: int) -> None:
    """O21: on one trace of fates and times. Selections are nested: the first of one permutation of each region."""
    world = crowd(crash=0.4, seed=seed)
    closes, before = [], set[int]()
    for theta in (1.0, 0.8, 0.6, 0.45):
        notes = play(HybridFL(WORK, 50.0, 0.4, slack="fixed", theta_init=theta), world, 1, (0.0, 0.0))
        woken = set(notes.invited[0])
        assert before < woken
        before = woken
        closes.append(notes.lengths[0])
    assert (np.diff(closes) <= 0).all()
    assert closes[-1] < closes[0]


# -- who is late ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("window", "theta"), [(4.0, (0.5 + 2) / 3), (3.0, (0.5 + 2) / 3), (2.0, (0.5 + 1) / 3)])
def test_late_survivors_finish_and_are_counted(window: float, theta: float) -> None:
    """count_late: two are woken and one closes the round. While the models are on their way to the cloud the other is
    done: it is charged in full and not merged, and a survivor if that was before the deadline."""
    world = people([0, 0], [1.0, 3.0], links=Links(backhaul=24.0), model_bytes=10, power=Power())
    algorithm = HybridFL(WORK, window, 0.5, theta_init=0.5)
    result = simulate(algorithm, world, 2)
    jobs = result.jobs()
    late = (jobs["client"] == 1) & (jobs["round"] == 1)
    assert jobs["outcome"][late].tolist() == ["arrived"]
    assert jobs["weight"][late].tolist() == [0]
    assert jobs["compute_seconds"][late].tolist() == [3.0]
    assert result.rounds()["wasted_wh"][1] == pytest.approx(0.7 * 3 / 3600)
    assert result.rounds()["time"][1] == 1 + 10
    assert algorithm.estimator.theta == pytest.approx([theta])


def test_the_late_count_once_their_window_has_passed() -> None:
    """A round of 1 second with a window of 2.5: what it says of theta is heard after three rounds."""
    world = people([0, 0, 0, 0], [1.0, 1.0, 2.0, 50.0])
    algorithm = HybridFL(WORK, 2.5, 0.25, theta_init=0.25)  # all are woken, again and again
    notes = play(algorithm, world, 5)
    assert notes.lengths == pytest.approx([1] * 5)
    # Client 0 is merged; 1 has come at the same time; 2 and 3 are still at work when they are woken again, and drop it.
    expected = [(0.25 + 2 * rounds) / (1 + 2 * rounds) for rounds in (0, 0, 0, 1, 2)]
    assert [theta[0] for theta in notes.theta] == pytest.approx(expected)


def test_others_are_told_to_stop_at_the_close() -> None:
    """Energy up to then: a second of work, of five."""
    world = people([0, 0], [1.0, 5.0], power=Power())
    for slack in ("censored", "fixed", "source_literal"):
        result = simulate(HybridFL(WORK, 9.0, 0.5, theta_init=0.5, slack=slack), world, 1)
        jobs = result.jobs()
        slow = jobs["client"] == 1
        assert jobs["outcome"][slow].tolist() == ["cancelled"]
        assert jobs["compute_seconds"][slow].tolist() == [1.0]
        assert result.rounds()["wasted_wh"][1] == pytest.approx(0.7 * 1.0 / 3600)


def test_the_deadline_stops_everybody() -> None:
    """Also with count_late: nothing that comes later would count."""
    result = simulate(HybridFL(WORK, 2.0, 1.0), people([0, 0], [1.0, 5.0]), 1)
    assert sorted(result.jobs()["outcome"]) == ["arrived", "cancelled"]
    assert result.server.now == 2.0


@pytest.mark.parametrize("slack", ["count_late", "censored", "oracle_q"])
@pytest.mark.parametrize("detection", [Detection("none"), Detection("heartbeat", 0.4), Detection("heartbeat", 30.0)])
def test_edges_never_learn_of_a_death(slack: str, detection: Detection) -> None:
    """How a server hears of failures changes neither clock, model nor theta: an edge cannot tell a slow client from a
    dead one."""
    world = crowd(crash=0.4)
    runs = [
        play(HybridFL(WORK, 1.9, 0.3, slack=slack), replace(world, detection=how), 15, (0.0, 0.0))
        for how in (Detection(), detection)
    ]
    one, other = runs
    assert one.invited == other.invited
    np.testing.assert_array_equal(one.lengths, other.lengths)
    np.testing.assert_array_equal(one.theta, other.theta)


@pytest.mark.parametrize("slack", ["count_late", "oracle_q", "censored"])
def test_survival_is_learnt_on_the_clock(slack: str) -> None:
    """O6 by the algorithm itself: late clients that are woken again are not heard, which costs little."""
    sizes = [50, 30, 40]
    regions = np.repeat([0, 1, 2], sizes)
    speed = 1 + uniform(key(1, "clock times"), 120)
    crash = np.array([0.1, 0.3, 0.6])[regions]
    notes = play(HybridFL(WORK, 3.0, 0.3, slack=slack), people(regions.tolist(), speed.tolist(), crash), 80)
    assert np.abs(notes.theta[-1] - [0.9, 0.7, 0.4]).max() < 0.08


# -- what is known of whom ------------------------------------------------------------------------------------


def test_the_edges_write_down_counts_and_no_names() -> None:
    """O15: nothing that slack is estimated from has a place for 30 clients, whatever the estimator."""
    for slack in ("count_late", "censored", "oracle_q", "source_literal"):
        algorithm = HybridFL(WORK, 5.0, 0.3, slack=slack)
        play(algorithm, crowd(), 9, (0.0, 0.0))
        for part in (algorithm.estimator, algorithm.ledger):
            state = {f.name: getattr(part, f.name) for f in fields(part) if not f.init}
            assert all(isinstance(value, float | np.ndarray) for value in state.values())
            shapes = {name: np.shape(value) for name, value in state.items()}
            assert all(set(shape) <= {3, 4, *range(10)} for shape in shapes.values()), shapes
    assert [f.name for f in fields(Counts)] == ["size", "selected", "submitted", "survivors", "closed_by_quota"]


def test_names_of_clients_do_not_matter() -> None:
    """O15: the same clients in another order, everybody woken (who is drawn is drawn by name)."""
    world = crowd(crash=0.0)
    assert world.regions is not None
    order = np.argsort(uniform(key(3, "order"), 30))

    def run(ids: NDArray[np.int64]) -> torch.Tensor:
        assert world.regions is not None
        facts = turnout.datasets.load("quadratics", optima=normal(key(0, "crowd optima"), 60).reshape(30, 2)[ids])
        times = (1 + uniform(key(0, "crowd times"), 30))[ids]
        other = Population.of(
            facts,
            30,
            "natural",
            test="none",
            importance=world.base_importance[ids],
            regions=world.regions[ids],
            devices=devices.table(times),
        )
        return simulate(HybridFL(WORK, 1.8, 0.5, theta_init=0.5, slack="fixed"), other, 5, (0.0, 0.0)).model

    torch.testing.assert_close(run(order), run(np.arange(30)), rtol=1e-12, atol=1e-14)


# -- members, mishaps, resuming -------------------------------------------------------------------------------


def test_who_has_left_is_not_drawn() -> None:
    """A region whose clients have all left has no part; with nobody left, rounds are empty and last to the deadline."""
    world = people([0, 0, 1, 1], left_at=np.array([99.0, 99.0, 2.5, 2.5]))
    notes = play(HybridFL(WORK, 4.0, 1.0), world, 5)
    assert [sorted(ids) for ids in notes.invited] == [[0, 1, 2, 3]] * 3 + [[0, 1]] * 2
    assert notes.lengths == pytest.approx([1, 1, 4, 1, 1])  # in the third round two leave at work
    fewer = people([0, 0, 0, 1], left_at=np.array([0.5, 99.0, 99.0, 99.0]))
    notes = play(HybridFL(WORK, 4.0, 1.0), fewer, 3)
    assert [sorted(ids) for ids in notes.invited] == [[0, 1, 2, 3]] + [[1, 2, 3]] * 2
    empty = people([0, 1], left_at=np.array([0.5, 0.5]))
    notes = play(HybridFL(WORK, 4.0, 1.0), empty, 3)
    assert notes.lengths == pytest.approx([4] * 3)
    assert len(notes.invited) == 1


def test_absent_clients_are_lost_like_any_other() -> None:
    """An edge cannot probe: whoever is offline is drawn all the same, and brings theta down."""
    world = replace(crowd(crash=0.0), availability=turnout.Bernoulli(0.6))
    notes = play(HybridFL(WORK, 3.0, 0.3), world, 60, (0.0, 0.0))
    assert notes.theta[-1] == pytest.approx(0.6, abs=0.1)


@pytest.mark.parametrize("slack", ["count_late", "censored", "oracle_q", "source_literal"])
def test_resume_with_windows_open(slack: str, tmp_path: Path) -> None:
    """Late clients in flight, rounds in the ledger, an estimator with a past."""

    def trial(rounds: int) -> turnout.Experiment:
        algorithm = HybridFL(WORK, 3.0, 0.3, slack=slack)
        world = crowd(crash=0.2, links=Links(backhaul=1e3))
        return turnout.Experiment(
            point((0.0, 0.0)), world, algorithm, stopping=turnout.Stopping(rounds), plan=EXACT, evaluation=SELDOM
        )

    whole = turnout.execute(trial(9))
    first = trial(5)
    turnout.execute(first, tmp_path, checkpoint_every=1)
    assert isinstance(first.algorithm, HybridFL)
    assert len(first.algorithm.ledger.versions) > 0
    second = trial(9)
    resumed = turnout.execute(second, tmp_path, checkpoint_every=1, resume=True)
    assert torch.equal(whole.model, resumed.model)
    assert resumed.server.now == whole.server.now
    assert isinstance(second.algorithm, HybridFL)
    assert isinstance(whole.server.algorithm, HybridFL)
    np.testing.assert_array_equal(second.algorithm.estimator.theta, whole.server.algorithm.estimator.theta)
    np.testing.assert_array_equal(second.algorithm.models, whole.server.algorithm.models)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"deadline": 0.0}, "algorithm.deadline: 0.0 must be above 0"),
        ({"fraction": 0.0}, "algorithm.fraction: 0.0 must be above 0 and at most 1"),
        ({"fraction": 1.5}, "algorithm.fraction: 1.5 must be"),
        ({"slack": "counts"}, "algorithm.slack: unknown name 'counts'"),
        ({"theta_init": 0.0}, "algorithm.theta_init: 0.0 must be"),
        ({"idle_fallback": "local"}, "algorithm.idle_fallback: unknown name 'local'"),
    ],
)
def test_what_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        HybridFL(WORK, **{"deadline": 1.0, **options})
