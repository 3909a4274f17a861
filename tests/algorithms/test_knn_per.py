"""kNN-Per in a run: every client against a plain loop, what lambda may see, and the edge cases of the spec."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import turnout
from fake_faiss import FakeFaiss
from support import SIZES, conv, images, local, mlp, population, simulation
from turnout import Evaluation, FedAvg, Plan, Population, Ragged, Stopping, Task
from turnout.algorithms.knn_per import KNNPer
from turnout.config import options
from turnout.core.errors import UserError
from turnout.core.random import key, normal, permutation
from turnout.engine.evaluate import Evaluator, Personal
from turnout.engine.store import ClientStore
from turnout.engine.train import Cohort
from turnout.local.datastore import KEEP, prototypes, room
from turnout.local.neighbours import KNN, SMALLEST
from turnout.local.sgd import Named
from turnout.sampling.fill import Fill


def split(people: Population, **columns: Any) -> Population:
    """Every third sample of a client is for tests."""
    rows = [people.train.row(i) for i in range(people.size)]
    train, test = ([np.array([r for n, r in enumerate(row) if (n % 3 == 2) == t]) for row in rows] for t in (0, 1))
    return replace(people, train=Ragged.from_rows(train), test=Ragged.from_rows(test), **columns)


def trained(
    algorithm: FedAvg, people: Population | None = None, rounds: int = 3, **settings: Any
) -> turnout.Simulation:
    settings.setdefault("plan", Plan(precision="float64", threads=1))
    server = simulation(algorithm, people or split(population()), stopping=Stopping(rounds), **settings)
    server.run()
    return server


def memories(server: turnout.Simulation, part: str = "test") -> Named:
    evaluator, personal = server._measurement.evaluators[part], server._measurement.personal(server, False)
    assert personal is not None
    return evaluator._prepared(personal, server.model, server.store, evaluator.clients)


def kept_by(rule: str, order: np.ndarray, labels: Tensor, count: int) -> np.ndarray:
    """The last `count` of a shuffle; `balanced`, in turns over the classes."""
    last_first = order[::-1].tolist()
    if rule == "balanced":
        turn = [sum(int(labels[other] == labels[i]) for other in last_first[:n]) for n, i in enumerate(last_first)]
        last_first = [last_first[n] for n in np.argsort(turn, kind="stable")]
    return np.sort(np.array(last_first[:count], np.int64))


def plain(
    server: turnout.Simulation, client: int, knn: KNN, layer: int, capacity: float | None = None, keep: str = "random"
) -> Tensor:
    """`[test samples, classes]` probabilities at one client, step by step."""
    people, task, model = server.population, server.task, server.model

    def seen(rows: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
        inputs = server.cohort.inputs[rows]
        task.module.load_state_dict(task.state_dict(model))
        return task.module[:layer](inputs), task.outputs(model, inputs).softmax(1), server.cohort.targets[rows]  # type: ignore[index]

    train, test = people.train.row(client), people.test.row(client)  # type: ignore[union-attr]
    order = permutation(key(server.seed, "adaptation", client), len(train))
    count = room(capacity, len(train))
    held = order[: knn.held_back(len(train))]

    def memory(mine: np.ndarray) -> tuple[Tensor, Tensor]:
        fits = min(count, len(mine))
        if keep == "coreset" and capacity is not None:
            keys, _, labels = seen(train[np.sort(mine)])
            return prototypes(keys, labels, torch.ones(len(mine), dtype=torch.bool), fits, fits)[:2]
        keys, _, labels = seen(train[kept_by(keep, mine, server.cohort.targets[train], fits)])
        return keys, labels

    lam: Any = knn.interpolation
    if len(held):
        keys, served, values = seen(train[held])
        votes = knn.local(*memory(order[len(held) :]), keys, 3)
        lam = knn.tuned(votes, served, values, torch.ones(len(held), dtype=torch.bool))
    keys, served, _ = seen(test)
    return lam * knn.local(*memory(order), keys, 3) + (1 - lam) * served


@pytest.mark.parametrize(
    ("given", "layer"),
    [
        ({}, 2),
        ({"k": 2, "kernel": "gaussian", "scale": 0.3, "layer": "0"}, 1),
        ({"tune": "loglik", "fraction": 0.4}, 2),
        ({"kernel": "uniform", "fraction": 0.0, "interpolation": 0.8}, 2),
        ({"capacity": 4}, 2),
        ({"capacity": 5, "keep": "balanced", "k": 2}, 2),
        ({"capacity": 4, "keep": "coreset", "k": 2}, 2),
        ({"capacity": 1.0, "keep": "coreset", "fraction": 0.4}, 2),
        ({"keep": "coreset"}, 2),
    ],
)
def test_every_client_is_served_as_by_a_plain_loop(given: dict[str, Any], layer: int) -> None:
    algorithm = KNNPer(local(), turnout.Full(), **given)
    server = trained(algorithm)
    table = server.clients()
    for client in np.flatnonzero(server.population.test.counts).tolist():  # type: ignore[union-attr]
        probabilities = plain(server, client, algorithm.own_serve(), layer, algorithm.capacity, algorithm.keep)
        truth = server.cohort.targets[server.population.test.row(client)]  # type: ignore[union-attr]
        losses = -probabilities.gather(1, truth[:, None]).clamp(min=SMALLEST).log()
        assert table["test_loss"][client] == pytest.approx(float(losses.mean()), rel=1e-6)
        right = float((probabilities.argmax(1) == truth).double().mean())
        assert table["test_accuracy"][client] == pytest.approx(right)


def test_some_clients_trust_themselves_and_some_the_model() -> None:
    found = memories(trained(KNNPer(local(), turnout.Full(), k=3), split(population((40,) * 20)), 1))["interpolation"]
    assert len(found.unique()) > 2


def test_it_trains_as_fedavg_and_keeps_nothing() -> None:
    own, other = trained(KNNPer(local(), turnout.MD(4))), trained(FedAvg(local(), turnout.MD(4)))
    assert torch.equal(own.model, other.model)
    assert own.now == other.now
    assert not own.store.save()["row"].ge(0).any()


def test_opposite_clients() -> None:
    """Oracle 10 in a run: one model can serve one of two clients that contradict each other, memories serve both."""
    inputs = torch.cat([torch.linspace(-2, -1, 40), torch.linspace(1, 2, 40)]).repeat(2)[:, None]
    targets = (inputs[:, 0] > 0).long()
    targets[80:] = 1 - targets[80:]
    rows = [np.arange(80 * i, 80 * i + 80) for i in range(2)]
    people = Population(
        inputs,
        targets,
        Ragged.from_rows([row[row % 2 == 0] for row in rows]),
        test=Ragged.from_rows([row[row % 2 == 1] for row in rows]),
    )
    task = Task(lambda: turnout.models.linear(1, 2, zero_init=True))
    server = trained(KNNPer(local(batching="full"), turnout.Full()), people, task=task)
    assert server.measures["test_accuracy"] == 1
    assert (memories(server)["interpolation"] > 0).all()
    plain = trained(FedAvg(local(batching="full"), turnout.Full()), people, task=task)
    assert plain.measures["test_accuracy"] == 0.5


def test_clients_never_seen_are_served_by_their_own_memories() -> None:
    people = split(population((60,) * 8), joined_at=np.array([0.0] * 6 + [np.inf] * 2))
    people = replace(people, targets=torch.where(torch.arange(480) >= 360, 2 - people.targets, people.targets))
    settings = {"evaluation": Evaluation(rounds=None)}
    server = trained(KNNPer(local(), turnout.Full()), people, 20, **settings)
    plain = trained(FedAvg(local(), turnout.Full()), people, 20, **settings)
    assert server.measures["unseen_test_accuracy"] > plain.measures["unseen_test_accuracy"] + 0.2
    assert not server.heard[6:].any()


def test_lambda_never_sees_a_test_sample() -> None:
    people = split(population((30,) * 8))
    assert people.test is not None
    spoilt = people.targets.clone()
    spoilt[people.test.values] = 2 - spoilt[people.test.values]
    one, two = (trained(KNNPer(local(), turnout.Full()), each) for each in (people, replace(people, targets=spoilt)))
    assert one.measures["test_accuracy"] != two.measures["test_accuracy"]
    for name, values in memories(one).items():
        assert torch.equal(values, memories(two)[name]), name


# -- the average it starts from -------------------------------------------------------------------------------


def test_absent_clients_count_as_if_they_had_returned_the_model() -> None:
    """Oracle 15: w + sum over the sampled of n_t / n (w_t - w); everybody: the ordinary average; nobody: w."""
    sizes = np.array(SIZES) / sum(SIZES)
    for count in (3, 8):
        server = simulation(KNNPer(local(), Fill(count)), stopping=Stopping(1), plan=Plan(precision="float64"))
        before = server.model.clone()
        returned: dict[int, Tensor] = {}
        step = server.step

        def keep(updates: Any, weights: Any, returned: dict[int, Tensor] = returned, step: Any = step) -> None:
            returned |= dict(zip(updates.clients.tolist(), updates.returned(), strict=True))
            step(updates, weights)

        server.step = keep  # type: ignore[assignment, method-assign]
        server.run()
        assert len(returned) == count
        filled = sum(sizes[i] * returned.get(i, before) for i in range(8))
        torch.testing.assert_close(server.model, filled)
    nobody = trained(
        KNNPer(local(), Fill(3)), replace(population(), availability=turnout.Bernoulli(0.0)), rounds=2, plan=Plan()
    )
    assert torch.equal(nobody.model, nobody.task.initial)


# -- edges ----------------------------------------------------------------------------------------------------


class Listener(turnout.Observer):
    def __init__(self) -> None:
        self.heard: list[str] = []

    def on_event(self, server: turnout.Server, event: Any) -> None:
        self.heard.append(event.kind)


@pytest.mark.parametrize("keep", KEEP)
@pytest.mark.parametrize("capacity", [0, 0.0])
def test_without_room_the_global_model_serves_and_it_is_said(capacity: float, keep: str) -> None:
    listener = Listener()
    algorithm = KNNPer(local(), turnout.Full(), interpolation=1.0, fraction=0.0, capacity=capacity, keep=keep)
    server = trained(algorithm, observers=[listener])
    assert listener.heard == ["empty_memory"]
    assert server.measures == pytest.approx(trained(FedAvg(local(), turnout.Full())).measures)
    assert not memories(server)["interpolation"].any()


@pytest.mark.parametrize("keep", KEEP)
@pytest.mark.parametrize("counts", [(0, 1, 30, 2), (0, 0)])
def test_clients_without_samples_and_with_one(counts: tuple[int, ...], keep: str) -> None:
    """As of a stream that has not begun: the global model for who has none, the default lambda for who has one."""
    people, task = population(), Task(mlp, seed=3)
    cohort = Cohort(task, people.inputs, people.targets, Plan(threads=1).resolve())
    own = Ragged.from_rows([np.arange(count) for count in counts])
    evaluator = Evaluator(cohort, np.arange(len(counts)), Ragged.from_rows([[40, 41, 42]] * len(counts)))
    personal = Personal(KNNPer(local(), interpolation=0.7, keep=keep).own_serve().adaptation(local()), own.rows)
    store = ClientStore(len(counts), "cpu", torch.float32, 1)
    served = evaluator.personal_models(personal, task.initial, store)
    lam = evaluator._prepared(personal, task.initial, store, evaluator.clients)["interpolation"]
    for client, count in enumerate(counts):
        if count == 0:
            assert lam[client] == 0
            assert served["loss"][client] == pytest.approx(evaluator.global_model(task.initial)["loss"][client])
        if count == 1:
            assert lam[client] == pytest.approx(0.7)


def test_a_class_never_stored_has_a_finite_loss() -> None:
    people = population((20,) * 4)
    targets = people.targets.clone()
    targets[:20] = 0
    people = replace(people, targets=targets, test=Ragged.from_rows([[25, 26, 27, 28]] * 4))
    server = trained(KNNPer(local(), turnout.Full(), fraction=0.0, interpolation=1.0), people)
    wrong = (people.targets[[25, 26, 27, 28]] != 0).double().mean()
    assert wrong > 0
    assert server.clients()["test_loss"][0] == pytest.approx(-np.log(SMALLEST) * float(wrong))


def test_a_model_that_diverged_is_seen_to_have() -> None:
    server = trained(KNNPer(local(), turnout.Full()))
    assert np.isnan(server.measure(torch.full_like(server.model, torch.nan))["test_loss"])


def test_a_sample_that_cannot_be_represented_spoils_its_client() -> None:
    server = trained(KNNPer(local(), turnout.Full()), split(population((30,) * 4)))
    server.cohort.stored[0][server.population.train.row(2)[1]] = torch.nan
    assert np.isnan(server.clients()["test_loss"]).tolist() == [False, False, True, False]


def test_regression() -> None:
    """Clients whose values differ by a constant: each memory knows its own."""
    draws = torch.from_numpy(normal(key(3, "test"), 400 * 3)).reshape(400, 3).float()
    offset = torch.arange(400) // 100 * 10.0
    rows = Ragged.from_rows([np.arange(100 * i, 100 * i + 100) for i in range(4)])
    squeezed = nn.Sequential(nn.Linear(3, 1), nn.Flatten(0))  # outputs [B]
    for model, shape in ((nn.Linear(3, 1), (400,)), (nn.Linear(3, 1), (400, 1)), (squeezed, (400,))):
        people = split(Population(draws, (draws.sum(1) + offset).reshape(shape), rows))
        task = Task(model, "mse")
        errors = [
            trained(kind(local(lr=0.05), turnout.Full()), people, 10, task=task).measures["test_loss"]
            for kind in (KNNPer, FedAvg)
        ]
        assert errors[0] < errors[1] / 10


@pytest.mark.parametrize("engine", ["vectorised", "sequential"])
def test_convolutions_and_recurrent_layers(engine: str) -> None:
    plan = Plan(engine=engine, threads=1, precision="float64")
    pictures = split(images())
    server = trained(KNNPer(local(), turnout.Full()), pictures, task=Task(conv, seed=3), plan=plan)
    assert memories(server)["keys"].shape[-1] == 16
    tokens = (population().inputs.abs() * 3).long() % 7
    text = Task(lambda: turnout.models.char_lstm(7, 3, 4, 2), seed=3)
    people = split(Population(tokens, tokens[:, 0], population().train))
    for layer, size in ((None, 4), ("lstm.states", 16)):
        server = trained(KNNPer(local(), turnout.Full(), layer=layer), people, 1, task=text, plan=plan)
        assert memories(server)["keys"].shape[-1] == size


def test_dropout_is_off_in_memories() -> None:
    task = Task(lambda: nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, 3)), seed=3)
    server = trained(KNNPer(local(), turnout.Full()), task=task)
    keys = server.task.features(server.model, server.cohort.inputs[server.population.train.row(1)], "0")
    clients = server._measurement.evaluators["test"].clients
    torch.testing.assert_close(memories(server)["keys"][int(np.flatnonzero(clients == 1)[0])][: len(keys)], keys)


def test_little_memory_changes_nothing_and_is_kept_to(monkeypatch: pytest.MonkeyPatch) -> None:
    people = split(population((90,) * 30))
    servers = [
        trained(KNNPer(local(), turnout.Full()), people, plan=Plan(threads=1, memory_mib=mib, precision="float64"))
        for mib in (2048, 1)
    ]
    asked = []
    large, prepare = servers[0].evaluate(), Cohort.prepare

    def watched(cohort: Any, jobs: Any, state: Any) -> Any:
        asked.append(len(jobs.keys))
        return prepare(cohort, jobs, state)

    monkeypatch.setattr(Cohort, "prepare", watched)
    small = servers[1].evaluate()
    assert small == pytest.approx(large, rel=1e-9)
    assert max(asked) < 30
    numbers = KNNPer(local()).own_serve().adaptation(local()).prepared_numbers(servers[1].task, 60)
    assert max(asked) * numbers * 8 <= 1 << 20


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"k": 0}, r"algorithm.k: 0 must be at least 1"),
        ({"kernel": "cosine"}, r"algorithm.kernel: unknown name 'cosine'"),
        ({"capacity": 1.5}, r"algorithm.capacity: 1.5 must be a share"),
        ({"keep": "balance"}, r"algorithm.keep: unknown name 'balance'; did you mean balanced"),
        ({"tune": "test"}, r"algorithm.tune: unknown name 'test'"),
    ],
)
def test_mistakes(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        KNNPer(local(), **given)


def test_what_cannot_be_voted_on() -> None:
    people = population()
    signs = replace(people, targets=(people.targets > 0).long() * 2 - 1)
    with pytest.raises(UserError, match="an output for each class"):
        trained(KNNPer(local()), signs, task=Task(lambda: nn.Linear(5, 1), "hinge"))
    with pytest.raises(UserError, match="loglik needs class labels"):
        values = replace(people, targets=people.inputs.sum(1))
        trained(KNNPer(local(), tune="loglik"), values, task=Task(lambda: nn.Linear(5, 1), "mse"))
    with pytest.raises(UserError, match=r"algorithm.keep: coreset needs class labels"):
        trained(KNNPer(local(), keep="coreset"), values, task=Task(lambda: nn.Linear(5, 1), "mse"))
    with pytest.raises(UserError, match="the model has no 'body'"):
        trained(KNNPer(local(), layer="body"))


def test_capacity_is_a_share_or_a_number_in_a_configuration() -> None:
    for value in (0.5, 1, 1.0):
        checked, _ = options.check("algorithm", KNNPer, {"capacity": value}, {"local", "sampler"})
        assert checked["capacity"] == value
        assert type(checked["capacity"]) is type(value)


@pytest.mark.parametrize("engine", ["vectorised", "sequential"])
@pytest.mark.parametrize("capacity", [None, 3])
def test_an_index_of_faiss_serves_as_the_exact_one(
    engine: str, capacity: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "faiss", FakeFaiss)
    plan = Plan(precision="float64", threads=1, engine=engine)
    exact, other, fewer = (
        trained(KNNPer(local(), Fill(4), k=3, capacity=capacity, index=index), plan=plan).measures
        for index in ("exact", "faiss", "faiss:HNSW32")
    )
    assert other == exact == fewer
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(UserError, match=r"algorithm\.index: faiss is not installed; pip install"):
        KNNPer(local(), index="faiss")
    with pytest.raises(UserError, match=r"algorithm\.index: unknown name 'fais'; did you mean faiss"):
        KNNPer(local(), index="fais")
