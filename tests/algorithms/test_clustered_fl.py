"""Clustered federated learning: recursive bipartition by the cosine of updates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from personal_problems import FULL, TASK, run, two_rules
from torch import nn
from toy_problems import EXACT, clients, point, simulate, steps

import turnout
from support import local, population, same
from turnout import Bernoulli, Experiment, FedAvg, Full, LocalSGD, Population, Result, Stopping, Task, UserError
from turnout.algorithms.clustered_fl import ClusteredFL, bipartition
from turnout.algorithms.ifca import IFCA
from turnout.algorithms.mocha import Mocha
from turnout.config.options import options_of

LINEAR = Task(lambda: nn.Linear(4, 2), seed=1)
WORK = LocalSGD(0.5, steps=3, batching="full")
EAGER: dict[str, Any] = {"tol_1": 0.35, "tol_2": 0.6}  # of the opposite rules the updates nearly cancel, from the start


def clusters(result: Result) -> list[int]:
    algorithm = result.server.algorithm
    assert isinstance(algorithm, ClusteredFL)
    return algorithm.clusters(result.server).tolist()


def test_two_opposite_rules_separate_at_the_first_split() -> None:
    """federated-em.md O17. The clients never seen, 10 and 11, choose the right model by their losses."""
    result = run(ClusteredFL(WORK, **EAGER), 30, people=two_rules(), task=LINEAR)
    assert clusters(result)[:10] == [0, 1] * 5
    assert result.audit.events == {"split": 1}
    assert result.measures["test_accuracy"] > 0.95
    assert result.measures["unseen_test_accuracy"] > 0.95
    assert run(FedAvg(WORK, Full()), 30, people=two_rules(), task=LINEAR).measures["test_accuracy"] < 0.65


def test_one_homogeneous_group_never_splits() -> None:
    """federated-em.md O17: all updates are alike, so that their mean is as long as they are until all are short."""
    people = clients([3.0] * 6, "equal")
    result = simulate(ClusteredFL(steps(2, 0.1), tol_1=0.4, tol_2=0.4), people, 40)
    assert set(clusters(result)) == {0}
    torch.testing.assert_close(
        result.model, simulate(FedAvg(steps(2, 0.1), Full()), people, 40).model, rtol=1e-12, atol=0
    )


def test_the_paper_s_tolerances_are_the_defaults() -> None:
    """Two groups whose optima are 10 apart pull by 1.9 each at the middle, where the mean is short: one split; then
    every group is at rest."""
    people = clients([-5.0, 5.0] * 3, "equal")
    result = simulate(ClusteredFL(steps(1, 0.38)), people, 40, start=0.5)
    assert clusters(result) == [0, 1] * 3
    models = result.server.algorithm.models[:, 0]  # type: ignore[attr-defined]
    assert models.tolist() == pytest.approx([-5, 5], abs=1e-6)
    shorter = simulate(ClusteredFL(steps(1, 0.3)), people, 40)  # 1.5 < tol_2
    assert set(clusters(shorter)) == {0}
    longer = simulate(ClusteredFL(steps(1, 0.38), tol_1=0.1), people, 1, start=0.5)  # the mean is 0.19 long
    assert set(clusters(longer)) == {0}


def test_the_mean_is_weighted() -> None:
    """One client pulls as hard as three that weigh as much together; counted by heads it would not."""
    people = clients([-5.0, 5.0, 5.0, 5.0], (0.5, 1 / 6, 1 / 6, 1 / 6))
    assert clusters(simulate(ClusteredFL(steps(1, 0.38)), people, 1)) == [0, 1, 1, 1]
    assert set(clusters(simulate(ClusteredFL(steps(1, 0.38)), clients([-5.0, 5.0, 5.0, 5.0], "equal"), 1))) == {0}


@pytest.mark.parametrize("kind", [ClusteredFL, IFCA, Mocha])
def test_an_update_that_is_not_finite_spoils_no_model(kind: Any) -> None:
    """The loss of client 3 is so curved that its steps overflow."""
    people = clients([-5.0, 5.0, 4.0, 3.0], "equal", [1.0, 1.0, 1.0, 1e30])
    algorithm = kind(steps(12, 0.1), **({} if kind is ClusteredFL else {"sampler": Full()}))
    result = simulate(algorithm, people, 2)
    assert bool(torch.isfinite(algorithm.models).all())
    assert result.audit.events["rejected_update"] == 2
    assert result.server.heard.tolist() == [True, True, True, False]


def test_two_clients_are_never_parted() -> None:
    assert set(clusters(simulate(ClusteredFL(steps(1, 0.4)), clients([-9.0, 9.0], "equal"), 10))) == {0}


def test_clusters_of_clusters() -> None:
    """Four optima at the corners of a long rectangle, ids mixed: first the short sides are parted, then their ends."""
    corners = [(-20.0, -4.0), (20.0, -4.0), (-20.0, 4.0), (20.0, 4.0)]
    result = simulate(ClusteredFL(steps(1, 0.5)), clients(corners * 4, "equal"), 60, start=(0.0, 0.0))
    found = np.array(clusters(result)).reshape(4, 4)
    assert (found == found[0]).all()
    assert sorted(found[0]) == [0, 1, 2, 3]
    models = result.server.algorithm.models  # type: ignore[attr-defined]
    np.testing.assert_allclose(models[found[0]].numpy(), corners, atol=1e-6)
    assert result.audit.events == {"split": 3}


def test_a_cluster_trains_as_fedavg_among_its_members() -> None:
    """federated-em.md 3.7 and O8: one-hot clusters are separate FedAvgs. From the round of the split on, here the first
    one, each is that of its members alone; the server's own model is the mean over all clients."""
    people = two_rules()
    result = run(ClusteredFL(WORK, **EAGER), 4, people=people, task=LINEAR)
    assert result.rounds()["round"].tolist()[-1] == 4
    models = result.server.algorithm.models  # type: ignore[attr-defined]
    importance = result.server.importance
    for cluster in (0, 1):
        members = np.arange(cluster, 10, 2)
        among = Population(people.inputs, people.targets, people.train.rows(members))
        alone = run(FedAvg(WORK, Full()), 4, people=among, task=LINEAR)
        torch.testing.assert_close(models[cluster], alone.model, rtol=1e-11, atol=1e-13)
    mass = np.bincount(clusters(result), importance)
    torch.testing.assert_close(result.model, torch.as_tensor(mass) @ models, rtol=1e-11, atol=1e-13)


def test_no_split_while_a_member_is_silent() -> None:
    people = clients([-5.0, 5.0] * 3, "equal", availability=Bernoulli(0.5))
    rounds = simulate(ClusteredFL(steps(1, 0.38)), people, 12).rounds()
    assert rounds["used"].max() < 6
    assert set(clusters(simulate(ClusteredFL(steps(1, 0.38)), people, 12))) == {0}


def test_the_weight_of_the_silent_goes_to_their_own_cluster() -> None:
    """With `normalise` responders, after a split in the first round: client 0 leaves its part to the others of its
    cluster, and nobody else."""
    people = clients([-5.0, 5.0] * 3, "equal", left_at=np.array([1.5, *[np.inf] * 5]))
    result = simulate(ClusteredFL(steps(1, 0.38), normalise="responders"), people, 2)
    jobs = result.jobs()
    second = dict(zip(jobs["client"][jobs["round"] == 2], jobs["weight"][jobs["round"] == 2], strict=True))
    assert [second[client] for client in range(6)] == pytest.approx([0, 1 / 6, 1 / 4, 1 / 6, 1 / 4, 1 / 6])


def test_the_server_s_model_is_the_mean_also_when_some_are_silent() -> None:
    people = clients([-5.0, 5.0, -4.0, 6.0, -6.0, 4.0], (0.1, 0.3, 0.1, 0.2, 0.2, 0.1), availability=Bernoulli(0.9))
    result = simulate(ClusteredFL(steps(1, 0.38)), people, 8, start=0.5)
    assert len(set(result.rounds()["used"][1:].tolist())) > 1
    assert set(clusters(result)) == {0, 1}
    mass = torch.as_tensor(np.bincount(clusters(result), result.server.importance))
    torch.testing.assert_close(result.model, mass @ result.server.algorithm.models, rtol=1e-11, atol=1e-13)  # type: ignore[attr-defined]


def test_its_clusters_survive_a_resume(tmp_path: Path) -> None:
    def experiment(rounds: int) -> Experiment:
        people = clients([-5.0, 5.0] * 3, "equal")
        return Experiment(point(0.5), people, ClusteredFL(steps(1, 0.38)), plan=EXACT, stopping=Stopping(rounds))

    whole = turnout.execute(experiment(8))
    turnout.execute(experiment(4), tmp_path, checkpoint_every=1)
    resumed = turnout.execute(experiment(8), tmp_path, checkpoint_every=1, resume=True)
    assert clusters(resumed) == clusters(whole) == [0, 1] * 3
    assert torch.equal(resumed.server.algorithm.models, whole.server.algorithm.models)  # type: ignore[attr-defined]
    assert same(resumed.rounds(), whole.rounds())
    assert whole.measures == resumed.measures


def test_bipartition() -> None:
    """Complete linkage of 1 - cosine: by direction, whatever the length; one that has not moved is at a right angle."""
    updates = np.array([[1.0, 0.1], [-3, 0.2], [9, 0.3], [-1, -0.1], [50, -4]])
    assert bipartition(updates @ updates.T).tolist() in ([1, 2, 1, 2, 1], [2, 1, 2, 1, 2])
    still = np.array([[1.0, 0], [0, 0], [-1, 0], [1, 0.1]])
    branch = bipartition(still @ still.T)
    assert branch[0] == branch[3] != branch[2]
    alike = np.array([[1.0, 2]] * 4)
    assert len(set(bipartition(alike @ alike.T).tolist())) == 1


def test_everybody_is_invited() -> None:
    assert "sampler" not in options_of(ClusteredFL)
    result = run(ClusteredFL(local()), 2, people=population(), task=Task(lambda: nn.Linear(5, 3)))
    assert result.jobs()["client"].tolist().count(0) == 2
    assert result.audit.mean_weight == pytest.approx(1)


def test_mistakes() -> None:
    with pytest.raises(UserError, match=r"algorithm.tol_1: 0 must be above 0"):
        ClusteredFL(FULL, tol_1=0)
    with pytest.raises(UserError, match=r"algorithm.wait_for: everybody must be heard"):
        ClusteredFL(FULL, wait_for=3)
    assert run(ClusteredFL(FULL), 1, task=TASK).server.version == 1
