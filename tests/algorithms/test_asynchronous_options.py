"""Options of the asynchronous methods, and clients that crash, are away, or answer too late."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from toy_problems import clients, simulate, steps

import turnout
from turnout import (
    Algorithm,
    AsyncFedAvg,
    Bernoulli,
    Crashes,
    Detection,
    FedBuff,
    FedFix,
    Observer,
    Policy,
    Population,
    devices,
)
from turnout.algorithms import FedAsync
from turnout.core.errors import UserError
from turnout.record.audit import Audit, Findings
from turnout.server.absent import Absent
from turnout.server.durations import Durations
from turnout.server.observer import Event
from turnout.server.server import Server

FIVE = (0.0, 1.0, 2.0, 3.0, 4.0)
WORK = steps(1, 0.1)

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


def people(**columns: Any) -> Population:
    columns.setdefault("devices", devices.fx(80, 5))
    return clients(FIVE, "equal", **columns)


class Events(Observer):
    def __init__(self) -> None:
        self.seen: list[Event] = []

    def on_event(self, server: Server, event: Event) -> None:
        self.seen.append(event)


def rehearse(algorithm: Algorithm, population: Population, rounds: int) -> tuple[Findings, list[Event], Server]:
    audit, events = Audit(), Events()
    server = turnout.rehearse(algorithm, population, rounds, observers=[audit, events])
    return audit.findings, events.seen, server


# weights


def test_measured_weights_of_fedfix_are_its_windows() -> None:
    """3.2, measured: with fixed durations exactly N'_i p_i from the second update on, p_i N / |S| before."""
    jobs = simulate(FedFix(WORK, window=0.5, weight_rule="measured"), people(), 7).jobs()
    used = jobs["weight"] != 0
    client, weight, number, round_ = (jobs[name][used] for name in ("client", "weight", "job", "round"))
    assert weight[number > 0] == pytest.approx(0.2 * np.array([2, 2, 2, 1, 1])[client[number > 0]], rel=1e-14)
    heard = {1: 2, 2: 5}  # |S| of the first rounds
    first = number == 0
    assert weight[first] == pytest.approx([0.2 * 5 / heard[number] for number in round_[first]], rel=1e-14)


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        (AsyncFedAvg(WORK, weight_rule="naive"), 1.0),
        (AsyncFedAvg(WORK, weight_rule="learning_rate"), 1.0),
        (FedFix(WORK, weight_rule="naive"), 0.2),
        (FedBuff(WORK, buffer_size=4, weight_rule="naive"), 0.25),
        (FedBuff(WORK, buffer_size=4, weight_rule="naive", divisor=5.0), 0.2),
    ],
)
def test_naive_weights(algorithm: Algorithm, expected: float) -> None:
    weights = simulate(algorithm, people(), 12).jobs()["weight"]
    assert weights[weights != 0] == pytest.approx(expected)


def test_server_lr_scales_the_step() -> None:
    """One arrival, of client 4: from 0 by server_lr d_4 lr 4."""
    d = 0.4566667
    assert float(simulate(AsyncFedAvg(WORK), people(), 1).model[0]) == pytest.approx(d * 0.1 * 4, abs=1e-7)
    faster = simulate(AsyncFedAvg(WORK, server_lr=2.5), people(), 1)
    assert float(faster.model[0]) == pytest.approx(2.5 * d * 0.1 * 4, abs=1e-6)


def test_an_algorithm_can_be_used_for_another_population() -> None:
    """What it knew of the first one's speeds must not weigh the second one's updates."""
    algorithm = FedBuff(WORK, buffer_size=2)
    simulate(algorithm, people(), 3)
    others = people(devices=devices.table([1.0, 1.0, 1.0, 1.0, 7.0]))
    again, fresh = (simulate(a, others, 12).jobs()["weight"] for a in (algorithm, FedBuff(WORK, buffer_size=2)))
    assert again.tolist() == fresh.tolist()


def test_an_algorithm_can_be_used_again_after_clients_were_away() -> None:
    algorithm = AsyncFedAvg(WORK)
    assert len(simulate(algorithm, people(availability=Bernoulli(0.3)), 7).server._absent.clients)
    population = people(availability=Bernoulli(0.9))
    again, fresh = (simulate(a, population, 30).jobs()["client"] for a in (algorithm, AsyncFedAvg(WORK)))
    assert again.tolist() == fresh.tolist()


# staleness


@pytest.mark.parametrize(
    ("options", "factor"),
    [
        ({"staleness_discount": "polynomial"}, lambda s: (s + 1.0) ** -0.5),
        ({"staleness_discount": "polynomial", "discount_rate": 2.0}, lambda s: (s + 1.0) ** -2),
        (
            {"staleness_discount": "hinge", "discount_rate": 3.0, "discount_from": 0.5},
            lambda s: np.where(s <= 0.5, 1.0, 1 / (3 * (s - 0.5) + 1)),
        ),
    ],
)
@pytest.mark.parametrize("method", [AsyncFedAvg, FedFix])
def test_discounts_shrink_old_updates(
    method: type[AsyncFedAvg], options: dict[str, Any], factor: Callable[[FloatArray], FloatArray]
) -> None:
    discounted, full = (simulate(method(WORK, **more), people(), 30) for more in (options, {}))
    rows, plain = discounted.jobs(), full.jobs()
    assert rows["weight"] == pytest.approx(plain["weight"] * factor(rows["staleness"].astype(float)), rel=1e-12)
    assert discounted.audit.chi_square > full.audit.chi_square + 1e-3


def test_too_old_updates_are_dropped_and_their_clients_asked_again() -> None:
    """FedFix of half a unit, nothing older than its own round: clients 0 to 2 work in vain, and the audit says so."""
    population = people()
    findings, events, _ = rehearse(FedFix(WORK, window=0.5, max_staleness=0), population, 8)
    assert findings.events == {"stale_update": 12}
    dropped = [event.facts for event in events if event.kind == "stale_update"]
    assert [facts["client"] for facts in dropped] == [2, 1, 0] * 4
    assert {facts["staleness"] for facts in dropped} == {1}
    assert findings.contributions.tolist() == [0, 0, 0, 8, 8]
    assert findings.never_heard.tolist() == [0, 1, 2]
    assert findings.ratio == pytest.approx([0, 0, 0, 2.5, 2.5])
    assert findings.chi_square == pytest.approx(1.5)
    jobs = simulate(FedFix(WORK, window=0.5, max_staleness=0), population, 8).jobs()
    slow = jobs["client"] == 0
    assert jobs["outcome"][slow].tolist() == ["arrived"] * 4
    assert jobs["weight"][slow].tolist() == [0] * 4
    assert jobs["sent_at"][slow].tolist() == [0, 1, 2, 3]
    assert jobs["version"][slow].tolist() == [0, 2, 4, 6]


def test_an_update_as_old_as_allowed_counts() -> None:
    findings, _, _ = rehearse(FedFix(WORK, window=0.5, max_staleness=1), people(), 8)
    assert findings.events == {}
    assert findings.realised == pytest.approx([0.2] * 5)


def test_dropping_in_asynchronous_fedavg_leaves_an_empty_round() -> None:
    """A dropped update is a round all the same: version and clock go on, the model stays."""
    algorithm = AsyncFedAvg(WORK, max_staleness=4)
    findings, _, server = rehearse(algorithm, people(), 137)
    plain = turnout.schedule(AsyncFedAvg(WORK), people(), 137)
    old = plain.staleness > 4
    assert findings.events == {"stale_update": old.sum(), "empty_round": old.sum()}
    assert findings.contributions.tolist() == np.bincount(plain.client[~old], minlength=5).tolist()
    assert findings.never_heard.tolist() == [0, 1]
    assert server.now == plain.seconds
    assert max(findings.staleness) == 4


def test_measured_weights_make_up_for_drops() -> None:
    """3.9: drops change f_i. Counted among what is used, whoever is heard now and then keeps its importance."""
    population = people(devices=devices.exponential([1.0, 0.8, 0.6, 0.4, 0.2]))
    known, _, _ = rehearse(AsyncFedAvg(WORK, max_staleness=6), population, 1500)
    measured, _, _ = rehearse(AsyncFedAvg(WORK, max_staleness=6, weight_rule="measured"), population, 1500)
    assert known.events["stale_update"] > 150
    assert known.ratio[0] < 0.8
    assert measured.ratio == pytest.approx([1.0] * 5, rel=0.15)


def test_dropping_in_restart_mode() -> None:
    """Standing clients restart by themselves, dropped or not."""
    algorithm = FedBuff(WORK, buffer_size=2, mode="restart", max_staleness=2)
    findings, _, _ = rehearse(algorithm, people(), 137)
    plain = turnout.schedule(replace(algorithm, max_staleness=None), people(), 137)
    assert findings.events["stale_update"] == (plain.staleness > 2).sum() > 0
    assert findings.contributions.sum() == 274 - findings.events["stale_update"]


# windows


def test_windows_grow_up_to_their_limit() -> None:
    """Each close is `window_growth` times later than the last; the weights follow the window in force."""
    algorithm = FedFix(WORK, window=0.25, window_growth=2.0, window_limit=1.5)
    ended = simulate(algorithm, people(), 6)
    assert np.diff(ended.rounds()["time"]).tolist() == [0.25, 0.5, 1.0, 1.5, 1.5, 1.5]
    jobs = ended.jobs()
    tau = np.array([1.0, 0.8, 0.6, 0.4, 0.2])
    widths = np.array([0.25, 0.5, 1.0, 1.5, 1.5, 1.5])[jobs["round"] - 1]
    assert jobs["weight"] == pytest.approx(0.2 * np.ceil(tau[jobs["client"]] / widths), rel=1e-12)
    assert len(set(jobs["weight"].round(9))) > 1


def test_windows_default_to_half_of_the_slowest_client() -> None:
    assert np.diff(simulate(FedFix(WORK), people(), 4).rounds()["time"]).tolist() == [0.5] * 4
    slower = people(devices=devices.exponential([6.0, 1.0, 1.0, 1.0, 1.0]))
    assert FedFix(WORK).policy(Durations.of(slower, WORK)).window == pytest.approx(3.0)


def test_limited_windows_grow_for_as_long_as_a_run_lasts() -> None:
    """1.5^2000 is no float: the limit has long been reached."""
    algorithm = FedFix(WORK, window=0.5, window_growth=1.5, window_limit=2.0)
    assert algorithm.policy(Durations.of(people(), WORK), 2000) == Policy(window=2.0)


def test_a_window_takes_at_least_a_tick() -> None:
    """In a run as in its schedule: the clock goes on."""
    algorithm = FedFix(WORK, window=1e-6, window_growth=0.5)
    assert turnout.schedule(algorithm, people(), 20).seconds > 0
    assert simulate(algorithm, people(), 20).server.now == turnout.schedule(algorithm, people(), 20).seconds


def test_windows_in_which_nobody_answers_leave_the_model() -> None:
    ended = simulate(FedFix(WORK, window=0.05), people(), 5)
    assert ended.audit.events == {"empty_round": 4}  # the fastest needs four windows
    assert ended.rounds()["time"].tolist() == pytest.approx([0, 0.05, 0.1, 0.15, 0.2, 0.25])
    assert ended.rounds()["used"].tolist() == [0, 0, 0, 0, 1, 0]


# FedAsync


@pytest.mark.parametrize(
    ("options", "factor"),
    [
        ({}, lambda s: 0.6 * (s + 1) ** -0.5),
        ({"mixing": 0.9, "discount_rate": 1.0}, lambda s: 0.9 / (s + 1)),
        ({"staleness_discount": "none", "mixing": 1.0}, lambda _: 1.0),
        (
            {"staleness_discount": "hinge", "discount_rate": 10.0, "discount_from": 4.0, "mu": 0.5},
            lambda s: 0.6 if s <= 4 else 0.6 / (10 * (s - 4) + 1),
        ),
    ],
)
def test_fedasync_by_hand(options: dict[str, Any], factor: Callable[[int], float]) -> None:
    """model <- (1 - a) model + a returned, returned after two steps on L_i + mu/2 |theta - received|^2."""
    lr, mu = 0.3, options.get("mu", 0.0)
    schedule = turnout.schedule(AsyncFedAvg(WORK), people(), 30)
    models = [7.0]
    for client, version, staleness in zip(schedule.client, schedule.version, schedule.staleness, strict=True):
        received = returned = models[version]
        for _ in range(2):
            returned -= lr * ((returned - FIVE[client]) + mu * (returned - received))
        a = factor(int(staleness))
        models.append((1 - a) * models[-1] + a * returned)
    ended = simulate(FedAsync(steps(2, lr), **options), people(), 30, start=7.0)
    assert float(ended.model[0]) == pytest.approx(models[-1], rel=1e-12)
    assert ended.jobs()["weight"] == pytest.approx([factor(int(s)) for s in schedule.staleness], rel=1e-12)


# unreliable clients


class Away:
    """Nobody before `since`; where a client is given, only it is away."""

    clock, probability = "seconds", None

    def __init__(self, since: float, client: int | None = None) -> None:
        self.since, self.client = since, client

    def online(self, seed: int, ids: IntArray, at: float) -> NDArray[np.bool_]:
        return (np.asarray(at) >= self.since) | (False if self.client is None else ids != self.client)

    def online_until(self, seed: int, ids: IntArray, at: float) -> FloatArray:
        return np.full(len(ids), np.inf)

    def online_from(self, seed: int, ids: IntArray, at: float) -> FloatArray:
        return np.full(len(ids), self.since)


@pytest.mark.parametrize(
    ("algorithm", "back"),
    [(FedFix(WORK, window=0.5), 3.5), (AsyncFedAvg(WORK), 3.2), (FedBuff(WORK, buffer_size=2, mode="restart"), 3.2)],
)
def test_clients_that_were_away_are_asked_again(algorithm: Algorithm, back: float) -> None:
    """At the first close that finds them: client 0 is back after 3.1 seconds."""
    jobs = simulate(algorithm, people(availability=Away(3.1, client=0)), 100).jobs()
    mine = jobs["client"] == 0
    assert jobs["outcome"][mine][0] == "offline"
    assert set(jobs["outcome"][mine][1:]) == {"arrived"}
    assert jobs["sent_at"][mine][:2] == pytest.approx([0.0, back])
    assert set(jobs["outcome"][~mine]) == {"arrived"}


@pytest.mark.parametrize("algorithm", [AsyncFedAvg(WORK, retry=2.0), FedBuff(WORK, buffer_size=3, retry=2.0)])
def test_rounds_that_find_nobody_take_some_time(algorithm: AsyncFedAvg) -> None:
    """Closes at 2, 4 and 6 seconds, `retry` apart, until somebody is there."""
    ended = simulate(algorithm, people(availability=Away(5.0)), 4)
    assert ended.rounds()["time"][:4].tolist() == [0, 2, 4, 6]
    assert ended.rounds()["used"][:4].tolist() == [0, 0, 0, 0]
    assert ended.audit.events == {"empty_round": 3}
    assert ended.jobs()["sent_at"][ended.jobs()["outcome"] == "arrived"].min() == 6
    assert 6 < ended.server.now < 7


@pytest.mark.parametrize(
    "algorithm", [AsyncFedAvg(WORK), FedAsync(WORK), FedFix(WORK, window=1.0), FedBuff(WORK, buffer_size=2)]
)
def test_rounds_without_anybody_are_logged(algorithm: Algorithm) -> None:
    """Nothing is silent."""
    ended = simulate(algorithm, people(availability=Bernoulli(0.0)), 3, start=7.0)
    assert ended.server.now == 3.0
    assert float(ended.model[0]) == 7.0
    assert ended.audit.never_heard.tolist() == [0, 1, 2, 3, 4]
    assert ended.audit.events == {"empty_round": 3}


@pytest.mark.parametrize("mode", ["wait", "restart"])
def test_crashed_clients_start_again(mode: str) -> None:
    """At the close after they crashed, or at once where clients do not wait for closes; nobody is held up."""
    population = people(crashes=Crashes(np.array([1.0, 0, 0, 0, 0])))
    ended = simulate(FedBuff(WORK, buffer_size=2, mode=mode), population, 60)
    jobs, closes = ended.jobs(), ended.rounds()["time"]
    mine = jobs["client"] == 0
    assert set(jobs["outcome"][mine]) == {"crashed"}
    assert jobs["job"][mine].tolist() == list(range(mine.sum()))
    assert mine.sum() > 5
    again, ended_at = jobs["sent_at"][mine][1:], jobs["ended_at"][mine][:-1]
    if mode == "restart":
        assert again == pytest.approx(ended_at)
    else:
        assert again == pytest.approx(closes[np.searchsorted(closes, ended_at)])
    assert ended.audit.never_heard.tolist() == [0]
    assert ended.rounds()["used"][1:].tolist() == [2] * 60


def test_crashes_cost_restarting_clients_only_their_own_time() -> None:
    """Jobs of 1 s, a fifth of which crash half-way on average: ten clients make 10 x 0.8 / 0.9 updates a second, and a
    flush of twelve takes 1.35 s, not the time until the next flush for everybody who crashed."""
    ten = clients([0.0] * 10, "equal", devices=devices.fixed(1.0), crashes=Crashes(0.2))
    schedule = turnout.schedule(FedBuff(WORK, buffer_size=12, mode="restart"), ten, 400)
    assert schedule.seconds / 400 == pytest.approx(12 * 0.9 / 8, rel=0.03)
    assert schedule.seconds == simulate(FedBuff(WORK, buffer_size=12, mode="restart"), ten, 400).server.now


def test_a_buffer_is_not_waited_for_in_vain() -> None:
    """Of five, one has crashed: the round of five closes with the four that can answer."""
    population = people(crashes=Crashes(np.array([1.0, 0, 0, 0, 0])), detection=Detection("heartbeat", 0.1))
    ended = simulate(FedBuff(WORK, buffer_size=5), population, 3)
    assert ended.rounds()["used"].tolist() == [0, 4, 4, 4]


CRASHING: dict[str, AsyncFedAvg] = {
    "async": AsyncFedAvg(WORK),
    "fedfix": FedFix(WORK, window=0.5),
    "fedbuff": FedBuff(WORK, buffer_size=2),
    "restart": FedBuff(WORK, buffer_size=2, mode="restart"),
    "many": FedBuff(WORK, buffer_size=8, mode="restart"),
}


@pytest.mark.parametrize("name", CRASHING)
def test_weights_are_measured_where_clients_crash(name: str) -> None:
    """The unbiased rule does not know how often whom: measured, everybody counts about as meant; naively, not."""
    population = people(crashes=Crashes(np.array([0.1, 0.2, 0.3, 0.4, 0.5])))
    findings, _, _ = rehearse(replace(CRASHING[name]), population, 1200)
    assert findings.realised == pytest.approx([0.2] * 5, rel=0.08)
    naive, _, _ = rehearse(replace(CRASHING[name], weight_rule="naive"), population, 300)
    assert abs(naive.ratio - 1).max() > 0.12


def test_weights_are_measured_where_clients_come_and_go() -> None:
    population = people(availability=Bernoulli(np.array([0.9, 0.8, 0.7, 0.6, 0.5])))
    findings, _, _ = rehearse(AsyncFedAvg(WORK), population, 1500)
    assert findings.failures["offline"] > 100
    assert findings.ratio == pytest.approx([1.0] * 5, rel=0.06)


# mistakes


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: AsyncFedAvg(WORK, weight_rule="unbiassed"),  # type: ignore[arg-type]
            "algorithm.weight_rule.*did you mean unbiased",
        ),
        (lambda: FedFix(WORK, weight_rule="learning_rate"), "algorithm.weight_rule: learning_rate.*async_fedavg only"),
        (lambda: FedBuff(WORK, weight_rule="learning_rate"), "algorithm.weight_rule: learning_rate.*async_fedavg only"),
        (lambda: AsyncFedAvg(WORK, server_lr=0.0), "algorithm.server_lr: 0.0"),
        (lambda: AsyncFedAvg(WORK, retry=0.0), "algorithm.retry: 0.0"),
        (lambda: AsyncFedAvg(WORK, max_staleness=-1), "algorithm.max_staleness: -1"),
        (lambda: AsyncFedAvg(WORK, staleness_discount="linear"), "algorithm.staleness_discount.*'linear'"),
        (lambda: FedAsync(WORK, discount_rate=0.0), "algorithm.discount_rate"),
        (lambda: FedAsync(WORK, discount_from=-1.0), "algorithm.discount_from"),
        (lambda: FedAsync(WORK, mixing=0.0), "algorithm.mixing: 0.0"),
        (lambda: FedAsync(WORK, mixing=1.1), "algorithm.mixing: 1.1"),
        (lambda: FedAsync(WORK, mu=-0.1), "algorithm.mu: -0.1"),
        (lambda: FedFix(WORK, window=0.0), "algorithm.window: 0.0"),
        (lambda: FedFix(WORK, window=-1.0), "algorithm.window: -1.0"),
        (lambda: FedFix(WORK, window=float("nan")), "algorithm.window: nan"),
        (lambda: FedFix(WORK, window_growth=0.0), "algorithm.window_growth: 0.0"),
        (lambda: FedFix(WORK, window_limit=0.0), "algorithm.window_limit: 0.0"),
        (lambda: FedBuff(WORK, buffer_size=0), "algorithm.buffer_size: 0"),
        (lambda: FedBuff(WORK, divisor=0.0), "algorithm.divisor: 0.0"),
        (lambda: FedBuff(WORK, mode="restrat"), "algorithm.mode.*did you mean restart"),
    ],
)
def test_options_that_cannot_be(make: Callable[[], Algorithm], message: str) -> None:
    """One sentence that names the option."""
    with pytest.raises(UserError, match=message):
        make()


@pytest.mark.parametrize("start", [simulate, turnout.schedule, turnout.rehearse])
def test_a_buffer_larger_than_the_population(start: Callable[..., Any]) -> None:
    """3.9: waiting clients cannot fill it; restarting ones can."""
    with pytest.raises(UserError, match=r"algorithm.buffer_size: 6 .* only 5"):
        start(FedBuff(WORK, buffer_size=6), people(), 3)
    start(FedBuff(WORK, buffer_size=6, mode="restart"), people(), 3)


def test_who_is_away_is_kept_as_in_the_version_before() -> None:
    """Checkpoints of 0.1 have the absent clients beside the algorithm's own state; one without them knows of nobody."""
    away = Absent(np.array([3, 1]), np.array([0.5, 2.0]))
    saved = away.save()
    assert saved.keys() == {"algorithm/absent@numpy", "algorithm/back_at@numpy"}
    assert Absent.saved(saved).clients.tolist() == [3, 1] and Absent.saved(saved).back_at.tolist() == [0.5, 2.0]
    assert not len(Absent.saved({}).clients)
