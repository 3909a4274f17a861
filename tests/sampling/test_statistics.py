"""`statistics` of every sampler: worked numbers of client-sampling.md, and Monte Carlo of the sampler itself."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from small_server import EXAMPLE_A, population

from turnout import UserError
from turnout.config import registry
from turnout.sampling._presence import Presence
from turnout.sampling._sampler import Sampler
from turnout.sampling._statistics import drawn, statistics

CIFAR = (np.repeat([100.0, 250, 500, 750, 1000], [10, 30, 30, 20, 10]) / 48_500).tolist()


WITHOUT = {"afl", "oort", "optimal", "power_of_choice", "profiled"} | {
    name for name in registry.names("sampler") if issubclass(registry.find("sampler", name), Presence)
}  # no closed form: they depend on losses, updates, profiles or presence


def make(name: str, m: int) -> Sampler:
    cls = registry.find("sampler", name)
    options = {"groups": [0, 1, 0, 1]} if name == "target" else {}
    return cls() if name == "full" else cls(m, **options)


@pytest.mark.parametrize("name", [name for name in registry.names("sampler") if name not in WITHOUT])
def test_closed_forms_agree_with_draws(name: str) -> None:
    """Within five standard errors of 8,000 rounds (variances: of the fourth moment, bounded by the largest weight)."""
    sampler, people = make(name, 2), population(EXAMPLE_A)
    found, counted = statistics(sampler, people, seed=4), drawn(sampler, people, seed=4, rounds=8_000)
    close = 5 * np.sqrt(np.maximum(counted.variance, 1e-12) / 8_000)
    assert (np.abs(found.expectation - counted.expectation) <= close + 1e-12).all()
    assert found.variance == pytest.approx(counted.variance, abs=0.009)
    assert found.inclusion == pytest.approx(counted.inclusion, abs=5 * 0.5 / np.sqrt(8_000))
    assert found.sum_variance == pytest.approx(counted.sum_variance, abs=0.03)
    assert counted.standard_error > 0 or name == "full"


@pytest.mark.parametrize(
    ("name", "total", "gamma", "of_sum", "distinct"),
    [
        ("full", 0.0, 0.0, 0.0, 4.0),
        ("md", 0.35, 0.5, 0.0, 1.7),
        ("uniform", 0.30, 0.40, 1 / 15, 2.0),
        ("binomial", 0.30, 0.30, 0.30, 2.0),
        ("poisson_binomial", 0.20, 0.20, 0.20, 2.0),
        ("clustered_size", 0.24, None, 0.0, 1.92),
    ],
)
def test_example_a(name: str, total: float, gamma: float | None, of_sum: float, distinct: float) -> None:
    """client-sampling.md 4.3."""
    found = statistics(make(name, 2), population(EXAMPLE_A))
    assert found.total_variance == pytest.approx(total, abs=1e-12)
    assert found.gamma == (None if gamma is None else pytest.approx(gamma))
    assert found.sum_variance == pytest.approx(of_sum, abs=1e-12)
    assert found.distinct_clients == pytest.approx(distinct)
    assert np.abs(found.bias).max() < 1e-15
    assert found.standard_error == 0


@pytest.mark.parametrize(
    ("name", "total"),
    [("md", 0.09869380), ("uniform", 0.11755766), ("clustered_size", 0.08749070), ("poisson_binomial", 0.08693804)],
)
def test_the_unbalanced_population(name: str, total: float) -> None:
    """client-sampling.md 4.4, m = 10."""
    found = statistics(make(name, 10), population(CIFAR))
    assert found.total_variance == pytest.approx(total, abs=1e-8)
    if name in ("md", "clustered_size"):
        assert found.distinct_clients == pytest.approx({"md": 9.4354, "clustered_size": 9.9724}[name], abs=1e-4)


@pytest.mark.parametrize("name", ["full", "md", "uniform", "binomial", "poisson_binomial"])
@pytest.mark.parametrize("p", [EXAMPLE_A, CIFAR])
def test_o2_variance_of_the_sum(name: str, p: list[float]) -> None:
    """Var[sum] = Sigma - alpha (1 - sum p^2)."""
    found = statistics(make(name, 2), population(p))
    assert found.covariance_coefficient is not None
    expected = found.total_variance - found.covariance_coefficient * (1 - float(np.square(p).sum()))
    assert found.sum_variance == pytest.approx(expected, abs=1e-12)


def test_biased_schemes_say_so() -> None:
    """client-sampling.md 3.11."""
    filled = statistics(make("fill", 2), population(EXAMPLE_A))
    assert filled.expectation == pytest.approx(np.array(EXAMPLE_A) / 2)
    renormalised = statistics(make("renormalised", 2), population(EXAMPLE_A))
    assert renormalised.expectation == pytest.approx([0.339683, 0.296429, 0.233333, 0.130556], abs=0.006)
    assert renormalised.standard_error > 0


def test_optimal_has_none() -> None:
    with pytest.raises(UserError, match="depends on the updates"):
        statistics(make("optimal", 2), population(EXAMPLE_A))


def test_a_sampler_knows_its_statistics() -> None:
    people = population(EXAMPLE_A)
    mine, exact = make("md", 2).statistics(people), statistics(make("md", 2), people)
    assert mine.variance.tolist() == exact.variance.tolist()
    rough = make("renormalised", 2).statistics(people, rounds=50)
    assert rough.expectation.tolist() == drawn(make("renormalised", 2), people, rounds=50).expectation.tolist()


BAD_SIZES = (0, -1, 2.5, float("nan"), True, "ten")


@pytest.mark.parametrize("name", registry.names("sampler"))
def test_a_bad_number_is_one_sentence(name: str) -> None:
    """Every number of every sampler, when it is made or asked: a sentence, or statistics that are possible."""
    cls = registry.find("sampler", name)
    fields = {field.name: field.default for field in dataclasses.fields(cls) if field.init}
    people, needed = population(EXAMPLE_A), {"groups": [0, 1, 0, 1]} if name == "target" else {}
    for option in [option for option, default in fields.items() if isinstance(default, int | float)]:
        for value in (0, -1, 10**6, float("nan"), float("inf")):
            try:
                found = statistics(cls(**needed | {option: value}), people, rounds=20)
            except UserError as error:
                assert "\n" not in str(error)
                continue
            assert np.isfinite(found.variance).all()
            assert (found.variance >= 0).all()
            assert ((found.inclusion >= 0) & (found.inclusion <= 1 + 1e-12)).all()
    for size in BAD_SIZES if "clients_per_round" in fields else ():
        with pytest.raises(UserError, match=r"sampler\.clients_per_round: \S+ (must be .*at least 1|is not a number)"):
            cls(**needed | {"clients_per_round": size})


@pytest.mark.parametrize("name", ["uniform", "fill", "renormalised", "binomial", "poisson_binomial"])
def test_unless_a_size_is_given_there_are_ten_or_as_many_as_can_be(name: str) -> None:
    cls, few, many = registry.find("sampler", name), population(EXAMPLE_A), population([1 / 40] * 40)
    limit = 2 if name == "poisson_binomial" else 4  # m p_i <= 1
    assert statistics(cls(), few, rounds=20).distinct_clients == pytest.approx(limit)
    assert statistics(cls(), many, rounds=20).distinct_clients == pytest.approx(10)
    with pytest.raises(UserError, match=r"sampler\.clients_per_round: 10 "):
        statistics(cls(10), few, rounds=20)
