"""The three numbers of a model, and of a run in a folder: whose samples are attacked, with which shadows."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import turnout
from support import SIZES, local, mlp, population
from turnout import Evaluation, Experiment, FedAvg, Full, LocalSGD, Plan, Population, Ragged, Stopping, Task, UserError
from turnout.algorithms import FedEM
from turnout.algorithms.werm import WERM
from turnout.clients import arriving, memories
from turnout.config import config
from turnout.core.random import key, normal
from turnout.local.mixture import MixtureTask
from turnout.task.models import linear
from turnout.trust.attacks import attack, membership_scores
from turnout.trust.leakage import Exposed, attack_run, finished, three_way

ONE_THREAD = Plan(threads=1)
RARE = Evaluation(rounds=None)
HALF = 60  # samples of one of the two sets


def noise(count: int, part: str, classes: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    """Nothing to learn, all to remember."""
    inputs = torch.from_numpy(normal(key(1, "inputs " + part), count * 20)).reshape(count, 20).float()
    return inputs, torch.from_numpy(np.abs(key(1, "labels " + part, np.arange(count))) % classes)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 4))


def remembering(w: float) -> tuple[Task, torch.Tensor]:
    """Trained until it knows what it was given by heart: the first set with weight w, the second with 1 - w."""
    parts = noise(HALF, "train"), noise(HALF, "reference")
    inputs, targets = (torch.cat(part) for part in zip(*parts, strict=True))
    people = Population(inputs, targets, Ragged(np.array([0, HALF, 2 * HALF]), np.arange(2 * HALF)))
    algorithm = WERM(LocalSGD(1.0, steps=10, batching="full"), Full(), train_weight=w, reference_clients=[1])
    task = Task(net, seed=1)
    return task, turnout.simulate(task, people, algorithm, 20, plan=ONE_THREAD, evaluation=RARE).model


@pytest.mark.parametrize("w", [1.0, 0.0])
def test_only_what_was_trained_on_leaks(w: float) -> None:
    """Oracle 8: reference data at w = 1 and training data at w = 0 are non-members like any other."""
    task, model = remembering(w)
    found = three_way(task, model, noise(HALF, "train"), noise(500, "test"), noise(HALF, "reference"))
    assert found.reference is not None
    used, unused = (found.train, found.reference) if w else (found.reference, found.train)
    assert used.accuracy > 0.9
    assert used.auc > 0.95
    assert abs(unused.accuracy - 0.5) <= 3 * unused.noise
    assert abs(unused.auc - 0.5) < 0.12
    assert found.test["accuracy"] == pytest.approx(0.25, abs=0.08)  # nothing could be learnt


def test_an_untrained_model_leaks_nothing() -> None:
    """Oracle 7."""
    task = Task(net, seed=1)
    found = three_way(task, task.initial, noise(500, "train"), noise(500, "test"))
    assert found.reference is None
    assert abs(found.train.accuracy - 0.5) <= 3 * found.train.noise
    inputs, targets = noise(500, "test")
    loss = nn.functional.cross_entropy(task.outputs(task.initial, inputs), targets)
    assert found.test["loss"] == pytest.approx(float(loss), rel=1e-5)


# -- whose samples of a run -----------------------------------------------------------------------------------


def overfitted(**options: Any) -> tuple[Experiment, torch.Tensor]:
    """Three clients of 40, 60 and 80 samples of noise, each tested on 30 others, and the model they agree on."""
    inputs, targets = noise(270, "all", classes=3)
    train = Ragged(np.array([0, 40, 100, 180]), np.arange(180))
    test = Ragged(np.array([0, 30, 60, 90]), np.arange(180, 270))
    columns = options.pop("columns", {})
    people = Population(inputs, targets, **{"train": train, "test": test, **columns})
    algorithm = options.pop("algorithm", FedAvg(LocalSGD(1.0, steps=10, batching="full"), Full()))
    task = Task(net, seed=1)
    experiment = Experiment(task, people, algorithm, 3, Stopping(15), RARE, ONE_THREAD)
    return experiment, turnout.execute(experiment).model


@pytest.fixture(scope="module")
def run() -> tuple[Experiment, torch.Tensor]:
    return overfitted()


def scores_of(run: tuple[Experiment, torch.Tensor]) -> Any:
    experiment, model = run
    losses = experiment.task.losses(model, experiment.population.inputs, experiment.population.targets)
    return membership_scores(losses.numpy())


def test_members_are_what_clients_train_on(run: tuple[Experiment, torch.Tensor]) -> None:
    leaks, scores = attack_run(*run, by="client", seed=2), scores_of(run)
    people = run[0].population
    whole = attack(scores[:180], scores[180:], seed=2)
    assert leaks.whole.train.as_dict() == pytest.approx(whole.as_dict(), rel=1e-6)
    assert whole.accuracy > 0.8
    assert leaks.whole.reference is None
    assert list(leaks.groups) == [0, 1, 2]
    for client, found in leaks.groups.items():
        alone = attack(scores[people.train.row(client)], scores[people.test.row(client)], seed=2)  # type: ignore[union-attr]
        assert found.as_dict() == pytest.approx(alone.as_dict(), rel=1e-6)


def test_by_class(run: tuple[Experiment, torch.Tensor]) -> None:
    leaks, scores, labels = attack_run(*run, by="class"), scores_of(run), run[0].population.targets.numpy()
    assert list(leaks.groups) == [0, 1, 2]
    train, test = np.arange(270) < 180, np.arange(270) >= 180
    for label, found in leaks.groups.items():
        alone = attack(scores[train & (labels == label)], scores[test & (labels == label)])
        assert found.as_dict() == pytest.approx(alone.as_dict(), rel=1e-6)


def test_reference_clients_apart() -> None:
    work = LocalSGD(1.0, steps=10, batching="full")
    leaks = attack_run(*overfitted(algorithm=WERM(work, Full(), train_weight=1.0, reference_clients=[1])))
    train, reference = leaks.whole.train, leaks.whole.reference
    assert reference is not None
    assert (train.members, train.non_members) == (120, 60)
    assert (reference.members, reference.non_members) == (60, 30)
    assert train.auc > 0.9
    assert abs(reference.auc - 0.5) < 0.15


def test_the_central_test_set_where_clients_have_none() -> None:
    columns = {"test": None, "central": noise(400, "central")}
    experiment, model = overfitted(columns=columns)
    leaks = attack_run(experiment, model, by="client")
    losses = experiment.task.losses(model, *noise(400, "central"))
    assert [found.non_members for found in (leaks.whole.train, *leaks.groups.values())] == [400] * 4
    assert [found.members for found in leaks.groups.values()] == [40, 60, 80]
    assert leaks.whole.test["loss"] == pytest.approx(float(losses.mean()), rel=1e-5)
    assert leaks.whole.train.auc > 0.9


def test_who_never_joins_is_no_member() -> None:
    leaks = attack_run(*overfitted(columns={"joined_at": np.array([0.0, np.inf, 2.0])}), by="client")
    assert (leaks.whole.train.members, leaks.whole.train.non_members) == (120, 60)
    assert list(leaks.groups) == [0, 2]


def test_what_another_trains_on_is_no_non_member() -> None:
    """Client 0 is tested on samples that client 1 trains on, and on ten that nobody does."""
    rows = [np.r_[40:60, 180:190], np.arange(210, 240), np.arange(240, 270)]
    experiment, model = overfitted(columns={"test": Ragged.from_rows(rows)})
    with pytest.warns(UserWarning, match="1 of 3 groups"):
        leaks = attack_run(experiment, model, by="client")
    assert leaks.groups[0].non_members == 10
    assert leaks.whole.train.non_members == 70


def test_without_any_test_sample() -> None:
    with pytest.warns(UserWarning, match="180 members and 0 non-members"):
        leaks = attack_run(*overfitted(columns={"test": None}))
    assert np.isnan([leaks.whole.train.accuracy, leaks.whole.test["loss"]]).all()


# -- shadows --------------------------------------------------------------------------------------------------


def test_shadows_train_on_complementary_halves(run: tuple[Experiment, torch.Tensor]) -> None:
    exposed = Exposed(run[0])
    sides = exposed.half(0, seed=1)
    for side in (0, 1):
        people = exposed.shadow(sides == side, seed=9).population
        assert people.train.counts.tolist() == [35, 45, 55]  # half of what each client holds, test samples too
        assert set(people.train.values.tolist()) == set(np.flatnonzero(sides == side).tolist())
        for client in range(3):
            mine = np.concatenate([run[0].population.train.row(client), 180 + 30 * client + np.arange(30)])
            assert np.isin(people.train.row(client), mine).all()
    assert not np.array_equal(sides, exposed.half(1, seed=1))
    assert not np.array_equal(sides, exposed.half(0, seed=2))


@pytest.fixture(scope="module")
def out(run: tuple[Experiment, torch.Tensor]) -> Any:
    return Exposed(run[0]).out_losses(4, seed=1)


def test_shadows_of_a_stream_get_their_samples_at_the_same_time(run: tuple[Experiment, torch.Tensor]) -> None:
    experiment, _ = run
    people = experiment.population.streaming(arriving.constant(2), memories.FIFO(5))
    exposed = Exposed(replace(experiment, population=people))
    shadow = exposed.shadow(exposed.half(0, seed=1) == 0, seed=9).population
    assert shadow.stream is people.stream
    assert (shadow.counts(shadow.ids, np.zeros(shadow.size)) < shadow.train.counts).any()
    assert (shadow.counts(shadow.ids, np.full(shadow.size, 1e6)) == np.minimum(5, shadow.train.counts)).all()


def test_out_losses_are_those_of_models_without_the_sample(run: tuple[Experiment, torch.Tensor], out: Any) -> None:
    exposed = Exposed(run[0])
    assert np.isnan(out).sum(0).tolist() == [2] * 270
    np.testing.assert_array_equal(np.isnan(out[3]), exposed.half(1, seed=1) == 1)
    shadow = turnout.execute(exposed.shadow(exposed.half(1, seed=1) == 1, int(key(1, "shadow", 3))))
    without = exposed.half(1, seed=1) == 0
    np.testing.assert_array_equal(out[3][without], exposed.measures(shadow.model)["loss"][without])
    assert shadow.server.version == 15
    losses, untouched = exposed.measures(run[1])["loss"], np.nanmean(out)
    assert losses[:180].mean() < 0.1 * untouched
    assert losses[180:].mean() == pytest.approx(untouched, rel=0.5)


@pytest.mark.parametrize("kind", ["calibrated", "shadow"])
def test_attacks_with_shadows(
    run: tuple[Experiment, torch.Tensor], out: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Exposed, "out_losses", lambda _, shadows, seed: {(4, 1): out}[shadows, seed])
    leaks = attack_run(*run, kind=kind, shadows=4, seed=1)
    scores = membership_scores(Exposed(run[0]).measures(run[1])["loss"], kind, out)
    assert leaks.whole.train == attack(scores[:180], scores[180:], seed=1)
    assert leaks.whole.train.auc > 0.75


def test_shadows_of_shared_samples_and_central_ones() -> None:
    """A sample that two clients hold is on one side for both; central samples are scored by half of the shadows too."""
    shared = Ragged.from_rows([np.arange(0, 40), np.arange(20, 100), np.arange(100, 180)])
    experiment, _ = overfitted(columns={"train": shared, "test": None, "central": noise(50, "central")})
    exposed = Exposed(experiment)
    sides = exposed.half(0, seed=1)
    assert len(sides) == 320
    assert 10 < sides[270:].sum() < 40
    for side in (0, 1):
        people = exposed.shadow(sides == side, seed=9).population
        assert (sides[people.train.values] == side).all()
        assert people.train.values.max() < 270


# -- mistakes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kind": "lira"}, "attack.kind: unknown name 'lira'; allowed: calibrated, loss, shadow"),
        ({"by": "clients"}, "attack.by: unknown name 'clients'; did you mean client?"),
        ({"shadows": 3, "kind": "shadow"}, "attack.shadows: 3 must be an even number of at least 2"),
        ({"shadows": 0}, "attack.shadows: 0 must be an even number"),
        ({"shadows": 2, "kind": "shadow"}, "shadow needs 2 models not trained on each sample; one has 1"),
    ],
)
def test_refused_options(run: tuple[Experiment, torch.Tensor], options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words.replace("?", r"\?")):
        attack_run(*run, **options)


def test_a_client_that_cannot_be_halved() -> None:
    assert 1 in SIZES
    people = population(test=None)
    experiment = Experiment(Task(mlp, seed=3), people, FedAvg(local(), Full()), plan=ONE_THREAD)
    with pytest.raises(UserError, match="too few samples to train shadows on half of them; use loss"):
        attack_run(experiment, experiment.task.initial, kind="shadow")


def test_classes_need_labels() -> None:
    people = replace(population(), targets=torch.zeros(sum(SIZES), 1))
    task = Task(lambda: linear(5, 1), "mse")
    with pytest.raises(UserError, match="class needs one label a sample"):
        attack_run(Experiment(task, people, FedAvg(local(), Full()), plan=ONE_THREAD), task.initial, by="class")


# -- a run in a folder ----------------------------------------------------------------------------------------

SETTINGS: dict[str, dict[str, Any]] = {
    "run": {"rounds": 2, "target": 2.0},
    "data": {"name": "digits"},
    "clients": {"count": 5},
    "model": {"name": "linear"},
    "local": {"lr": 0.1},
    "sampler": {"name": "full"},
    "engine": {"threads": 1},
}


@pytest.mark.parametrize(
    ("name", "precision"), [("fedavg", "float64"), ("fedem", "float32"), ("centralised", "float32")]
)
def test_what_a_run_left_behind(name: str, precision: str, tmp_path: Path) -> None:
    """The same experiment, as long as it took, and the same bits of the model."""
    settings = {**SETTINGS, "algorithm": {"name": name}, "engine": {"threads": 1, "precision": precision}}
    experiment, _, complete = config.build(settings)
    result = turnout.execute(experiment, tmp_path, configuration=config.as_toml(complete))
    again, model = finished(tmp_path)
    assert torch.equal(model, result.model)
    assert model.dtype == result.model.dtype
    assert again.fingerprint == experiment.fingerprint
    assert again.stopping == Stopping(2)
    losses = attack_run(again, model).whole.test["loss"]
    served = experiment.algorithm.trained_task(experiment.task).to(dtype=model.dtype)
    rows = torch.as_tensor(experiment.population.test.values)  # type: ignore[union-attr]
    inputs = experiment.population.inputs[rows].to(model.dtype)
    expected = served.losses(model, inputs, experiment.population.targets[rows])
    assert losses == pytest.approx(float(expected.mean()), rel=1e-5)


def test_no_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not the folder of a run"):
        finished(tmp_path)
    experiment, _, complete = config.build({**SETTINGS, "algorithm": {"name": "fedavg"}})
    (tmp_path / "config.toml").write_text(config.as_toml(complete))
    with pytest.raises(UserError, match="is unfinished; go on with: turnout resume"):
        finished(tmp_path)
    assert experiment.task.size


def test_parameters_of_a_state_dict() -> None:
    """The inverse of `Task.state_dict`: tied weights, frozen ones, and mixtures."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.second = nn.Linear(4, 4)
            self.second.weight = self.first.weight
            self.first.bias.requires_grad_(False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.second(self.first(x))
            return out

    task = Task(Tied())
    for one in (task, MixtureTask(task, 3), FedEM(local(), components=2).trained_task(Task(mlp))):
        model = torch.arange(one.size, dtype=torch.float32)
        assert torch.equal(one.from_state_dict(one.state_dict(model)), model)


def test_leaks_for_scripts(run: tuple[Experiment, torch.Tensor]) -> None:
    document = json.loads(json.dumps(attack_run(*run, by="client").as_dict()))
    assert set(document) == {"test", "train", "reference", "groups"}
    assert document["reference"] is None
    assert set(document["groups"]) == {"0", "1", "2"}
    assert set(document["test"]) == {"loss", "accuracy"}
