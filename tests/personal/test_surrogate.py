"""Federated surrogate optimisation: what makes FedEM's bound a surrogate, and that to descend it is to descend f.

Three silos of points on two lines: a mixture of linear regressions, whose M-step is weighted least squares.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import grad

import turnout
from turnout import Evaluation, FedAvg, Full, LocalSGD, Plan, Population, Ragged, Task
from turnout.algorithms._mixtures import weights_of
from turnout.algorithms.fedem import FedEM
from turnout.core.random import FloatArray, key, normal, uniform
from turnout.local.mixture import MixtureTask, responsibilities
from turnout_studies.theory.surrogate import MixtureProblem, Samples, client_round, peers_round, server_round

M, SIZES = 2, (12, 30, 18)
IMPORTANCE = np.array(SIZES) / sum(SIZES)
LINES = torch.tensor([[1.0, -1.0, 0.5], [-1.0, 2.0, 0.0]], dtype=torch.float64)  # slopes and intercept
TRUE = ((0.9, 0.1), (0.2, 0.8), (0.5, 0.5))
TASK = MixtureTask(Task(lambda: nn.Linear(2, 1), "mse", seed=1), M).to(dtype=torch.float64)
PROBLEM = MixtureProblem(TASK)


def silos() -> list[Samples]:
    data = []
    for t, (size, share) in enumerate(zip(SIZES, TRUE, strict=True)):
        draws = torch.from_numpy(normal(key(3, "silo", t, np.arange(size)), 3))
        of_first = torch.from_numpy(uniform(key(3, "component", t, np.arange(size)), 1)) < share[0]
        line = torch.where(of_first, LINES[0], LINES[1])
        targets = (draws[:, :2] * line[:, :2]).sum(1) + line[:, 2] + 0.3 * draws[:, 2]
        data.append((draws[:, :2], targets[:, None]))
    return data


DATA = silos()


def somewhere(number: int) -> tuple[Tensor, list[Tensor]]:
    """Components, and weights of every silo."""
    shared = TASK.initial + torch.from_numpy(normal(key(number, "shared"), TASK.size))
    rows = torch.from_numpy(uniform(key(number, "private", np.arange(len(SIZES))), M)) + 0.05
    return shared, list(rows / rows.sum(1, keepdim=True))


def over_silos(values: list[Tensor]) -> Tensor:
    return torch.stack([float(omega) * value for omega, value in zip(IMPORTANCE, values, strict=True)]).sum(0)


def objective(shared: Tensor, private: list[Tensor]) -> Tensor:
    return over_silos([PROBLEM.objective(shared, v, mine) for v, mine in zip(private, DATA, strict=True)])


def kl(p: Tensor, q: Tensor) -> Tensor:
    return (p * (p.log() - q.log())).sum(-1)


@pytest.mark.parametrize("number", range(4))
def test_the_gap_is_a_divergence_of_posteriors(number: int) -> None:
    """federated-em.md O3: g - f = mean KL(q, p(z | s)) >= 0 anywhere; 0 where it was made, with no slope in Theta."""
    (shared, private), (other, weights) = somewhere(number), somewhere(number + 10)
    bounds = [PROBLEM.surrogate(shared, v, mine) for v, mine in zip(private, DATA, strict=True)]
    gap = over_silos([g(other, v) for g, v in zip(bounds, weights, strict=True)]) - objective(other, weights)
    expected = []
    for v, w, mine in zip(private, weights, DATA, strict=True):
        q = responsibilities(TASK.component_losses(shared, *mine), v)
        posterior = responsibilities(TASK.component_losses(other, *mine), w)
        expected.append(kl(q, posterior).mean())
    assert float(gap) == pytest.approx(float(over_silos(expected)), abs=1e-9)
    assert float(gap) > 0.01
    for bound, v, mine in zip(bounds, private, DATA, strict=True):
        assert float(bound(shared, v) - PROBLEM.objective(shared, v, mine)) == pytest.approx(0, abs=1e-9)
        slope = grad(bound)(shared, v) - grad(PROBLEM.objective)(shared, v, mine)
        assert float(slope.abs().max()) < 1e-9


@pytest.mark.parametrize("number", range(4))
def test_the_best_weights_and_how_much_better_they_are(number: int) -> None:
    """federated-em.md O4: g(Theta, Pi) = g(Theta, Pi^k) + sum_t omega_t KL(pi_t^k, pi_t), whatever Theta is."""
    (shared, private), (other, weights) = somewhere(number), somewhere(number + 10)
    for v, w, mine in zip(private, weights, DATA, strict=True):
        bound, best = PROBLEM.surrogate(shared, v, mine), PROBLEM.minimise_private(shared, v, mine)
        assert float(best.sum()) == pytest.approx(1, abs=1e-12)
        better = float(bound(other, w) - bound(other, best))
        assert better == pytest.approx(float(kl(best, w)), abs=1e-9)
        assert better == pytest.approx(float(PROBLEM.divergence(w, best)), abs=1e-9)
        assert better > 0


def least_squares(shared: Tensor, private: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """A round of exact EM."""
    q = [responsibilities(TASK.component_losses(shared, *mine), v) for v, mine in zip(private, DATA, strict=True)]
    inputs = torch.cat([torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1) for x, _ in DATA])
    targets, weights = torch.cat([y for _, y in DATA]), torch.cat(q)
    rows = []
    for m in range(M):
        weighted = inputs * weights[:, m : m + 1]
        rows.append(torch.linalg.solve(weighted.T @ inputs, weighted.T @ targets)[:, 0])
    return torch.cat(rows), [part.mean(0) for part in q]


def test_exact_em_never_climbs_and_finds_the_lines() -> None:
    """federated-em.md O5."""
    shared, private = somewhere(2)
    values = [float(objective(shared, private))]
    for _ in range(40):
        shared, private = least_squares(shared, private)
        values.append(float(objective(shared, private)))
    assert all(after <= before + 1e-12 for before, after in pairwise(values))
    assert values[0] - values[-1] > 1
    found = TASK.split(shared)
    order = [0, 1] if (found[0] - LINES[0]).norm() < (found[1] - LINES[0]).norm() else [1, 0]
    assert float((found[order] - LINES).abs().max()) < 0.35
    assert float((torch.stack(private)[:, order] - torch.tensor(TRUE, dtype=torch.float64)).abs().max()) < 0.2


@pytest.mark.parametrize("number", range(3))
def test_new_weights_alone_gain_at_least_their_divergence(number: int) -> None:
    """federated-em.md O5 (lemma E.5)."""
    shared, private = somewhere(number)
    for _ in range(5):
        best = [PROBLEM.minimise_private(shared, v, mine) for v, mine in zip(private, DATA, strict=True)]
        moved = float(over_silos([PROBLEM.divergence(v, b) for v, b in zip(private, best, strict=True)]))
        assert float(objective(shared, private) - objective(shared, best)) >= moved - 1e-12
        assert moved >= 0
        private = best


def test_small_gradient_steps_never_climb() -> None:
    """federated-em.md O5: full-batch FedEM with a small J eta; L is the curvature of a component's loss."""
    curvature = max(float(torch.linalg.eigvalsh(2 * x.T @ x / len(x)).max()) for x, _ in DATA) + 2
    (shared, private), steps = somewhere(1), 3
    values = []
    for _ in range(60):
        values.append(float(objective(shared, private)))
        shared, private = server_round(PROBLEM, shared, private, DATA, IMPORTANCE, steps, 1 / (4 * curvature * steps))
    assert all(after < before for before, after in pairwise(values))
    assert values[0] - values[-1] > 0.5


def test_gradients() -> None:
    """federated-em.md O6. Of KL(q, posterior) = sum q l + log sum pi exp(-l) + const it is (q - posterior) times that
    of the loss: the sign printed there is the other. Of f it is mean q grad l."""
    (shared, private), (other, _) = somewhere(1), somewhere(11)
    v, mine = private[0], DATA[0]
    q = responsibilities(TASK.component_losses(other, *mine), v)

    def gap(params: Tensor) -> Tensor:
        return kl(q, responsibilities(TASK.component_losses(params, *mine), v)).sum()

    def weighted(counts: Tensor) -> Tensor:
        return grad(lambda params: (counts * TASK.component_losses(params, *mine)).sum())(shared)

    posterior = responsibilities(TASK.component_losses(shared, *mine), v)
    torch.testing.assert_close(grad(gap)(shared), weighted(q - posterior), rtol=1e-9, atol=1e-12)
    slope = grad(PROBLEM.objective)(shared, v, mine)
    torch.testing.assert_close(slope, weighted(posterior / len(mine[0])), rtol=1e-9, atol=1e-12)


def people() -> Population:
    offsets = np.concatenate([[0], np.cumsum(SIZES)])
    inputs, targets = (torch.cat([mine[part] for mine in DATA]) for part in (0, 1))
    return Population(inputs, targets, Ragged(offsets, np.arange(sum(SIZES))))


def test_fedem_is_this_framework_with_its_own_problem() -> None:
    """Rounds of the algorithm are rounds of the plain loop."""
    run = FedEM(LocalSGD(0.05, steps=3, batching="full"), Full(), components=M)
    task, exact = Task(lambda: nn.Linear(2, 1), "mse", seed=1), Plan(precision="float64", threads=1)
    ended = turnout.simulate(task, people(), run, 4, plan=exact, evaluation=Evaluation(rounds=None, train=True))
    shared, private = TASK.initial, [torch.full((M,), 1 / M, dtype=torch.float64)] * len(SIZES)
    for _ in range(4):
        shared, private = server_round(PROBLEM, shared, private, DATA, IMPORTANCE, 3, 0.05)
    torch.testing.assert_close(ended.model, shared, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(weights_of(ended.server, run.own_work(), np.arange(3)), torch.stack(private), rtol=1e-10)


def test_one_component_is_plain_descent() -> None:
    """f is then the mean loss, and v has nothing to choose."""
    one = MixtureTask(Task(lambda: nn.Linear(2, 1), "mse", seed=1), 1).to(dtype=torch.float64)
    shared, private = client_round(MixtureProblem(one), one.initial, torch.ones(1).double(), DATA[0], 5, 0.05)
    exact = Plan(precision="float64", threads=1)
    single = Population(*DATA[0], Ragged(np.array([0, SIZES[0]]), np.arange(SIZES[0])))
    work = FedAvg(LocalSGD(0.05, steps=5, batching="full"), Full())
    ended = turnout.simulate(Task(lambda: nn.Linear(2, 1), "mse", seed=1), single, work, 1, plan=exact)
    torch.testing.assert_close(shared, ended.model, rtol=1e-10, atol=1e-12)
    assert private.tolist() == [1]


# among peers


def ring(silos: int) -> FloatArray:
    """Metropolis weights of a ring."""
    eye = np.eye(silos)
    return (eye + np.roll(eye, 1, 0) + np.roll(eye, -1, 0)) / 3


RING = 6
SIX = [(x[i::2], y[i::2]) for x, y in DATA for i in range(2)]
OF_SIX = np.array([len(x) for x, _ in SIX]) / sum(SIZES)


def test_peers_that_average_at_once_are_a_server() -> None:
    """federated-em.md O8: W = 1 1^T / T and equal sizes."""
    equal = [(x[:12], y[:12]) for x, y in DATA]
    shared, private = somewhere(4)
    alike, rows = shared.repeat(3, 1), private
    for _ in range(5):
        shared, private = server_round(PROBLEM, shared, private, equal, np.full(3, 1 / 3), 2, 0.05)
        alike, rows = peers_round(PROBLEM, alike, rows, equal, np.full(3, 1 / 3), np.full((3, 3), 1 / 3), 2, 0.05)
    torch.testing.assert_close(alike, shared.expand(3, -1), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(torch.stack(rows), torch.stack(private), rtol=1e-12, atol=1e-14)


def test_peers_of_unequal_sizes_count_as_with_a_server() -> None:
    """One step from the same components, then the average: the scale T omega_t makes it the server's."""
    shared, private = somewhere(4)
    expected, _ = server_round(PROBLEM, shared, private, DATA, IMPORTANCE, 1, 0.05)
    rows, _ = peers_round(PROBLEM, shared.repeat(3, 1), private, DATA, IMPORTANCE, np.full((3, 3), 1 / 3), 1, 0.05)
    torch.testing.assert_close(rows[0], expected, rtol=1e-12, atol=1e-14)


def among_peers(rounds: int, size: float) -> tuple[float, float]:
    """After so many rounds on a ring of six with eta = size / sqrt(rounds): the distance to consensus, and the mean
    divergence by which weights moved."""
    (shared, _), lr = somewhere(5), size / rounds**0.5
    rows, private, moved = shared.repeat(RING, 1), [torch.full((M,), 0.5, dtype=torch.float64)] * RING, 0.0
    for _ in range(rounds):
        before = private
        rows, private = peers_round(PROBLEM, rows, private, SIX, OF_SIX, ring(RING), 1, lr)
        moved += sum(w * float(kl(n, b)) for w, n, b in zip(OF_SIX, private, before, strict=True))
    return float((rows - rows.mean(0)).square().sum()), moved / rounds


def test_peers_agree_in_the_end() -> None:
    """federated-em.md O18: with eta = a / sqrt(K) the distance to consensus vanishes; O19: weights move by O(1 / K)."""
    found = [among_peers(rounds, 0.5) for rounds in (16, 48, 144)]
    distance, moved = (np.array(column) for column in zip(*found, strict=True))
    slope = np.polyfit(np.log([16, 48, 144]), np.log([distance, moved]).T, 1)[0]
    assert distance[-1] < 0.01
    assert slope[0] < -0.7
    assert slope[1] < -0.7


def test_rates_with_a_server() -> None:
    """federated-em.md O19, on a toy without noise: mean |grad f|^2 falls at least as K^(-1/2), the mean gain by new
    weights at least as K^(-3/4). After one step, what a round changes is -lr grad f."""
    steep, gained, lengths = np.zeros(3), np.zeros(3), np.array([16, 64, 256])
    for run, rounds in enumerate(lengths.tolist()):
        (shared, _), lr = somewhere(5), 1.0 / rounds**0.5
        private = [torch.full((M,), 0.5, dtype=torch.float64)] * len(SIZES)
        for _ in range(rounds):
            new, better = server_round(PROBLEM, shared, private, DATA, IMPORTANCE, 1, lr)
            steep[run] += float(((shared - new) / lr).square().sum()) / rounds
            gained[run] += float(objective(shared, private) - objective(shared, better)) / rounds
            shared, private = new, better
    rates = np.polyfit(np.log(lengths), np.log([steep, gained]).T, 1)[0]
    assert rates[0] < -0.45
    assert rates[1] < -0.7
