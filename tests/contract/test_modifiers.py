"""A modifier of the user's own goes with every algorithm that trains by gradients: against a plain loop where one is
short, and everywhere with other bits than without it, the same bits twice, in both engines and after a resume."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import turnout
from oracle import plain
from support import Windowed, algorithm, experiment, local, mlp, population, same, simulation
from turnout import FedAvg, Full, LocalSGD, Plan, Task, devices
from turnout.config import registry
from turnout.config.modifiers import make_local
from turnout.core.errors import UserError
from turnout.core.random import key
from turnout.engine import plain_sgd
from turnout.local import Clip, ControlVariates, Modifier, Proximal, SharpnessAware, TopK
from turnout.local.sgd import Batch
from turnout.server.dispatch import Dispatch
from turnout.server.jobs import ARRIVED, Job
from turnout.server.observer import Observer, Round
from turnout.server.server import Server
from turnout.server.state import work_of, work_parts

NAMES = registry.names("algorithm")
EXACT = Plan(precision="float64", threads=1, engine="vectorised")
RADIUS = 0.3


@dataclass(frozen=True)
class Sharp(Modifier):
    """The gradient at the worst point within a radius."""

    gradients: ClassVar[int] = 2

    radius: float = 0.05

    def gradient(self, slope: Any, params: Tensor, kept: Any, batch: Batch) -> Tensor:
        uphill: Tensor = slope(params)
        there: Tensor = slope(params + self.radius * uphill / (uphill.norm() + 1e-12))
        return there


def run(name: str, rounds: int, folder: Path | None = None, sharp: bool = True, **options: Any) -> turnout.Result:
    work = local(modifiers=[Sharp(RADIUS)] if sharp else [])
    plan = experiment(name, rounds, algorithm=algorithm(name, local=work), plan=options.pop("plan", EXACT))
    return turnout.execute(plan, folder, checkpoint_every=1, **options)


@pytest.mark.parametrize("name", NAMES)
def test_every_algorithm_follows_it(name: str, tmp_path: Path) -> None:
    whole, usual = run(name, 3), run(name, 3, sharp=False)
    assert not (torch.equal(whole.model, usual.model) and same(whole.clients(), usual.clients()))
    run(name, 1, tmp_path)
    resumed = run(name, 3, tmp_path, resume=True)
    assert torch.equal(whole.model, resumed.model)
    assert same(whole.clients(), resumed.clients())
    sequential = run(name, 3, plan=Plan(precision="float64", threads=1, engine="sequential"))
    torch.testing.assert_close(whole.model, sequential.model, rtol=1e-8, atol=1e-10)


# -- against a plain loop -----------------------------------------------------------------------------------------


class Arrived(Observer):
    """Keeps the jobs that arrived, in the order of the rounds."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def on_round(self, server: Server, record: Round) -> None:
        self.jobs += [job for job in record.jobs if job.outcome == ARRIVED]


def descended(server: Server, job: Job, start: Tensor, more: Callable[[Tensor], Tensor | float]) -> Tensor:
    """Where a client ends that takes sharp steps from `start`, each gradient with something more."""
    task, samples = server.task, server.population.train.row(job.client)
    inputs, targets = server.population.inputs[samples].double(), server.population.targets[samples]
    module = copy.deepcopy(task.module).double().requires_grad_(True)

    def slope(at: Tensor, rows: np.ndarray) -> Tensor:
        nn.utils.vector_to_parameters(at, module.parameters())
        loss = task.loss(module(inputs[rows]), targets[rows]).mean()
        return nn.utils.parameters_to_vector(torch.autograd.grad(loss, list(module.parameters())))

    own_key = int(key(server.seed, "local work", job.client, job.batches))
    params = start.clone()
    for rows in plain.batches(own_key, len(samples), job.work.batch_size, job.steps):
        uphill = slope(params, rows)
        gradient = slope(params + RADIUS * uphill / uphill.norm(), rows)
        params = params - job.work.lr * (gradient + more(params))
    return params


def arrived(name: str, rounds: int = 3, **options: Any) -> tuple[Server, list[Job]]:
    """Some rounds of clients that never fail."""
    seen, work = Arrived(), local(modifiers=[Sharp(RADIUS)])
    people = population(devices=devices.lognormal(0.5, 0.7))
    plan = experiment(name, rounds, algorithm=algorithm(name, local=work, **options), people=people, plan=EXACT)
    server = turnout.execute(plan, observers=[seen]).server
    assert len(seen.jobs) > 8
    return server, seen.jobs


def delta(job: Job, name: str = "delta") -> Tensor:
    assert job.result is not None
    block, row = job.result
    return block[name][row]


@pytest.mark.parametrize(("name", "mu"), [("fedavg", 0.0), ("fedprox", 0.7), ("fedbuff", 0.0), ("fedasync", 0.7)])
def test_jobs_of_methods_without_memory(name: str, mu: float) -> None:
    server, jobs = arrived(name, 12 if name == "fedasync" else 3, **({"mu": mu} if mu else {}))
    for job in jobs:
        ended = descended(server, job, job.received, lambda at, job=job: mu * (at - job.received))  # type: ignore[misc]
        torch.testing.assert_close(delta(job), ended - job.received, rtol=1e-9, atol=1e-12)


def test_jobs_of_scaffold() -> None:
    server, jobs = arrived("scaffold")
    own: dict[int, Tensor] = {}
    for job in jobs:
        control = job.work.modifiers[-1].tensors["control"]
        before = own.get(job.client, torch.zeros_like(control))
        ended = descended(server, job, job.received, lambda _, c=control, b=before: c - b)  # type: ignore[misc]
        torch.testing.assert_close(delta(job), ended - job.received, rtol=1e-9, atol=1e-12)
        own[job.client] = before - control + (job.received - ended) / (job.steps * job.work.lr)
        torch.testing.assert_close(delta(job, "control"), own[job.client] - before, rtol=1e-8, atol=1e-11)


def test_jobs_of_ditto() -> None:
    server, jobs = arrived("ditto", mu=0.7)
    own: dict[int, Tensor] = {}
    for job in jobs:
        start, received = own.get(job.client, job.received), job.received
        own[job.client] = descended(server, job, start, lambda at, r=received: 0.7 * (at - r))  # type: ignore[misc]
        shared = descended(server, job, received, lambda _: 0.0)
        torch.testing.assert_close(delta(job), shared - received, rtol=1e-9, atol=1e-12)
    kept = server.store.get({"model": (75,)}, np.array(list(own)))["model"]
    torch.testing.assert_close(kept, torch.stack(list(own.values())), rtol=1e-9, atol=1e-12)


# -- what a modifier is -------------------------------------------------------------------------------------------


def model_of(*modifiers: Modifier, **options: Any) -> Tensor:
    method = FedAvg(local(modifiers=modifiers, **options), Full())
    return turnout.execute(experiment("fedavg", 2, algorithm=method, plan=EXACT)).model


def test_the_librarys_own_is_the_same() -> None:
    torch.testing.assert_close(model_of(SharpnessAware(RADIUS)), model_of(Sharp(RADIUS)), rtol=1e-9, atol=1e-12)


def test_they_are_folded_from_left_to_right() -> None:
    """What stands after a sharp one is not seen where it looks; and two pulls are one."""
    one, other = model_of(Sharp(RADIUS), Proximal(2.0)), model_of(Proximal(2.0), Sharp(RADIUS))
    assert not torch.allclose(one, other, rtol=1e-6)
    torch.testing.assert_close(model_of(Proximal(0.5), Proximal(0.25)), model_of(Proximal(0.75)), rtol=1e-9, atol=1e-12)
    work = local(modifiers=[Sharp()]).modified(Proximal(0.1))
    assert [type(modifier) for modifier in work.modifiers] == [Sharp, Proximal]


@dataclass(frozen=True)
class Counting(Modifier):
    """Counts steps over all jobs of a client, says so, and makes the model a little smaller after each."""

    shrink: float = 0.5

    def state_shapes(self, task: Task) -> dict[str, tuple[int, ...]]:
        return {"steps": ()}

    def payload_shapes(self, task: Task) -> dict[str, tuple[int, ...]]:
        return {"total": ()}

    def start(self, task: Task, received: Tensor, state: dict[str, Tensor], data: Any) -> Tensor:
        return state["steps"]

    def step(self, params: Tensor, kept: Any, batch: Batch) -> tuple[Tensor, Any]:
        return self.shrink * params, kept + 1

    def finish(self, *arguments: Any) -> Any:
        _, _, _, kept, payload, state, _ = arguments
        return payload | {"total": kept}, state | {"steps": kept}


@pytest.mark.parametrize("engine", ["vectorised", "sequential"])
def test_every_function_is_asked(engine: str) -> None:
    server = simulation(FedAvg(local()), plan=Plan(engine=engine, threads=1))
    for times in (1, 2):
        server.invite(server.population.ids, local(lr=0.0, modifiers=[Counting()]))
        updates = server.wait()
        steps = torch.from_numpy(updates.steps)
        assert updates["total"].tolist() == (times * steps).tolist()
        ended = server.model * 0.5 ** steps[:, None]
        torch.testing.assert_close(updates.returned(), ended.to(server.model), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("engine", ["vectorised", "sequential"])
def test_numbers_may_differ_between_clients(engine: str) -> None:
    strengths, plan = np.linspace(0.0, 3.0, 8), Plan(engine=engine, precision="float64", threads=1)

    def deltas(mu: Any, clients: list[int]) -> Tensor:
        server = simulation(FedAvg(local()), plan=plan)
        server.invite(clients, local(modifiers=[Clip(10.0), Proximal(mu)]))
        updates = server.wait()
        return updates.deltas[torch.from_numpy(np.argsort(updates.clients))]

    together = deltas(strengths, list(range(8)))
    for client in (0, 4, 7):
        alone = deltas(float(strengths[client]), [client])[0]
        torch.testing.assert_close(together[client], alone, rtol=1e-9, atol=1e-12)
    with pytest.raises(UserError, match=r"^local\.modifiers\.1\.mu: 8 values for 2 invited clients"):
        deltas(strengths, [0, 1])


def test_it_takes_its_time_and_its_bytes() -> None:
    task, people = Task(mlp, seed=3), population()
    dispatch = Dispatch(people, task)
    counts = people.train.counts
    (once, _), (twice, samples) = (local(modifiers=each).busy(counts) for each in ([], [Sharp()]))
    assert np.array_equal(twice, 2 * np.asarray(once))
    assert np.array_equal(samples, 2 * counts)
    controlled = local(modifiers=[ControlVariates(torch.zeros(75))])
    for work, size in ((controlled, 600), (local(modifiers=[Sharp()]), 300)):
        demand = dispatch.demand(work)
        assert (demand.bytes_down, demand.bytes_up) == (size, size)


def test_which_keep_the_fast_paths() -> None:
    task = Task(mlp, seed=3)
    assert plain_sgd.applies(task, local(modifiers=[Clip(1.0), TopK(0.1)]), ())
    assert not plain_sgd.applies(task, local(modifiers=[Clip(1.0), Proximal(0.1)]), ())


def test_a_job_in_flight_keeps_its_modifiers(tmp_path: Path) -> None:
    """Also a number and a tensor of the user's own."""

    def result(rounds: int, folder: Path | None = None, resume: bool = False) -> Tensor:
        work = local(modifiers=[Sharp(RADIUS), ControlVariates(torch.full((75,), 0.01)), TopK(0.5)])
        plan = experiment("windowed", rounds, algorithm=Windowed(work))
        return turnout.execute(plan, folder, checkpoint_every=1, resume=resume).model

    result(2, tmp_path)
    assert torch.equal(result(4, tmp_path, resume=True), result(4))


def test_written_by_name_and_read_again() -> None:
    work = local(modifiers=[Sharp(0.2), ControlVariates(torch.arange(3.0)), Clip(2.0)])
    name, values, tensors = work_parts(work)
    assert values["modifiers"] == [["Sharp", {"radius": 0.2}], ["ControlVariates", {}], ["Clip", {"norm": 2.0}]]
    again = work_of("checkpoint", name, values, tensors)
    assert again.modifiers[::2] == work.modifiers[::2]
    assert torch.equal(again.modifiers[1].tensors["control"], torch.arange(3.0))
    values["modifiers"].append(["os.system", {}])
    with pytest.raises(UserError, match=r"^checkpoint: it asks for the modifier os\.system, which is not known here"):
        work_of("checkpoint", name, values, tensors)


def test_works_of_version_0_1_are_read() -> None:
    parts = ("modifiers", "optimiser", "schedules")  # which it did not have
    settings = {name: value for name, value in vars(local()).items() if name not in parts} | {"transform": ""}
    pulled = work_of("checkpoint", "turnout.local.proximal.ProximalSGD", settings | {"mu": 0.5}, {})
    assert pulled == local(modifiers=[Proximal(0.5)])
    control, chain = torch.ones(3), {"transform": "clip:1.0,top_k:0.25"}
    controlled = work_of("checkpoint", "ControlledSGD", settings | chain, {"control": control})
    assert type(controlled) is LocalSGD
    assert controlled.transforms == (Clip(1.0), TopK(0.25))
    assert controlled.modifiers[2].tensors["control"] is control
    assert work_of("checkpoint", "LocalSGD", settings, {}) == local()


# -- refused ------------------------------------------------------------------------------------------------------


class Sideways(LocalSGD):
    """Takes a gradient that nobody can change."""

    def step(self, task: Task, params: Tensor, carry: Any, batch: Batch) -> tuple[Tensor, Any]:
        return self.descend(params, task.gradient(lambda p: self.objective(task, p, batch), params), carry)


def test_gradients_that_it_cannot_change_are_refused() -> None:
    work = Sideways(**vars(local(modifiers=[Sharp()])))
    with pytest.raises(UserError, match=r"^local\.modifiers: Sharp changes gradients, and Sideways takes none by self"):
        turnout.execute(experiment("fedavg", 1, algorithm=FedAvg(work, Full())))


def test_two_that_keep_something_under_one_name_are_refused() -> None:
    server = simulation(FedAvg(local()))
    with pytest.raises(UserError, match=r"^local\.modifiers: Counting and Counting both send 'total'; leave one"):
        server.invite([0], local(modifiers=[Counting(), Counting()]))
    with pytest.raises(UserError, match=r"ControlVariates and ControlVariates both send 'control'"):
        server.invite([0], local(modifiers=[ControlVariates(torch.zeros(75))] * 2))


def test_a_transform_that_wants_to_train_is_refused() -> None:
    class Both(Clip):
        def gradient(self, slope: Any, params: Tensor, kept: Any, batch: Batch) -> Tensor:
            return 2 * slope(params)

    with pytest.raises(UserError, match=r"^local\.modifiers: Both is a transform, whose gradient nobody asks for"):
        local(modifiers=[Both(1.0)])


@pytest.mark.parametrize("make", [lambda: Proximal(-1.0), lambda: SharpnessAware(float("nan"))])
def test_numbers_out_of_range(make: Callable[[], Modifier]) -> None:
    with pytest.raises(UserError, match=r"^local\.(proximal\.mu|sharpness_aware\.rho): .* must be at least 0"):
        make()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("proximal", "local.modifiers: 'proximal' is not a list of modifiers; write for example [Proximal(0.1)]"),
        (Proximal(0.1), "local.modifiers: Proximal(mu=0.1) is not a list of modifiers"),
        (Proximal, "local.modifiers: Proximal is not a list of modifiers"),
        ({"proximal": {"mu": 0.1}}, "local.modifiers: {'proximal': {'mu': 0.1}} is not a list of modifiers"),
        (None, "local.modifiers: None is not a list of modifiers"),
        ([Proximal], "local.modifiers: Proximal is a class and needs its options; write Proximal(...)"),
        (["proximal"], "local.modifiers: 'proximal' is neither a Modifier nor a Transform"),
    ],
)
def test_what_is_no_list_of_modifiers_is_one_sentence(given: Any, sentence: str) -> None:
    with pytest.raises(UserError) as found:
        local(modifiers=given)
    assert str(found.value).startswith(sentence)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"proximal": {"mu": 0.1}}, "local.modifiers: it is a list of names, not a table; options are in [local.NAME]"),
        (3, "local.modifiers: 3 is not a list"),
        ([3], "local.modifiers: [3] is not a list"),
        ("proximal,proximal", "local.modifiers: proximal stands there twice"),
        ("control", "local.modifiers: unknown name 'control'; did you mean control_variates?"),
    ],
)
def test_in_a_configuration_too(given: Any, sentence: str) -> None:
    with pytest.raises(UserError) as found:
        make_local({"lr": 0.1, "modifiers": given})
    assert str(found.value).startswith(sentence), found.value


def test_what_a_server_holds_is_no_option() -> None:
    work, complete = make_local({"lr": 0.1, "modifiers": "control_variates"})
    assert complete["control_variates"] == {}
    assert work.modifiers[0].tensors == {}
    with pytest.raises(UserError, match=r"^local\.control_variates\.control: unknown option"):
        make_local({"lr": 0.1, "modifiers": "control_variates", "control_variates": {"control": [0.0]}})
