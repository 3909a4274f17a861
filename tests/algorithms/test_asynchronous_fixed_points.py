"""Where the waiting policies lead on quadratic clients: equivalences, fixed points, stability.

The numbers are the oracles O5 and O9 to O13 of asynchronous.md.

One run carries many problems: coordinate k of the model has its own curvature c_k and start, and with one step of
rate 1 a client moves it by phi_k (theta_i - received), phi_k = c_k.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.optimize import brentq
from toy_problems import EXACT, SELDOM, clients, steps

import turnout
from support import Vector
from turnout import (
    Algorithm,
    AsyncFedAvg,
    Experiment,
    FedAvg,
    FedBuff,
    FedFix,
    Full,
    Observer,
    Policy,
    Population,
    Result,
    Stopping,
    Task,
    devices,
)
from turnout.algorithms import FedAsync
from turnout.server.durations import Durations
from turnout.server.observer import Round
from turnout.server.policy import rates
from turnout.server.server import Server

OPTIMA = (0.0, 1.0, 2.0, 3.0, 4.0)
TAU = np.array([1.0, 0.8, 0.6, 0.4, 0.2])
ONE = steps(1, 1.0)  # phi is the curvature
PHIS = (0.2, 0.05, 0.01, 0.001)

FloatArray = NDArray[np.float64]


def problems(phis: Sequence[float] | FloatArray, starts: Sequence[float] | FloatArray) -> Task:
    """1/2 sum_k phi_k (theta_k - theta_i)^2, theta_k from its own start."""
    curvature = torch.tensor(phis, dtype=torch.float64)

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return ((outputs[:, 1:] - targets).square() * curvature.to(outputs.dtype)).sum(1) / 2

    module = Vector(len(phis))
    module.theta = torch.nn.Parameter(torch.tensor(starts, dtype=torch.float64))
    return Task(module, loss)


class Models(Observer):
    """The model after every round, and who received it (who had delivered) with which weight."""

    def __init__(self) -> None:
        self.models: list[FloatArray] = []
        self.receivers: list[list[int]] = []
        self.weights: list[FloatArray] = []

    def on_round(self, server: Server, record: Round) -> None:
        used = record.weights != 0
        self.models.append(server.model.numpy().copy())
        self.receivers.append([job.client for job, counted in zip(record.jobs, used, strict=True) if counted])
        self.weights.append(record.weights[used])


def people(optima: Sequence[float] = OPTIMA, dims: int = 1, **columns: Any) -> Population:
    columns.setdefault("devices", devices.fx(80, 5))
    return clients([[value] * dims for value in optima], columns.pop("importance", "equal"), **columns)


def run(algorithm: Algorithm, population: Population, task: Task, rounds: int) -> tuple[Models, Result]:
    models = Models()
    experiment = Experiment(task, population, algorithm, plan=EXACT, evaluation=SELDOM, stopping=Stopping(rounds))
    return models, turnout.execute(experiment, observers=[models])


def trajectory(algorithm: Algorithm, rounds: int, **columns: Any) -> tuple[FloatArray, FloatArray]:
    """Models `[rounds]` and closes of the five clients, phi = .15 from 7."""
    models, ended = run(algorithm, people(**columns), problems([0.15], [7.0]), rounds)
    return np.array(models.models)[:, 0], ended.rounds()["time"][1:]


# O5: equivalences


def test_fedfix_as_long_as_the_slowest_client_is_synchronous() -> None:
    """O5: same models at the same times; with longer windows the same models, later."""
    models, times = trajectory(FedAvg(ONE, Full()), 12)
    same, at = trajectory(FedFix(ONE, window=1.0), 12)
    assert same == pytest.approx(models, rel=1e-14)
    assert at.tolist() == times.tolist()
    later, at = trajectory(FedFix(ONE, window=1.25), 12)
    assert later == pytest.approx(models, rel=1e-14)
    assert at == pytest.approx(1.25 * times)


def test_fedbuff_of_everybody_is_synchronous() -> None:
    models, times = trajectory(FedAvg(ONE, Full()), 12)
    same, at = trajectory(FedBuff(ONE, buffer_size=5), 12)
    assert same == pytest.approx(models, rel=1e-14)
    assert at.tolist() == times.tolist()


@pytest.mark.parametrize("mode", ["wait", "restart"])
@pytest.mark.parametrize("delays", [devices.fx(80, 5), devices.exponential(TAU)], ids=["f80", "exponential"])
def test_fedbuff_of_one_is_asynchronous(mode: str, delays: devices.Devices) -> None:
    models, times = trajectory(AsyncFedAvg(ONE), 60, devices=delays)
    same, at = trajectory(FedBuff(ONE, buffer_size=1, mode=mode), 60, devices=delays)
    assert same == pytest.approx(models, rel=1e-14)
    assert at.tolist() == times.tolist()


def test_half_windows_of_equal_clients_are_double_steps() -> None:
    """O5: under F0 FedFix with half a unit is synchronous FedAvg with `server_lr` 2, every other round empty."""
    equal = devices.fx(0, 5)
    models, times = trajectory(FedAvg(ONE, Full(), server_lr=2.0), 8, devices=equal)
    halves, at = trajectory(FedFix(ONE, window=0.5), 16, devices=equal)
    assert halves[1::2] == pytest.approx(models, rel=1e-14)
    assert halves[2::2].tolist() == halves[1:-1:2].tolist()
    assert halves[0] == 7.0
    assert at[1::2].tolist() == times.tolist()


# the law itself, as a plain loop over the schedule


def replay(policy: Policy, rounds: int, d: FloatArray, phi: FloatArray, start: FloatArray) -> FloatArray:
    """`[rounds + 1, K]` theta^{n+1} = theta^n + sum_i d_i phi (theta_i - theta^{rho_i})."""
    schedule = policy.schedule(Durations.of(people(), ONE), rounds=rounds)
    models = [start]
    row = 0
    for number in range(rounds):
        model = models[-1].copy()
        while row < len(schedule) and schedule.round[row] == number:
            client = schedule.client[row]
            model = model + d[client] * phi * (OPTIMA[client] - models[schedule.version[row]])
            row += 1
        models.append(model)
    return np.array(models)


POLICIES: dict[str, tuple[Algorithm, Policy, int]] = {  # with the rounds of a window
    "sync": (FedBuff(ONE, buffer_size=5), Policy(), 1),
    "async": (AsyncFedAvg(ONE), Policy(count=1), 137),
    "fedfix .5": (FedFix(ONE, window=0.5), Policy(window=0.5), 2),
    "fedfix .2": (FedFix(ONE, window=0.2), Policy(window=0.2), 60),
    "fedbuff 2": (FedBuff(ONE, buffer_size=2), Policy(count=2), 56),
    "fedbuff 3": (FedBuff(ONE, buffer_size=3), Policy(count=3), 8),
    "restart 3": (FedBuff(ONE, buffer_size=3, mode="restart"), Policy(count=3, restart=True), 137),
}


@pytest.mark.parametrize("name", POLICIES)
def test_every_update_is_the_difference_to_the_model_received(name: str) -> None:
    algorithm, policy, _ = POLICIES[name]
    phi, start = np.array([0.1, 0.3, 0.9]), np.array([0.0, 7.0, -3.0])
    d = 0.2 / rates(policy, Durations.of(people(), ONE))
    models, _ = run(replace(algorithm), people(dims=3), problems(phi, start), 40)
    np.testing.assert_allclose(models.models, replay(policy, 40, d, phi, start)[1:], rtol=1e-11, atol=1e-11)


# O9: fixed points


def limits(algorithm: Algorithm, window: int, burn_in: int, phis: Sequence[float], *by_weight: Any) -> list[FloatArray]:
    """The mean of the broadcast models over one window, once it repeats, for each phi.

    Plain (None), or weighted by what the receivers' updates count: a value a client. Small phi converge slowly, but the
    mean is affine in the start: of two starts, the mixture whose mean stays the same from one window to the next is the
    limit.
    """
    twice = problems([*phis, *phis], [0.0] * len(phis) + [4.0] * len(phis))
    models, _ = run(algorithm, people(dims=2 * len(phis)), twice, (burn_in + 2) * window)
    found = []
    for weight in by_weight:
        means = []
        for number in (burn_in, burn_in + 1):
            rounds = range(number * window, (number + 1) * window)
            counts = [1.0 if weight is None else float(weight[models.receivers[n]].sum()) for n in rounds]
            means.append(np.average([models.models[n] for n in rounds], axis=0, weights=counts))
        (low, high), (low_next, high_next) = (np.split(mean, 2) for mean in means)
        change, slope = low_next - low, (high_next - high) - (low_next - low)
        mixture = np.divide(-change, slope, out=np.zeros_like(slope), where=abs(slope) > 1e-9)
        found.append(low_next + mixture * (high_next - low_next))
    return found


def inverse_rates(policy: Policy) -> FloatArray:
    return 1 / rates(policy, Durations.of(people(), ONE))


def test_identical_weights_minimise_a_loss_weighted_by_speed() -> None:
    """O9: 2.8102190 = sum theta_i / tau_i / sum 1 / tau_i, exactly, for any stable phi."""
    expected = (np.array(OPTIMA) / TAU).sum() / (1 / TAU).sum()
    assert expected == pytest.approx(2.8102190, abs=5e-8)
    (means,) = limits(AsyncFedAvg(ONE, weight_rule="naive"), 137, 3, (0.5, *PHIS), None)
    assert means == pytest.approx([expected] * 5, abs=1e-8)


@pytest.mark.parametrize(
    ("name", "burn_in", "plain"),
    [
        ("async", 5, [2.097174, 2.027371, 2.005664, 2.000571]),
        ("fedfix .5", 100, [2.036585, 2.009036, 2.001801, None]),
        ("fedfix .2", 5, None),
        ("fedbuff 2", 5, None),
        ("fedbuff 3", 30, None),
    ],
)
def test_unbiased_weights_reach_the_optimum(name: str, burn_in: int, plain: list[float | None] | None) -> None:
    """O9: weighted by the receivers' d_i the broadcast models average to 2, for any stable phi; plainly, to O(phi)."""
    algorithm, policy, window = POLICIES[name]
    d = 0.2 * inverse_rates(policy)
    weighted, means = limits(replace(algorithm), window, burn_in, PHIS, d, None)
    assert weighted == pytest.approx([2.0] * len(PHIS), abs=2e-8)
    for value, expected in zip(means, plain or [], strict=plain is not None):
        assert expected is None or value == pytest.approx(expected, abs=6e-7)
    assert abs(means[0] - 2) > 1e-3  # the plain mean is another


def test_restarting_clients_reach_the_optimum() -> None:
    """O9 in restart mode. Those that restart between two flushes receive the model of the last one: the mean is over
    the models received by each job, weighted by what that job's update counts."""
    algorithm, policy, window = POLICIES["restart 3"]
    d = 0.2 * inverse_rates(policy)
    models, _ = run(replace(algorithm), people(dims=2), problems([0.2, 0.1], [1.0, 1.0]), 5 * window)
    broadcast = np.vstack([[1.0, 1.0], models.models])
    schedule = policy.schedule(Durations.of(people(), ONE), rounds=5 * window).between(4 * window, 5 * window)
    received = np.average(broadcast[schedule.version], axis=0, weights=d[schedule.client])
    assert received == pytest.approx([2.0, 2.0], abs=1e-9)


def test_naive_fedfix_forgets_the_slow() -> None:
    """O9: 2.4285714 = sum theta_i / N'_i / sum 1 / N'_i, for the mean weighted by the receivers' p_i."""
    (means,) = limits(FedFix(ONE, window=0.5, weight_rule="naive"), 2, 100, PHIS, np.full(5, 0.2))
    assert means == pytest.approx([17 / 7] * len(PHIS), abs=1e-8)
    assert means == pytest.approx([2.4285714] * len(PHIS), abs=1e-7)


@pytest.mark.parametrize(("size", "window", "expected"), [(2, 56, 2.5714286), (3, 8, 2.4583333)])
def test_naive_fedbuff_forgets_the_slow(size: int, window: int, expected: float) -> None:
    """O9: sum f_i theta_i / c, for the plain mean."""
    f = rates(Policy(count=size), Durations.of(people(), ONE))
    assert f @ np.array(OPTIMA) / size == pytest.approx(expected, abs=5e-8)
    (means,) = limits(FedBuff(ONE, buffer_size=size, weight_rule="naive"), window, 300 // window, PHIS, None)
    assert means == pytest.approx([expected] * len(PHIS), abs=6e-8)


def test_learning_rate_correction_is_right_to_first_order() -> None:
    """O9, five local steps of rate .05, .01 and .001: sum phi_i theta_i / tau_i / sum phi_i / tau_i with
    phi_i = 1 - (1 - d_i lr)^5. The rates are curvatures here."""
    curvatures, expected = (1.0, 0.2, 0.02), (2.090999, 2.018264, 2.001827)
    d = 0.2 * inverse_rates(Policy(count=1))
    phis = [1 - (1 - d * 0.05 * curvature) ** 5 for curvature in curvatures]
    means = limits(AsyncFedAvg(steps(5, 0.05), weight_rule="learning_rate"), 137, 1, curvatures, *phis)
    for place, (phi, value) in enumerate(zip(phis, expected, strict=True)):
        assert (phi / TAU) @ np.array(OPTIMA) / (phi / TAU).sum() == pytest.approx(value, abs=6e-7)
        assert means[place][place] == pytest.approx(value, abs=6e-7)


def test_learning_rate_correction_is_exact_for_one_step() -> None:
    """3.3: the same trajectory as the weights."""
    corrected, _ = trajectory(AsyncFedAvg(ONE, weight_rule="learning_rate"), 60)
    weighted, _ = trajectory(AsyncFedAvg(ONE), 60)
    assert corrected == pytest.approx(weighted, rel=1e-12)


def drift(policy: Policy, first: int, last: int) -> float:
    """R: mean over rounds of L^n(2) - min L^n, L^n = sum_i omega_i(n) L_i."""
    optima, d = np.array(OPTIMA), 0.2 * inverse_rates(policy)
    schedule = policy.schedule(Durations.of(people(), ONE), rounds=last)
    total = 0.0
    for number in range(first, last):
        heard = schedule.client[schedule.round == number]
        omega, theta = d[heard], optima[heard]
        if len(heard):
            total += (omega.sum() * (2 - omega @ theta / omega.sum()) ** 2) / 2
    return total / (last - first)


def test_objective_drift() -> None:
    """O9: 1.0, .28125 and 0."""
    assert drift(Policy(count=1), 0, 137) == pytest.approx(1.0, rel=1e-12)
    assert drift(Policy(window=0.5), 0, 2) == pytest.approx(0.28125, rel=1e-12)
    assert drift(Policy(), 0, 3) == pytest.approx(0.0, abs=1e-12)


def test_the_audit_shows_the_bias_of_identical_weights() -> None:
    """O9: chi^2 = sum (p - share)^2 / share = .37. The audit's own divides by what was meant, p, instead."""
    _, ended = run(AsyncFedAvg(ONE, weight_rule="naive"), people(), problems([0.1], [0.0]), 137)
    share = ended.audit.realised / ended.audit.realised.sum()
    assert share == pytest.approx(np.array([12, 15, 20, 30, 60]) / 137, rel=1e-12)
    assert (np.square(0.2 - share) / share).sum() == pytest.approx(0.37, rel=1e-12)
    assert ended.audit.chi_square == pytest.approx(5 * 5269 / 137**2 - 1, rel=1e-12)
    assert ended.audit.ratio == pytest.approx(share / 0.2, rel=1e-12)


# O10: stability


def radius(policy: Policy, window: int, d: FloatArray, phi: float) -> float:
    """Spectral radius of one window's map of (model, what each client works on)."""
    schedule = policy.schedule(Durations.of(people(), ONE), rounds=window)
    whole = np.eye(6)
    for number in range(window):
        heard = schedule.client[schedule.round == number]
        step = np.eye(6)
        step[0, 1 + heard] -= d[heard] * phi
        step[1 + heard] = step[0]
        whole = step @ whole
    return float(abs(np.linalg.eigvals(whole)).max())


@pytest.mark.parametrize(
    ("name", "naive", "limit"),
    [
        ("sync", False, 2.0),
        ("fedfix .5", False, 1.09612),
        ("fedfix .2", False, 0.66967),
        ("async", True, 0.67543),
        ("async", False, 0.31633),
    ],
)
def test_stability_limits(name: str, naive: bool, limit: float) -> None:
    """O10: the window map's radius is 1 at the limit; a run just below it shrinks, just above it grows."""
    algorithm, policy, window = POLICIES[name]
    d = np.ones(5) if naive else 0.2 * inverse_rates(policy)
    found = brentq(lambda phi: radius(policy, window, d, phi) - 1, 0.9 * limit, 1.1 * limit, xtol=1e-9)
    assert found == pytest.approx(limit, abs=6e-6)
    span = window * -(-60 // window)  # some windows
    rule: dict[str, Any] = {"weight_rule": "naive"} if naive else {}
    models, _ = run(
        replace(algorithm, **rule),
        people([0.0] * 5, dims=2),
        problems([0.95 * limit, 1.05 * limit], [1.0, 1.0]),
        3 * span,
    )
    sizes = abs(np.array(models.models)).reshape(3, span, 2).max(1)
    assert (sizes[2, 0] < 0.5 * sizes[0, 0]) and (sizes[2, 1] > 2 * sizes[0, 1])


def test_stability_limits_are_in_the_paper_s_order() -> None:
    """O10: more asynchrony, smaller steps; unbiased weights cost stability."""
    limits_ = {
        name: brentq(lambda phi, p=policy, w=window: radius(p, w, 0.2 * inverse_rates(p), phi) - 1, 0.2, 2.5)
        for name, (_, policy, window) in POLICIES.items()
        if name in ("sync", "fedfix .5", "fedfix .2", "async")
    }
    assert limits_["sync"] > limits_["fedfix .5"] > limits_["fedfix .2"] > limits_["async"]
    assert radius(Policy(count=1), 137, np.ones(5), limits_["async"]) < 1


# O11, O12: taking turns


def turns(
    optima: Sequence[float], late: Sequence[int], importance: Any, phis: Sequence[float], rounds: int
) -> FloatArray:
    """Models before every round: jobs of two windows, the `late` clients a window behind the others.

    Naive weights p_i and a server rate of 2. The first close finds nothing, so theta^1 = theta^0.
    """
    joined = np.zeros(len(optima))
    joined[list(late)] = 1.0
    population = people(optima, len(phis), importance=importance, devices=devices.fixed(2.0), joined_at=joined)
    algorithm = FedFix(ONE, window=1.0, weight_rule="naive", server_lr=2.0)
    models, _ = run(algorithm, population, problems(phis, [5.0] * len(phis)), rounds)
    assert models.receivers[1:5] == [
        [i for i in range(len(optima)) if (i in late) == (number % 2 == 0)] for number in range(1, 5)
    ]
    return np.vstack([[5.0] * len(phis), models.models])


def test_example_4_1_converges_only_for_short_steps() -> None:
    """O11: theta^{n+2} = theta^{n+1} - phi theta^n + phi theta*, with the radius sqrt(phi); phi = 1 has period 6."""
    phis = [0.25, 0.5, 0.9, 1.0, 1.1]
    x = turns((1.0, 1.0, 3.0, 3.0), (1, 3), "equal", phis, 120) - 2.0  # theta* = 2
    np.testing.assert_allclose(x[2:], x[1:-1] - np.array(phis) * x[:-2], rtol=1e-9, atol=1e-12)
    for phi, size in zip(phis, (0.5, 0.7071, 0.9487, 1.0, np.sqrt(1.1)), strict=True):
        roots = np.roots([1, -1, phi])
        assert abs(roots).max() == pytest.approx(size, abs=5e-5)
    assert abs(x[110:, 0]).max() < 1e-12  # a double root: n 2^-n
    assert abs(x[110:, 1]).max() < 1e-12
    amplitude = np.sqrt(np.array(phis)) ** 60
    ratio = abs(x[-12:]).max(0)[1:] / abs(x[-72:-60]).max(0)[1:]  # 60 rounds apart
    assert ratio[1:] == pytest.approx(amplitude[2:], rel=0.4)
    np.testing.assert_allclose(x[6:, 3], x[:-6, 3], atol=1e-9)
    assert abs(x[:, 3]).max() >= 3.0  # for ever


@pytest.mark.parametrize(
    ("q", "phi", "even", "odd"),
    [
        ((1.0, 1.0), 0.5, 0.6, 0.4),
        ((0.5, 1.5), 0.5, 0.7894737, 0.6315789),
        ((0.5, 1.5), 0.05, None, None),
    ],
)
def test_example_4_2_ends_in_a_cycle_of_two(
    q: tuple[float, float], phi: float, even: float | None, odd: float | None
) -> None:
    """O12: two clients in turns; the q-weighted mean is the text's limit, single models only as phi goes to 0."""
    total = q[0] + q[1] + q[0] * q[1] * phi
    before_first = q[1] * (1 + q[0] * phi) / total  # theta_even, from which client 0 leads away; theta* = (0, 1)
    before_second = q[1] / total
    assert even is None or before_first == pytest.approx(even, abs=5e-8)
    assert odd is None or before_second == pytest.approx(odd, abs=5e-8)
    x = turns((0.0, 1.0), (1,), [value / 2 for value in q], [phi], 80 if phi > 0.1 else 500)[:, 0]
    assert x[-6::2] == pytest.approx([before_first] * 3, abs=1e-9)  # odd places: client 0 is used in rounds 1, 3, ...
    assert x[-5::2] == pytest.approx([before_second] * 3, abs=1e-9)
    # what a client received is what it left behind: the model before the other's update
    received = (q[0] * x[-1] + q[1] * x[-2]) / sum(q)
    assert received == pytest.approx(q[1] / sum(q), rel=1e-9)
    if q == (0.5, 1.5) and phi == 0.5:
        assert x[-2:].mean() == pytest.approx(0.7105263, abs=5e-8)


def test_example_4_2_for_tiny_steps() -> None:
    """O12: phi = .001: .7500937 and .7497189. The cycle is a fixed point of the law, so a run begun there stays."""
    q, phi = (0.5, 1.5), 0.001
    total = q[0] + q[1] + q[0] * q[1] * phi
    even, odd = q[1] * (1 + q[0] * phi) / total, q[1] / total
    assert [even, odd] == pytest.approx([0.7500937, 0.7497189], abs=5e-8)
    x = turns((0.0, 1.0), (1,), [0.25, 0.75], [phi, phi], 40)
    gap = x[3:, 0] - x[2:-1, 0]
    stale = x[1:-2, 0]
    turn = np.arange(2, 2 + len(gap)) % 2  # 1: client 0
    np.testing.assert_allclose(gap, np.where(turn, q[0] * phi * (0 - stale), q[1] * phi * (1 - stale)), rtol=1e-9)
    assert odd - even == pytest.approx(q[0] * phi * (0 - odd), rel=1e-9)
    assert even - odd == pytest.approx(q[1] * phi * (1 - even), rel=1e-9)


# O13: clients alike


SHORT = steps(2, 0.1)
RULES: Any = ("unbiased", "measured", "naive")
ALIKE: dict[str, Algorithm] = {
    **{f"async {rule}": AsyncFedAvg(SHORT, weight_rule=rule) for rule in (*RULES, "learning_rate")},
    **{f"fedfix {rule}": FedFix(SHORT, weight_rule=rule) for rule in RULES},
    **{f"fedbuff {rule}": FedBuff(SHORT, weight_rule=rule, buffer_size=2) for rule in RULES},
    "restart": FedBuff(SHORT, buffer_size=2, mode="restart"),
    "discounted": AsyncFedAvg(SHORT, staleness_discount="polynomial"),
    "dropped": AsyncFedAvg(SHORT, max_staleness=3),
    "fedasync": FedAsync(SHORT),
    "proximal": FedAsync(SHORT, mu=0.5, staleness_discount="hinge"),
}  # fmt: skip


@pytest.mark.parametrize("name", ALIKE)
def test_clients_alike_reach_their_optimum_whatever_the_weights(name: str) -> None:
    """O13."""
    rounds = 120 if name.startswith(("fedfix", "fedbuff")) else 350
    models, _ = run(replace(ALIKE[name]), people([3.0] * 5), problems([1.0], [0.0]), rounds)
    assert models.models[-1] == pytest.approx([3.0], abs=2e-4)
