"""How long jobs take: in ticks, in the mean, and in windows of FedFix."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from support import population
from turnout import Bernoulli, Crashes, Links, LocalSGD, devices
from turnout.clients.devices import Constant, Devices, Exponential
from turnout.server.durations import Durations

SIZES = (4, 8, 12, 16, 20)
MEANS = np.array([1.0, 0.8, 0.6, 0.4, 0.2])
IDS = np.arange(5)
FLOOR: Any = {"rate": True, "minimum": 0.5}

FloatArray = NDArray[np.float64]

RANDOM: dict[str, Devices] = {
    "exponential": devices.exponential(MEANS),
    "exponential a step": devices.exponential(MEANS / 3, per="step"),
    "exponential a sample": devices.exponential(MEANS / 10, per="sample", minimum=0.01),
    "rates": devices.exponential(1 / MEANS, **FLOOR),
    "redrawn rates a step": devices.exponential(2 / MEANS, per="step", redraw_below=True, **FLOOR),
    "gaussian": devices.gaussian(1.0, 0.3, each="job"),
    "lognormal": devices.lognormal(0.7, 0.8, each="job"),
}


def durations(model: Devices, bytes_: int = 0, **columns: Any) -> Durations:
    people = population(SIZES, devices=model, **columns)
    return Durations.of(people, LocalSGD(0.1, batch_size=4), bytes_, bytes_)


def observed(work: Durations, jobs: int = 3000) -> FloatArray:
    """`[jobs, N]` seconds of the jobs themselves."""
    return np.stack([work.ticks(job) for job in range(jobs)]) / work.population.ticks_per_second


def test_steps_and_transfers_are_part_of_it() -> None:
    """One to five steps of .5 s, and 1000 bytes down at 8000 bit/s and up at 4000."""
    work = durations(devices.fixed(0.5, per="step"), 1000, links=Links(down=8000.0, up=4000.0, latency=0.25))
    assert work.steps.tolist() == [1, 2, 3, 4, 5]
    assert work.samples.tolist() == list(SIZES)
    # a latency each way
    assert work.mean == pytest.approx(3.5 + 0.5 * np.arange(1, 6))
    assert work.ticks(3).tolist() == [4_000_000, 4_500_000, 5_000_000, 5_500_000, 6_000_000]
    assert work.fixed


def test_windows_of_fixed_durations_are_counted_in_ticks() -> None:
    """ceil in integers: .07 s are 7 windows of .01 s, although .07 / .01 > 7 in floats; the close itself counts."""
    work = durations(devices.table([0.07, 0.5, 0.3, 0.300001, 0.01]))
    assert work.mean_windows(0.01).tolist() == [7, 50, 30, 31, 1]
    assert work.mean_windows(0.1).tolist() == [1, 5, 3, 4, 1]
    assert work.mean_windows(9.0).tolist() == [1] * 5


def test_windows_of_f80() -> None:
    work = durations(devices.fx(80, 5))
    assert work.mean.tolist() == MEANS.tolist()
    assert work.mean_windows(0.5).tolist() == [2, 2, 2, 1, 1]
    assert work.mean_windows(0.2).tolist() == [5, 4, 3, 2, 1]


def test_draws_once_a_client_are_fixed() -> None:
    work = durations(devices.exponential(1.0, each="client"))
    assert work.fixed
    assert work.ticks(0).tolist() == work.ticks(9).tolist()
    assert work.mean_windows(0.2).tolist() == np.ceil(work.ticks(0) / 200_000).tolist()


@pytest.mark.parametrize("window", [0.1, 0.5, 3.0])
def test_windows_of_exponential_durations(window: float) -> None:
    """asynchronous.md O7: 1 / (1 - exp(-window / tau))."""
    work = durations(devices.exponential(MEANS))
    assert work.mean == pytest.approx(MEANS, rel=1e-14)
    assert work.mean_windows(window) == pytest.approx(1 / -np.expm1(-window / MEANS), rel=1e-9)
    steps = durations(devices.exponential(MEANS, per="step"))  # client i does i + 1
    assert steps.mean_windows(window) == pytest.approx(1 / -np.expm1(-window / (MEANS * np.arange(1, 6))), rel=1e-9)


def test_windows_of_exponential_durations_after_a_transfer() -> None:
    """T = 1.3 + Exp(tau): three windows of .5 s for certain, then as memoryless as before."""
    work = durations(devices.exponential(MEANS), links=Links(latency=0.65))
    expected = 3 + np.exp(-0.2 / MEANS) / -np.expm1(-0.5 / MEANS)
    assert work.mean == pytest.approx(1.3 + MEANS, rel=1e-12)
    assert work.mean_windows(0.5) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("window", [0.3, 1.0])
@pytest.mark.parametrize("name", RANDOM)
def test_mean_windows_are_those_of_the_jobs(name: str, window: float) -> None:
    work = durations(RANDOM[name], links=Links(latency=0.02))
    assert not work.fixed
    taken = np.ceil(np.round(observed(work) / window, 9))
    error = 4 * taken.std(0) / np.sqrt(len(taken)) + 1e-9
    np.testing.assert_array_less(abs(work.mean_windows(window) - taken.mean(0)), error + 1e-3)


@pytest.mark.parametrize("name", RANDOM)
def test_mean_durations_are_those_of_the_jobs(name: str) -> None:
    work = durations(RANDOM[name], links=Links(latency=0.02))
    seconds = observed(work)
    np.testing.assert_array_less(abs(work.mean - seconds.mean(0)), 4 * seconds.std(0) / np.sqrt(len(seconds)) + 2e-3)


@pytest.mark.parametrize("limit", [0.05, 0.4, 1.3])
@pytest.mark.parametrize("name", RANDOM)
def test_longer_than_is_the_share_of_longer_jobs(name: str, limit: float) -> None:
    work, model = durations(RANDOM[name]), RANDOM[name]
    share = model.longer_than(0, IDS, work.steps, work.samples, np.full(5, limit))
    longer = observed(work) > limit
    np.testing.assert_array_less(abs(share - longer.mean(0)), 4 * np.sqrt(share * (1 - share) / len(longer)) + 1e-3)


def test_longer_than_closed_forms() -> None:
    model = devices.exponential(MEANS)
    assert model.longer_than(0, IDS, 1, 1, np.full(5, 0.5)) == pytest.approx(np.exp(-0.5 / MEANS), rel=1e-12)
    rate = Devices(Exponential(2.0), each="job", per="step", rate=True, minimum=0.1)
    steps, seconds = np.array([1, 2, 3, 4, 5]), np.full(5, 4.0)  # longer: a rate below steps / 4
    assert rate.longer_than(0, IDS, steps, 1, seconds) == pytest.approx(-np.expm1(-steps / 8), rel=1e-12)
    assert rate.longer_than(0, IDS, steps, 1, steps / 0.1).tolist() == [0] * 5  # the floor under the rate
    assert model.longer_than(0, IDS, 1, 1, np.array([0.0, -1.0, -0.5, 0.0, -9.0])).tolist() == [1] * 5


@pytest.mark.parametrize("each", ["client", "job"])
def test_longer_than_is_strict(each: Any) -> None:
    """A job that takes exactly so long is not longer."""
    model = Devices(Constant(0.25), each=each, per="step")
    seconds = np.array([0.5, 0.5, np.nextafter(0.5, 0), np.nextafter(0.5, 1), 0.0])
    assert model.longer_than(0, IDS, 2, 1, seconds).tolist() == [0, 0, 1, 0, 1]


def test_reliable_means_that_nothing_but_the_job_itself_takes_time() -> None:
    fast = devices.fixed(1.0)
    assert durations(fast).reliable
    assert durations(fast, links=Links(up=100.0)).reliable
    assert durations(fast, crashes=Crashes(0.0)).reliable
    assert not durations(fast, crashes=Crashes(np.array([0, 0, 0, 0, 0.1]))).reliable
    assert not durations(fast, availability=Bernoulli(0.9)).reliable
    assert not durations(fast, links=Links(server=1e6)).reliable
    assert not durations(fast, left_at=np.full(5, 10.0)).reliable
