"""Real Ray on this machine. Run by `make test-ray`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import turnout
from support import WORLD, conv, experiment, images, local, population, same
from turnout import FedAvg, Full, LocalSGD, Plan, UserError
from turnout.engine.ray_pool import RayPool, load
from turnout.local.sgd import Batch
from turnout.plan.workers import Failed, share_on_cluster
from turnout.task.task import Task

ray = load("tests", "local")
PEOPLE = population(**WORLD | {"links": turnout.Links()})  # fast enough for a larger model


def wide() -> nn.Module:
    """Large enough for its updates to stay with the workers."""
    return nn.Sequential(nn.Linear(5, 800), nn.Tanh(), nn.Linear(800, 3))


def shared(workers: int = 4, **options: Any) -> Plan:
    return Plan(engine="ray", workers=workers, **options)


def finished(name: str, plan: Plan, rounds: int = 4, **options: Any) -> turnout.Result:
    return turnout.execute(experiment(name, rounds, plan=plan, **{"model": wide, "people": PEOPLE, **options}))


def assert_same(one: turnout.Result, two: turnout.Result) -> None:
    assert torch.equal(one.model, two.model)
    assert same(one.rounds(), two.rounds())
    assert same(one.jobs(), two.jobs())


class Killer:
    """Kills workers, as the power would, at chosen calls of the pool."""

    def __init__(self, patch: pytest.MonkeyPatch, calls: dict[int, int]) -> None:
        self.calls, self.killed = 0, 0
        submit = RayPool.submit

        def counted(pool: RayPool, worker: int, method: str, *arguments: Any) -> Any:
            asked = submit(pool, worker, method, *arguments)
            victim = calls.get(self.calls)
            self.calls += 1
            if victim is not None:
                os.kill(ray.get(pool._actors[victim].__ray_call__.remote(lambda _: os.getpid())), signal.SIGKILL)
                self.killed += 1
            return asked

        patch.setattr(RayPool, "submit", counted)


@pytest.fixture()
def patch() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "continuing"])
def test_as_on_one_machine_and_the_same_bits_with_any_number_of_workers(name: str) -> None:
    here, there = finished(name, Plan(threads=1)), finished(name, shared(3))
    assert float((there.model - here.model).norm()) <= 1e-5 * float(here.model.norm())
    assert_same(finished(name, shared(1)), there)


def test_images_one_client_at_a_time() -> None:
    here = finished("windowed", Plan(threads=1), model=conv, people=images(**WORLD))
    there = finished("windowed", shared(2), model=conv, people=images(**WORLD))
    assert float((there.model - here.model).norm()) <= 1e-5 * float(here.model.norm())


def test_workers_killed_in_mid_round_change_no_bit(patch: pytest.MonkeyPatch) -> None:
    whole = finished("windowed", shared(2))
    killer = Killer(patch, {5: 1, 13: 3})
    assert_same(finished("windowed", shared(4)), whole)
    assert killer.killed == 2


def test_when_all_have_died(patch: pytest.MonkeyPatch) -> None:
    Killer(patch, {1: 0, 2: 1})
    with pytest.raises(UserError, match="engine: every worker has died"):
        finished("fedavg", shared(2))


def test_through_a_checkpoint_to_another_number_of_workers(tmp_path: Path) -> None:
    whole = finished("windowed", shared(1))
    turnout.execute(experiment("windowed", 2, wide, people=PEOPLE, plan=shared(1)), tmp_path, checkpoint_every=1)
    resumed = turnout.execute(
        experiment("windowed", 4, wide, people=PEOPLE, plan=shared(2)), tmp_path, checkpoint_every=1, resume=True
    )
    assert_same(resumed, whole)
    assert resumed.server.plan.workers == 2


@dataclass(frozen=True)
class Picky(LocalSGD):
    def step(self, task: Task, params: Tensor, carry: Any, batch: Batch) -> Any:
        raise UserError("local.taste: these samples will not do")


def test_an_error_of_the_work_is_that_error() -> None:
    with pytest.raises(UserError) as error:
        finished("fedavg", shared(2), algorithm=FedAvg(Picky(0.1), Full()))
    assert str(error.value) == "local.taste: these samples will not do"


def test_nobody_else_can_reach_it() -> None:
    finished("fedavg", shared(1), 1)
    assert [node["NodeManagerAddress"] for node in ray.nodes()] == ["127.0.0.1"]


def test_workers_end_with_the_run() -> None:
    server = turnout.Simulation(Task(wide), population(), FedAvg(local(), Full()), plan=shared(2))
    server.invite([0, 1, 2], local())
    server.wait().deltas  # noqa: B018
    pool = server._engine._pool  # type: ignore[attr-defined]
    server._engine.close()
    for actor in pool._actors:
        with pytest.raises(ray.exceptions.RayActorError):  # it may answer until it has been told
            for _ in range(10_000):
                ray.get(actor.__ray_call__.remote(lambda _: 0), timeout=60)


MEMORY = """
import resource, sys
import numpy as np, torch, turnout
from turnout import FedAvg, LocalSGD, Plan, Population, Ragged, Task, Full
cohort = int(sys.argv[1])
rows = Ragged(np.arange(cohort + 1), np.arange(cohort))
people = Population(torch.randn(cohort, 1000), torch.zeros(cohort).long(), rows)
task = Task(lambda: torch.nn.Linear(1000, 1000))
plan = Plan(engine=sys.argv[2], workers=2, threads=1, blocks=8)
turnout.simulate(task, people, FedAvg(LocalSGD(0.1, batch_size=1), Full()), 2, plan=plan)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_memory_here_does_not_grow_with_the_cohort() -> None:
    """From 16 to 128 updates of 4 MB: 448 MB more to hold on one machine."""

    def peak(cohort: int, engine: str) -> float:
        words = [sys.executable, "-c", MEMORY, str(cohort), engine]
        done = subprocess.run(words, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": _SOURCE})
        assert done.returncode == 0, done.stderr
        return int(done.stdout) / 1024

    assert peak(128, "ray") - peak(16, "ray") < 60
    assert peak(128, "vectorised") - peak(16, "vectorised") > 400


_SOURCE = str(Path(turnout.__file__).parents[1])


def piece(name: str) -> str:
    if name == "dies":
        os._exit(3)
    if name == "refuses":
        raise UserError("local.lr: -1 must be above 0")
    return f"{name} in {Path.cwd()}"


def test_pieces_of_work_on_a_cluster(tmp_path: Path, patch: pytest.MonkeyPatch) -> None:
    patch.chdir(tmp_path)
    found = dict(share_on_cluster(piece, [("a",), ("dies",), ("refuses",), ("b",)], "local", 2))
    assert found == {
        0: f"a in {tmp_path}",
        1: Failed("its process died (WorkerCrashedError)"),
        2: Failed("local.lr: -1 must be above 0"),
        3: f"b in {tmp_path}",
    }


def test_a_sweep_as_on_one_machine(tmp_path: Path) -> None:
    turn = [sys.executable, "-c", "from turnout.cli import app; app()", "sweep", "digits", "seed=0..1", "run.rounds=2"]
    for name, words in (("here", []), ("there", ["--ray", "local"])):
        done = subprocess.run(
            [*turn, f"run.name={name}", *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONPATH": _SOURCE},
        )
        assert done.returncode == 0, done.stderr
    for seed in (0, 1):
        here, there = (tmp_path / "runs" / name / f"seed={seed}" for name in ("here", "there"))
        assert sorted(path.name for path in here.iterdir()) == sorted(path.name for path in there.iterdir())
        assert (here / "model.safetensors").read_bytes() == (there / "model.safetensors").read_bytes()
