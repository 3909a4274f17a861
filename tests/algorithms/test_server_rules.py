"""What the server does with the aggregated difference, against numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch
from toy_problems import clients, simulate, steps

import turnout
from turnout import FedAdam, FedAvg, Full, LocalSGD, Plan, Task, Uniform, UserError
from turnout.algorithms import FedAdagrad, FedAvgM, FedYogi

# One client with its optimum at 1 and one local step of rate 1/2: change = (1 - theta) / 2.
# server_lr = .1, beta1 = .5 (Adagrad 0), beta2 = .75, tau = .1; m starts at 0, v at tau^2 = .01.
HAND = {
    # Adam from 0:      m = .25, v = .07;       then change = .465713514, m = .357856757, v = .106722269
    (FedAdam, 0.0): (0.068572971294358, 0.152442291656718),
    # Yogi from 0:      v = .01 + .0625 = .0725 (v below change^2 grows); then v = .126823572
    (FedYogi, 0.0): (0.067703296142690, 0.146207164090118),
    # Adagrad from 0:   v = .01 + .25 = .26;    then v = .470690001
    (FedAdagrad, 0.0): (0.081980390271856, 0.140373494535882),
    # From .9, change = .05: Adam v = .0075 + .000625 = .008125, Yogi v = .01 - .000625 (v above change^2 shrinks)
    (FedAdam, 0.9): (0.913148290817867, 0.932047753141420),
    (FedYogi, 0.9): (0.912701665379258, 0.930364444861590),
    (FedAdagrad, 0.9): (0.923606797749979, 0.941116276898936),
}
ONE = clients((1.0,), "equal")


@pytest.mark.parametrize(("algorithm", "start"), HAND)
def test_adaptive_steps(algorithm: type[FedAdam], start: float) -> None:
    """Reddi et al. 2021, algorithm 2: the first and the second step."""
    betas = {} if algorithm is FedAdagrad else {"beta1": 0.5, "beta2": 0.75}
    for rounds, expected in enumerate(HAND[algorithm, start], 1):
        run = algorithm(steps(1, 0.5), Full(), server_lr=0.1, tau=0.1, **betas)  # type: ignore[arg-type]
        assert float(simulate(run, ONE, rounds, start).model[0]) == pytest.approx(expected, abs=1e-14)


def test_momentum_steps() -> None:
    """Hsu et al. 2019: v = .5, theta = .25; then change = .375, v = .9 * .5 + .375 = .825, theta = .25 + .4125."""
    for rounds, expected in enumerate((0.25, 0.6625), 1):
        run = FedAvgM(steps(1, 0.5), Full(), server_lr=0.5, beta=0.9)
        assert float(simulate(run, ONE, rounds).model[0]) == pytest.approx(expected, abs=1e-15)


def test_server_rate() -> None:
    """`model <- model + server_lr * change`."""
    assert float(simulate(FedAvg(steps(1, 0.5), Full(), server_lr=0.25), ONE, 1).model[0]) == 0.125


def test_momentum_zero_is_fedavg() -> None:
    """overview-heterogeneity.md O4: FedOpt with plain SGD of rate 1 is FedAvg, bit for bit."""
    people = turnout.Population.of(turnout.datasets.load("digits"), 20, "dirichlet", partition_options={"alpha": 0.5})
    task, local = Task(lambda: turnout.models.mlp(64, [8], 10), seed=1), LocalSGD(0.3, batch_size=8)
    plain, momentum = (
        turnout.simulate(task, people, run, rounds=4, plan=Plan(threads=1)).model
        for run in (FedAvg(local, Uniform(5)), FedAvgM(local, Uniform(5), beta=0.0))
    )
    assert plain.equal(momentum)
    assert not plain.equal(task.initial)


@pytest.mark.parametrize("name", ["server_lr", "deadline", "retry"])
def test_options_above_zero(name: str) -> None:
    with pytest.raises(UserError, match=rf"algorithm\.{name}: 0 must be above 0"):
        FedAvg(LocalSGD(0.1), **{name: 0})  # type: ignore[arg-type]


def test_tau_above_zero() -> None:
    with pytest.raises(UserError, match=r"algorithm\.tau"):
        simulate(FedAdam(steps(1, 0.5), Full(), tau=0.0), ONE, 1)


def test_mu_not_below_zero() -> None:
    with pytest.raises(UserError, match=r"algorithm\.mu"):
        turnout.FedProx(LocalSGD(0.1), mu=-1.0)


def test_divergence_stops_the_run() -> None:
    """A model that is no longer finite is not published: the run stops with the last finite one and says so."""
    run = FedAvg(steps(1, 1e200), Full(), server_lr=1e200)
    ended = simulate(run, clients((1.0, 2.0), "equal"), 5)
    assert ended.server.stopped is not None
    assert ended.server.stopped.startswith("diverged")
    assert bool(torch.isfinite(ended.model).all())
    assert ended.audit.events["diverged"] == 1
