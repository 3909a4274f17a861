"""FedEM: what it reduces to, what it finds, what it sends, and what it says of itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import turnout
from support import SIZES, conv, experiment, images, local, mlp, population, simulation
from turnout import (
    Evaluation,
    Experiment,
    Full,
    LocalSGD,
    Observer,
    Plan,
    Population,
    Result,
    Simulation,
    Stopping,
    Task,
    UserError,
)
from turnout.algorithms._mixtures import weights_of
from turnout.algorithms.fedem import FedEM
from turnout.config import config
from turnout.local.mixture import MixtureTask
from turnout.samplers import Fill, Renormalised
from turnout.server.observer import Event
from turnout.server.server import Server

EXACT = Plan(precision="float64", threads=1)
QUICK = Plan(threads=1)
SELDOM = Evaluation(rounds=None)
FULL = LocalSGD(0.2, steps=3, batching="full")


def mixture_of(server: Server) -> MixtureTask:
    assert isinstance(server.task, MixtureTask)
    return server.task


def dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 16), nn.Dropout(0.4), nn.ReLU(), nn.Linear(16, 3))


# reductions


@pytest.mark.parametrize(
    ("model", "options"),
    [(mlp, {}), (mlp, {"momentum": 0.9}), (mlp, {"clip_norm": 0.1, "weight_decay": 0.1}), (dropout, {}), (conv, {})],
    ids=["plain", "momentum", "clip", "dropout", "conv"],
)
def test_one_component_is_fedavg_to_the_bit(model: Any, options: Any) -> None:
    """federated-em.md O8: ragged clients, sampled, on both engines (convolutions train one client after another)."""
    people, work, sampler = (images if model is conv else population)(), local(**options), Renormalised(5)
    runs = [turnout.FedAvg(work, sampler), FedEM(work, sampler, components=1)]
    plan = replace(QUICK, kernels="general") if model is conv else QUICK  # FedAvg's would be trained by blocks
    fedavg, fedem = (turnout.simulate(Task(model, seed=3), people, run, 5, seed=4, plan=plan) for run in runs)
    assert torch.equal(fedavg.model, fedem.model)
    assert fedavg.jobs()["ended_at"].tolist() == fedem.jobs()["ended_at"].tolist()
    assert fedavg.jobs()["bytes_up"].tolist() == fedem.jobs()["bytes_up"].tolist()
    assert fedem.measures["train_loss"] == pytest.approx(fedavg.measures["train_loss"], rel=1e-6)


def start_with(run: FedEM, weights: np.ndarray, model: torch.Tensor | None = None, **options: Any) -> Simulation:
    """A run whose clients have these weights at first, and components at `model`."""
    server = simulation(run, plan=EXACT, evaluation=SELDOM, **options)
    if model is not None:
        server.model = model
    server.store.put(server.population.ids, {"weights": torch.as_tensor(weights, dtype=torch.float64)})
    server.run()
    return server


def test_one_hot_weights_stay_and_are_a_fedavg_for_each_cluster() -> None:
    """federated-em.md O8, O9: with server step n_C / n, plain SGD."""
    cluster = np.arange(len(SIZES)) % 2
    server = start_with(FedEM(FULL, Full(), components=2), np.eye(2)[cluster], stopping=Stopping(4))
    work = FedEM(FULL, components=2).own_work()
    assert weights_of(server, work, server.population.ids).tolist() == np.eye(2)[cluster].tolist()
    for m in range(2):
        mine = np.flatnonzero(cluster == m)
        people = server.population
        members = Population(people.inputs, people.targets, people.train.rows(mine))
        share = people.base_importance[mine].sum()
        alone = simulation(turnout.FedAvg(FULL, Full(), server_lr=share), members, plan=EXACT, stopping=Stopping(4))
        alone.model = mixture_of(server).split(mixture_of(server).initial)[m].clone()
        alone.run()
        torch.testing.assert_close(mixture_of(server).split(server.model)[m], alone.model, rtol=1e-10, atol=1e-12)


def test_a_weight_floor_brings_a_component_back() -> None:
    """federated-em.md O9: unless there is a `min_weight`. The component that all have lost is the better one."""
    trained = turnout.simulate(
        Task(mlp, seed=3), population(), turnout.FedAvg(FULL, Full()), 40, plan=EXACT, evaluation=SELDOM
    ).model
    both, lost = torch.cat([Task(mlp, seed=3).initial.double(), trained]), np.tile([1.0, 0.0], (len(SIZES), 1))
    still = LocalSGD(0.0, steps=1, batching="full")
    for floor in (0.0, 1e-3):
        run = FedEM(still, Full(), components=2, min_weight=floor)
        weights = weights_of(start_with(run, lost, both, stopping=Stopping(40)), run.own_work(), np.arange(len(SIZES)))
        np.testing.assert_allclose(weights.sum(1), 1, atol=1e-12)
        if floor:
            assert weights[:, 1].min() > 0.9
        else:
            assert weights[:, 1].max() == 0


def test_identical_components_never_separate() -> None:
    """federated-em.md O7: with equal weights and full batches; which is why they begin differently."""
    task = MixtureTask(Task(mlp, seed=3), 3).to(dtype=torch.float64)
    alike = task.split(task.initial)[:1].repeat(3, 1).flatten()
    server = start_with(FedEM(FULL, Full()), np.zeros((len(SIZES), 3)), alike, stopping=Stopping(5))
    rows = mixture_of(server).split(server.model)
    assert float((rows - rows[0]).abs().max()) < 1e-12
    assert float((rows[0] - task.split(task.initial)[0]).abs().max()) > 1e-3
    apart = simulation(FedEM(FULL, Full()), plan=EXACT, stopping=Stopping(5))
    apart.run()
    assert (
        float((mixture_of(apart).split(apart.model)[1:] - mixture_of(apart).split(apart.model)[0]).norm(dim=1).min())
        > 1
    )


# what it finds


def clients(count: int, dims: int, **options: Any) -> tuple[Population, dict[str, Any]]:
    data = turnout.datasets.load("linear_mixture", clients=count, dims=dims, **options)
    test = "matched" if data.test_inputs is not None else "none"
    return Population.of(data, count, "natural", test=test), data.facts


def logistic(dims: int) -> Task:
    return Task(lambda: nn.Linear(dims, 2, bias=False), seed=3)


@pytest.mark.parametrize("components", [2, 3])
def test_hard_clusters_are_found(components: int) -> None:
    """federated-em.md O10 in small: 60 clients in 30 dimensions instead of 300 in 150, 60 rounds, one start. Every
    client's largest weight is its cluster's, and components point within 0.02 (cosine distance) of the truth."""
    people, facts = clients(60, 30, components=components, hard=True, test_samples=0, seed=7)
    run = FedEM(LocalSGD(5.0, batch_size=128, lr_decay=0.97), Full(), components=components)
    ended = turnout.simulate(logistic(30), people, run, 60, plan=QUICK, evaluation=Evaluation(rounds=None, train=True))
    rows = mixture_of(ended.server).split(ended.model).view(components, 2, 30)
    found, truth = (rows[:, 1] - rows[:, 0]).numpy(), facts["components"]
    unit = [part / np.linalg.norm(part, axis=1, keepdims=True) for part in (found, truth)]
    distance = 1 - unit[0] @ unit[1].T
    which = distance.argmin(1)
    assert sorted(which) == list(range(components))
    assert distance.min(1).max() < 0.02
    weights = weights_of(ended.server, run.own_work(), people.ids)
    np.testing.assert_array_equal(which[weights.argmax(1)], facts["weights"].argmax(1))


def test_it_beats_one_model_on_mixtures() -> None:
    """federated-em.md O11 in small: 100 clients in 60 dimensions instead of 300 in 150, 80 rounds. At least 5 points on
    average, and 3 at the worst 10th percentile."""
    people, _ = clients(100, 60, max_samples=500, seed=12345)
    work = LocalSGD(5.0, batch_size=128, lr_decay=0.97)
    one, three = (
        turnout.simulate(logistic(60), people, run, 80, plan=QUICK, evaluation=SELDOM).measures
        for run in (turnout.FedAvg(work, Full()), FedEM(work, Full()))
    )
    assert three["test_accuracy"] - one["test_accuracy"] >= 0.05
    assert three["test_accuracy_worst_decile"] - one["test_accuracy_worst_decile"] >= 0.03


# unseen clients


def opposite() -> tuple[Population, Task]:
    """Eight clients of two rules that are each other's opposite; the last of each rule never joins."""
    people = population(tuple([40] * 8), classes=2)
    rule = np.arange(8) % 2
    targets = people.targets.clone()
    for i in np.flatnonzero(rule).tolist():
        targets[people.train.row(i)] = 1 - targets[people.train.row(i)]
    joined = np.where(np.arange(8) < 6, 0.0, np.inf)
    return Population(people.inputs, targets, people.train, people.train, joined_at=joined), Task(
        lambda: nn.Linear(5, 2), seed=3
    )


def unseen_weights(steps: int) -> tuple[Result, np.ndarray]:
    people, task = opposite()
    run = FedEM(LocalSGD(1.0, batch_size=16), Full(), components=2, unseen_steps=steps)
    ended = turnout.simulate(task, people, run, 30, plan=EXACT)
    personal = ended.server._measurement.personal(ended.server, True)
    evaluator = ended.server._measurement.evaluators["test"]
    assert personal is not None
    kept = evaluator._prepared(personal, ended.model, ended.server.store, np.array([6, 7]))
    return ended, kept["weights"].numpy()


def test_one_step_of_a_client_never_seen() -> None:
    """federated-em.md O13: from equal weights, mean softmax(-L); it trains nothing, and nothing of it is kept."""
    ended, weights = unseen_weights(1)
    server = ended.server
    personal = server._measurement.personal(server, True)
    assert personal is not None
    assert personal.work.num_steps(40) == 0
    for client, found in zip((6, 7), weights, strict=True):
        rows = server.population.train.row(client)
        losses = mixture_of(server).component_losses(
            server.model, server.cohort.inputs[rows], server.cohort.targets[rows]
        )
        np.testing.assert_allclose(found, torch.softmax(-losses, 1).mean(0), rtol=1e-12)
    assert (server.store._row[[6, 7]] < 0).all()
    assert ended.measures["unseen_test_accuracy"] > 0.9
    uniform = server.task.outputs(server.model, server.cohort.inputs)
    assert float((uniform.argmax(1) == server.cohort.targets).double().mean()) < 0.7  # equal weights serve nobody


def test_a_client_of_one_component_finds_it() -> None:
    """federated-em.md O13: pi > 0.9 after some steps."""
    ended, weights = unseen_weights(20)
    assert (weights.max(1) > 0.9).all()
    assert weights[0].argmax() != weights[1].argmax()
    assert ended.measures["unseen_test_loss"] < unseen_weights(1)[0].measures["unseen_test_loss"]


# what is sent and kept


def test_nothing_private_is_sent() -> None:
    """federated-em.md O14: an update is the change of the components, and nothing else."""
    server = simulation(FedEM(local(), Full()), plan=EXACT)
    work = server.algorithm.predictor()
    assert work is not None
    assert work.sends(server.task) == {"delta": (3 * Task(mlp).size,)}
    assert work.download_numbers(server.task) == 3 * Task(mlp).size
    server.invite(server.population.ids, work)
    updates = server.wait()
    assert [set(job.result[0]) for job in updates.jobs if updates.deltas is not None and job.result] == [{"delta"}] * 8


def test_a_models_size_on_the_wire_is_that_of_a_component() -> None:
    ended = turnout.simulate(Task(mlp), population(model_bytes=1000), FedEM(local(), Full()), 1, plan=QUICK)
    assert ended.jobs()["bytes_down"].tolist() == [3000] * 8
    assert ended.jobs()["bytes_up"].tolist() == [3000] * 8


def test_who_is_not_invited_keeps_its_weights() -> None:
    """federated-em.md 3.3."""
    run = FedEM(local(), Renormalised(3))
    server = simulation(run, plan=EXACT, stopping=Stopping(1))
    server.run()
    trained = np.flatnonzero(server.heard)
    weights = weights_of(server, run.own_work(), server.population.ids)
    assert len(trained) == 3
    others = np.setdiff1d(server.population.ids, trained)
    np.testing.assert_array_equal(weights[others], np.full((5, 3), 1 / 3))
    assert (np.abs(weights[trained] - 1 / 3).max(1) > 1e-4).all()


def test_absent_clients_may_count_as_the_unchanged_model() -> None:
    """federated-em.md 3.3: `fill` moves by sum p_i delta_i over the sampled; renormalised by that over sum p_i."""
    moved = {}
    for sampler in (Fill(3), Renormalised(3)):
        server = simulation(FedEM(local(), sampler), plan=EXACT, stopping=Stopping(1))
        server.run()
        moved[type(sampler)] = server.model - server.task.initial
    share = server.importance[server.heard].sum()
    torch.testing.assert_close(moved[Fill], share * moved[Renormalised], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("stop", [1, 3])
def test_weights_survive_a_crash(stop: int, tmp_path: Path) -> None:
    whole = turnout.execute(experiment("fedem", rounds=6))
    turnout.execute(experiment("fedem", rounds=stop), tmp_path, checkpoint_every=1)
    resumed = turnout.execute(experiment("fedem", rounds=6), tmp_path, checkpoint_every=1, resume=True)
    one, two = (run.server.store.save() for run in (whole, resumed))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert torch.equal(whole.model, resumed.model)
    assert one["column.weights"].sum() > 0


# what it says


class Events(Observer):
    def __init__(self) -> None:
        self.seen: list[Event] = []

    def on_event(self, server: Server, event: Event) -> None:
        self.seen.append(event)


def test_the_history_knows_the_mass_of_components() -> None:
    run = FedEM(local(), Full())
    server = simulation(run, plan=EXACT, stopping=Stopping(3), observers=[history := turnout.record.history.History()])
    server.run()
    rounds = history.rounds.read()
    weights = weights_of(server, run.own_work(), server.population.ids)
    for m in range(3):
        assert np.isnan(rounds[f"mass_{m}"][0])
        assert rounds[f"mass_{m}"][-1] == pytest.approx(float(np.array(SIZES) / sum(SIZES) @ weights[:, m]), rel=1e-9)
    entropy = -(weights * np.log(weights)).sum(1).mean()
    assert rounds["weights_entropy"][-1] == pytest.approx(entropy, rel=1e-9)


def test_a_starved_component_is_an_event_once() -> None:
    events = Events()
    weights = np.tile([0.5, 0.4999, 0.0001], (len(SIZES), 1))
    still = LocalSGD(0.0, steps=1, batching="full")
    start_with(FedEM(still, Full()), weights, stopping=Stopping(1), observers=[events])
    assert [(event.kind, event.facts["component"]) for event in events.seen] == [("starved_component", 2)]
    assert events.seen[0].facts["mass"] < 0.01
    events = Events()
    start_with(FedEM(still, Full()), weights, stopping=Stopping(4), observers=[events])
    assert [event.kind for event in events.seen].count("starved_component") == 1


def test_it_takes_the_time_of_so_many_models() -> None:
    """Three gradients a step, and a look at every sample with each component."""
    people = population(devices=turnout.devices.fixed(1.0, per="step"))
    one, three = (
        turnout.simulate(Task(mlp), people, run, 1, plan=QUICK).jobs()
        for run in (turnout.FedAvg(local(), Full()), FedEM(local(), Full()))
    )
    seconds = [dict(zip(jobs["client"], jobs["compute_seconds"], strict=True)) for jobs in (one, three)]
    assert [seconds[0][i] for i in range(8)] == [2 * -(-size // 4) for size in SIZES]  # two epochs in batches of four
    assert [seconds[1][i] for i in range(8)] == [9 * -(-size // 4) for size in SIZES]


def test_it_can_be_rehearsed_and_configured() -> None:
    server = turnout.rehearse(FedEM(local(), Full()), population(), 3)
    assert server.version == 3
    options = ["algorithm.name=fedem", "algorithm.components=2", "algorithm.min_weight=1e-6", "run.rounds=2"]
    made, _, complete = config.build(config.read("digits", options))
    assert isinstance(made, Experiment)
    assert isinstance(made.algorithm, FedEM)
    assert complete["algorithm"]["components"] == 2
    assert {"unseen_steps", "outputs"} <= set(complete["algorithm"])
    with pytest.raises(UserError, match=r"algorithm.outputs: 'both' is not one of logits, values"):
        config.build(config.read("digits", ["algorithm.name=fedem", "algorithm.outputs=both"]))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"components": 0}, "algorithm.components: 0 must be at least 1"),
        ({"min_weight": 1.0}, "algorithm.min_weight: 1.0 must be"),
        ({"unseen_steps": 0}, "algorithm.unseen_steps: 0 must be"),
    ],
)
def test_bad_options_are_refused(options: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        turnout.simulate(Task(mlp), population(), FedEM(local(), **options), 1)
