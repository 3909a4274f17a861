"""Chains of presence: their laws (oracle O5), spells, days, groups and presets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from turnout.clients.chains import (
    Bernoulli,
    Chain,
    Diurnal,
    Grouped,
    Markov,
    clustered,
    heterogeneous,
    lowest_correlation,
)
from turnout.core.errors import UserError
from turnout.core.random import key, uniform
from turnout_studies.theory.chain_algebra import transition_matrix

MANY = np.arange(40_000)
PAIRS = [
    (0.1, 0.9), (0.9, 0.5), (0.5, 0.99), (0.3, 0.0), (0.5, 0.01), (0.7, 0.36788), (0.5, -0.5), (0.9, -0.1),
    (0.4, -2 / 3), (0.5, -0.95),
]  # fmt: skip


def path(model: Chain, client: int, rounds: NDArray[Any], seed: int = 0) -> NDArray[np.bool_]:
    """One client's presence in many rounds, in one call."""
    return model.online(seed, np.full(len(rounds), client), rounds)


@pytest.mark.parametrize(("share", "correlation"), PAIRS)
def test_share_and_correlation_over_time(share: float, correlation: float) -> None:
    """O5: over 2e5 rounds, within 4 sqrt(pi (1 - pi) (1 + lambda) / (1 - lambda) / T) and within 0.02."""
    rounds = 200_000
    online = path(Markov(share, correlation), 7, np.arange(rounds))
    error = 4 * np.sqrt(share * (1 - share) * (1 + correlation) / (1 - correlation) / rounds)
    assert online.mean() == pytest.approx(share, abs=error)
    assert np.corrcoef(online[1:], online[:-1])[0, 1] == pytest.approx(correlation, abs=0.02)


@pytest.mark.parametrize(("share", "correlation"), PAIRS)
@pytest.mark.parametrize("first", [-3, 0, 17])
def test_transitions_over_clients(share: float, correlation: float, first: int) -> None:
    """At any time, before the first round too: the stationary law, then the rows of P, P^3 and P^8."""
    model, chain = Markov(share, correlation), transition_matrix(share, correlation)
    now = model.online(1, MANY, first)
    assert stats.binomtest(int(now.sum()), len(MANY), share).pvalue > 1e-4
    for steps in (1, 3, 8):
        then = model.online(1, MANY, first + steps)
        for state in (0, 1):
            expected = np.linalg.matrix_power(chain, steps)[state, 1]
            among = then[now == state]
            assert stats.binomtest(int(among.sum()), len(among), np.clip(expected, 0, 1)).pvalue > 1e-4


@pytest.mark.parametrize(("share", "correlation"), PAIRS[:6])
def test_spells_are_geometric(share: float, correlation: float) -> None:
    """Memoryless: a chain has no other memory than where it is. Cells of the renewals leave no trace."""
    online = path(Markov(share, correlation), 3, np.arange(300_000))
    changes = np.flatnonzero(np.diff(online))
    spells, states = np.diff(changes), online[changes[:-1] + 1]
    for state, leave in ((True, (1 - correlation) * (1 - share)), (False, (1 - correlation) * share)):
        lengths, law = spells[states == state], stats.geom(leave)
        assert lengths.mean() == pytest.approx(1 / leave, abs=5 * law.std() / np.sqrt(len(lengths)))
        edges = np.unique(law.ppf(np.linspace(0, 1, 9)[1:-1]))
        counts = np.histogram(lengths, [0.5, *(edges + 0.5), np.inf])[0]
        expected = np.diff(law.cdf([0, *edges, np.inf])) * len(lengths)
        assert stats.chisquare(counts, expected).pvalue > 1e-4


def test_clients_and_seeds_are_independent() -> None:
    model, rounds = Markov(0.5, 0.9), np.arange(50_000)
    one = path(model, 0, rounds)
    for other in (path(model, 1, rounds), path(model, 0, rounds, seed=1)):
        assert abs(np.corrcoef(one, other)[0, 1]) < 4 * np.sqrt(19 / len(rounds))  # (1 + 0.81) / (1 - 0.81) is 9.5


def test_nothing_depends_on_who_asks_when() -> None:
    model, times = Markov(0.4, 0.97), np.arange(-200, 200)
    whole = path(model, 5, times)
    alone = [bool(model.online(0, np.array([5]), int(time))[0]) for time in times[::-7]]
    assert alone == whole[::-7].tolist()
    np.testing.assert_array_equal(model.online(0, MANY, 11)[[9, 2]], model.online(0, np.array([9, 2]), 11))


def test_steps_before_the_first_have_keys_of_their_own() -> None:
    steps = np.arange(-50_000, 50_000)
    assert len(np.unique(key(0, "renewal", 3, steps))) == len(steps)
    draws = uniform(key(0, "renewal", 3, steps), 1)[:, 0]
    assert stats.kstest(draws[:50_000], "uniform").pvalue > 1e-4
    assert abs(np.corrcoef(draws[:50_000], draws[50_000:])[0, 1]) < 0.02


def test_a_chain_without_memory_is_coin_flips() -> None:
    """The same draws, and those of the keys (client, step)."""
    chances = np.where(MANY % 2, 0.2, 0.7)
    for at in (-2, 0, 9):
        flips = uniform(key(4, "online", MANY, at), 1)[:, 0] < chances
        np.testing.assert_array_equal(Bernoulli(chances).online(4, MANY, at), flips)
        np.testing.assert_array_equal(Markov(chances, 0.0).online(4, MANY, at), flips)
        np.testing.assert_array_equal(Diurnal(chances, 0.0, clock="round").online(4, MANY, at), flips)


def test_a_chain_that_always_flips() -> None:
    """lambda = -1 at pi = 1/2: online every other round, half of the clients in the even ones."""
    model = Markov(0.5, -1.0)
    even, odd = model.online(0, MANY, -4), model.online(0, MANY, 7)
    np.testing.assert_array_equal(even, ~odd)
    np.testing.assert_array_equal(even, model.online(0, MANY, 0))
    assert even.mean() == pytest.approx(0.5, abs=0.02)


def test_certain_presence_and_absence() -> None:
    model = Markov(np.array([0.0, 1.0]), np.array([0.5, 0.999]), clock="seconds")
    for at in (-7.0, 0.0, 1e6):
        assert model.online(0, np.arange(2), at).tolist() == [False, True]
        assert np.isinf(model.online_until(0, np.array([1]), at)).all()
        assert np.isinf(model.online_from(0, np.array([0]), at)).all()


def test_chains_that_hardly_ever_change_cost_no_more() -> None:
    """Renewals a thousand years apart are found at once, and so is the next one."""
    model = Markov(0.5, 1 - 1e-12, clock="seconds", interval=0.1)
    now, later = model.online(0, MANY[:500], 0.0), model.online(0, MANY[:500], 1e6)
    assert 0.4 < now.mean() < 0.6
    np.testing.assert_array_equal(now, later)
    until = model.online_until(0, MANY[:500], 0.0)
    assert np.median(until) == pytest.approx(0.1 * np.log(2) / (0.5 * 1e-12), rel=0.2)


def test_rare_presence_is_found() -> None:
    model = Markov(1e-4, 0.99, clock="seconds")
    ids = np.arange(40)
    away = ids[~model.online(0, ids, 0.0)]
    back = model.online_from(0, away, 0.0)
    assert model.online(0, away, back).all() and not model.online(0, away, back - 1).any()
    assert back.mean() == pytest.approx(1 / (1e-4 * 0.01), rel=0.6)


def test_spells_ahead_have_the_length_of_spells() -> None:
    """From a random time on, a spell online still takes 1 / ((1 - lambda) (1 - pi)) steps."""
    model = Markov(0.8, 0.9, clock="seconds", interval=2.0)
    ids = MANY[model.online(0, MANY, 5.0)]
    left = model.online_until(0, ids, 5.0) / 2.0 - 2
    assert left.mean() == pytest.approx(1 / (0.1 * 0.2), rel=0.03)
    away = MANY[~model.online(0, MANY, 5.0)]
    assert (model.online_from(0, away, 5.0) / 2.0 - 2).mean() == pytest.approx(1 / (0.1 * 0.8), rel=0.04)


def test_a_step_begins_on_its_microsecond() -> None:
    model = Markov(0.5, 0.5, clock="seconds", interval=0.01)
    numbers = np.arange(-3000, 3000)
    ids = np.zeros_like(numbers)
    np.testing.assert_array_equal(model.online(0, ids, numbers * 0.01), model.online(0, ids, (numbers + 0.5) * 0.01))


# the day


def test_the_day_rises_and_falls() -> None:
    """Without memory the share online is the chance itself, at each hour, in each zone, day after day."""
    model = Diurnal(0.4, 0.5, peak=7200.0)
    for hour in (-30, 0, 2, 8, 14, 20, 26):
        chance = np.clip(0.4 + 0.5 * np.cos(2 * np.pi * (hour - 2) / 24), 0, 1)
        assert model.online(0, MANY, 3600.0 * hour).mean() == pytest.approx(chance, abs=0.015)


def test_time_zones_spread_the_peak() -> None:
    ids = MANY[:6000]
    hours = np.arange(24)
    online = np.array([Diurnal(0.5, 0.5, zones=4).online(0, ids, 3600.0 * hour) for hour in hours])
    assert online.mean(1) == pytest.approx(np.full(24, 0.5), abs=0.04)  # somewhere it is always day
    wave = np.exp(2j * np.pi * hours / 24)
    peaks = np.angle((online * wave[:, None]).sum(0)) % (2 * np.pi) / (2 * np.pi)
    zone = np.rint(4 * peaks).astype(int) % 4
    assert np.bincount(zone) == pytest.approx(np.full(4, 1500), abs=200)
    for number in range(4):
        expected = 0.5 + 0.5 * np.cos(2 * np.pi * (hours / 24 - number / 4))
        assert online[:, zone == number].mean(1) == pytest.approx(expected, abs=0.06)


def test_memory_delays_the_day() -> None:
    """E[online] at step n is the mean of the chance at step n - g, g geometric: amplitude and phase of a filter."""
    correlation, steps, interval = 0.9, 48, 1800.0
    model = Diurnal(0.5, 0.4, correlation, interval=interval)
    seen = np.array([model.online(0, MANY[:20_000], interval * n).mean() for n in range(steps)])
    turn = np.exp(-2j * np.pi / steps)
    response = (1 - correlation) / (1 - correlation * turn)
    expected = 0.5 + 0.4 * np.real(response * np.exp(2j * np.pi * np.arange(steps) / steps))
    assert seen == pytest.approx(expected, abs=0.02)


def test_long_run_share_of_a_day() -> None:
    """The mean over the day, cut at 0 and 1 or not, against a sum over its minutes."""
    level, amplitude = np.array([0.2, 0.5, 0.9, 0.0, 1.0, 0.3, 0.5]), np.array([0.5, 0.3, 0.9, 0.2, 0.0, 0.0, 5.0])
    height = np.cos(2 * np.pi * (np.arange(100_000) + 0.5) / 100_000)
    minutes = [np.clip(one + swing * height, 0, 1).mean() for one, swing in zip(level, amplitude, strict=True)]
    assert Diurnal(level, amplitude).probability == pytest.approx(minutes, abs=1e-8)
    assert Diurnal(0.3, 0.1).probability == pytest.approx(0.3)


def test_nights_end_and_endless_ones_do_not_hang() -> None:
    ids = np.arange(200)
    model = Diurnal(0.0, 0.5)  # nobody for half of the day
    midnight = 43_200.0
    assert not model.online(0, ids, midnight).any()
    back = model.online_from(0, ids, midnight)
    assert (back > 64_800).all() and (back < 64_800 + 86_400).all() and model.online(0, ids, back).all()
    never, ever = Diurnal(0.0, 0.0), Diurnal(1.0, 0.0)
    assert np.isinf(never.online_from(0, ids, 0.0)).all() and np.isinf(ever.online_until(0, ids, 0.0)).all()


# groups and presets


def test_a_group_comes_and_goes_together() -> None:
    inner = Markov(np.array([0.2, 0.5, 0.8]), np.array([0.9, 0.0, 0.5]), clock="seconds")
    groups = MANY[:90] % 3
    for model in (Grouped(inner, 3), Grouped(inner, groups)):
        for at in (0.0, 8.0, 100.0):
            np.testing.assert_array_equal(model.online(1, MANY[:90], at), inner.online(1, np.arange(3), at)[groups])
        np.testing.assert_array_equal(model.online_until(1, MANY[:90], 0), inner.online_until(1, groups, 0))
        np.testing.assert_array_equal(model.online_from(1, MANY[:90], 0), inner.online_from(1, groups, 0))
        assert model.clock == "seconds"
    assert np.array_equal(Grouped(inner, groups).probability, inner.probability[groups])  # type: ignore[index, arg-type]
    assert np.array_equal(Grouped(inner, groups).correlation, inner.correlation[groups])  # type: ignore[index, arg-type]
    assert Grouped(inner, 3).probability is None  # of how many clients is not known
    assert Grouped(Markov(0.3, 0.1), 3).probability == 0.3


def test_the_heterogeneous_population() -> None:
    """100 clients: half pi = 0.9, half 0.1; in each half 25 with lambda = 0.9, 25 with N(0, 0.01^2)."""
    model = heterogeneous()
    share, correlation = np.asarray(model.probability), np.asarray(model.correlation)
    assert share.tolist() == pytest.approx([0.9] * 50 + [0.1] * 50)
    for half in (correlation[:50], correlation[50:]):
        assert (half[:25] == 0.9).all()
        assert 0 < np.abs(half[25:]).max() < 0.04
        assert half[25:].std() == pytest.approx(0.01, rel=0.5)
    assert (np.asarray(heterogeneous(seed=1).correlation) != correlation).sum() == 50
    all_weak = heterogeneous(20, correlated_fraction=(0.0, 0.5))
    assert (np.asarray(all_weak.correlation) == 0.9).nonzero()[0].tolist() == list(range(10, 15))
    certain = heterogeneous(20, gap=0.5, low_std=0.5)  # clipped to what is possible: at least 0 where pi is 0 or 1
    assert (np.asarray(certain.correlation) >= lowest_correlation(certain.probability)).all()


def test_the_clustered_population() -> None:
    """Ten clusters of ten: 0 to 4 pi = 0.9, lambda = 0; 5 to 9 pi = 0.1, lambda = c / 10."""
    model = clustered()
    share, correlation = np.asarray(model.probability), np.asarray(model.correlation)
    for c in range(10):
        mine = np.arange(100) % 10 == c
        assert mine.sum() == 10
        assert set(share[mine]) == {0.9 if c < 5 else 0.1}
        assert set(correlation[mine]) == {0.0 if c < 5 else c / 10}
        assert (
            len({tuple(row) for row in np.array([model.online(0, np.arange(100), t) for t in range(9)]).T[mine]}) == 1
        )


@pytest.mark.parametrize(
    ("build", "complaint"),
    [
        (lambda: Markov(0.9, -0.2), r"availability.correlation is -0.2; it must be from -0.111111 to below 1"),
        (lambda: Markov(np.array([0.5, 0.9]), -0.2), "correlation of client 1 is -0.2.* probability is 0.9"),
        (lambda: Markov(0.5, 1.0), "availability.correlation: 1.0 must be at least -1 and below 1"),
        (lambda: Markov(0.5, np.nan), "availability.correlation: nan"),
        (lambda: Markov(1.5, 0.0), "availability.probability: 1.5"),
        (lambda: Markov(np.full(3, 0.5), np.zeros(4)), "probability for 3, correlation for 4"),
        (lambda: Markov(0.5, 0.5, clock="hours"), "availability.clock"),  # type: ignore[arg-type]
        (lambda: Markov(0.5, 0.5, interval=0.0), "availability.interval: 0.0 must be at least a micro"),
        (lambda: Markov(0.5, 0.5, interval=np.inf), "availability.interval: inf"),
        (lambda: Markov(np.full(3, 0.5), 0.5).online(0, np.arange(4), 0), "given for 3 clients; client 3 has none"),
        (lambda: Diurnal(0.5, -0.1), "availability.amplitude: -0.1"),
        (lambda: Diurnal(1.1, 0.1), "availability.level: 1.1"),
        (lambda: Diurnal(0.5, 0.1, -0.1), "availability.memory: -0.1"),
        (lambda: Diurnal(0.5, 0.1, zones=0), "availability.zones: 0"),
        (lambda: Diurnal(0.5, 0.1, peak=np.nan), "availability.peak: nan must be finite"),
        (lambda: Diurnal(0.5, 0.1, day=0.0), "availability.day: 0.0"),
        (lambda: Diurnal(0.5, 0.1, interval=40_000.0), "at most a quarter of a day"),
        (lambda: Grouped(Bernoulli(0.5), 0), "availability.groups: 0 is neither"),
        (lambda: Grouped(Bernoulli(0.5), True), "availability.groups: True is neither"),
        (lambda: Grouped(Bernoulli(0.5), np.array([0, -1])), "availability.groups"),
        (lambda: Grouped(Bernoulli(0.5), np.array([0.5, 1])), "availability.groups"),
        (lambda: Grouped(Bernoulli(0.5), np.arange(3)).online(0, np.arange(4), 0), "client 3 has none"),
        (lambda: heterogeneous(gap=0.6), "heterogeneous.gap: 0.6 must be from -0.5 to 0.5"),
        (lambda: heterogeneous(correlated_fraction=(0.5, 2.0)), r"correlated_fraction\[1\]: 2.0"),
        (lambda: clustered(clusters=0), "clustered.clusters: 0"),
    ],
)
def test_impossible_settings_are_refused(build: Callable[[], object], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        build()


def test_groups_that_the_model_does_not_have() -> None:
    model = Markov(np.array([0.2, 0.8]), 0.5)
    with pytest.raises(UserError, match=r"availability\.groups: 3 groups, but probability is given for 2"):
        Grouped(model, np.array([0, 1, 2]))
    with pytest.raises(UserError, match=r"availability\.groups: 3 groups"):
        Grouped(model, 3)
    assert Grouped(Markov(0.5, 0.5), 7).group(np.array([8])).tolist() == [1]


def test_a_day_has_no_single_correlation() -> None:
    """Two intervals of a day are alike although nothing lasts: the oracle cannot be asked."""
    model = Diurnal(0.5, 0.5)
    online = path(model, 3, np.arange(0, 200 * 86_400, 600.0))
    assert np.corrcoef(online[1:], online[:-1])[0, 1] > 0.4
    assert model.correlation is None
