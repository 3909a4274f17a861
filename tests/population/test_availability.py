"""Presence, crashes and detection: laws, traces that do not depend on who asks, refusals."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from turnout.clients.availability import Always, Availability, Crashes, Detection
from turnout.clients.chains import Bernoulli
from turnout.core.errors import UserError

MANY = np.arange(20_000)
odd = MANY % 2
SOME = np.array([512, 3, 77])
MODELS: list[Availability] = [Always(), Bernoulli(0.4), Bernoulli(0.4, clock="seconds", interval=2.5)]


@pytest.mark.parametrize("model", MODELS, ids=["always", "rounds", "seconds"])
def test_who_else_is_asked_changes_nobody_s_presence(model: Availability) -> None:
    for at in (0, 3, 1000):
        np.testing.assert_array_equal(model.online(5, SOME, at), model.online(5, MANY, at)[SOME])
        np.testing.assert_array_equal(model.online_until(5, SOME, at), model.online_until(5, MANY[:600], at)[SOME])


def test_always_is_always() -> None:
    assert Always().probability == 1 and Always().clock == "seconds"
    assert Always().online(0, SOME, 1e9).all()
    assert np.isinf(Always().online_until(0, SOME, 1e9)).all()


def test_bernoulli_rates_and_independence() -> None:
    chance = np.where(odd, 0.9, 0.2)
    model = Bernoulli(chance)
    assert model.probability is chance
    now, later = model.online(1, MANY, 4), model.online(1, MANY, 5)
    for parity, p in ((1, 0.9), (0, 0.2)):
        chosen = odd == parity
        assert now[chosen].mean() == pytest.approx(p, abs=0.02)
        assert (now & later)[chosen].mean() == pytest.approx(p * p, abs=0.02)
    assert Bernoulli(1.0).online(0, MANY, 0).all() and not Bernoulli(0.0).online(0, MANY, 0).any()
    assert np.isinf(model.online_until(1, SOME, 4)).all()  # rounds have no seconds


def test_presence_is_constant_inside_an_interval() -> None:
    model = Bernoulli(0.5, clock="seconds", interval=2.5)
    one = model.online(0, MANY, 5.0)
    for at in (5.000001, 6.2, 7.499999):
        np.testing.assert_array_equal(model.online(0, MANY, at), one)
    assert (model.online(0, MANY, 7.5) != one).mean() == pytest.approx(0.5, abs=0.02)
    own = np.where(odd, 5.0, 7.5)  # each client may be asked about its own time
    np.testing.assert_array_equal(model.online(0, MANY, own), np.where(odd, one, model.online(0, MANY, 7.5)))


def test_an_interval_starts_exactly_where_it_should() -> None:
    """k * 0.01 is rarely exact in binary; it still opens interval k."""
    model = Bernoulli(0.5, clock="seconds", interval=0.01)
    numbers = np.arange(5000)
    ids = np.zeros_like(numbers)
    np.testing.assert_array_equal(model.online(0, ids, numbers * 0.01), model.online(0, ids, (numbers + 0.5) * 0.01))


@settings(deadline=None, max_examples=50)
@given(st.floats(0, 1e5), st.floats(0.001, 50), st.floats(0.05, 0.97), st.integers(0, 99))
def test_online_until_is_the_first_time_offline(at: float, interval: float, p: float, seed: int) -> None:
    model, ids = Bernoulli(p, clock="seconds", interval=interval), np.arange(50)
    until = model.online_until(seed, ids, at)
    width = round(interval * 1e6) / 1e6
    online = model.online(seed, ids, at)
    assert (until > at - 1e-6).all() and not model.online(seed, ids, until).any()
    for i in np.flatnonzero(online):
        before = np.arange(until[i] - width / 2, at, -width)
        assert all(model.online(seed, ids[i : i + 1], t)[0] for t in before)


def test_presence_lasts_a_geometric_number_of_intervals() -> None:
    model = Bernoulli(0.75, clock="seconds", interval=0.1)
    intervals = np.rint(model.online_until(0, MANY, 0.05) / 0.1).astype(int)
    assert intervals.mean() == pytest.approx(1 / 0.25, rel=0.03)
    counts = np.bincount(np.minimum(intervals, 12), minlength=13)[1:]
    law = stats.geom(0.25)
    expected = np.append(law.pmf(np.arange(1, 12)), law.sf(11)) * len(MANY)
    assert stats.chisquare(counts, expected).pvalue > 1e-3


def test_certain_presence_never_ends_and_rare_absence_is_found() -> None:
    model = Bernoulli(np.array([1.0, 0.9999]), clock="seconds", interval=1.0)
    until = model.online_until(2, np.arange(2), 0.0)
    assert np.isinf(until[0]) and np.isfinite(until[1])
    assert not model.online(2, np.array([1]), until[1])[0]


def test_crashes_are_one_trace_for_every_algorithm() -> None:
    crashes = Crashes(0.3)
    crashed, progress = crashes.draw(7, MANY, 2)
    again, same = crashes.draw(7, SOME, 2)
    np.testing.assert_array_equal(again, crashed[SOME])
    np.testing.assert_array_equal(same, progress[SOME])
    mixed, _ = crashes.draw(7, SOME, np.array([2, 3, 2]))  # a number for each client
    assert mixed[0] == crashed[512] and mixed[2] == crashed[77]


def test_crash_rate_and_progress_follow_their_laws() -> None:
    chance = np.where(odd, 0.7, 0.1)
    crashed, progress = Crashes(chance, clock="round").draw(0, MANY, 0)
    for parity, p in ((1, 0.7), (0, 0.1)):
        assert crashed[odd == parity].mean() == pytest.approx(p, abs=0.02)
    assert progress.min() > 0 and progress.max() < 1
    assert stats.kstest(progress, "uniform").pvalue > 1e-3
    assert stats.kstest(progress[crashed], "uniform").pvalue > 1e-3  # where it stops does not depend on whether
    assert not Crashes().draw(0, MANY, 0)[0].any() and Crashes(1.0).draw(0, MANY, 0)[0].all()


def test_presence_and_crashes_are_separate_draws() -> None:
    online, (crashed, _) = Bernoulli(0.5).online(0, MANY, 0), Crashes(0.5).draw(0, MANY, 0)
    assert (online == crashed).mean() == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize(
    ("build", "complaint"),
    [
        (lambda: Bernoulli(1.2), "availability.probability: 1.2 must be from 0 to 1"),
        (lambda: Bernoulli(np.array([0.5, np.nan])), r"availability.probability\[1\]: nan"),
        (lambda: Bernoulli(0.5, clock="second"), "did you mean seconds"),  # type: ignore[arg-type]
        (lambda: Bernoulli(0.5, clock="seconds", interval=0.0), "availability.interval: 0.0"),
        (lambda: Crashes(-0.1), "crashes.probability: -0.1"),
        (lambda: Crashes(0.1, clock="seconds"), "crashes.clock: unknown name"),  # type: ignore[arg-type]
        (lambda: Detection("heartbeat"), "detection.seconds: 0.0 must be above 0"),
        (lambda: Detection("hartbeat", 1.0), "did you mean heartbeat"),  # type: ignore[arg-type]
    ],
)
def test_impossible_settings_are_refused(build: Callable[[], object], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        build()


def test_detection_defaults_to_an_oracle() -> None:
    assert Detection() == Detection("oracle", 0.0)
    assert Detection("heartbeat", 5.0).seconds == 5.0
