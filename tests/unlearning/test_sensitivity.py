"""The bound psi against the distance it bounds, measured by really training with and without a client."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import turnout
from support import algorithm, experiment, population, quadratic_loss, theta
from turnout import Evaluation, Experiment, FedAvg, Full, LocalSGD, Plan, Population, Ragged, Stopping, Task, Uniform
from turnout.core.random import FloatArray, key, normal, subset, uniform
from turnout.local.schedules import Warmup
from turnout.record.branch import Models, Table, Turn
from turnout.record.sensitivity import Sensitivity, read_table
from turnout.record.unlearning import Retention, Unlearning
from turnout.server.observer import Event

EXACT = Plan(precision="float64", threads=1)
RARELY = Evaluation(rounds=1000)
Local = Callable[[int, FloatArray], FloatArray]  # K local steps of a client from a model


def held(models: Models) -> int:
    """Bytes of the models in memory."""
    return sum(model.nbytes for model in models.save().values())


def train(
    local: Local,
    weights: FloatArray,
    start: FloatArray,
    rounds: int,
    *,
    without: Collection[int] = (),
    drawn: Callable[[int], Sequence[int]] | None = None,
    contraction: float = 1.0,
    shares: FloatArray | None = None,
) -> tuple[list[FloatArray], Table]:
    """FedAvg in plain numpy: the models of all rounds, and their table."""
    model, table, models = start, Table(), [start]
    for number in range(rounds):
        there = [i for i in (range(len(weights)) if drawn is None else drawn(number)) if i not in without]
        if there:
            updates = np.stack([local(i, model) - model for i in there])
            p = weights[there] / weights[there].sum()
            table.turns.append(
                Turn.of(
                    np.array(there),
                    p,
                    torch.from_numpy(updates),
                    contraction=contraction,
                    shares=None if shares is None else shares[there],
                )
            )
            model = model + p @ updates
        models.append(model)
    return models, table


def ratios(
    local: Local, weights: FloatArray, start: FloatArray, rounds: int, groups: Sequence[Sequence[int]], **options: Any
) -> FloatArray:
    """alpha / psi of every group and round."""
    models, table = train(local, weights, start, rounds, **options)
    found = []
    for group in groups:
        other, _ = train(local, weights, start, rounds, without=group, **options)
        alpha = np.linalg.norm(np.subtract(models, other), axis=1)
        psi = table.psi(group)
        found.append(alpha[psi > 0] / psi[psi > 0])
    return np.concatenate(found)


def quadratics(number: int, clients: int, dims: int, steps: int, lr: float) -> tuple[Local, FloatArray]:
    """Eigenvalues from 0.2 to 2; also unequal weights."""
    hessians, optima = [], []
    for i in range(clients):
        basis = np.linalg.qr(normal(key(number, "basis", i), dims * dims).reshape(dims, dims))[0]
        values = np.concatenate([[0.2, 2.0], 0.2 + 1.8 * uniform(key(number, "eigenvalues", i), dims - 2)])
        hessians.append(basis * values @ basis.T)
        optima.append(normal(key(number, "optimum", i), dims))
    shrunk = [np.linalg.matrix_power(np.eye(dims) - lr * hessian, steps) for hessian in hessians]
    weights = 0.2 + uniform(key(number, "weights"), clients)
    return (lambda i, model: optima[i] + shrunk[i] @ (model - optima[i])), weights / weights.sum()


def test_the_bound_holds_on_quadratics() -> None:
    worst = {"plain": 0.0, "contracted": 0.0}
    for number in range(50):
        steps, lr = 1 + number % 7, (0.1 + 0.4 * float(uniform(key(number, "lr"), 1)[0]))
        local, weights = quadratics(number, 6, 8, steps, lr)
        start = normal(key(number, "start"), 8)
        for bound, contraction in (("plain", 1.0), ("contracted", (1 - 0.2 * lr) ** steps)):
            found = ratios(local, weights, start, 30, [[number % 6]], contraction=contraction)
            worst[bound] = max(worst[bound], found.max())
    assert worst["plain"] <= 1 + 1e-9
    assert 0.999 < worst["contracted"] <= 1 + 1e-9  # and it is tight after one round


def test_too_long_steps_break_the_bound() -> None:
    """lr L = 2.4: every step is away from the optimum, distances grow by 1.4 a step and psi only by a sum."""
    optima = np.array([[0.0], [1.0], [5.0]])
    found = ratios(lambda i, model: optima[i] - 1.4 * (model - optima[i]), np.full(3, 1 / 3), np.zeros(1), 30, [[0]])
    assert found.max() > 298


def test_the_bound_holds_for_a_tracked_run() -> None:
    """L2-regularised logistic regression through the engine, against runs without each client."""
    decay, people = 0.05, population((6, 9, 4, 7), test=None)
    squares = float(people.inputs.double().square().sum(1).max()) + 1  # with the bias
    smooth = squares / 2 + decay  # of softmax cross entropy
    local = LocalSGD(1 / smooth, steps=5, batching="full", weight_decay=decay)

    def models(people: Population, bound: Literal["plain", "contracted"]) -> Sensitivity:
        tracked = Sensitivity(Unlearning(bound=bound, smoothness=smooth, convex=True))
        turnout.simulate(
            Task(lambda: nn.Linear(5, 3), seed=1),
            people,
            FedAvg(local, Full()),
            15,
            plan=EXACT,
            evaluation=RARELY,
            observers=[tracked],
        )
        return tracked

    everybody = {bound: models(people, bound) for bound in ("plain", "contracted")}
    for client in range(4):
        other = models(people.without([client]), "plain")
        alpha = [float((everybody["plain"].models[n] - other.models[n]).norm()) for n in range(16)]
        for tracked in everybody.values():
            psi = tracked.table.psi([client])
            assert (alpha <= psi * (1 + 1e-9) + 1e-15).all()
            assert alpha[1] == pytest.approx(psi[1], rel=1e-9)
        assert (everybody["contracted"].table.psi([client]) <= everybody["plain"].table.psi([client])).all()
    facts = everybody["plain"].facts
    assert (facts["unexplained_rounds"], facts["stale_rounds"], facts["everybody"]) == (0, 0, True)
    assert facts["largest_step"] == pytest.approx(1)


def toy(
    bound: Literal["plain", "contracted"],
    optima: Sequence[float] = (0, 1, 5),
    server_lr: float = 1.0,
    lr_decay: float = 1.0,
    **options: Any,
) -> Sensitivity:
    """f_i = (theta - a_i)^2 / 2, lr 0.1, 5 steps, 20 rounds."""
    people = Population.of(
        turnout.datasets.load("quadratics", optima=list(optima)), len(optima), "natural", test="none"
    )
    tracked = Sensitivity(Unlearning(bound=bound, strong_convexity=1.0, calibration="classic", sigma=1.0, **options))
    local = LocalSGD(0.1, steps=5, batching="full", lr_decay=lr_decay)
    task = Task(lambda: theta(), quadratic_loss)
    turnout.simulate(
        task, people, FedAvg(local, Full(), server_lr), 20, plan=EXACT, evaluation=RARELY, observers=[tracked]
    )
    return tracked


def test_exact_scalar_toy_and_its_rollbacks() -> None:
    q, n = 0.9**5, np.arange(21)
    plain, contracted = toy("plain"), toy("contracted")
    assert plain.settings.threshold == pytest.approx(3.21801, abs=1e-5)
    last = []
    for client, half in enumerate((1.0, 0.5, 1.5)):
        np.testing.assert_allclose(plain.table.psi([client]), n * (1 - q) * half, rtol=1e-6)
        np.testing.assert_allclose(contracted.table.psi([client]), half * (1 - q**n), rtol=1e-6)
        last.append(int(np.flatnonzero(plain.table.psi([client]) <= plain.settings.threshold).max()))
        assert contracted.table.psi([client]).max() <= contracted.settings.threshold
    assert last == [7, 15, 5]


def test_a_damped_server_contracts_less() -> None:
    """theta <- theta + a (1 - q) (2 - theta): the exact distance is half * (1 - (1 - a (1 - q))^n)."""
    q, n, step = 0.9**5, np.arange(21), 0.5
    np.testing.assert_allclose(
        toy("contracted", server_lr=step).table.psi([0]), 1 - (1 - step * (1 - q)) ** n, rtol=1e-6
    )


def test_shorter_steps_contract_less() -> None:
    """With lr 0.1 * 0.8^t in round t, q_t = (1 - lr)^5 and the exact distance is half * (1 - product of q_t)."""
    left = np.cumprod((1 - 0.1 * 0.8 ** np.arange(20)) ** 5)
    np.testing.assert_allclose(toy("contracted", lr_decay=0.8).table.psi([2])[1:], 1.5 * (1 - left), rtol=1e-6)


def test_identical_clients_have_no_sensitivity() -> None:
    tracked = toy("plain", [2.5, 2.5, 2.5, 2.5])
    assert max(tracked.table.psi([client]).max() for client in range(4)) < 1e-14


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 6), st.integers(1, 5), st.floats(0.1, 2.0), st.integers(0, 10**6))
def test_closed_form_of_the_increment(clients: int, dims: int, server_lr: float, seed: int) -> None:
    """Against the definition, with weights that need not sum to 1; one job or two of a client; groups too."""
    weights = 0.05 + uniform(key(seed, "w"), clients)
    updates = normal(key(seed, "u"), clients * dims).reshape(clients, dims)
    ids = np.arange(clients)
    groups = [[0], list(range(clients - 1))]
    turn = Turn.of(ids, weights, torch.from_numpy(updates), server_lr, groups=groups)
    total = weights.sum()
    for group, joint in zip(groups, turn.joint, strict=True):
        stay = ~np.isin(ids, group)
        without = weights[stay] @ updates[stay] * total / weights[stay].sum()
        exact = server_lr * np.linalg.norm(weights @ updates - without)
        assert joint == pytest.approx(exact, rel=1e-6, abs=1e-9)
        assert turn.increment(group) >= exact * (1 - 1e-9) - 1e-12
    assert turn.increment([0]) == pytest.approx(turn.joint[0], rel=1e-6, abs=1e-9)
    assert turn.increment(ids.tolist()) == pytest.approx(server_lr * np.linalg.norm(weights @ updates), rel=1e-6)
    assert turn.increment([99]) == 0


@pytest.mark.parametrize("clients", [[4, 1, 7], [4, 1, 4], [2, 2], [3]])
def test_increments_of_all_clients_at_once(clients: list[int]) -> None:
    weights, updates = np.array([0.2, 0.5, 0.3][: len(clients)]), torch.arange(12.0).view(3, 4).square()[: len(clients)]
    turn = Turn.of(np.array(clients), weights, updates)
    found, increments = turn.alone()
    assert found.tolist() == sorted(set(clients))
    assert increments.tolist() == pytest.approx([turn.increment([client]) for client in found.tolist()])


def test_the_only_participant_moved_it_all() -> None:
    turn = Turn.of(np.array([3]), np.array([0.4]), torch.tensor([[3.0, 4.0]]), 2.0)
    assert turn.increment([3]) == pytest.approx(4.0)
    assert Turn(moved=2.5).increment([3]) == 2.5  # a move that nobody can explain
    against = Turn.of(np.array([0, 1]), np.array([1.0, -1.0]), torch.tensor([[1.0], [3.0]]))
    assert against.increment([0]) == against.increment([7]) == 2
    assert Turn.of(np.zeros(0, np.int64), np.zeros(0), torch.zeros(0, 2)).increment([3]) == 0


def test_client_sampling_needs_realised_weights() -> None:
    """M = 20, m = 4, same draws without c: 1 / (m - 1) holds, 1 / (M - 1) is broken by up to (M - 1) / (m - 1)."""
    local, _ = quadratics(1, 20, 4, 5, 0.3)
    equal = np.full(20, 1 / 20)

    def drawn(number: int) -> Sequence[int]:
        return sorted(subset(key(5, "drawn", number), 4, 20).tolist())

    start, groups = normal(key(1, "start"), 4), [[c] for c in range(20)]
    realised = ratios(local, equal, start, 30, groups, drawn=drawn)
    assert realised.max() == pytest.approx(1)
    published = ratios(local, equal, start, 30, groups, drawn=drawn, shares=equal)
    assert published.max() == pytest.approx(19 / 3)


def test_leaving_together_is_not_leaving_alone() -> None:
    """Ten equal clients with identity Hessian, three of them at (5, 0, 0, 0)."""
    optima = np.zeros((10, 4))
    optima[:3, 0] = 5
    q, equal, three = 0.7487, np.full(10, 0.1), [0, 1, 2]

    def local(i: int, model: FloatArray) -> FloatArray:
        return optima[i] + q * (model - optima[i])

    models, table = train(local, equal, np.zeros(4), 60, contraction=q)
    other, _ = train(local, equal, np.zeros(4), 60, without=three)
    alpha = np.linalg.norm(np.subtract(models, other), axis=1)
    together, alone = table.psi(three), table.psi(three, "max")
    assert (alpha <= together * (1 + 1e-9)).all()
    assert alpha[-1] == pytest.approx(1.5, rel=1e-5)
    assert together[-1] == pytest.approx(1.5, rel=1e-5)
    assert alone[-1] == pytest.approx(3.5 / 9, rel=1e-5)  # the max rule misses most of it
    assert alpha[-1] / alone[-1] == pytest.approx(1.604 / 0.416, rel=2e-3)


def test_joint_rule_is_for_groups_known_before() -> None:
    tracked = toy("plain", groups=[[0, 2]], group_rule="joint")
    joint, summed = (tracked.table.psi([2, 0], rule) for rule in ("joint", "sum"))
    assert (joint[1:] < summed[1:]).all()  # a = 0 and a = 5 partly cancel: |1 - 2| (1 - q)
    np.testing.assert_allclose(joint, np.arange(21) * (1 - 0.9**5), rtol=1e-6)
    with pytest.raises(turnout.UserError, match=r"unlearning\.groups"):
        tracked.table.psi([0, 1], "joint")
    with pytest.raises(turnout.UserError, match=r"unlearning\.groups: 3 is not one of the 3 clients"):
        toy("plain", groups=[[0, 3]])


# -- what the proof needs -------------------------------------------------------------------------------------


class Events(turnout.Observer):
    def __init__(self) -> None:
        self.kinds: list[str] = []

    def on_event(self, server: turnout.Server, event: Event) -> None:
        self.kinds.append(event.kind)


def facts(name: str, local: LocalSGD | None = None, **options: Any) -> dict[str, Any]:
    tracked = Sensitivity(Unlearning(**options))
    made = algorithm(name) if local is None else FedAvg(local, Uniform(4))
    people = population((3, 25, 25, 8, 1, 10))
    turnout.simulate(Task(lambda: nn.Linear(5, 3)), people, made, 4, plan=EXACT, evaluation=RARELY, observers=[tracked])
    return tracked.facts


def test_what_a_run_does_not_grant_is_noted() -> None:
    assert facts("fedbuff")["stale_rounds"] > 0
    assert facts("fedavgm")["unexplained_rounds"] > 0
    assert facts("robust_momentum")["unexplained_rounds"] > 0
    assert facts("scaffold")["client_state"]
    noted = facts("", LocalSGD(0.1, momentum=0.9, clip_norm=1.0))
    assert (noted["momentum"], noted["clipped"], noted["full_batches"], noted["everybody"]) == (
        True,
        True,
        False,
        False,
    )
    assert noted["unexplained_rounds"] == 0
    assert noted["largest_step"] > 1  # uniform sampling of unequal clients
    assert not noted["other_work"]
    assert facts("", LocalSGD(0.1, optimiser="adam"))["other_work"]
    assert facts("", LocalSGD(0.1, schedules=(Warmup(2),)))["other_work"]
    fading = facts("", LocalSGD(0.1, lr_decay=0.5))
    assert fading["largest_lr"] == 0.1


def test_too_long_steps_are_warned_of() -> None:
    for smooth, expected in ((19.0, 0), (21.0, 1)):
        events = Events()
        tracked = Sensitivity(Unlearning(smoothness=smooth))
        task = Task(lambda: nn.Linear(5, 3))
        turnout.simulate(task, population(), FedAvg(LocalSGD(0.1), Full()), 3, observers=[tracked, events])
        assert events.kinds.count("expansive_steps") == expected


# -- storage --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("retention", ["all", "frugal", "thinned"])
def test_a_resumed_run_has_the_same_table_and_models(retention: Retention, tmp_path: Path) -> None:
    chosen = Unlearning(retention=retention, every=3, sigma=0.01)
    whole = turnout.execute(experiment("fedavg", rounds=7, evaluation=RARELY, unlearning=chosen), tmp_path / "whole")
    turnout.execute(
        experiment("fedavg", rounds=5, evaluation=RARELY, unlearning=chosen), tmp_path / "cut", checkpoint_every=2
    )
    again = turnout.execute(
        experiment("fedavg", rounds=7, evaluation=RARELY, unlearning=chosen),
        tmp_path / "cut",
        checkpoint_every=2,
        resume=True,
    )
    assert whole.sensitivity is not None
    assert again.sensitivity is not None
    assert again.sensitivity.facts == whole.sensitivity.facts
    files = [sorted((tmp_path / name / "sensitivity").rglob("*.*")) for name in ("whole", "cut")]
    assert [path.name for path in files[0]] == [path.name for path in files[1]]
    files = [[path for path in some if path.name != "log.jsonl"] for some in files]  # it has the time of day
    assert all(a.read_bytes() == b.read_bytes() for a, b in zip(*files, strict=True))
    table, _ = read_table(tmp_path / "cut" / "sensitivity")
    assert table == whole.sensitivity.table
    in_memory = turnout.execute(experiment("fedavg", rounds=7, evaluation=RARELY, unlearning=chosen)).sensitivity
    assert in_memory is not None
    assert in_memory.table == table
    assert in_memory.models.rounds == whole.sensitivity.models.rounds
    assert held(whole.sensitivity.models) == 0 < held(in_memory.models)


def test_the_newest_model_is_there_again_after_a_crash(tmp_path: Path) -> None:
    """Round 5 supersedes the model of round 4, then the process dies; the checkpoint is of round 4."""

    class Kill(turnout.Observer):
        def on_round(self, server: turnout.Server, record: object) -> None:
            if server.version == 6:
                raise KeyboardInterrupt

    chosen = Unlearning(retention="thinned", every=3)
    with pytest.raises(KeyboardInterrupt):
        turnout.execute(
            experiment("fedavg", rounds=7, evaluation=RARELY, unlearning=chosen),
            tmp_path,
            checkpoint_every=2,
            observers=[Kill()],
        )
    again = turnout.execute(
        experiment("fedavg", rounds=4, evaluation=RARELY, unlearning=chosen), tmp_path, resume=True
    ).sensitivity
    assert again is not None
    assert again.models.rounds == [0, 3, 4]
    assert len(again.models[4]) > 0


def test_tracking_changes_no_bit() -> None:
    plain, tracked = (
        turnout.execute(experiment("fedavg", unlearning=chosen)) for chosen in (None, Unlearning(groups=[[1, 2]]))
    )
    assert torch.equal(plain.model, tracked.model)
    assert plain.sensitivity is None


def test_a_run_in_a_folder_without_checkpoints_spills(tmp_path: Path) -> None:
    tracked = Sensitivity(Unlearning(), tmp_path)
    people = Population(torch.zeros(2, 1), torch.zeros(2, 1), Ragged(np.array([0, 1, 2]), np.arange(2)))
    made = Experiment(Task(lambda: nn.Linear(1, 1), "mse"), people, FedAvg(LocalSGD(0.1), Full()), 0, Stopping(40))
    largest = 0

    class Watch(turnout.Observer):
        def on_round(self, server: turnout.Server, record: object) -> None:
            nonlocal largest
            largest = max(largest, held(tracked.models))

    turnout.execute(made, observers=[tracked, Watch()])
    assert 0 < largest <= 16 * 2 * 4
    assert tracked.models.rounds == list(range(41))
