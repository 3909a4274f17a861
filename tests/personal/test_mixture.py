"""Mixtures of models: the E-step, the weights, what they predict, and local work equal to a plain loop."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from oracle import plain
from support import SIZES, conv, images, mlp, population
from turnout import LocalSGD, Plan, Population, Ragged, Task, UserError
from turnout.core.random import key, uniform
from turnout.engine import plain_sgd
from turnout.engine.batches import Jobs
from turnout.engine.train import Cohort
from turnout.local.mixture import MixtureSGD, MixtureTask, mixture_loss, responsibilities
from turnout.task.dropout import KeyedDropout
from turnout.task.models import linear

M = 3


def mixture(task: Task | None = None, components: int = M) -> MixtureTask:
    return MixtureTask(task or Task(mlp, seed=3), components).to(dtype=torch.float64)


def one_client(inputs: Tensor, targets: Tensor) -> Population:
    return Population(inputs, targets, Ragged(np.array([0, len(inputs)]), np.arange(len(inputs))))


# the E-step


@pytest.mark.parametrize(
    ("losses", "weights", "expected"),
    [((0.0, math.log(3)), (0.5, 0.5), (0.75, 0.25)), ((1.0, 2.0), (0.2, 0.8), (0.404610, 0.595390))],
)
def test_responsibilities_are_posteriors(losses: Any, weights: Any, expected: Any) -> None:
    """federated-em.md O1."""
    q = responsibilities(torch.tensor(losses, dtype=torch.float64), torch.tensor(weights, dtype=torch.float64))
    assert q.tolist() == pytest.approx(expected, abs=1e-6)


def test_responsibilities_of_huge_losses_are_numbers() -> None:
    """federated-em.md O1: log-sum-exp; rows sum to 1; a constant added to all losses changes nothing."""
    losses = torch.tensor([[1e4, 1e4 + 1, 1e4 + 2], [1e4, 0.0, 5.0], [3.0, 2.0, 1.0]], dtype=torch.float64)
    weights = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    q = responsibilities(losses, weights)
    assert bool(torch.isfinite(q).all())
    torch.testing.assert_close(q.sum(1), torch.ones(3, dtype=torch.float64))
    torch.testing.assert_close(responsibilities(losses[2] + 64, weights), q[2], rtol=1e-10, atol=0)
    torch.testing.assert_close(responsibilities(losses[0] - 1e4, weights), q[0], rtol=1e-10, atol=0)
    assert bool(torch.isfinite(responsibilities(losses.float(), weights.float())).all())
    assert bool(torch.isfinite(mixture_loss(losses, weights)).all())


def test_a_weight_of_zero_takes_no_share() -> None:
    """federated-em.md O9."""
    q = responsibilities(torch.tensor([[5.0, 1.0], [0.0, 9.0]]), torch.tensor([0.0, 1.0]))
    assert q.tolist() == [[0, 1], [0, 1]]


def test_the_average_of_distributions_is_the_nearest_to_all() -> None:
    """federated-em.md O20: argmin over q of sum_m a_m KL(q_m, q) is sum_m a_m q_m: why outputs are averaged."""
    draws = torch.from_numpy(uniform(key(1, "distributions", np.arange(M)), 5))
    given, weights = draws / draws.sum(1, keepdim=True), torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)

    def far(logits: Tensor) -> Tensor:
        return (weights[:, None] * given * (given.log() - torch.log_softmax(logits, 0))).sum()

    mean = (weights[:, None] * given).sum(0)
    gradient = torch.func.grad(far)(mean.log())
    assert float(gradient.abs().max()) < 1e-12  # convex in the logits: the minimum
    assert all(float(far(mean.log() + step)) > float(far(mean.log())) for step in 0.1 * torch.eye(5))


# the task


def test_the_first_component_is_the_model_itself_and_no_two_are_alike() -> None:
    """federated-em.md O7: identical components would never separate."""
    task = Task(mlp, seed=3)
    rows = MixtureTask(task, M).split(MixtureTask(task, M).initial)
    assert rows.shape == (M, task.size)
    assert torch.equal(rows[0], task.initial)
    assert torch.equal(rows[1], Task(mlp, seed=4).initial)
    torch.testing.assert_close(MixtureTask(task, M).initial, MixtureTask(task, M).initial)
    assert len({tuple(row.tolist()) for row in rows}) == M


@pytest.mark.parametrize(
    "module", [nn.Linear(4, 2), linear(4, 2, zero_init=True), lambda: linear(4, 2, zero_init=True)]
)
def test_components_that_would_be_alike_are_set_apart(module: Any) -> None:
    """A given module cannot be built anew, and one that starts at zero always does."""
    task = Task(module)
    rows = task.initials(M)
    assert torch.equal(rows[0], task.initial)
    apart = torch.cdist(rows, rows) + torch.eye(M)
    assert float(apart.min()) > 0.01
    assert float((rows - task.initial).abs().max()) < 0.5


def test_what_a_mixture_gives_is_a_distribution() -> None:
    """federated-em.md O12: averaged class probabilities, as logarithms; the task's own loss and metrics apply."""
    task = mixture()
    inputs, targets = population().inputs.double(), population().targets
    weights = torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64)
    outputs = task.mixed(task.initial, weights, inputs)
    torch.testing.assert_close(outputs.exp().sum(1), torch.ones(len(inputs), dtype=torch.float64))
    parts = [torch.softmax(task.component.outputs(row, inputs), 1) for row in task.split(task.initial)]
    expected = sum(w * p for w, p in zip(weights, parts, strict=True))
    torch.testing.assert_close(outputs.exp(), expected)
    chosen = expected[torch.arange(len(targets)), targets]
    torch.testing.assert_close(task.measures(outputs, targets)["loss"], -chosen.log())
    losses = task.component_losses(task.initial, inputs, targets)
    torch.testing.assert_close(mixture_loss(losses, weights), -chosen.log())
    for m, part in enumerate(parts):
        torch.testing.assert_close(task.mixed(task.initial, torch.eye(M).double()[m], inputs).exp(), part)


def test_a_regression_averages_values() -> None:
    task = mixture(Task(lambda: nn.Linear(5, 2), "mse"))
    inputs = population().inputs.double()
    weights = torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64)
    parts = torch.stack([task.component.outputs(row, inputs) for row in task.split(task.initial)])
    torch.testing.assert_close(task.mixed(task.initial, weights, inputs), torch.tensordot(weights, parts, 1))
    torch.testing.assert_close(task.outputs(task.initial, inputs), parts.mean(0))


def test_an_unknown_loss_must_be_told_how_to_average() -> None:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs[:, 0] - targets).abs()

    inputs = torch.zeros(2, 5)
    with pytest.raises(UserError, match=r"algorithm.outputs: this loss is not known here"):
        MixtureTask(Task(mlp, loss), M).outputs(MixtureTask(Task(mlp, loss), M).initial, inputs)
    known = MixtureTask(Task(mlp, loss), M, "values")
    torch.testing.assert_close(
        known.outputs(known.initial, inputs),
        torch.stack([known.component.outputs(row, inputs) for row in known.split(known.initial)]).mean(0),
    )
    with pytest.raises(UserError, match=r"algorithm.outputs: unknown name 'both'"):
        MixtureTask(Task(mlp), M, "both")  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"algorithm.components: 0 must be at least 1"):
        MixtureTask(Task(mlp), 0)


def test_components_leave_as_so_many_state_dicts() -> None:
    task = MixtureTask(Task(mlp, seed=3), M)
    modules = nn.ModuleList([mlp() for _ in range(M)])
    modules.load_state_dict(task.state_dict(task.initial))
    inputs = population().inputs
    for module, row in zip(modules, task.split(task.initial), strict=True):
        torch.testing.assert_close(module(inputs), task.component.outputs(row, inputs))


def test_a_mixture_has_no_features() -> None:
    task = MixtureTask(Task(mlp), M)
    with pytest.raises(UserError, match="a mixture has none of its own"):
        task.features(task.initial, torch.zeros(1, 5), "0")


# the local work


def dropout_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 16), nn.Dropout(0.4), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))


CASES: dict[str, Any] = {"mlp": (mlp, population), "dropout": (dropout_mlp, population), "conv": (conv, images)}
WORKS = {
    "plain": MixtureSGD(0.1, epochs=2, batch_size=4, components=M),
    "momentum": MixtureSGD(0.1, epochs=2, batch_size=4, momentum=0.9, weight_decay=0.1, components=M),
    "steps": MixtureSGD(0.1, steps=7, batch_size=4, components=M, min_weight=0.05),
}


def floored(weights: Tensor, least: float) -> Tensor:
    """At least `least` each; the rest in proportion to what they have above it."""
    above = [max(0.0, float(weight) - least) for weight in weights]
    left = 1 - M * least
    return torch.tensor([least + left * part / sum(above) for part in above], dtype=torch.float64)


@torch.no_grad()
def shares_by_hand(task: MixtureTask, received: Tensor, weights: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
    """`[n, M]` sample by sample, component by component."""
    module, q = task.module.eval(), torch.zeros(len(inputs), M, dtype=torch.float64)
    for i in range(len(inputs)):
        for m in range(M):
            nn.utils.vector_to_parameters(task.split(received)[m].clone(), module.parameters())
            loss = nn.functional.cross_entropy(module(inputs[i : i + 1]).double(), targets[i : i + 1])
            q[i, m] = weights[m] * torch.exp(-loss)
    return q / q.sum(1, keepdim=True)


def train_by_hand(
    task: MixtureTask, work: MixtureSGD, received: Tensor, shares: Tensor, inputs: Tensor, targets: Tensor, key: int
) -> Tensor:
    """`[M * P]` what a torch.optim loop over weighted mini-batches changes, component after component."""
    deltas = []
    for m in range(M):
        module = task.module.train()
        for parameter in module.parameters():
            parameter.requires_grad_(True)
        start = task.split(received)[m]
        nn.utils.vector_to_parameters(start.clone(), module.parameters())
        optimiser = torch.optim.SGD(
            module.parameters(), lr=work.lr, momentum=work.momentum, weight_decay=work.weight_decay
        )
        dropouts = [layer for layer in module.modules() if isinstance(layer, KeyedDropout)]
        steps = int(work.num_steps(len(inputs)))
        for number, rows in enumerate(plain.batches(key, len(inputs), work.batch_size, steps)):
            step_key = plain.mix(torch.tensor(key) ^ (number + 1)) ^ (m << 32)
            for place, layer in enumerate(dropouts, 1):
                layer.key = plain.mix(step_key ^ place)
            optimiser.zero_grad()
            losses = nn.functional.cross_entropy(module(inputs[rows]), targets[rows], reduction="none")
            (shares[rows, m] * losses).mean().backward()
            optimiser.step()
        deltas.append(nn.utils.parameters_to_vector(module.parameters()).detach() - start)
    return torch.cat(deltas)


@pytest.mark.parametrize("engine", ["vectorised", "sequential"])
@pytest.mark.parametrize(
    ("case", "name"), [("mlp", "plain"), ("mlp", "momentum"), ("mlp", "steps"), ("dropout", "plain"), ("conv", "plain")]
)
def test_local_work_equals_a_plain_loop(case: str, name: str, engine: str) -> None:
    """Ragged clients, several versions in one cohort, weights of their own; federated-em.md O2: pi = mean q."""
    people, work = CASES[case][1](), WORKS[name]
    plan = Plan(engine=engine, precision="float64", threads=2)
    cohort = Cohort(MixtureTask(Task(CASES[case][0], seed=3), M), people.inputs, people.targets, plan)
    task = cohort.task
    assert isinstance(task, MixtureTask)
    assert plain_sgd.applies(task, work, ()) == (name != "momentum")
    ids = np.arange(len(SIZES))
    models = torch.stack([task.initial, 1.3 * task.initial, 0.7 * task.initial])
    kept = torch.from_numpy(uniform(key(1, "weights", ids), M))
    kept = kept / kept.sum(1, keepdim=True)
    kept[2] = 0.0  # has none yet
    keys = key(9, "test", ids)
    trained = cohort.train(Jobs(work, keys, models, ids % 3, people.train, {}, {"weights": kept}))
    plain_task = MixtureTask(Task(CASES[case][0], seed=3), M).to(dtype=torch.float64)
    for i in ids:
        mine = people.train.row(i)
        inputs, targets = cohort.inputs[mine], cohort.targets[mine]
        weights = torch.full((M,), 1 / M, dtype=torch.float64) if i == 2 else kept[i]
        shares = shares_by_hand(plain_task, models[i % 3], weights, inputs, targets)
        expected = floored(shares.mean(0), work.min_weight)
        torch.testing.assert_close(trained.state["weights"][i], expected, rtol=1e-9, atol=1e-12)
        assert float(trained.state["weights"][i].sum()) == pytest.approx(1, abs=1e-6)
        delta = train_by_hand(plain_task, work, models[i % 3], shares, inputs, targets, int(keys[i]))
        error = (trained.payload["delta"][i] - delta).norm() / delta.norm()
        assert float(error) <= 1e-9


def test_who_may_take_plain_steps() -> None:
    """Each kind of work on the kind of task it is for."""
    for task in (Task(mlp), mixture()):
        for work in (LocalSGD(0.1), MixtureSGD(0.1, components=M)):
            assert plain_sgd.applies(task, work, ()) == (isinstance(task, MixtureTask) == isinstance(work, MixtureSGD))


def test_chunks_of_clients_change_nothing_but_the_last_bits() -> None:
    people, work = population(), WORKS["plain"]
    ids = np.arange(len(SIZES))
    trained = []
    for memory in (1, 2048):
        plan = Plan(engine="vectorised", precision="float64", threads=1, memory_mib=memory)
        cohort = Cohort(MixtureTask(Task(lambda: nn.Linear(5, 3000), seed=3), M), people.inputs, people.targets, plan)
        models, state = cohort.task.initial[None], {"weights": torch.zeros(len(ids), M, dtype=torch.float64)}
        jobs = Jobs(work, key(9, "test", ids), models, np.zeros_like(ids), people.train, {}, state)
        assert (plan.clients_a_call(cohort.task, work, 0) < len(ids)) == (memory == 1)
        trained.append(cohort.train(jobs))
    torch.testing.assert_close(trained[0].payload["delta"], trained[1].payload["delta"], rtol=1e-10, atol=1e-13)
    torch.testing.assert_close(trained[0].state["weights"], trained[1].state["weights"], rtol=1e-12, atol=1e-14)


def test_numbers_may_differ_between_clients() -> None:
    people, work = population(), WORKS["plain"]
    ids, rates = np.arange(len(SIZES)), np.linspace(0.01, 0.2, len(SIZES))
    cohort = Cohort(
        MixtureTask(Task(mlp, seed=3), M), people.inputs, people.targets, Plan(precision="float64", engine="vectorised")
    )
    models, state = cohort.task.initial[None], {"weights": torch.zeros(len(ids), M, dtype=torch.float64)}
    jobs = Jobs(work, key(9, "test", ids), models, np.zeros_like(ids), people.train, {"lr": rates}, state)
    together = cohort.train(jobs).payload["delta"]
    for i in ids:
        alone = cohort.train(replace(jobs.take(ids[i : i + 1]), work=replace(work, lr=rates[i]), options={}))
        torch.testing.assert_close(together[i], alone.payload["delta"][0], rtol=1e-10, atol=1e-13)


def test_components_drop_out_by_masks_of_their_own() -> None:
    task = mixture(Task(lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(200, 2)), seed=1), 2)
    same = task.initial.clone()
    task.split(same)[1] = task.split(same)[0]
    inputs, targets = torch.ones(4, 200, dtype=torch.float64), torch.zeros(4, dtype=torch.int64)
    trained = task.component_losses(same, inputs, targets, torch.tensor(7))
    assert not torch.isclose(trained[:, 0], trained[:, 1]).any()
    evaluated = task.component_losses(same, inputs, targets)
    assert torch.equal(evaluated[:, 0], evaluated[:, 1])


@pytest.mark.parametrize("engine", ["vectorised", "sequential"])
def test_nan_free_with_losses_of_ten_thousand(engine: str) -> None:
    """federated-em.md O1, through the engine: regressions off by 100 and more."""
    inputs = torch.ones(6, 1)
    targets = torch.tensor([[100.0], [101.0], [99.0], [-100.0], [-101.0], [-99.0]])
    task = MixtureTask(Task(lambda: nn.Linear(1, 1), "mse"), M)
    cohort = Cohort(task, inputs, targets, Plan(engine=engine, threads=1))
    jobs = Jobs(
        MixtureSGD(1e-3, components=M),
        key(1, "x", np.arange(1)),
        task.initial[None],
        np.zeros(1, int),
        one_client(inputs, targets).train,
        {},
        {"weights": torch.zeros(1, M)},
    )
    trained = cohort.train(jobs)
    assert bool(torch.isfinite(trained.payload["delta"]).all())
    assert float(trained.state["weights"].sum()) == pytest.approx(1, abs=1e-6)


def test_the_time_it_takes_grows_with_the_components() -> None:
    plain_work, three = LocalSGD(0.1, batch_size=10), MixtureSGD(0.1, batch_size=10, components=3)
    assert plain_work.busy(95) == (10, 95)
    steps, samples = three.busy(95)
    assert (steps, samples) == (60, 95 * 6)  # three models, and a look at every sample with each
    assert MixtureSGD(0.1, batch_size=10, components=1).busy(95) == (10, 95)


def one_job(work: MixtureSGD, samples: int, engine: str = "vectorised") -> Tensor:
    """`[M]` the weights of a client with so many samples after a job that trains nothing."""
    people, task = population(), MixtureTask(Task(mlp, seed=3), M)
    cohort = Cohort(task, people.inputs, people.targets, Plan(engine=engine, precision="float64", threads=1))
    state = {"weights": torch.tensor([[1 - 2e-6, 1e-6, 1e-6]], dtype=torch.float64)}
    own = Ragged.from_rows([np.arange(samples)])
    jobs = Jobs(work, key(9, "test", np.arange(1)), cohort.task.initial[None], np.zeros(1, int), own, {}, state)
    return cohort.train(jobs).state["weights"][0]


def test_no_weight_falls_below_the_floor() -> None:
    for least in (1e-3, 0.1, 0.33):
        weights = one_job(MixtureSGD(0.1, steps=0, components=M, min_weight=least), 20)
        assert float(weights.min()) >= least * (1 - 1e-12)
        assert float(weights.sum()) == pytest.approx(1, abs=1e-12)
    free = one_job(MixtureSGD(0.1, steps=0, components=M), 20)
    torch.testing.assert_close(one_job(MixtureSGD(0.1, steps=0, components=M, min_weight=1e-9), 20), free)


@pytest.mark.parametrize("engine", ["vectorised", "sequential"])
def test_a_client_without_samples_keeps_its_weights(engine: str) -> None:
    """federated-em.md 3.2."""
    assert one_job(MixtureSGD(0.1, steps=0, components=M), 0, engine).tolist() == [1 - 2e-6, 1e-6, 1e-6]


@pytest.mark.parametrize(
    ("option", "value"), [("min_weight", -0.1), ("min_weight", 1 / M), ("min_weight", 1.0), ("weight_steps", 0)]
)
def test_bad_options_are_refused(option: str, value: float) -> None:
    with pytest.raises(UserError, match=r"algorithm\.(min_weight|unseen_steps): "):
        MixtureSGD(0.1, components=M, **{option: value})  # type: ignore[arg-type]
