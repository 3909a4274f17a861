"""Compute times: exact FX ticks, the laws drawn from, floors, means, and refusals."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from turnout.clients import devices
from turnout.clients.columns import column
from turnout.clients.devices import (
    AtLeast,
    Constant,
    Devices,
    Draw,
    Evenly,
    Exponential,
    Gaussian,
    LogNormal,
    Table,
    sample,
)
from turnout.core.errors import UserError

MANY = np.arange(20_000)
odd = MANY % 2
LAWS: dict[str, tuple[Draw, Any]] = {  # with the same law in scipy
    "exponential": (Exponential(2.0), stats.expon(scale=2.0)),
    "gaussian": (Gaussian(5.0, 1.5), stats.norm(5.0, 1.5)),
    "lognormal": (LogNormal(3.0, 0.8), stats.lognorm(0.8, scale=3.0)),
}
DRAWS: dict[str, Draw] = {name: law[0] for name, law in LAWS.items()} | {
    "constant": Constant(0.5),
    "table": Table(np.linspace(1, 2, len(MANY))),
    "evenly": Evenly(80, len(MANY)),
    "per client": Exponential(np.linspace(1, 2, len(MANY))),
    "at least": AtLeast(Gaussian(1.0, 0.5), 0.3, redraw=True),
}


def seconds(model: Devices, ids: np.ndarray = MANY, jobs: int = 0, seed: int = 0) -> np.ndarray:
    return model.seconds(seed, ids, jobs, steps=10, samples=300)


# the FX scenario


@pytest.mark.parametrize(
    ("percent", "clients", "per_second", "ticks"),
    [
        (80, 5, 20, [20, 16, 12, 8, 4]),  # 4 * (5, 4, 3, 2, 1)
        (80, 4, 15, [15, 11, 7, 3]),
        (0, 4, 3, [3, 3, 3, 3]),
        (37.5, 3, 16, [16, 13, 10]),
        (80, 1, 5, [5]),
    ],
)
def test_fx_delays_are_whole_ticks(percent: float, clients: int, per_second: int, ticks: list[int]) -> None:
    model = devices.fx(percent, clients)
    assert model.ticks_per_second() == per_second
    times = model.seconds(0, np.arange(clients), 0, 1, 1)
    np.testing.assert_array_equal(np.rint(times * per_second), ticks)
    np.testing.assert_array_equal(times, np.array(ticks) / per_second)


@given(st.integers(0, 99), st.integers(2, 400))
def test_fx_matches_its_formula_exactly(percent: int, clients: int) -> None:
    model = devices.fx(percent, clients)
    times, per_second = model.seconds(0, np.arange(clients), 0, 1, 1), model.ticks_per_second()
    assert per_second is not None
    exact = [1 - Fraction(percent, 100) * Fraction(i, clients - 1) for i in range(clients)]
    assert [float(value) for value in exact] == times.tolist()
    assert all((value * per_second).denominator == 1 for value in exact)


def test_fx_rounds_per_unit_time() -> None:
    """Oracle O3 of the asynchronous spec: sum of 1 / tau_i under F80."""
    for clients, rate in ((10, 21.2806), (20, 41.3080), (50, 101.6107)):
        assert (1 / devices.fx(80, clients).seconds(0, np.arange(clients), 0, 1, 1)).sum() == pytest.approx(
            rate, abs=1e-4
        )


def test_only_fx_has_a_clock_of_its_own() -> None:
    assert devices.fixed(1.0).ticks_per_second() is None
    assert devices.exponential(1.0).ticks_per_second() is None
    assert Devices(Evenly(80, 5), per="step").ticks_per_second() is None
    assert Devices(Evenly(80, 5), rate=True).ticks_per_second() is None


# the laws


@pytest.mark.parametrize("name", LAWS)
def test_draws_follow_their_law(name: str) -> None:
    draw, law = LAWS[name]
    values = sample(draw, 3, "x", MANY)
    assert stats.kstest(values, law.cdf).pvalue > 1e-3
    np.testing.assert_allclose(draw.expected(MANY[:3]), law.mean())
    for x in (0.0, 1.0, 4.0):
        np.testing.assert_allclose(draw.below(x, MANY[:3]), law.cdf(x))


@pytest.mark.parametrize("name", DRAWS)
def test_who_else_is_asked_changes_no_draw(name: str) -> None:
    some = np.array([17, 3, 999, 4])
    choices: tuple[devices.Each, ...] = ("client", "job")
    for each in choices:
        model = Devices(DRAWS[name], each=each, minimum=0.01)
        np.testing.assert_array_equal(seconds(model, some, jobs=2), seconds(model, jobs=2)[some])


def test_a_client_keeps_its_speed_and_a_job_has_its_own() -> None:
    by_client, by_job = Devices(Exponential(1.0)), Devices(Exponential(1.0), each="job")
    np.testing.assert_array_equal(seconds(by_client, jobs=0), seconds(by_client, jobs=7))
    one, other = seconds(by_job, jobs=0), seconds(by_job, jobs=7)
    assert abs(np.corrcoef(one, other)[0, 1]) < 5 / np.sqrt(len(MANY))
    jobs = np.where(odd, 7, 0)
    np.testing.assert_array_equal(by_job.seconds(0, MANY, jobs, 1, 1), np.where(odd, other, one))
    assert (seconds(by_client, seed=0) != seconds(by_client, seed=1)).all()


def test_exponential_times_have_their_means() -> None:
    model = devices.exponential(np.where(odd, 3.0, 0.5))
    assert model.each == "job"
    times = seconds(model)
    for parity, mean in ((1, 3.0), (0, 0.5)):
        assert times[odd == parity].mean() == pytest.approx(mean, rel=0.05)
    np.testing.assert_array_equal(model.mean_seconds(0, MANY[:4], 1, 1), [0.5, 3.0, 0.5, 3.0])


# units, floors, means


def test_the_unit_of_work() -> None:
    sizes: dict[devices.Per, int] = {"job": 1, "step": 10, "sample": 300}
    for per, units in sizes.items():
        np.testing.assert_allclose(seconds(devices.fixed(0.5, per=per), MANY[:2]), 0.5 * units)
        np.testing.assert_allclose(seconds(devices.fixed(0.5, per=per, rate=True), MANY[:2]), units / 0.5)
    np.testing.assert_array_equal(
        devices.fixed(2.0, per="step").seconds(0, np.arange(3), 0, [1, 2, 3], 1), [2.0, 4.0, 6.0]
    )


def test_a_floor_raises_and_a_redraw_conditions() -> None:
    raised = seconds(devices.exponential(1.0, minimum=0.7))
    redrawn = seconds(devices.exponential(1.0, minimum=0.7, redraw_below=True))
    assert raised.min() == 0.7 and (raised == 0.7).mean() == pytest.approx(1 - np.exp(-0.7), abs=0.02)
    assert stats.kstest(redrawn - 0.7, "expon").pvalue > 1e-3  # memoryless


def test_safa_speeds() -> None:
    """Batches per second ~ Exp(1), redrawn below 0.012: the slowest of 500 clients still finishes."""
    model = devices.exponential(1.0, each="client", per="step", rate=True, minimum=0.012, redraw_below=True)
    times = model.seconds(1, np.arange(500), 0, steps=30, samples=1)
    assert times.max() <= 30 / 0.012 and np.median(times) == pytest.approx(30 / np.log(2), rel=0.2)
    np.testing.assert_array_equal(times, model.mean_seconds(1, np.arange(500), 30, 1))


def test_gaussian_speeds_are_clipped_at_three_deviations() -> None:
    """HybridFL's deadline: a client at mu - 3 sd, here .1 GHz, is the slowest there is."""
    model = devices.gaussian(1.0, 0.3, rate=True)
    assert model.minimum == pytest.approx(0.1)
    assert seconds(model).max() == pytest.approx(10.0)
    assert devices.gaussian(1.0, 0.5).minimum == 0


@pytest.mark.parametrize("redraw", [False, True])
@pytest.mark.parametrize("rate", [False, True])
@pytest.mark.parametrize("name", LAWS)
def test_mean_times_match_an_integral(name: str, rate: bool, redraw: bool) -> None:
    draw, law = LAWS[name]
    low = float(law.ppf(0.15))
    model = Devices(draw, each="job", per="step", rate=rate, minimum=low, redraw_below=redraw)
    power = -1 if rate else 1
    above = integrate.quad(lambda x: x**power * law.pdf(x), low, np.inf)[0]
    expected = above / 0.85 if redraw else above + 0.15 * low**power
    np.testing.assert_allclose(model.mean_seconds(0, np.arange(2), 4, 1), 4 * expected, rtol=1e-3)


@pytest.mark.parametrize("sigma", [0.3, 1.0, 2.5])
def test_mean_time_of_a_log_normal_rate(sigma: float) -> None:
    """E[1 / X] = exp(sigma^2 / 2) / median, heavy tails included."""
    model = devices.lognormal(4.0, sigma, each="job", rate=True)
    np.testing.assert_allclose(model.mean_seconds(0, np.arange(2), 1, 1), np.exp(sigma**2 / 2) / 4, rtol=1e-3)


def test_below_of_a_floored_draw() -> None:
    draw, ids = Exponential(1.0), np.arange(1)
    assert AtLeast(draw, 0.5).below(0.5, ids)[0] == AtLeast(draw, 0.5, redraw=True).below(0.2, ids)[0] == 0
    assert AtLeast(draw, 0.5).below(1.5, ids)[0] == pytest.approx(1 - np.exp(-1.5))
    assert AtLeast(draw, 0.5, redraw=True).below(1.5, ids)[0] == pytest.approx(1 - np.exp(-1.0))


# tables


def test_a_table_from_an_array_or_a_file(tmp_path: Path) -> None:
    path = tmp_path / "times.csv"
    path.write_text("client, seconds,note\n2,3.5,1\n0,1.5,2\n1,2.5,3\n")
    ids = np.array([2, 0])
    for source in (path, str(path), [1.5, 2.5, 3.5]):
        np.testing.assert_array_equal(devices.table(source).seconds(0, ids, 0, 1, 1), [3.5, 1.5])


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("client,time\n0,1\n", "unknown name 'seconds'"),
        ("client,seconds\n0,fast\n", "line 2: column seconds is 'fast'"),
        ("client,seconds\n0,1\n0,2\n", "each exactly once"),
        ("client,seconds\n1,1\n2,2\n", "each exactly once"),
        ("client,seconds\n0,1\n1,-2\n", r"devices.values\[1\]: -2.0"),
    ],
)
def test_a_bad_file_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "times.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=complaint):
        devices.table(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        devices.table(tmp_path / "none.csv")


# refusals


def test_a_negative_time_is_refused_and_no_work_takes_none() -> None:
    with pytest.raises(UserError, match=r"client \d+ is -.*set a minimum"):
        seconds(Devices(Gaussian(1.0, 5.0)))
    report = devices.fixed(2.0, per="step").seconds(0, np.array([3, 4]), 0, np.array([1, 0]), 1)
    assert report.tolist() == [2.0, 0.0]


@pytest.mark.parametrize(
    ("build", "complaint"),
    [
        (lambda: devices.fixed(0.0), "fixed.seconds: 0.0 must be above 0"),
        (lambda: devices.table([1.0, np.nan]), r"devices.values\[1\]: nan"),
        (lambda: devices.exponential([1.0, 2.0, -1.0]), r"exponential.mean\[2\]: -1.0"),
        (lambda: devices.lognormal(1.0, 0.0), "lognormal.sigma: 0.0"),
        (lambda: devices.gaussian(np.inf, 1.0), "gaussian.mean: inf"),
        (lambda: devices.fx(100, 5), "fx.percent: 100 must be at least 0 and below 100"),
        (lambda: devices.fx(50, 0), "devices.clients: 0"),
        (lambda: devices.fixed(1.0, minimum=-1.0), "fixed.minimum: -1.0"),
        (lambda: devices.exponential(1.0, rate=True), "infinite; set a positive minimum"),
        (lambda: Devices(Constant(1.0), per="steps"), "did you mean step"),  # type: ignore[arg-type]
        (lambda: Devices(Constant(1.0), each="round"), "allowed: client, job"),  # type: ignore[arg-type]
    ],
)
def test_impossible_devices_are_refused(build: Callable[[], object], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        build()


def test_a_client_without_a_value_is_refused() -> None:
    for model in (devices.fx(80, 5), devices.table([1.0] * 5), devices.exponential([1.0] * 5)):
        with pytest.raises(UserError, match="given for 5 clients; client 7 has none"):
            seconds(model, np.array([1, 7]))


def test_a_certain_value_below_the_minimum_cannot_be_redrawn() -> None:
    model = devices.table([1.0, 0.1], minimum=0.5, redraw_below=True)
    assert seconds(model, np.array([0]))[0] == 1.0
    with pytest.raises(UserError, match=r"client 1 can never reach the minimum 0\.5"):
        seconds(model, np.array([0, 1]))


@pytest.mark.parametrize("kind", [np.int32, np.float32, np.float64])
def test_a_look_up_in_a_column_of_any_kind_copies_none_of_it(kind: Any) -> None:
    """100,000 clients: a copy would be 800 kB."""
    values, few = np.arange(1, 100_001, dtype=kind), np.array([3, 99_999])
    tracemalloc.start()
    found = column("speed", values, few)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.tolist() == [4.0, 100_000.0] and found.dtype == np.float64 and most < 50_000
