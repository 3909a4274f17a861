"""Invariants 2 and 3: draws depend on nobody else, and the same seed and plan give the same bits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import turnout
from support import ALGORITHMS, algorithm, conv, experiment, local, mlp, population, same, simulation
from turnout import Plan
from turnout.core.random import key
from turnout.engine.batches import Drawn, Extent, Jobs, draw
from turnout.engine.train import Cohort
from turnout.task.task import Task


def plan_batches(work: turnout.LocalSGD, keys: torch.Tensor, counts: np.ndarray, steps: np.ndarray) -> Drawn:
    jobs = torch.stack([keys, torch.tensor(counts), torch.tensor(steps)], 1)
    return draw(work, jobs, Extent.of(work, counts, steps))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_same_seed_same_bits_another_seed_another_run(name: str) -> None:
    """An algorithm begins anew with every run."""
    plan = experiment(name, rounds=4)
    one, again, anew = turnout.execute(plan), turnout.execute(plan), turnout.execute(experiment(name, rounds=4))
    for two in (again, anew):
        assert torch.equal(one.model, two.model)
        assert same(one.rounds(), two.rounds())
        assert same(one.jobs(), two.jobs())
    other = turnout.execute(experiment(name, rounds=4, seed=6))
    if name == "local":  # the shared model is never touched: the clients' own models differ
        assert one.measures["train_loss"] != other.measures["train_loss"]
    else:
        assert not torch.equal(one.model, other.model)


@pytest.mark.parametrize("batching", ["epochs", "draws", "fixed"])
def test_batches_do_not_depend_on_the_company(batching: str) -> None:
    work = local(batching=batching, steps=6)
    counts, keys = np.array([9, 3, 14, 1]), torch.from_numpy(key(1, "job", np.arange(4)))
    together = plan_batches(work, keys, counts, np.full(4, 6))
    for i in range(4):
        alone = plan_batches(work, keys[i : i + 1], counts[i : i + 1], np.array([6]))
        for number in range(alone.positions.shape[1]):
            size = int(alone.sizes[0, number])
            assert int(together.sizes[i, number]) == size
            assert torch.equal(together.positions[i, number, :size], alone.positions[0, number, :size])


def test_an_epoch_visits_every_sample_once() -> None:
    counts = np.array([9, 3, 14, 1])
    steps = (counts + 3) // 4 * 2
    plan = plan_batches(local(), torch.from_numpy(key(1, "job", np.arange(4))), counts, steps)
    for i, count in enumerate(counts.tolist()):
        half = int(steps[i]) // 2
        for start in (0, half):
            seen = [plan.positions[i, s, : int(plan.sizes[i, s])] for s in range(start, start + half)]
            assert sorted(torch.cat(seen).tolist()) == list(range(count))


def test_one_client_trains_alike_in_any_cohort() -> None:
    people, task = population(), Task(mlp, seed=3)
    cohort = Cohort(task, people.inputs, people.targets, Plan(precision="float64", engine="vectorised", threads=1))

    def deltas(clients: list[int]) -> torch.Tensor:
        ids = np.array(clients)
        zeros = np.zeros(len(ids), int)
        jobs = Jobs(local(), key(2, "job", ids), cohort.task.initial[None], zeros, people.samples(ids, zeros), {}, {})
        return cohort.train(jobs).payload["delta"]

    together = deltas(list(range(8)))
    for i in range(8):
        torch.testing.assert_close(deltas([i])[0], together[i], rtol=1e-11, atol=1e-13)


def test_sequential_bits_depend_on_neither_threads_nor_company() -> None:
    def model(threads: int) -> torch.Tensor:
        plan = Plan(engine="sequential", threads=threads)
        return turnout.execute(experiment("windowed", model=conv, plan=plan)).model

    assert torch.equal(model(1), model(2))


def test_looking_at_every_update_changes_nothing() -> None:
    """What look-ahead happens to compute together may differ in the last bits only."""

    class Curious(turnout.Observer):
        def on_arrival(self, server: turnout.Server, job: object) -> None:
            server._ensure_trained([job])  # type: ignore[attr-defined]

    plan = Plan(precision="float64", threads=1)
    lazy = turnout.execute(experiment("windowed", plan=plan))
    eager = turnout.execute(experiment("windowed", plan=plan), observers=[Curious()])
    torch.testing.assert_close(eager.model, lazy.model, rtol=1e-9, atol=1e-12)


def test_the_world_is_the_same_for_every_algorithm() -> None:
    """Crashes are keyed by (client, job number): job 0 of a client fares alike whoever invited it."""
    seen: dict[str, dict[int, str]] = {}
    for name in ("fedavg", "windowed", "fedprox"):
        jobs = turnout.execute(experiment(name, rounds=8)).jobs()
        ended = {int(c): o for c, j, o in zip(jobs["client"], jobs["job"], jobs["outcome"], strict=True) if j == 0}
        seen[name] = {client: outcome for client, outcome in ended.items() if outcome in ("arrived", "crashed")}
    for name in ("windowed", "fedprox"):
        both = seen["fedavg"].keys() & seen[name].keys()
        assert both
        assert all(seen["fedavg"][client] == seen[name][client] for client in both)


def test_a_client_that_joins_later_does_not_disturb_the_draws_of_others() -> None:
    everybody = simulation(algorithm("fedavg"), population()).online()
    late = replace(population(), joined_at=np.array([0, 0, 0, 0, 0, 0, 0, 9.0]))
    most = simulation(algorithm("fedavg"), late).online()
    first = [client for client in everybody.sample(8, 1, "who", 0).tolist() if client != 7]
    assert most.sample(8, 1, "who", 0).tolist() == first
