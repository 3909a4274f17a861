"""How often clients are heard, known and measured, and what an old update is worth."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support import population
from turnout import LocalSGD, Policy, devices
from turnout.aggregation.staleness import discount
from turnout.algorithms import AsyncFedAvg
from turnout.core.errors import UserError
from turnout.server.durations import Durations
from turnout.server.policy import Gaps, rates

TAU = np.array([1.0, 0.8, 0.6, 0.4, 0.2])


def durations(model: devices.Devices) -> Durations:
    return Durations.of(population((4,) * 5, devices=model), LocalSGD(0.1))


def gaps(clients: int) -> Gaps:
    measured = Gaps()
    measured.begin(clients)
    return measured


@pytest.mark.parametrize("model", [devices.fx(80, 5), devices.exponential(TAU)], ids=["f80", "exponential"])
def test_rates_in_closed_form(model: devices.Devices) -> None:
    """asynchronous.md 3.2 and 3.5."""
    work, speed = durations(model), 1 / TAU / (1 / TAU).sum()
    assert rates(Policy(), work).tolist() == [1] * 5
    assert rates(Policy(count=5), work).tolist() == [1] * 5
    assert rates(Policy(count=1), work) == pytest.approx(speed, rel=1e-12)
    assert rates(Policy(count=1, restart=True), work) == pytest.approx(speed, rel=1e-12)
    assert rates(Policy(count=7, restart=True), work) == pytest.approx(7 * speed, rel=1e-12)
    assert rates(Policy(window=0.5), work) == pytest.approx(1 / work.mean_windows(0.5), rel=1e-14)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_counted_rates_of_fixed_durations_are_exact(count: int) -> None:
    work = durations(devices.fx(80, 5))
    long = Policy(count=count).schedule(work, rounds=40_000)
    assert rates(Policy(count=count), work).sum() == pytest.approx(count, rel=1e-12)
    assert rates(Policy(count=count), work) == pytest.approx(long.rates, abs=2e-3)


def test_counted_rates_of_random_durations() -> None:
    """Within a few per cent of the long-run ones."""
    work = durations(devices.exponential(TAU))
    long = Policy(count=2).schedule(work, rounds=30_000)
    assert rates(Policy(count=2), work) == pytest.approx(long.rates, rel=0.05)


def test_the_first_update_counts_as_if_all_were_equally_fast() -> None:
    """N / |S|, whenever it comes."""
    measured = gaps(6)
    assert measured.inverse_rates(0, np.array([2, 5])).tolist() == [3, 3]
    assert measured.inverse_rates(9, np.array([1])).tolist() == [6]
    assert measured.mean.tolist() == [0] * 6
    assert measured.last.tolist() == [-1, 9, 0, -1, -1, 0]


def test_later_updates_count_the_rounds_since_the_last() -> None:
    measured = gaps(3)
    measured.inverse_rates(4, np.array([0, 1]))
    assert measured.inverse_rates(6, np.array([1])).tolist() == [2]
    assert measured.inverse_rates(9, np.array([0, 1, 2])).tolist() == [5, pytest.approx(0.9 * 2 + 0.1 * 3), 1]
    assert measured.inverse_rates(10, np.array([0])) == pytest.approx([0.9 * 5 + 0.1 * 1])


def test_a_client_twice_in_a_buffer_has_half_the_gap() -> None:
    """Two updates in three rounds: each counts 3 / 2, together as much as one after three."""
    measured = gaps(2)
    measured.inverse_rates(0, np.array([0, 1, 0]))
    assert measured.inverse_rates(3, np.array([0, 1, 0])).tolist() == [1.5, 3, 1.5]
    assert measured.inverse_rates(4, np.array([0])) == pytest.approx([0.9 * 1.5 + 0.1 * 1])


def test_nobody_in_a_round_changes_nothing() -> None:
    measured = gaps(2)
    measured.inverse_rates(1, np.array([0]))
    assert measured.inverse_rates(2, np.zeros(0, np.int64)).tolist() == []
    assert measured.inverse_rates(3, np.array([0])).tolist() == [2]


def test_measuring_begins_anew() -> None:
    measured = gaps(2)
    measured.inverse_rates(1, np.array([0]))
    measured.begin(3)
    assert measured.inverse_rates(5, np.array([0])).tolist() == [3]


@pytest.mark.parametrize(
    "policy", [Policy(count=1), Policy(window=0.3), Policy(count=2), Policy(count=3, restart=True)]
)
def test_measured_rates_approach_those_of_the_schedule(policy: Policy) -> None:
    """Fixed durations: after a while 1 / f_i is known to a fifth, and on average p_i is what counts."""
    schedule = policy.schedule(durations(devices.fx(80, 5)), rounds=1370)
    measured, realised = gaps(5), np.zeros((1370, 5))
    for number in range(1370):
        clients = schedule.client[schedule.round == number]
        np.add.at(realised[number], clients, measured.inverse_rates(number, clients))
    assert measured.mean == pytest.approx(1 / schedule.rates, rel=0.2)
    assert realised[137:].mean(0) == pytest.approx([1.0] * 5, rel=0.04)


# staleness


@pytest.mark.parametrize(
    ("name", "rate", "start", "expected"),
    [
        ("none", 0.5, 0.0, [1, 1, 1, 1, 1]),
        ("polynomial", 0.5, 0.0, [1, 2**-0.5, 3**-0.5, 0.5, 0.1]),
        ("polynomial", 1.0, 3.0, [1, 1 / 2, 1 / 3, 1 / 4, 1 / 100]),  # `start` is the hinge's
        ("hinge", 10.0, 2.0, [1, 1, 1, 1 / 11, 1 / 971]),
        ("hinge", 0.5, 0.0, [1, 1 / 1.5, 1 / 2, 1 / 2.5, 1 / 50.5]),
    ],
)
def test_discounts(name: str, rate: float, start: float, expected: list[float]) -> None:
    """Xie et al. 2019, section 5.2, for staleness 0, 1, 2, 3 and 99."""
    assert discount(name, np.array([0, 1, 2, 3, 99]), rate, start) == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("hing", 1.0, 0.0), "algorithm.staleness_discount.*did you mean hinge"),
        (("hinge", 0.0, 0.0), "algorithm.discount_rate"),
        (("hinge", float("nan"), 0.0), "algorithm.discount_rate"),
        (("polynomial", 1.0, -1.0), "algorithm.discount_from"),
    ],
)
def test_discounts_that_cannot_be(options: Any, message: str) -> None:
    names = ("staleness_discount", "discount_rate", "discount_from")
    with pytest.raises(UserError, match=message):
        AsyncFedAvg(LocalSGD(lr=0.1), **dict(zip(names, options, strict=True)))
