"""Optimisers of clients: each is that of torch.optim, on every path, for ragged clients, with rates of their own, with
schedules in a job and over rounds, thrown away after a job or kept."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import turnout
from oracle import plain
from support import Windowed, algorithm, experiment, local, mlp, same, simulation
from turnout import FedAvg, Full, LocalSGD, Plan, Task
from turnout.aggregation.weights import Nova
from turnout.core.errors import UserError
from turnout.core.random import key
from turnout.engine import plain_sgd
from turnout.local import (
    SGD,
    Adagrad,
    Adam,
    AdamW,
    ControlVariates,
    Cosine,
    Optimiser,
    RMSprop,
    RoundCosine,
    RoundExponential,
    RoundStep,
    RoundWarmup,
    Schedule,
    Warmup,
)
from turnout.local.clusters import ClusterSGD
from turnout.local.head import HeadSGD
from turnout.local.mixture import MixtureSGD
from turnout.local.own import DittoSGD, InterpolatedSGD, KeptModelSGD, MoreauSGD, PulledSGD, RelatedSGD
from turnout.server.server import Server
from turnout.server.state import work_of, work_parts

Named = dict[str, Any]
Reference = Callable[[Any, float, Named], torch.optim.Optimizer]


def signed(gradient: Tensor, state: Tensor | None, _: Tensor) -> tuple[Tensor, Tensor]:
    """A step of one length for all parameters, along a speed."""
    speed = 0.1 * gradient if state is None else 0.9 * state + 0.1 * gradient
    return speed / (speed.abs() + 0.1), speed


class Signed(torch.optim.Optimizer):
    """The same as a class of torch."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for each in group["params"]:
                state = self.state[each]
                state["speed"] = 0.9 * state.get("speed", 0.0) + 0.1 * each.grad
                each.data -= group["lr"] * state["speed"] / (state["speed"].abs() + 0.1)


KINDS: dict[str, tuple[Named, Callable[[Any, float], torch.optim.Optimizer]]] = {
    "sgd": ({}, lambda p, lr: torch.optim.SGD(p, lr)),
    "momentum": ({"momentum": 0.9}, lambda p, lr: torch.optim.SGD(p, lr, 0.9)),
    "nesterov": (
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
        lambda p, lr: torch.optim.SGD(p, lr, 0.9, nesterov=True, weight_decay=0.1),
    ),
    "adam": ({"optimiser": "adam"}, lambda p, lr: torch.optim.Adam(p, lr)),
    "adam decay": (
        {"optimiser": Adam(0.8, 0.95, 1e-3), "weight_decay": 0.1},
        lambda p, lr: torch.optim.Adam(p, lr, (0.8, 0.95), 1e-3, weight_decay=0.1),
    ),
    "adam without means": (
        {"optimiser": Adam(0.0, 0.0, 0.1)},
        lambda p, lr: torch.optim.Adam(p, lr, (0.0, 0.0), 0.1),
    ),
    "adamw": (
        {"optimiser": AdamW(), "weight_decay": 0.1},
        lambda p, lr: torch.optim.AdamW(p, lr, weight_decay=0.1),
    ),
    "adamw undecayed": ({"optimiser": AdamW()}, lambda p, lr: torch.optim.AdamW(p, lr, weight_decay=0.0)),
    "adagrad": (
        {"optimiser": Adagrad(), "weight_decay": 0.1},
        lambda p, lr: torch.optim.Adagrad(p, lr, weight_decay=0.1),
    ),
    "rmsprop": ({"optimiser": RMSprop()}, lambda p, lr: torch.optim.RMSprop(p, lr)),
    "rmsprop centred": (
        {"optimiser": RMSprop(0.9, 1e-2, 0.5, True), "weight_decay": 0.1},
        lambda p, lr: torch.optim.RMSprop(p, lr, 0.9, 1e-2, 0.1, 0.5, True),
    ),
    "function": ({"optimiser": signed}, Signed),
}
# float32: gradients themselves differ by as much between two orders of one sum, and are divided by roots of themselves
EXACT = {"float64": 1e-12, "float32": 1e-6}
PATHS = [("vectorised", 1), ("sequential", 1), ("sequential", 2)]
LR = 0.02


def trained(server: Server, client: int, job: int, start: Tensor, work: LocalSGD, stepper: Any, state: Named) -> Tensor:
    """Where a client ends that is trained by torch.optim, which begins with and leaves `state`."""
    task, samples = server.task, server.population.train.row(client)
    dtype = start.dtype
    inputs, targets = server.population.inputs[samples].to(dtype), server.population.targets[samples]
    module = copy.deepcopy(task.module).to(dtype).requires_grad_(True)
    nn.utils.vector_to_parameters(start.clone(), module.parameters())
    params = list(module.parameters())
    optimiser = stepper(params)
    if "optimiser" in state:
        optimiser.load_state_dict(state["optimiser"])
    scheduler = state.get("scheduler", lambda _, __: None)(optimiser, work.num_steps(len(samples)))
    own_key = int(key(server.seed, "local work", client, job))
    for rows in plain.batches(own_key, len(samples), work.batch_size, int(work.num_steps(len(samples)))):
        optimiser.zero_grad()
        task.loss(module(inputs[rows]), targets[rows]).mean().backward()
        if work.clip_norm is not None:
            norm = torch.cat([each.grad.flatten() for each in params if each.grad is not None]).norm()
            for each in params:
                assert each.grad is not None
                each.grad *= work.clip_norm / norm.clamp(min=work.clip_norm)
        optimiser.step()
        if scheduler is not None:
            scheduler.step()
    state["optimiser"] = optimiser.state_dict()
    return nn.utils.parameters_to_vector(params).detach()


def ends(server: Server, work: LocalSGD, clients: list[int]) -> Tensor:
    server.invite(clients, work)
    updates = server.wait()
    return updates.returned()[torch.from_numpy(np.argsort(updates.clients))]


def plan_of(engine: str, threads: int, precision: str) -> Plan:
    return Plan(engine=engine, threads=threads, precision=precision)


@pytest.mark.parametrize("precision", EXACT)
@pytest.mark.parametrize(("engine", "threads"), PATHS)
@pytest.mark.parametrize("name", KINDS)
def test_each_is_that_of_torch(name: str, engine: str, threads: int, precision: str) -> None:
    """Of clients with one to fourteen steps, each with a learning rate of its own, gradients clipped."""
    options, stepper = KINDS[name]
    server = simulation(FedAvg(local()), plan=plan_of(engine, threads, precision))
    rates = LR * np.linspace(0.5, 1.5, 8)
    found = ends(server, local(lr=rates, clip_norm=0.5, **options), list(range(8)))
    for client in range(8):
        work, rate = local(clip_norm=0.5, **options), float(rates[client])
        expected = trained(server, client, 0, server.model, work, lambda p, lr=rate: stepper(p, lr), {})
        torch.testing.assert_close(found[client], expected, rtol=0, atol=EXACT[precision])


class Partly(nn.Module):
    """A layer that learns, one that is detached, one that nobody calls, and one that only large inputs reach."""

    def __init__(self, largest: float = math.inf) -> None:
        super().__init__()
        self.one, self.detached, self.unused, self.rare = (nn.Linear(5, 3) for _ in range(4))
        self.largest = largest

    def forward(self, x: Tensor) -> Tensor:
        seen: Tensor = self.one(x) + self.detached(x).detach()
        return seen if self.largest == math.inf or float(x.detach().max()) < self.largest else seen + self.rare(x)


def check_partly(largest: float, options: Named, stepper: Callable[[Any, float], torch.optim.Optimizer]) -> Tensor:
    """Compare with torch.optim; `[8, P]` what became of the model."""
    engine = "vectorised" if largest == math.inf else "auto"  # who looks at numbers cannot be mapped
    task = Task(lambda: Partly(largest), seed=3)
    server = simulation(FedAvg(local()), plan=plan_of(engine, 1, "float64"), task=task)
    names = {name for name, _ in server.task.module.named_parameters()}
    assert server.task.idle == {name for name in names if not name.startswith("one")}
    found = ends(server, local(lr=LR, **options), list(range(8)))
    for client in range(8):
        expected = trained(server, client, 0, server.model, local(**options), lambda p: stepper(p, LR), {})
        torch.testing.assert_close(found[client], expected, rtol=0, atol=1e-12)
    return found - server.model


@pytest.mark.parametrize("name", ["nesterov", "adam decay", "adamw", "adagrad", "rmsprop centred"])
def test_what_gets_no_gradient_does_not_decay(name: str) -> None:
    """Nor does torch.optim touch it."""
    moved = check_partly(math.inf, *KINDS[name])
    assert moved[:, :18].all() and not moved[:, 18:].any()


@pytest.mark.parametrize(
    ("optimiser", "stepper"),
    [
        (SGD(), lambda p, lr: torch.optim.SGD(p, lr, weight_decay=0.1)),
        (Adagrad(), lambda p, lr: torch.optim.Adagrad(p, lr, weight_decay=0.1)),
    ],
)
def test_what_some_batches_reach_decays_in_their_steps(optimiser: Optimiser, stepper: Any) -> None:
    moved = check_partly(2.2, {"optimiser": optimiser, "weight_decay": 0.1}, stepper)
    assert moved[:, -18:].any() and not moved[:, -18:].any(1).all()


@pytest.mark.parametrize("precision", EXACT)
@pytest.mark.parametrize("engine", ["vectorised", "sequential"])
@pytest.mark.parametrize("name", [name for name in KINDS if name not in ("sgd", "adam without means")])
def test_kept_from_job_to_job(name: str, engine: str, precision: str) -> None:
    """The second job goes on from the moments of the first; without, it begins anew."""
    options, stepper = KINDS[name]
    server = simulation(FedAvg(local()), plan=plan_of(engine, 1, precision))
    work = local(lr=LR, optimiser_state="kept", **options)
    clients = [0, 2, 7]
    ends(server, work, clients)
    found = ends(server, work, clients)
    fresh = ends(server, local(lr=LR, **options), clients)
    for row, client in enumerate(clients):
        state: Named = {}
        for job in range(2):
            expected = trained(server, client, job, server.model, work, lambda p: stepper(p, LR), state)
        torch.testing.assert_close(found[row], expected, rtol=0, atol=EXACT[precision])
        assert not torch.allclose(found[row], fresh[row], rtol=0, atol=1e-4)


# -- schedules ----------------------------------------------------------------------------------------------------

IN_JOB: dict[str, tuple[Schedule, Callable[[Any, Any], Any]]] = {
    "warmup": (
        Warmup(4),
        lambda o, _: torch.optim.lr_scheduler.LinearLR(o, 0.25, total_iters=3),
    ),
    "half a job": (
        Warmup(0.5),
        lambda o, steps: torch.optim.lr_scheduler.LambdaLR(o, lambda k: min(1.0, (k + 1) / (0.5 * int(steps)))),
    ),
    "cosine": (
        Cosine(0.1),
        lambda o, steps: torch.optim.lr_scheduler.CosineAnnealingLR(o, int(steps), o.param_groups[0]["lr"] * 0.1),
    ),
}


@pytest.mark.parametrize("precision", EXACT)
@pytest.mark.parametrize("engine", ["vectorised", "sequential"])
@pytest.mark.parametrize("name", IN_JOB)
@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_schedules_in_a_job(kind: str, name: str, engine: str, precision: str) -> None:
    """By the number of each client's own steps."""
    (schedule, made), (options, stepper) = IN_JOB[name], KINDS[kind]
    server = simulation(FedAvg(local()), plan=plan_of(engine, 1, precision))
    work = local(lr=LR, schedules=[schedule], **options)
    found = ends(server, work, list(range(8)))
    for client in range(8):
        expected = trained(server, client, 0, server.model, work, lambda p: stepper(p, LR), {"scheduler": made})
        torch.testing.assert_close(found[client], expected, rtol=0, atol=EXACT[precision])


def test_several_are_multiplied() -> None:
    work = local(lr=1.0, schedules=[Warmup(2), Cosine()])
    rates = [float(work.at_step(number, 4).lr) for number in range(4)]
    assert rates == pytest.approx([0.5 * 1.0, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2])


def test_schedules_over_rounds() -> None:
    versions = np.arange(7)
    for schedule, expected in (
        (RoundWarmup(rounds=4), [0.25, 0.5, 0.75, 1, 1, 1, 1]),
        (RoundStep(every=3, drop=0.5), [1, 1, 1, 0.5, 0.5, 0.5, 0.25]),
        (RoundExponential(0.5), [0.5**t for t in range(7)]),
        (RoundCosine(rounds=4, floor=0.2), [0.2 + 0.4 * (1 + math.cos(math.pi * min(t, 3) / 4)) for t in range(7)]),
    ):
        assert local(schedules=[schedule]).lr_factor(versions) == pytest.approx(expected)
        assert local(lr_decay=0.5, schedules=[schedule]).lr_factor(2) == pytest.approx(0.25 * expected[2])


def test_a_schedule_over_rounds_is_a_rate_of_each_round() -> None:
    """The plain path goes on; and where a schedule is evaluated apart (`at`), nothing counts twice."""
    work = local(schedules=[RoundStep(every=1, drop=0.5), Cosine()])
    assert float(work.at(2).lr) == pytest.approx(0.025)
    assert work.at(2).schedules == (Cosine(),)
    task = Task(mlp, seed=3)
    assert plain_sgd.applies(task, local(schedules=[RoundStep(1)]), ())
    assert not plain_sgd.applies(task, work, ())

    def after(**options: Any) -> Tensor:
        return turnout.execute(experiment("fedavg", 3, algorithm=FedAvg(local(**options), Full()))).model

    assert torch.equal(after(schedules=[RoundStep(every=1, drop=0.5)]), after(lr_decay=0.5))
    assert torch.equal(after(schedules=[RoundExponential(0.5)]), after(lr_decay=0.5))


class Halving(Schedule):
    """One of the user's own."""

    def factor(self, number: Tensor, steps: Tensor) -> Tensor:
        return 0.5**number


def test_a_schedule_of_ones_own() -> None:
    server = simulation(FedAvg(local()), plan=plan_of("vectorised", 1, "float64"))
    work = local(lr=LR, schedules=[Halving()])
    found = ends(server, work, [3, 4])
    made = lambda o, _: torch.optim.lr_scheduler.ExponentialLR(o, 0.5)  # noqa: E731
    for row, client in enumerate([3, 4]):
        state = {"scheduler": made}
        expected = trained(server, client, 0, server.model, work, lambda p: torch.optim.SGD(p, LR), state)
        torch.testing.assert_close(found[row], expected, rtol=0, atol=1e-12)


# -- in works of other kinds ---------------------------------------------------------------------------------------


def test_heads_count_their_own_steps() -> None:
    """A head trained alone at first, then both: as torch, which leaves out parameters without a gradient."""
    server = simulation(FedAvg(local()), plan=plan_of("vectorised", 1, "float64"))
    work = HeadSGD.extend(local(lr=LR, optimiser=Adam()), head_epochs=1)
    server.invite([4], work)
    found = server.wait().returned()[0]
    task, samples = server.task, server.population.train.row(4)
    inputs, targets = server.population.inputs[samples].double(), server.population.targets[samples]
    module = copy.deepcopy(task.module).double().requires_grad_(True)
    nn.utils.vector_to_parameters(server.model.clone(), module.parameters())
    params = list(module.parameters())
    optimiser = torch.optim.Adam(params, LR)
    own_key = int(key(server.seed, "local work", 4, 0))
    steps = int(work.num_steps(25))
    for number, rows in enumerate(plain.batches(own_key, 25, 4, steps)):
        optimiser.zero_grad()
        task.loss(module(inputs[rows]), targets[rows]).mean().backward()
        for each in params[:2] if number < 7 else ():
            each.grad = None
        optimiser.step()
    expected = nn.utils.parameters_to_vector(params).detach()
    body = slice(0, 48)
    torch.testing.assert_close(found[body], expected[body], rtol=0, atol=1e-12)
    assert torch.equal(found[48:], server.model[48:])


@pytest.mark.parametrize("engine", ["vectorised", "sequential"])
@pytest.mark.parametrize(
    "made",
    [
        lambda work: KeptModelSGD.extend(work),
        lambda work: PulledSGD.extend(work, mu=0.5),
        lambda work: HeadSGD.extend(work, head_epochs=1),
        lambda work: ClusterSGD.extend(work, models=torch.stack([torch.zeros(75), torch.ones(75)]).double()),
    ],
)
def test_works_of_other_kinds_keep_it(made: Callable[[LocalSGD], LocalSGD], engine: str) -> None:
    """A second job is another than a first one; also beside a client that takes no step."""

    def second(state: str) -> Tensor:
        server = simulation(FedAvg(local()), plan=plan_of(engine, 1, "float64"))
        steps = np.array([2, 0, 7, 5])
        work = made(local(lr=LR, optimiser="adam", optimiser_state=state, steps=steps))
        ends(server, work, [0, 1, 2, 4])
        return ends(server, work, [0, 1, 2, 4])

    kept, fresh = second("kept"), second("discarded")
    assert not torch.allclose(kept[2:], fresh[2:], rtol=0, atol=1e-4)
    if type(made(local())) is not HeadSGD:  # which takes steps of its head, too
        assert torch.equal(kept[1], fresh[1])


def test_mixtures_keep_it() -> None:
    def after(state: str, engine: str) -> Tensor:
        work = local(lr=LR, optimiser="adam", optimiser_state=state)
        method = turnout.algorithms.FedEM(work, Full(), components=2)
        plan = plan_of(engine, 1, "float64")
        return turnout.execute(experiment("fedem", 3, algorithm=method, plan=plan)).model

    kept = after("kept", "vectorised")
    torch.testing.assert_close(kept, after("kept", "sequential"), rtol=1e-8, atol=1e-10)
    assert not torch.allclose(kept, after("discarded", "vectorised"), rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["fedavg", "fedper", "local", "fedbuff", "safa", "windowed"])
def test_what_is_kept_survives_a_resume(name: str, tmp_path: Path) -> None:
    def run(rounds: int, folder: Path | None = None, resume: bool = False) -> turnout.Result:
        work = local(lr=LR, optimiser=signed, optimiser_state="kept", schedules=[Cosine(), RoundStep(2)])
        method = Windowed(work) if name == "windowed" else algorithm(name, local=work)
        plan = experiment(name, rounds, algorithm=method, plan=Plan(precision="float64", threads=1))
        return turnout.execute(plan, folder, checkpoint_every=1, resume=resume)

    whole = run(5)
    run(2, tmp_path)
    resumed = run(5, tmp_path, resume=True)
    assert torch.equal(whole.model, resumed.model)
    assert same(whole.clients(), resumed.clients())


def test_only_a_job_that_ends_commits_what_it_keeps() -> None:
    server = simulation(FedAvg(local()), plan=plan_of("vectorised", 1, "float64"))
    work = local(lr=LR, optimiser="adam", optimiser_state="kept")
    server.invite([4], work)
    server.cancel([4])
    server.invite([4], work)
    cancelled = server.wait().returned()
    state: Named = {}
    expected = trained(server, 4, 1, server.model, work, lambda p: torch.optim.Adam(p, LR), state)
    torch.testing.assert_close(cancelled[0], expected, rtol=0, atol=1e-12)


def test_effective_steps() -> None:
    """The total weight of gradients of 1 in what has been moved by, whatever it is computed by."""
    for options in (
        {"momentum": 0.7}, {"momentum": 0.7, "nesterov": True}, {"schedules": [Cosine(0.1)]},
        {"schedules": [Warmup(3), Cosine()]}, {},
    ):  # fmt: skip
        work = local(lr=1.0, **options)
        for steps in (1, 2, 7):
            params, state = torch.zeros(1), work.start_momentum(torch.zeros(1))
            for number in range(steps):
                now = work.at_step(number, steps) if work.paces else work
                params, state = now.descend(params, -torch.ones(1), state)
            assert float(params) == pytest.approx(float(work.effective_steps(steps)), rel=1e-6)
    assert local(schedules=[Cosine()]).effective_steps([3, 2, 3]).shape == (3,)


# -- what is counted, written and read ------------------------------------------------------------------------------


def test_memory_and_bytes() -> None:
    """A call holds fewer clients where an optimiser remembers something; nothing of it is sent."""
    task, plan = Task(mlp, seed=3), Plan(memory_mib=1)

    def room(**options: Any) -> int:
        return plan.clients_a_call(task, local(**options), 0)

    assert room(momentum=0.9) == room()
    vectors = [(1 << 20) / 300 / room(**each) for each in ({}, {"optimiser": "adagrad"}, {"optimiser": "adam"})]
    assert np.diff(vectors) == pytest.approx([1, 1], rel=0.05)
    kept = local(optimiser="adam", optimiser_state="kept")
    assert room(optimiser="adam") > plan.clients_a_call(task, kept, 0)
    assert kept.trained_shapes(task) == {
        "optimiser.begun": (), "optimiser.0": (), "optimiser.1": (75,), "optimiser.2": (75,),
    }  # fmt: skip
    assert kept.sends(task) == {"delta": (75,)}
    assert kept.download_numbers(task) == 75


@dataclass(frozen=True)
class Damped(Optimiser):
    """One of the user's own, whose state does not begin with zeros."""

    share: float = 0.5

    def start(self, work: LocalSGD, params: Tensor) -> Any:
        return {"damp": torch.ones_like(params)}

    def step(self, work: LocalSGD, gradient: Tensor, state: Any, params: Tensor) -> tuple[Tensor, Any]:
        return params - work.lr * state["damp"] * gradient, {"damp": state["damp"] * self.share}


@pytest.mark.parametrize("engine", ["vectorised", "sequential"])
def test_a_class_of_ones_own(engine: str) -> None:
    """Halved steps are a schedule; kept, they go on from where they were."""
    server = simulation(FedAvg(local()), plan=plan_of(engine, 1, "float64"))
    halved = ends(server, local(optimiser=Damped(), optimiser_state="kept"), [2, 4])
    other = simulation(FedAvg(local()), plan=server.plan)
    torch.testing.assert_close(halved, ends(other, local(schedules=[Halving()]), [2, 4]), rtol=0, atol=1e-12)
    again = ends(server, local(optimiser=Damped(), optimiser_state="kept"), [2])[0]
    slower = ends(other, local(lr=0.1 * 0.5**4, schedules=[Halving()]), [2])[0]
    torch.testing.assert_close(again, slower, rtol=0, atol=1e-12)


@pytest.mark.parametrize("optimiser", [AdamW(0.8), Damped(0.25), signed, RMSprop(centred=True)])
def test_written_by_name_and_read_again(optimiser: Any) -> None:
    work = local(optimiser=optimiser, optimiser_state="kept", schedules=[Warmup(3), RoundCosine(rounds=9)])
    name, values, tensors = work_parts(work)
    assert work_of("checkpoint", name, values, tensors) == work
    assert pickle.loads(pickle.dumps(work)) == work
    values["optimiser"] = ["os.system", {}]
    with pytest.raises(UserError, match=r"^checkpoint: it asks for the optimiser os\.system, which is not known here"):
        work_of("checkpoint", name, values, tensors)


MANY: Any = [0.9, 0.99]  # one for each client: only numbers of the work may be given so


def counted(gradient: Tensor, state: Any, params: Tensor) -> Any:
    return gradient, torch.ones_like(params) if state is None else state


def bare(gradient: Tensor, *_: Any) -> Any:
    return gradient


def unguarded(gradient: Tensor, state: Any, _: Tensor) -> Any:
    return gradient, state["speed"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"optimiser": "adan"}, r"local\.optimiser: unknown name 'adan'; did you mean adam\?"),
        ({"optimiser": Adam}, r"local\.optimiser: Adam is a class; write Adam\(\)"),
        ({"optimiser": 3}, r"local\.optimiser: 3 is not one of sgd, adam, adamw, adagrad, rmsprop"),
        ({"optimiser": None}, r"local\.optimiser: None is none; write for example Adam\(\), or a function of"),
        ({"optimiser": "adam", "momentum": 0.9}, r"local\.momentum: it is that of sgd, and local\.optimiser is adam"),
        ({"optimiser": signed, "momentum": 0.9}, r"local\.momentum: it is that of sgd, and local\.optimiser is signed"),
        ({"optimiser": "adam", "nesterov": True}, r"local\.nesterov: it is that of sgd, and local\.optimiser is adam"),
        ({"nesterov": True}, r"local\.nesterov: it looks ahead along a speed; give local\.momentum, too"),
        ({"optimiser_state": "kept"}, r"local\.optimiser_state: sgd without local\.momentum has no state to be kept"),
        ({"optimiser_state": "keep"}, r"local\.optimiser_state: unknown name 'keep'; did you mean kept\?"),
        ({"schedules": Cosine()}, r"local\.schedules: Cosine\(floor=0\.0\) is not a list of schedules; write"),
        ({"schedules": "cosine"}, r"local\.schedules: 'cosine' is not a list of schedules; write"),
        ({"schedules": [Cosine]}, r"local\.schedules: Cosine is no schedule; write for example Cosine\(floor=0\.1\)"),
    ],
)
def test_mistakes(options: Named, sentence: str) -> None:
    with pytest.raises(UserError, match=f"^{sentence}"):
        local(**options)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Adam(beta1=1.0), r"local\.adam\.beta1: 1\.0 must be at least 0 and below 1"),
        (lambda: AdamW(beta2=MANY), r"local\.adamw\.beta2: \[0\.9, 0\.99\] must be one number"),
        (lambda: RMSprop(eps=-1.0), r"local\.rmsprop\.eps: -1\.0 must be at least 0"),
        (
            lambda: Warmup(1.5),
            r"local\.warmup\.length: 1\.5 must be a share of a job's steps, at most 1\.0, or a whole",
        ),
        (lambda: Warmup(0), r"local\.warmup\.length: 0 must be above 0"),
        (lambda: RoundCosine(rounds=0), r"local\.round_cosine\.rounds: 0 must be"),
        (lambda: RoundStep(every=1, drop=0.0), r"local\.round_step\.drop: 0\.0 must be above 0"),
        (
            lambda: local(momentum=0.0, modifiers=[ControlVariates()], optimiser="adam"),
            r"local\.optimiser: SCAFFOLD est",
        ),
        (
            lambda: local(modifiers=[ControlVariates()], schedules=[Cosine()]),
            r"local\.schedules: SCAFFOLD est.*Cosine out",
        ),
        (lambda: turnout.algorithms.FedNova(local(optimiser="adam")), r"local\.optimiser: FedNova's weights know the"),
        (
            lambda: FedAvg(local(optimiser="adam"), weigh=Nova()),
            r"local\.optimiser: FedNova's weights know the effective",
        ),
        (
            lambda: FedAvg(local(momentum=0.5, schedules=[Cosine()]), weigh=Nova()),
            r"local\.schedules: FedNova's weights know the effective steps of a schedule in a job without local\.mom",
        ),
        (lambda: RelatedSGD.extend(local(optimiser="adam")), r"local\.optimiser: MOCHA's pull is a proximal step"),
    ],
)
def test_refused_in_a_sentence(make: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(UserError, match=f"^{sentence}"):
        make()


@pytest.mark.parametrize("kind", [DittoSGD, MoreauSGD, InterpolatedSGD])
def test_works_of_several_optimisers_keep_none(kind: type[LocalSGD]) -> None:
    kind.extend(local(optimiser="adam"))
    with pytest.raises(UserError, match=rf"^local\.optimiser_state: a job of {kind.__name__} has not one optimiser"):
        kind.extend(local(optimiser="adam", optimiser_state="kept"))


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (counted, "counted begins with another state than zeros, which it would not have; derive a class from"),
        (bare, r"bare .*"),
        (
            unguarded,
            r"unguarded is to be a function of \(gradient, state, params\) that gives \(step, state\), and fails",
        ),
        (lambda g, s, _: (g.sum(), s), r"<lambda> gives no step \[75\] and a state of tensors"),
        (lambda g: g, r"<lambda> is to be a function of \(gradient, state, params\)"),
    ],
)
def test_functions_that_will_not_do(function: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=rf"^local\.optimiser: {sentence}"):
        ends(simulation(FedAvg(local())), local(optimiser=function), [0])


def test_one_that_carries_more_says_where_its_state_is() -> None:
    class Twofold(LocalSGD):
        def start(self, *arguments: Any) -> Any:
            params, state = super().start(*arguments)
            return params, (state, params)

        def step(self, task: Task, params: Tensor, carry: Any, batch: Any) -> Any:
            params, state = super().step(task, params, carry[0], batch)
            return params, (state, carry[1])

    work = Twofold(lr=0.1, optimiser=Adam(), optimiser_state="kept")
    with pytest.raises(UserError, match=r"^local\.optimiser_state: Twofold carries more than what its optimiser"):
        ends(simulation(FedAvg(local())), work, [0])


def test_the_default_is_what_it_was() -> None:
    assert local() == local(optimiser=SGD()) == local(optimiser="sgd")
    assert plain_sgd.applies(Task(mlp, seed=3), local(optimiser="sgd"), ())
    assert not plain_sgd.applies(Task(mlp, seed=3), local(optimiser="adam"), ())
    assert MixtureSGD.extend(local(optimiser="adam"), components=2).optimiser == Adam()
