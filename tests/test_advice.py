"""What `turnout plan` computes, against closed forms and against schedules."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import turnout
from turnout import LocalSGD, Policy, Population, devices
from turnout.plan import advice
from turnout.server.durations import Durations

LOCAL = LocalSGD(0.1)


def people(clients: int = 5, **columns: Any) -> Population:
    """The FX scenario with F80, unless other devices are given; everybody counts the same."""
    data = turnout.datasets.load("quadratics", clients=clients)
    columns = {"devices": devices.fx(80, clients), **columns}
    return Population.of(data, clients, "natural", test="none", importance="equal", **columns)


def rows(population: Population) -> dict[str, advice.Prospect]:
    return {row.policy: row for row in advice.outlook(population, LOCAL).policies}


@pytest.fixture(scope="module")
def five() -> dict[str, advice.Prospect]:
    return rows(people())


TAU = np.array([1.0, 0.8, 0.6, 0.4, 0.2])


def test_every_policy_is_there(five: dict[str, advice.Prospect]) -> None:
    assert list(five) == [
        "fedavg all", "async_fedavg", "fedfix 0.2 s", "fedfix 0.5 s", "fedfix 0.8 s", "fedfix 1 s", "fedbuff 1 wait",
        "fedbuff 2 wait", "fedbuff 3 wait", "fedbuff 1 restart", "fedbuff 2 restart", "fedbuff 3 restart",
    ]  # fmt: skip
    assert five["fedbuff 2 wait"].options == {"buffer_size": 2, "mode": "wait"}
    assert five["fedfix 0.5 s"].options == {"window": 0.5}


@pytest.mark.parametrize(
    ("policy", "rounds"),
    [
        ("fedavg all", 1.0),
        ("async_fedavg", (1 / TAU).sum()),
        ("fedfix 0.5 s", 2.0),
        ("fedbuff 2 wait", 56 / 12),  # 60 ticks of 0.2 s
        ("fedbuff 3 wait", 8 / 3.2),
        ("fedbuff 2 restart", (1 / TAU).sum() / 2),
    ],
)
def test_rounds_an_hour(five: dict[str, advice.Prospect], policy: str, rounds: float) -> None:
    row = five[policy]
    assert row.rounds_per_hour == pytest.approx(3600 * rounds)
    assert row.updates_per_hour == pytest.approx(row.rounds_per_hour * row.participants_per_round)


@pytest.mark.parametrize(
    ("policy", "window", "staleness"),
    [
        ("fedavg all", 1, 0),
        ("async_fedavg", 137, 12),
        ("fedfix 0.5 s", 2, 1),
        ("fedfix 1 s", 1, 0),
        ("fedbuff 2 wait", 56, 5),
        ("fedbuff 3 wait", 8, 2),
    ],
)
def test_windows_and_staleness(five: dict[str, advice.Prospect], policy: str, window: int, staleness: int) -> None:
    assert five[policy].fairness_window == window
    assert five[policy].staleness_max == staleness


def test_naive_bias(five: dict[str, advice.Prospect]) -> None:
    """chi-square of weights proportional to speed, to windows, and to counts over a period."""
    fast = (1 / TAU) / (1 / TAU).sum()
    expected = {
        "fedavg all": np.full(5, 0.2),
        "async_fedavg": fast,
        "fedfix 0.5 s": np.array([0.5, 0.5, 0.5, 1, 1]) / 3.5,
        "fedbuff 2 wait": np.array([12, 15, 20, 27, 38]) / 112,
        "fedbuff 2 restart": fast,
    }
    for policy, q in expected.items():
        assert five[policy].chi_square == pytest.approx(((0.2 - q) ** 2 / q).sum(), abs=1e-12)
        assert five[policy].ratio_max == pytest.approx(q.max() / 0.2)
        assert five[policy].chance == 0
    assert five["async_fedavg"].chi_square == pytest.approx(0.37)
    assert five["async_fedavg"].most_counted == 4


def test_mean_staleness_and_idle_time(five: dict[str, advice.Prospect]) -> None:
    """Every client has one job at a time: updates a round times (staleness + 1) is N, less the restarts in a round."""
    for name, row in five.items():
        count = row.participants_per_round
        expected = 4 / count if name.endswith("restart") else 5 / count - 1
        assert row.staleness_mean == pytest.approx(expected, rel=0.01, abs=1e-9)
    assert five["fedavg all"].idle_share == pytest.approx(1 - TAU.mean())
    assert five["async_fedavg"].idle_share == pytest.approx(0, abs=1e-12)
    busy = TAU / np.array([1, 1, 1, 0.5, 0.5])
    assert five["fedfix 0.5 s"].idle_share == pytest.approx(1 - busy.mean())


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_restarting_clients_repeat_after_the_window(count: int) -> None:
    """Derived, not in the paper: arrivals of a cycle, in groups of `count`."""
    durations = Durations.of(people(), LOCAL)
    window = advice._fairness_window(Policy(count=count, restart=True), durations, None)
    assert window == 137 / math.gcd(137, count)
    events = Policy(count=count, restart=True).schedule(durations, rounds=3 * int(window))
    by_round = events.client.reshape(3, int(window), count)
    assert (by_round == by_round[0]).all()


def test_windows_beyond_a_million_are_infinite() -> None:
    row = rows(people(10))["async_fedavg"]  # 79 656 329 334 rounds
    assert row.fairness_window == math.inf
    assert row.rounds_per_hour == pytest.approx(3600 * 21.2806, rel=1e-5)


def test_equal_clients_are_not_biased() -> None:
    """Except by a buffer that does not divide them: with ties broken by number, client 0 is always among the first."""
    found = rows(people(devices=devices.fixed(2.0)))
    assert max(row.chi_square for name, row in found.items() if not name.endswith("wait")) < 1e-12
    assert found["fedbuff 1 wait"].chi_square < 1e-12
    assert found["fedbuff 3 wait"].ratio_max == pytest.approx(5 / 3)
    assert found["fedbuff 3 wait"].most_counted == 0


def test_random_durations_are_told_from_bias() -> None:
    """Exponential clients of one mean: what is counted differs by chance only, and is not called a bias."""
    outlook = advice.outlook(people(40, devices=devices.exponential(1.0)), LOCAL)
    assert all(row.fairness_window is None for row in outlook.policies)
    assert not any(row.biased for row in outlook.policies)
    assert any(row.by_chance for row in outlook.policies)
    assert "beyond what chance explains" in outlook.advice[1]


def test_unreliable_clients_are_rehearsed() -> None:
    """Client 0 crashes every other time: even synchronous rounds hear it half of the time."""
    crashes = turnout.Crashes(np.array([0.5, 0, 0, 0, 0]))
    outlook = advice.outlook(people(devices=devices.fixed(1.0), crashes=crashes), LOCAL)
    sync = outlook.policies[0]
    q = np.array([0.5, 1, 1, 1, 1]) / 4.5
    assert not outlook.reliable
    assert sync.chi_square == pytest.approx(((0.2 - q) ** 2 / q).sum(), rel=0.3)
    assert sync.participants_per_round == pytest.approx(4.5, rel=0.02)
    assert sync.fairness_window is None
    assert "corrects this by measured rates" in outlook.advice[1]


def test_policies_that_cannot_work_say_why() -> None:
    """Deaths nobody learns of: a wait for an answer never ends, a window does."""
    world: dict[str, Any] = {"crashes": turnout.Crashes(0.3), "detection": turnout.Detection("none")}
    outlook = advice.outlook(people(**world), LOCAL)
    refused = {row.policy for row in outlook.policies if row.refused}
    assert "fedavg all" in refused
    assert not any(policy.startswith("fedfix") for policy in refused)
    assert outlook.advice[-1].startswith("Not possible here: fedavg all")


def test_advice_names_the_favoured_client() -> None:
    second, first = advice.outlook(people(), LOCAL).advice
    assert "async_fedavg would count client 4 2.19 times as much as intended" in first
    assert "weight_rule=unbiased, the default, removes this bias" in first
    assert "async_fedavg has 11.4 times as many, with a staleness of up to 12" in second


def test_unbiased_weights_do_remove_it() -> None:
    """The sentence is true: a rehearsal with the default weights ends as intended."""
    from turnout.record.audit import Audit

    audit = Audit()
    turnout.rehearse(turnout.AsyncFedAvg(LOCAL), people(), rounds=137 * 20, observers=[audit])
    assert audit.findings.chi_square < 1e-4


def test_a_thousand_clients_do_not_take_long() -> None:
    """The horizon is a number of updates, whatever the durations."""
    slow = devices.lognormal(3600.0, 0.8)
    found = rows(people(1000, devices=slow))
    assert max(row.updates_watched for row in found.values()) < 60_000
    assert found["async_fedavg"].fairness_window == math.inf


def test_one_client() -> None:
    outlook = advice.outlook(people(1), LOCAL)
    assert all(row.chi_square == pytest.approx(0) for row in outlook.policies)
    assert outlook.advice[1].startswith("Under none of these policies")
