"""FedAvg, FedProx, FedNova and SCAFFOLD on quadratics whose trajectories and fixed points are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from toy_problems import EXACT, EXAMPLE_A, Unequal, Watched, clients, fixed_point, point, simulate, steps

import turnout
from turnout import MD, FedAvg, FedProx, Full, LocalSGD, Scaffold, Task, Uniform, UserError
from turnout.algorithms import FedNova, Local
from turnout.local.modifiers import Proximal
from turnout.server.observer import Observer, Round
from turnout.server.server import Server

OPTIMA = (0.0, 1.0, 2.0, 3.0)
WORK = (1, 2, 4, 8)
CURVATURES = (1.0, 2.0, 0.5, 4.0)


class Path(Observer):
    """The model after every round."""

    def __init__(self) -> None:
        self.models: list[float] = []

    def on_round(self, server: Server, record: Round) -> None:
        self.models.append(float(server.model[0]))


def path(algorithm: FedAvg, people: turnout.Population, rounds: int, start: float = 0.0) -> np.ndarray[Any, Any]:
    watch = Path()
    experiment = turnout.Experiment(point(start), people, algorithm, plan=EXACT)
    experiment.stopping, experiment.evaluation = turnout.Stopping(rounds), turnout.Evaluation(rounds=None)
    turnout.execute(experiment, observers=[watch])
    return np.array([start, *watch.models])


@pytest.mark.parametrize(("count", "lr"), [(1, 0.25), (3, 0.1), (7, 0.05)])
def test_full_participation_contracts(count: int, lr: float) -> None:
    """client-sampling.md O16: theta - theta* shrinks by (1 - eta)^K a round, to machine precision."""
    errors = path(FedAvg(steps(count, lr), Full()), clients(OPTIMA, EXAMPLE_A), 12, start=5.0) - 1.0
    assert errors[1:] == pytest.approx((1 - lr) ** count * errors[:-1], rel=1e-12)
    assert errors[0] == 4.0


@pytest.mark.parametrize(("sampler", "expected"), [(MD(2), 0.166667), (Uniform(2), 0.109091)])
def test_stationary_error_of_sampling(sampler: MD | Uniform, expected: float) -> None:
    """client-sampling.md O17: psi v / (2 - psi (1 + Var[sum omega])), psi = .5, v = .5 (MD) and .32 (Uniform)."""
    v, variance_of_sum = {MD: (0.5, 0.0), Uniform: (0.32, 1 / 15)}[type(sampler)]
    assert 0.5 * v / (2 - 0.5 * (1 + variance_of_sum)) == pytest.approx(expected, abs=5e-7)
    errors = np.square(path(FedAvg(steps(1, 0.5), sampler), clients(OPTIMA, EXAMPLE_A), 2020)[21:] - 1.0)
    blocks = errors.reshape(40, 50).mean(1)  # far longer than the memory of the chain: nearly independent
    assert abs(errors.mean() - expected) <= 4 * blocks.std() / np.sqrt(40)
    assert blocks.std() / np.sqrt(40) < 0.06 * expected


@dataclass
class UnequalNova(Unequal, FedNova):
    """FedNova with the clients' own numbers."""


@pytest.mark.parametrize(
    ("algorithm", "lr", "expected"),
    [
        (Unequal, 0.1, 1.6406163),
        (UnequalNova, 0.1, 0.9077007),
        (UnequalNova, 0.001, 0.9990008),
    ],
)
def test_unequal_work(algorithm: type[Unequal], lr: float, expected: float) -> None:
    """client-sampling.md O18: K = (1, 2, 4, 8) moves FedAvg's fixed point; FedNova moves it back, to first order."""
    people = clients(OPTIMA, EXAMPLE_A)
    assert fixed_point(algorithm(steps(1, lr), own={"steps": WORK}), people) == pytest.approx(expected, abs=5e-8)


def test_unequal_work_is_where_training_ends() -> None:
    """client-sampling.md O18: the fixed point attracts, through many real rounds."""
    people = clients(OPTIMA, EXAMPLE_A)
    ended = simulate(Unequal(steps(1, 0.1), own={"steps": WORK}), people, 100)
    assert float(ended.model[0]) == pytest.approx(1.6406163, abs=5e-8)
    assert ended.jobs()["steps"][:4].tolist() == list(WORK)


def test_unequal_work_limits() -> None:
    """client-sampling.md O18: as eta -> 0 FedAvg tends to sum p K theta / sum p K = 1.7692308 and FedNova to 1."""
    people = clients(OPTIMA, EXAMPLE_A)
    assert fixed_point(Unequal(steps(1, 1e-5), own={"steps": WORK}), people) == pytest.approx(1.7692308, abs=1e-4)
    gaps = [1 - fixed_point(UnequalNova(steps(1, lr), own={"steps": WORK}), people) for lr in (1e-3, 1e-4)]
    assert gaps[1] == pytest.approx(gaps[0] / 10, rel=0.02)


def test_nova_is_fedavg_when_work_is_equal() -> None:
    """client-sampling.md 3.12: FedNova equals FedAvg when all a_i agree."""
    people = clients(OPTIMA, EXAMPLE_A, CURVATURES)
    nova = simulate(FedNova(steps(4, 0.1), MD(2)), people, 8)
    assert nova.model == pytest.approx(simulate(FedAvg(steps(4, 0.1), MD(2)), people, 8).model, rel=1e-14)


@pytest.mark.parametrize("options", [{"normalise": "responders"}, {"wait_for": 2}])
def test_nova_makes_up_for_the_silent_as_fedavg_does(options: dict[str, Any]) -> None:
    devices = turnout.devices.lognormal(1.0, 0.5)
    people = clients(OPTIMA, EXAMPLE_A, CURVATURES, crashes=turnout.Crashes(0.4), devices=devices)
    results = [simulate(kind(steps(4, 0.1), Full(), **options), people, 8).model for kind in (FedNova, FedAvg)]
    assert results[0] == pytest.approx(results[1], rel=1e-13)
    assert results[0] != pytest.approx(simulate(FedNova(steps(4, 0.1), Full()), people, 8).model, rel=1e-3)


def test_nova_observed_mean() -> None:
    """client-sampling.md 3.12: with `observed`, a_bar = sum omega a / sum omega, here the same as sum p a."""
    people = clients(OPTIMA, EXAMPLE_A)
    given, seen = (
        simulate(UnequalNova(steps(1, 0.1), own={"steps": WORK}, observed=observed), people, 3).model
        for observed in (False, True)
    )
    assert given == pytest.approx(seen, rel=1e-14)


@pytest.mark.parametrize(("count", "expected"), [(1, 1.3333333), (5, 1.2226268), (20, 1.0294240)])
def test_client_drift(count: int, expected: float) -> None:
    """client-sampling.md O19: unequal curvature, eta = .05; the optimum is 1.3333333, reached by K = 1 only."""
    people = clients(OPTIMA, EXAMPLE_A, CURVATURES)
    assert fixed_point(FedAvg(steps(count, 0.05), Full()), people) == pytest.approx(expected, abs=5e-8)


@pytest.mark.parametrize(("count", "expected"), [(1, 0.8), (5, 0.692502), (50, 0.501292)])
def test_drift_of_two_clients(count: int, expected: float) -> None:
    """federated-em.md O15: a = (1, 4), c = (0, 1), equal weights, eta = .1, J full-gradient steps."""
    people = clients((0.0, 1.0), "equal", (1.0, 4.0))
    assert fixed_point(FedAvg(steps(count, 0.1), Full()), people) == pytest.approx(expected, abs=5e-7)


@pytest.mark.parametrize("mu", [0.25, 1.0, 6.0])
def test_fedprox_fixed_point(mu: float) -> None:
    """federated-em.md O15: with an exact local solve, sum w a/(a + mu) c / sum w a/(a + mu)."""
    people, a, c = clients((0.0, 1.0), "equal", (1.0, 4.0)), np.array([1.0, 4.0]), np.array([0.0, 1.0])
    pull = a / (a + mu)
    solved = fixed_point(FedProx(steps(400, 0.1), Full(), mu=mu), people)
    assert solved == pytest.approx((pull @ c) / pull.sum(), abs=1e-12)


def test_fedprox_few_steps() -> None:
    """Delta_i = (1 - (1 - eta (a + mu))^K) a / (a + mu) (c - theta): K steps towards (a c + mu theta) / (a + mu)."""
    people, a, mu = clients((0.0, 1.0), "equal", (1.0, 4.0)), np.array([1.0, 4.0]), 0.5
    phi = (1 - (1 - 0.1 * (a + mu)) ** 3) * a / (a + mu)
    ended = simulate(FedProx(steps(3, 0.1), Full(), mu=mu), people, 1, start=2.0)
    assert float(ended.model[0]) == pytest.approx(2 + np.mean(phi * (np.array([0.0, 1.0]) - 2)), rel=1e-14)


def test_fedprox_without_pull_is_fedavg() -> None:
    people = clients(OPTIMA, EXAMPLE_A, CURVATURES)
    free = simulate(FedProx(steps(4, 0.1), MD(2), mu=0.0), people, 5)
    assert free.model == pytest.approx(simulate(FedAvg(steps(4, 0.1), MD(2)), people, 5).model, rel=1e-14)


def test_effective_steps() -> None:
    """client-sampling.md 3.12: |a|_1 = (1 - (1 - eta mu)^K) / (eta mu); K = 4, eta = .1, mu = .5 gives 3.709875."""
    assert LocalSGD(0.1, modifiers=(Proximal(0.5),)).effective_steps(4) == pytest.approx(3.709875, abs=5e-7)
    assert LocalSGD(0.1, modifiers=(Proximal(0.0),)).effective_steps([4, 9]).tolist() == [4, 9]
    assert LocalSGD(0.1).effective_steps(4) == 4
    rho = 0.5  # momentum: a = (1, 1 + rho, 1 + rho + rho^2, ...) backwards
    assert LocalSGD(0.1, momentum=rho).effective_steps(3) == pytest.approx(1 + 1.5 + 1.75)


def test_effective_steps_with_own_rates() -> None:
    """Numbers of a work may be arrays over the invited, so that FedNova can be told of them."""
    own = LocalSGD(0.1, modifiers=(Proximal(0.5),)).bind({"lr": np.array([0.1, 0.2])})
    assert own.effective_steps([4, 1]) == pytest.approx([3.709875, 1.0], abs=5e-7)


@pytest.mark.parametrize(
    ("algorithm", "effective"),
    [
        (FedProx(steps(4, 0.1), Full(), mu=0.5), 3.709875),
        (FedAvg(steps(4, 0.1), Full()), 4.0),
        (FedAvg(steps(3, 0.1, momentum=0.5), Full()), 4.25),
    ],
)
def test_effective_steps_are_what_clients_do(algorithm: FedAvg, effective: float) -> None:
    """client-sampling.md 3.12: on a linear loss of slope g the client returns exactly -eta |a|_1 g."""
    task = Task(torch.nn.Linear(1, 1, bias=False), lambda outputs, targets: (outputs * targets).sum(1))
    people = turnout.Population(torch.ones(1, 1), torch.full((1, 1), 3.0), turnout.Ragged.from_rows([[0]]))
    ended = turnout.simulate(task, people, algorithm, rounds=1, plan=EXACT)
    assert float(ended.model - task.initial) == pytest.approx(-0.1 * effective * 3, abs=2e-7)


@pytest.mark.parametrize(("count", "lr"), [(1, 0.1), (5, 0.1), (12, 0.02)])
def test_local_deviation(count: int, lr: float) -> None:
    """overview-heterogeneity.md O2: after e gradient steps the deviation is (1 - (1 - eta)^e)(a_c - a_bar)."""
    optima = np.array([[0.0, 4.0], [1.0, -2.0], [5.0, 1.0]])
    algorithm = Watched(steps(count, lr))
    simulate(algorithm, clients(optima.tolist(), "equal"), 1, start=[7.0, -3.0])
    returned = algorithm.seen[0]["returned"]
    expected = (1 - (1 - lr) ** count) * (optima - optima.mean(0))
    assert returned - returned.mean(0) == pytest.approx(expected, abs=1e-14)


def controls(server: Server) -> np.ndarray[Any, Any]:
    stored = server.store.get({"control": (server.task.size,)}, server.population.ids)["control"]
    return np.asarray(stored.numpy()[:, 0])


class Controls(Observer):
    """After every round: the server's control variate, and the clients' as they should add up to it."""

    def __init__(self) -> None:
        self.rows: list[tuple[float, float]] = []

    def on_round(self, server: Server, record: Round) -> None:
        self.rows.append((float(server.held.tensors["control"][0]), float(server.importance @ controls(server))))


@pytest.mark.parametrize("count", [1, 5, 20])
def test_scaffold_removes_drift(count: int) -> None:
    """client-sampling.md O19's problem: SCAFFOLD ends at the optimum 1.3333333 whatever K, where FedAvg does not."""
    people = clients(OPTIMA, EXAMPLE_A, CURVATURES)
    ended = simulate(Scaffold(steps(count, 0.05), Full()), people, 300 if count == 1 else 80)
    assert float(ended.model[0]) == pytest.approx(4 / 3, abs=1e-9)
    gradients = np.array(CURVATURES) * (4 / 3 - np.array(OPTIMA))  # at the optimum every c_i is the local gradient
    assert controls(ended.server) == pytest.approx(gradients, abs=1e-7)


@pytest.mark.parametrize("sampler", [Full(), Uniform(2)])
def test_scaffold_control_variates_add_up(sampler: Full | Uniform) -> None:
    """Karimireddy et al. 2020: c = sum p_i c_i after every round, with everybody or only some of them."""
    watch = Controls()
    experiment = turnout.Experiment(
        point(), clients(OPTIMA, EXAMPLE_A, CURVATURES), Scaffold(steps(5, 0.05), sampler), plan=EXACT
    )
    experiment.stopping = turnout.Stopping(15)
    turnout.execute(experiment, observers=[watch])
    rows = np.array(watch.rows)
    assert rows[:, 0] == pytest.approx(rows[:, 1], abs=1e-13)
    assert np.ptp(rows[:, 0]) > 0.1


def test_scaffold_converges_with_some_of_the_clients() -> None:
    """Without gradient noise, partial participation does not keep SCAFFOLD from the optimum."""
    people = clients(OPTIMA, EXAMPLE_A, CURVATURES)
    ended = simulate(Scaffold(steps(5, 0.02), Uniform(2)), people, 400)
    assert float(ended.model[0]) == pytest.approx(4 / 3, abs=1e-4)


def test_first_scaffold_round_is_fedavg() -> None:
    """All control variates start at zero, so the first round is FedAvg's."""
    people = clients(OPTIMA, EXAMPLE_A, CURVATURES)
    first = simulate(Scaffold(steps(5, 0.05), Full()), people, 1)
    assert first.model == pytest.approx(simulate(FedAvg(steps(5, 0.05), Full()), people, 1).model, rel=1e-14)
    jobs = first.jobs()
    assert (jobs["bytes_down"].tolist(), jobs["bytes_up"].tolist()) == ([16] * 4, [16] * 4)  # model and control, both


@pytest.mark.parametrize("engine", ["vectorised", "sequential"])
def test_own_numbers_for_every_client(engine: str) -> None:
    """Arrays over the invited: client i does K_i steps at rate eta_i, so delta_i = (1 - (1 - eta_i)^K_i) theta_i*."""
    rates, people = np.array([0.1, 0.2, 0.05, 0.4]), clients((1.0,) * 4, EXAMPLE_A)
    algorithm = Unequal(steps(1, 0.1), own={"steps": WORK, "lr": rates})
    ended = simulate(algorithm, people, 1, plan=turnout.Plan(precision="float64", threads=1, engine=engine))
    phi = 1 - (1 - rates) ** np.array(WORK)
    assert float(ended.model[0]) == pytest.approx(np.array(EXAMPLE_A) @ phi, rel=1e-14)


@pytest.mark.parametrize("values", [(1, 2, 3), (1, 2, 3, 4, 5)])
def test_own_numbers_must_fit(values: Sequence[int]) -> None:
    algorithm = Unequal(steps(1, 0.1), own={"steps": values})
    with pytest.raises(UserError, match=rf"local\.steps: {len(values)} values for 4 invited clients"):
        simulate(algorithm, clients(OPTIMA, EXAMPLE_A), 1)


def test_local_only_on_quadratics() -> None:
    """Every client walks alone: theta_i - theta_i* = (1 - eta c_i)^(K T) (0 - theta_i*)."""
    people = clients(OPTIMA, EXAMPLE_A, CURVATURES)
    ended = simulate(Local(steps(3, 0.05)), people, 4)
    own = ended.server.store.get({"model": (1,)}, people.ids)["model"].numpy()[:, 0]
    expected = np.array(OPTIMA) * (1 - (1 - 0.05 * np.array(CURVATURES)) ** 12)
    assert own == pytest.approx(expected, rel=1e-13)
    assert float(ended.model[0]) == 0.0
    losses = np.array(CURVATURES) * np.square(expected - np.array(OPTIMA)) / 2
    assert ended.measures["train_loss"] == pytest.approx(np.array(EXAMPLE_A) @ losses, rel=1e-6)
