"""Who is heard when, and how often, under each waiting policy: the oracles of asynchronous.md that need no training."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations
from math import lcm
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from toy_problems import clients, simulate, steps

import turnout
from turnout import Algorithm, AsyncFedAvg, Crashes, FedAvg, FedBuff, FedFix, Full, Links, Policy, Schedule, devices
from turnout.clients.population import Population
from turnout.core.errors import UserError
from turnout.record.history import History
from turnout.server.durations import Durations
from turnout.server.policy import rates

TAU = np.array([1.0, 0.8, 0.6, 0.4, 0.2])  # F80 with five clients, in seconds: 5, 4, 3, 2, 1 ticks
WORK = steps(1, 0.1)

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


def alike(size: int, delays: devices.Devices, **columns: Any) -> Population:
    return clients([0.0] * size, "equal", devices=delays, **columns)


def f80(size: int = 5, **columns: Any) -> Population:
    return alike(size, devices.fx(80, size), **columns)


def random_delays(means: Any = TAU, **columns: Any) -> Population:
    return alike(len(means), devices.exponential(means), **columns)


def durations(people: Population) -> Durations:
    return Durations.of(people, WORK)


def unbiased(policy: Policy, people: Population) -> FloatArray:
    """d_i = p_i / f_i."""
    return np.asarray(people.base_importance / rates(policy, durations(people)))


def weights(schedule: Schedule, d: FloatArray, first: int = 0) -> FloatArray:
    """`[rounds, N]` omega_i(n) of a schedule that begins with round `first`."""
    omega = np.zeros((schedule.rounds, schedule.clients))
    np.add.at(omega, (schedule.round - first, schedule.client), d[schedule.client])
    return omega


def ticks(seconds: FloatArray, a_second: int = 5) -> list[int]:
    whole = np.rint(seconds * a_second)
    np.testing.assert_allclose(whole, seconds * a_second, rtol=0, atol=1e-9)
    return [int(value) for value in whole]


# O1, O14: over one window everybody counts as much as meant


@pytest.mark.parametrize(
    ("policy", "window"),
    [
        (Policy(), 1),
        (Policy(count=1), 137),
        (Policy(window=0.5), 2),
        (Policy(window=0.2), 60),
        (Policy(window=1.0), 1),
        (Policy(count=2), 56),
        (Policy(count=3), 8),
        (Policy(count=4), None),
        (Policy(count=5), 1),
    ],
)
def test_everybody_counts_as_meant_over_one_window(policy: Policy, window: int | None) -> None:
    """O1: 1/W sum_n omega_i(n) = p_i, for unequal p too; the windows are those of tables 4.2 and O4."""
    people = clients([0.0] * 5, [0.1, 0.3, 0.2, 0.15, 0.25], devices=devices.fx(80, 5))
    schedule = policy.schedule(durations(people), rounds=600)
    found = schedule.period()
    assert found is not None
    first, last = found
    assert last - first == (window or last - first)
    once = weights(schedule.between(first + 1, last + 1), unbiased(policy, people), first + 1)
    np.testing.assert_allclose(once.mean(0), people.base_importance, rtol=1e-12)
    assert schedule.between(last + 1, 2 * last - first + 1).client.tolist() == (
        schedule.between(first + 1, last + 1).client.tolist()
    ), "it repeats"


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_everybody_counts_as_meant_in_restart_mode(count: int) -> None:
    """O1: 137 arrivals in 60 ticks, after which all start together again: so 137 rounds hold `count` such windows."""
    policy, people = Policy(count=count, restart=True), f80()
    schedule = policy.schedule(durations(people), rounds=137)
    assert schedule.counts.tolist() == [count * times for times in (12, 15, 20, 30, 60)]
    assert ticks(schedule.closed_at)[-1] == 60 * count
    np.testing.assert_allclose(weights(schedule, unbiased(policy, people)).mean(0), [0.2] * 5, rtol=1e-12)


def test_period_of_restarting_clients_repeats() -> None:
    """In restart mode a client is busy since its own arrival, not since the flush: the period found must repeat."""
    schedule = Policy(count=2, restart=True).schedule(durations(f80()), rounds=600)
    found = schedule.period()
    assert found is None or found[1] - found[0] == 137


def test_asynchronous_window_of_five_clients() -> None:
    """O1: nu = 60 ticks, W = 137, and the numbers printed there."""
    people, policy = f80(), Policy(count=1)
    schedule = policy.schedule(durations(people), rounds=137)
    assert schedule.counts.tolist() == [12, 15, 20, 30, 60]
    assert ticks(schedule.closed_at)[-1] == 60
    assert unbiased(policy, people) == pytest.approx([2.2833333, 1.8266667, 1.37, 0.9133333, 0.4566667], abs=1e-7)
    assert policy.schedule(durations(people), rounds=1000).staleness.max() == 12


def test_fedfix_window_of_five_clients() -> None:
    """O1: windows of half a unit."""
    people, policy = f80(), Policy(window=0.5)
    assert durations(people).mean_windows(0.5).tolist() == [2, 2, 2, 1, 1]
    assert unbiased(policy, people) == pytest.approx([0.4, 0.4, 0.4, 0.2, 0.2], rel=1e-14)
    schedule = policy.schedule(durations(people), rounds=100)
    assert schedule.staleness.max() == 1
    assert schedule.counts.tolist() == [50, 50, 50, 100, 100]


@pytest.mark.parametrize(
    ("algorithm", "rounds", "d", "oldest"),
    [
        (AsyncFedAvg(WORK), 137, [2.2833333, 1.8266667, 1.37, 0.9133333, 0.4566667], 12),
        (FedFix(WORK), 10, [0.4, 0.4, 0.4, 0.2, 0.2], 1),
        (FedFix(WORK, window=0.5), 10, [0.4, 0.4, 0.4, 0.2, 0.2], 1),
        (FedBuff(WORK, buffer_size=2, mode="restart"), 137, [1.1416667, 0.9133333, 0.685, 0.4566667, 0.2283333], None),
    ],
)
def test_algorithms_apply_the_unbiased_weights(
    algorithm: Algorithm, rounds: int, d: list[float], oldest: int | None
) -> None:
    """O1 in a run: the weights applied, what the audit makes of them, and the oldest update."""
    ended = simulate(algorithm, f80(), rounds)
    jobs = ended.jobs()
    used = jobs["weight"] != 0
    assert jobs["weight"][used] == pytest.approx(np.array(d)[jobs["client"][used]], abs=1e-7)
    assert ended.audit.realised == pytest.approx([0.2] * 5, rel=1e-12)
    assert ended.audit.chi_square == pytest.approx(0, abs=1e-20)
    assert oldest is None or max(ended.audit.staleness) == oldest


def test_two_clients_of_figure_4_1() -> None:
    """O14: client 0 twice as fast and the window its delay: it is in every round, client 1 in every second one."""
    people = clients([0.0, 0.0], [0.3, 0.7], devices=devices.table([1.0, 2.0]))
    policy = Policy(window=1.0)
    schedule = policy.schedule(durations(people), rounds=6)
    heard = [schedule.client[schedule.round == n].tolist() for n in range(6)]
    assert heard == [[0], [0, 1], [0], [0, 1], [0], [0, 1]]
    assert unbiased(policy, people) == pytest.approx([0.3, 1.4], rel=1e-14)


# O2: the first events


def rows(schedule: Schedule, a_second: int = 5) -> list[tuple[int, int, int]]:
    """(tick of use, client, version it had received)."""
    return list(
        zip(ticks(schedule.closed_at, a_second), schedule.client.tolist(), schedule.version.tolist(), strict=True)
    )


def test_first_events_of_asynchronous_fedavg() -> None:
    schedule = Policy(count=1).schedule(durations(f80()), rounds=10)
    assert rows(schedule) == [
        (1, 4, 0), (2, 3, 0), (2, 4, 1), (3, 2, 0), (3, 4, 3),
        (4, 1, 0), (4, 3, 2), (4, 4, 5), (5, 0, 0), (5, 4, 8),
    ]  # fmt: skip
    assert schedule.round.tolist() == list(range(10))


def test_first_events_of_fedfix() -> None:
    schedule = Policy(window=0.5).schedule(durations(f80()), rounds=4)
    closes = [
        {(client, version) for tick, client, version in rows(schedule, 10) if tick == 5 * number}
        for number in range(1, 5)
    ]
    assert closes == [
        {(3, 0), (4, 0)},
        {(0, 0), (1, 0), (2, 0), (3, 1), (4, 1)},
        {(3, 2), (4, 2)},
        {(0, 2), (1, 2), (2, 2), (3, 3), (4, 3)},
    ]


def test_first_events_of_fedbuff() -> None:
    """Waiting clients: of three that arrive at tick 4, the two with the smaller ids are used first."""
    schedule = Policy(count=2).schedule(durations(f80()), rounds=5)
    assert rows(schedule) == [
        (2, 4, 0), (2, 3, 0), (3, 2, 0), (3, 4, 1), (4, 1, 0), (4, 3, 1), (5, 4, 2), (5, 0, 0), (6, 2, 2), (6, 3, 3),
    ]  # fmt: skip


def test_ties_are_broken_by_client() -> None:
    """3.9: under F0 all arrive at once, are used one by one in order of id, and are M - 1 rounds stale for ever."""
    schedule = Policy(count=1).schedule(durations(alike(4, devices.fx(0, 4))), rounds=12)
    assert schedule.client.tolist() == [0, 1, 2, 3] * 3
    assert schedule.closed_at.tolist() == [1.0] * 4 + [2.0] * 4 + [3.0] * 4
    assert schedule.staleness.tolist() == [0, 1, 2, 3] + [3] * 8


# O3: asynchronous FedAvg over a finite time


@pytest.mark.parametrize("size", [5, 10, 20])
def test_updates_by_a_time_are_its_whole_multiples(size: int) -> None:
    """O3: floor(t / tau_i), in integers; the moment itself included."""
    people = f80(size)
    delays = 5 * (size - 1) - 4 * np.arange(size)  # ticks
    for tick in (1, delays[-1], 5 * (size - 1), 7 * delays[1], 1000):
        schedule = Policy(count=1).schedule(durations(people), seconds=int(tick) / (5 * (size - 1)))
        assert schedule.counts.tolist() == (tick // delays).tolist()
        assert schedule.rounds == (tick // delays).sum()


@pytest.mark.parametrize(
    ("size", "a_second", "least", "most"),
    [(10, 21.2806, 0.4256, 2.1281), (20, 41.3080, 0.4131, 2.0654), (50, 101.6107, 0.4064, 2.0322)],
)
def test_rounds_a_second_and_weights_of_f80(size: int, a_second: float, least: float, most: float) -> None:
    """O3: sum_i 1 / tau_i rounds a second; the range of d_i."""
    people, policy = f80(size), Policy(count=1)
    tau = 1 - 0.8 * np.arange(size) / (size - 1)
    assert (1 / tau).sum() == pytest.approx(a_second, abs=5e-5)
    schedule = policy.schedule(durations(people), seconds=400.0)
    assert 400 * a_second - size <= schedule.rounds <= 400 * a_second + 0.05  # each client's last job is unfinished
    d = unbiased(policy, people)
    assert [d.min(), d.max()] == pytest.approx([least, most], abs=5e-5)
    assert d.argmin() == size - 1
    assert d.argmax() == 0


@pytest.mark.parametrize(("size", "seconds", "oldest"), [(10, 500.0, 25), (20, 200.0, 44), (50, 200.0, 108)])
def test_largest_staleness_of_f80(size: int, seconds: float, oldest: int) -> None:
    """O3: 25, 44 and 108 rounds. The horizon is not said there; for 20 and 50 clients longer ones reach 46 and 110."""
    schedule = Policy(count=1).schedule(durations(f80(size)), seconds=seconds)
    assert schedule.staleness.max() == oldest
    tau = 1 - 0.8 * np.arange(size) / (size - 1)
    for client in range(size):  # between two updates of i, client j has at most floor(tau_i / tau_j) + 1 of its own
        others = np.floor(tau[client] / np.delete(tau, client) + 1e-9) + 1
        assert schedule.staleness[schedule.client == client].max() <= others.sum()


def test_nobody_waits_for_the_window_of_ten_clients() -> None:
    """O3: W = 79 656 329 334 rounds; no period shows, and the weights are known nevertheless."""
    delays = [45 - 4 * i for i in range(10)]
    assert sum(lcm(*delays) // delay for delay in delays) == 79_656_329_334
    people, policy = f80(10), Policy(count=1)
    assert policy.schedule(durations(people), rounds=3000).period() is None
    np.testing.assert_allclose(unbiased(policy, people) / delays, unbiased(policy, people)[0] / 45, rtol=1e-12)


# O4: FedBuff


@pytest.mark.parametrize(
    ("count", "rounds", "length", "counts", "d", "oldest"),
    [
        (2, 56, 60, [12, 15, 20, 27, 38], [0.9333333, 0.7466667, 0.56, 0.4148148, 0.2947368], 5),
        (3, 8, 16, [3, 4, 4, 5, 8], [0.5333333, 0.4, 0.4, 0.32, 0.2], None),
        (5, 1, 5, [1, 1, 1, 1, 1], [0.2] * 5, 0),
    ],
)
def test_waiting_fedbuff_of_five_clients(
    count: int, rounds: int, length: int, counts: list[int], d: list[float], oldest: int | None
) -> None:
    """O4: period in rounds and in ticks, who is how often in it, weights, staleness."""
    people, policy = f80(), Policy(count=count)
    schedule = policy.schedule(durations(people), rounds=400)
    found = schedule.period()
    assert found is not None
    first, last = found
    once = schedule.between(first + 1, last + 1)
    assert once.rounds == rounds
    assert once.counts.tolist() == counts
    closes = np.unique(np.stack([schedule.round, ticks(schedule.closed_at)]), axis=1)[1]
    assert closes[last] - closes[first] == length
    assert unbiased(policy, people) == pytest.approx(d, abs=1e-7)
    assert oldest is None or schedule.staleness.max() == oldest


@pytest.mark.parametrize(
    ("size", "restart", "slowest", "fastest", "a_second"),
    [(20, False, 0.2501, 1.0, 3.187), (20, True, 0.2420, 1.2105, 4.131), (50, False, 0.1057, 0.4552, 9.029)],
)
def test_fedbuff_rates_of_f80(size: int, restart: bool, slowest: float, fastest: float, a_second: float) -> None:
    """O4: updates a round of the slowest and the fastest client, rounds a second, with ten in the buffer."""
    people, policy = f80(size), Policy(count=10, restart=restart)
    schedule = policy.schedule(durations(people), seconds=2000.0)
    settled = schedule.between(schedule.rounds // 2, schedule.rounds)
    assert settled.rates[[0, -1]] == pytest.approx([slowest, fastest], abs=4e-4)
    assert schedule.rounds / schedule.seconds == pytest.approx(a_second, abs=2e-3)
    assert settled.rates.sum() == pytest.approx(10, rel=1e-12)
    known = rates(policy, durations(people))
    assert known.sum() == pytest.approx(10, rel=1e-12)
    assert known[[0, -1]] == pytest.approx([slowest, fastest], rel=0.01)  # counted in 100 updates of the slowest
    if restart:
        assert known[[0, -1]] == pytest.approx([slowest, fastest], abs=2e-4)


def test_equal_clients_share_the_buffer_equally() -> None:
    """3.5: f_i = c / M, where c divides M. Elsewhere ties go by client id, and the counted rates say so: of five equal
    clients and c = 2, clients 3 and 4 take turns in being left over (the rule of 3.5 would need random ties)."""
    policy = Policy(count=2)
    assert rates(policy, durations(alike(6, devices.fixed(1.0)))) == pytest.approx([1 / 3] * 6)
    assert rates(policy, durations(alike(5, devices.fixed(1.0)))) == pytest.approx([0.5, 0.5, 0.5, 0.25, 0.25])


# O6, O7: exponential delays


def test_exponential_arrivals_are_independent_draws() -> None:
    """O6: client i with probability pi_i in each round, whatever was before; moments of omega."""
    people, policy, rounds = random_delays(), Policy(count=1), 40_000
    share = (1 / TAU) / (1 / TAU).sum()
    p = people.base_importance
    assert unbiased(policy, people) == pytest.approx(p / share, rel=1e-12)
    schedule = policy.schedule(durations(people), rounds=rounds)
    omega = weights(schedule, unbiased(policy, people))
    error = 4 / np.sqrt(rounds)
    np.testing.assert_array_less(abs(schedule.rates - share), error * np.sqrt(share * (1 - share)))
    np.testing.assert_array_less(abs(omega.mean(0) - p), error * np.sqrt(p**2 * (1 - share) / share))
    np.testing.assert_allclose(omega.var(0), p**2 * (1 - share) / share, rtol=0.06)
    covariance = np.cov(omega.T)
    off = ~np.eye(5, dtype=bool)
    np.testing.assert_allclose(covariance[off], -np.outer(p, p)[off], rtol=0.06)
    now, before = omega[1:] / omega.std(0), omega[:-1] / omega.std(0)
    lagged = (now - now.mean(0)).T @ (before - before.mean(0)) / len(now)
    np.testing.assert_array_less(abs(lagged), error)
    assert np.diff(schedule.closed_at).mean() == pytest.approx(1 / (1 / TAU).sum(), rel=error)


@pytest.mark.parametrize("number", [0, 1, 7])
def test_exponential_arrivals_are_fair_in_every_single_round(number: int) -> None:
    """O6: E[omega_i(n)] = p_i in each round by itself: over many worlds, not over time."""
    people, policy, worlds = random_delays(), Policy(count=1), 3000
    share = (1 / TAU) / (1 / TAU).sum()
    heard = np.zeros(5)
    for seed in range(worlds):
        schedule = policy.schedule(durations(replace(people, seed=seed)), rounds=number + 1)
        heard[schedule.client[-1]] += 1
    np.testing.assert_array_less(abs(heard / worlds - share), 4 * np.sqrt(share * (1 - share) / worlds))


def test_fedfix_weights_under_exponential_delays() -> None:
    """O7: d_i = p_i / (1 - exp(-window / tau_i)), not ceil(tau_i / window) p_i."""
    people, policy, rounds = random_delays(), Policy(window=0.5), 20_000
    expected = [2.541494, 2.151747, 1.768654, 1.401551, 1.089425]
    assert unbiased(policy, people) * 5 == pytest.approx(expected, abs=5e-7)
    schedule = policy.schedule(durations(people), rounds=rounds)
    f = 1 / np.array(expected)
    np.testing.assert_array_less(abs(schedule.rates - f), 4 * np.sqrt(f * (1 - f) / rounds))
    assert (abs(schedule.rates - 1 / np.array([2, 2, 2, 1, 1])) > 0.03).all()


def expected_longest(means: FloatArray) -> float:
    """E max of independent exponentials, by inclusion and exclusion."""
    sizes = range(1, len(means) + 1)
    return float(sum((-1) ** (k + 1) / sum(1 / m for m in chosen) for k in sizes for chosen in combinations(means, k)))


@pytest.mark.parametrize(("means", "expected"), [(TAU, 1.537705), (np.ones(10), 2.928968), (np.ones(20), 3.597740)])
def test_synchronous_rounds_under_exponential_delays(means: FloatArray, expected: float) -> None:
    """O7: E max T_i, the harmonic number H_M for clients alike."""
    if len(means) <= 10:
        assert expected_longest(means) == pytest.approx(expected, abs=5e-7)
    else:
        assert sum(1 / k for k in range(1, len(means) + 1)) == pytest.approx(expected, abs=5e-7)
    schedule = Policy().schedule(durations(random_delays(means)), rounds=5000)
    closes = schedule.closed_at[:: len(means)]
    lengths = np.diff(closes, prepend=0.0)
    assert abs(lengths.mean() - expected) <= 4 * lengths.std() / np.sqrt(len(lengths))


# O8: alpha, beta, gamma


def second_moments(policy: Policy, people: Population, rounds: int) -> tuple[FloatArray, FloatArray]:
    """Mean over rounds of omega_i omega_j `[N, N]`, and of omega_i `[N]`."""
    omega = weights(policy.schedule(durations(people), rounds=rounds), unbiased(policy, people))
    return omega.T @ omega / rounds, omega.mean(0)


def test_synchronous_moments() -> None:
    """O8: alpha = 1 and gamma_i = 0, whatever the delays."""
    for people in (f80(), random_delays()):
        moments, q = second_moments(Policy(), people, 50)
        np.testing.assert_allclose(moments, np.outer(q, q), rtol=1e-12)


@pytest.mark.parametrize("people", [f80(), random_delays()], ids=["f80", "exponential"])
def test_asynchronous_moments(people: Population) -> None:
    """O8: alpha = 0, gamma_i = E omega_i^2 = d_i q_i <= beta q_i with beta = max d_i <= tau_M / tau_0, and so
    E |sum_i omega_i x_i|^2 = sum_i gamma_i |x_i|^2."""
    policy, rounds = Policy(count=1), 137 * 20
    moments, q = second_moments(policy, people, rounds)
    d = unbiased(policy, people)
    gamma = np.diag(moments)
    assert np.count_nonzero(moments - np.diag(gamma)) == 0
    np.testing.assert_allclose(gamma, d * q, rtol=1e-12)
    assert (gamma <= d.max() * q * (1 + 1e-12)).all()
    assert d.max() == pytest.approx(2.2833333, abs=1e-7)
    assert d.max() <= TAU.max() / TAU.min()
    x = np.random.default_rng(0).normal(size=(5, 3))
    omega = weights(policy.schedule(durations(people), rounds=rounds), d)
    moved = np.square(omega @ x).sum(1).mean()
    assert moved == pytest.approx(gamma @ np.square(x).sum(1), rel=1e-12)


def test_fedfix_moments() -> None:
    """O8: with fixed delays each round is certain: over worlds alpha = 1 and gamma_i = 0; with exponential ones the
    clients of a round are independent: alpha = 1 still, and gamma_i = d_i^2 f_i (1 - f_i)."""
    policy = Policy(window=0.5)
    d = unbiased(policy, f80())
    omegas = [weights(policy.schedule(durations(replace(f80(), seed=s)), rounds=6), d) for s in range(5)]
    assert all(np.array_equal(omega, omegas[0]) for omega in omegas)
    np.testing.assert_allclose(omegas[0].sum(1), [0.4, 1.6] * 3, rtol=1e-12)
    people, rounds = random_delays(), 40_000
    moments, q = second_moments(policy, people, rounds)
    f, d = rates(policy, durations(people)), unbiased(policy, people)
    off = ~np.eye(5, dtype=bool)
    np.testing.assert_allclose(moments[off] / np.outer(q, q)[off], 1.0, atol=4 * (1 / f).max() / np.sqrt(rounds))
    np.testing.assert_allclose(np.diag(moments) - q**2, d**2 * f * (1 - f), rtol=0.05)


# the same events by three ways


class Erratic:
    """Online three seconds in four, client by client."""

    clock, probability = "seconds", None

    def online(self, seed: int, ids: IntArray, at: float) -> NDArray[np.bool_]:
        return (np.asarray(at) + ids) % 4 < 3

    def online_until(self, seed: int, ids: IntArray, at: float) -> FloatArray:
        return np.asarray(at + 3 - (np.asarray(at) + ids) % 4, np.float64)

    def online_from(self, seed: int, ids: IntArray, at: float) -> FloatArray:
        return np.asarray(at + 4 - (np.asarray(at) + ids) % 4, np.float64)


def uses(history: History) -> list[tuple[float, int, int, int]]:
    """(arrival, round, client, version) of every update that counted."""
    assert history.jobs is not None
    jobs = history.jobs.read()
    used = jobs["weight"] != 0
    columns = (jobs["ended_at"], jobs["round"] - 1, jobs["client"], jobs["version"])
    return list(zip(*(column[used].tolist() for column in columns), strict=True))


def events(schedule: Schedule) -> list[tuple[float, int, int, int]]:
    columns = (schedule.arrived_at, schedule.round, schedule.client, schedule.version)
    return list(zip(*(column.tolist() for column in columns), strict=True))


ALGORITHMS: dict[str, Algorithm] = {
    "async": AsyncFedAvg(WORK),
    "fedasync": turnout.algorithms.FedAsync(WORK),
    "fedfix": FedFix(WORK, window=0.3),
    "fedbuff": FedBuff(WORK, buffer_size=3),
    "all": FedBuff(WORK, buffer_size=5),
    "restart": FedBuff(WORK, buffer_size=3, mode="restart"),
    "many": FedBuff(WORK, buffer_size=8, mode="restart"),
}
WORLDS: dict[str, Population] = {
    "f80": f80(),
    "ties": alike(5, devices.fx(0, 5)),
    "exponential": random_delays(),
    "by step": alike(
        5, devices.lognormal(0.1, 0.8, each="job", per="step"), links=Links(up=640.0, latency=0.05), model_bytes=8
    ),
}


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_schedule_is_what_a_run_does(name: str, world: str) -> None:
    """The fast loop, a rehearsal and a real run have the same updates in the same rounds, on the same versions."""
    algorithm, people, rounds = ALGORITHMS[name], WORLDS[world], 40
    fast = turnout.schedule(replace(algorithm), people, rounds)
    assert fast.rounds == rounds
    history = History()
    rehearsed = turnout.rehearse(replace(algorithm), people, rounds, observers=[history])
    assert events(fast) == uses(history)
    assert fast.seconds == rehearsed.now
    ended = simulate(replace(algorithm), people, rounds)
    assert events(fast) == uses(ended.history)
    assert fast.closed_at.tolist() == ended.rounds()["time"][fast.round + 1].tolist()


def test_synchronous_schedule_is_what_a_run_does() -> None:
    """FedAvg with everybody, by the fast loop where it has one."""
    algorithm, people = FedAvg(WORK, Full()), random_delays()
    schedule = turnout.schedule(algorithm, people, 10)
    assert sorted(events(schedule)) == sorted(uses(simulate(algorithm, people, 10).history))
    assert schedule.staleness.max() == 0


@pytest.mark.parametrize("name", ["async", "fedfix", "fedbuff", "restart"])
def test_schedule_of_unreliable_clients_is_what_a_run_does(name: str) -> None:
    """Crashes and absence: by rehearsal."""
    algorithm = ALGORITHMS[name]
    people = random_delays(crashes=Crashes(0.3), availability=Erratic())
    rehearsed = turnout.schedule(replace(algorithm), people, 60)
    ended = simulate(replace(algorithm), people, 60)
    assert set(ended.audit.failures) == {"crashed", "offline"}
    assert events(rehearsed) == uses(ended.history)
    assert rehearsed.seconds == ended.server.now


@pytest.mark.parametrize("algorithm", [AsyncFedAvg(WORK, max_staleness=4), FedFix(WORK, window=0.3, max_staleness=1)])
def test_schedule_has_no_rows_of_dropped_updates(algorithm: Algorithm) -> None:
    """A row for each update that counts: those beyond `max_staleness` do not."""
    schedule = turnout.schedule(replace(algorithm), f80(), 60)
    ended = simulate(replace(algorithm), f80(), 60)
    assert ended.audit.events["stale_update"] > 0
    assert events(schedule) == uses(ended.history)


def test_schedule_of_growing_windows_is_what_a_run_does() -> None:
    algorithm = FedFix(WORK, window=0.2, window_growth=1.1, window_limit=0.7)
    schedule = turnout.schedule(replace(algorithm), f80(), 30)
    assert events(schedule) == uses(simulate(replace(algorithm), f80(), 30).history)
    assert len(set(schedule.staleness.tolist())) > 2


@dataclass(frozen=True)
class Bad:
    policy: Policy
    rounds: int | None
    message: str


@pytest.mark.parametrize(
    "bad",
    [
        Bad(Policy(count=1), None, "give rounds or seconds"),
        Bad(Policy(count=6), 10, "6 updates"),
        Bad(Policy(count=0), 10, "0 updates"),
    ],
    ids=lambda bad: bad.message,
)
def test_schedules_that_cannot_be(bad: Bad) -> None:
    with pytest.raises(UserError, match=bad.message):
        bad.policy.schedule(durations(f80()), rounds=bad.rounds)


def test_part_of_a_schedule() -> None:
    """`between` keeps the rounds asked for, empty ones counted."""
    schedule = Policy(window=0.2).schedule(durations(alike(2, devices.fixed(1.0))), rounds=20)
    assert schedule.rounds == 20
    assert schedule.rates.tolist() == [0.2, 0.2]
    part = schedule.between(3, 11)
    assert part.rounds == 8
    assert part.round.tolist() == [4, 4, 9, 9]
    assert part.rates.tolist() == [0.25, 0.25]
    assert len(part) == 4
