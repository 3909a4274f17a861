"""Plain SGD written out: every form of it equals automatic differentiation, and what is left out changes nothing."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from turnout import LocalSGD, Plan, Ragged, Task, UserError
from turnout.core.random import key
from turnout.engine import graphs, trial
from turnout.engine.batches import Jobs, Size
from turnout.engine.chain import Chain
from turnout.engine.convolutions import FORMS, OURS
from turnout.engine.graphs import GraphedSGD, pieces, rounded
from turnout.engine.plain_sgd import CLIENTS_A_BLOCK, PlainSGD, blocks
from turnout.engine.train import Cohort
from turnout.task import models

ON_A_CPU = [form for form in FORMS if form not in OURS]
POOL = 60
SIZES = np.array([23, 17, 9, 9, 4, 3, 1])
STEPS = LocalSGD(0.1, epochs=2, batch_size=4).num_steps(SIZES)


def padded_conv() -> nn.Module:
    relu = nn.ReLU()  # the same twice
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, stride=2, padding=1, bias=False),
        relu,
        nn.Sequential(nn.Conv2d(3, 4, (2, 3)), nn.MaxPool2d((1, 2)), nn.Identity()),
        nn.Dropout2d(0.3),
        nn.Flatten(),
        relu,
        nn.Dropout(0.2),
        nn.Linear(12, 3),
    )


def wide() -> nn.Sequential:
    return nn.Sequential(models.Reshape(98), nn.Linear(98, 300), nn.ReLU(), nn.Linear(300, 90, bias=False), nn.ReLU())


def pooled() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 4, 2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3))


def pool(classes: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(POOL, 2, 7, 7, generator=generator)
    inputs[::3, :, 2:] = 0.0  # ties for pooling to break
    return inputs, torch.randint(classes, (POOL,), generator=generator)


def trained(model: Callable[[], nn.Module], plan: Plan, loss: Any = "cross_entropy", versions: int = 1) -> Tensor:
    """`[k, P]` differences of clients with unequal data."""
    task, (inputs, targets) = Task(model, loss, seed=2), pool()
    if loss == "mse":
        targets = torch.randn(POOL, 90, generator=torch.Generator().manual_seed(4))
    cohort = Cohort(task, inputs, targets, plan.resolve())
    clients = np.arange(len(SIZES))
    samples = Ragged(np.concatenate([[0], np.cumsum(SIZES)]), np.arange(SIZES.sum()) % POOL)
    begin = torch.stack([(1 + 0.2 * version) * cohort.task.initial for version in range(versions)])
    work, rates = LocalSGD(0.1, epochs=2, batch_size=4), np.linspace(0.05, 0.2, len(SIZES))
    jobs = Jobs(work, key(3, "x", clients), begin, clients % versions, samples, {"lr": rates}, {})
    return cohort.train(jobs).payload["delta"]


def distance(one: Tensor, two: Tensor) -> float:
    return float(((one - two).norm(dim=1) / two.norm(dim=1)).max())


def twice_the_same() -> nn.Module:
    again = nn.Sequential(nn.ReLU(), nn.Dropout(0.5))
    return nn.Sequential(
        nn.Flatten(), nn.Linear(98, 8), again, nn.Linear(8, 8), again, nn.Dropout(0.1), nn.Linear(8, 3)
    )


@pytest.mark.parametrize("versions", [1, 3])
@pytest.mark.parametrize("model", [padded_conv, pooled, twice_the_same])
@pytest.mark.parametrize("form", ON_A_CPU)
def test_every_form_of_convolution_equals_automatic_differentiation(
    form: str, model: Callable[[], nn.Module], versions: int
) -> None:
    general = trained(model, Plan(precision="float64", threads=1, kernels="general"), versions=versions)
    written = trained(model, Plan(precision="float64", threads=1, convolution=form), versions=versions)
    assert distance(written, general) <= 1e-12


@pytest.mark.parametrize("versions", [1, 3])
@pytest.mark.parametrize("loss", ["mse", lambda outputs, _: outputs.square().sum(-1)])
def test_wide_layers_are_never_formed_and_it_makes_no_difference(loss: Any, versions: int) -> None:
    general = trained(wide, Plan(precision="float64", threads=1, kernels="general"), loss, versions)
    factored = trained(wide, Plan(precision="float64", threads=1), loss, versions)
    assert distance(factored, general) <= 1e-12


def test_which_layers_are_worth_it() -> None:
    task, (inputs, _) = Task(wide, "mse"), pool()
    task.activations(inputs[:1])
    chain = Chain.of(task, "patches")
    assert chain is not None
    layers = task.layers(task.initial[None])
    assert chain.worth_factoring(layers, samples=69) == ["1.", "3."]  # 98 x 300 and 300 x 90
    assert chain.worth_factoring(layers, samples=70) == ["1."]
    assert chain.worth_factoring(layers, samples=74) == []


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_change_no_bit_of_convolutions(threads: int) -> None:
    assert torch.equal(trained(pooled, Plan(threads=1)), trained(pooled, Plan(threads=threads)))


class Tied(nn.Sequential):
    def __init__(self) -> None:
        one = nn.Linear(98, 98)
        super().__init__(nn.Flatten(), one, nn.ReLU(), one)


class Residual(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)


def hooked() -> nn.Module:
    model = wide()
    model[1].register_forward_hook(lambda _module, _inputs, output: 2 * output)
    return model


def half_frozen() -> nn.Module:
    model = wide()
    model.get_parameter("1.weight").requires_grad_(False)
    return model


@pytest.mark.parametrize(
    "model",
    [
        Tied,
        half_frozen,
        hooked,
        lambda: nn.Sequential(nn.Flatten(), Residual(nn.Linear(98, 98), nn.ReLU()), nn.Linear(98, 3)),
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 3, 3)),  # gives images
        lambda: nn.Sequential(nn.Linear(7, 3), nn.Flatten()),  # of every row of an image
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(98, 3), nn.Tanh()),
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.Flatten()),
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular"), nn.Flatten()),
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.MaxPool2d(3, stride=2), nn.Flatten()),
    ],
)
def test_other_models_are_left_to_automatic_differentiation(model: Callable[[], nn.Module]) -> None:
    def loss(outputs: Tensor, _: Tensor) -> Tensor:
        return outputs.flatten(1).square().mean(1)

    task, (inputs, _) = Task(model, loss), pool()
    task.activations(inputs[:1])
    assert Chain.of(task, "patches") is None
    assert trained(model, Plan(threads=1), loss).isfinite().all()


def test_bfloat16_is_near() -> None:
    for model, loss in ((pooled, "cross_entropy"), (wide, "mse")):
        exact = trained(model, Plan(threads=1), loss)
        for kernels in ("auto", "general"):
            near = trained(model, Plan(threads=1, precision="bf16", kernels=kernels), loss)
            assert 1e-4 < distance(near, exact) < 0.2


# -- pieces, as they are captured on CUDA -----------------------------------------------------------------------


ASIDE = Plan(precision="float64", threads=1, convolution="patches", graphs=False)  # does again what would be replayed


@pytest.mark.parametrize("clients", [1, 2, 3, 9, 20, 21, 37, 43, 50, 100, 1001])
def test_blocks_of_clients_are_as_equal_as_can_be(clients: int) -> None:
    parts = blocks(clients)
    assert [client for part in parts for client in range(clients)[part]] == list(range(clients))
    sizes = [part.stop - part.start for part in parts]
    assert 1 <= min(sizes) <= max(sizes) <= min(sizes) + 1
    assert max(sizes) <= CLIENTS_A_BLOCK
    assert len(parts) == clients or len(parts) % 4 == 0
    ahead = blocks(clients, ahead=True)
    assert [client for part in ahead for client in range(clients)[part]] == list(range(clients))
    assert {part.stop - part.start for part in ahead[:-1]} <= {CLIENTS_A_BLOCK}


@pytest.mark.parametrize("collects", [True, False])
def test_no_garbage_is_collected_during_a_capture(collects: bool) -> None:
    """On CUDA that would end the process, if an earlier run's graphs were among it."""
    before = gc.isenabled()
    try:
        (gc.enable if collects else gc.disable)()
        with pytest.raises(ValueError, match="no graph"), graphs._nothing_collected():
            assert not gc.isenabled()
            raise ValueError("no graph")
        assert gc.isenabled() is collects
    finally:
        (gc.enable if before else gc.disable)()


def both(model: Callable[[], nn.Module]) -> tuple[PlainSGD, GraphedSGD]:
    """The same on a CPU and as on CUDA."""
    task, (inputs, targets) = Task(model, seed=2).to("cpu", torch.float64), pool()
    inputs = inputs.double()
    task.activations(inputs[:1])
    chain = Chain.of(task, ASIDE.convolution)
    return PlainSGD(task, inputs, targets, ASIDE, chain), GraphedSGD(task, inputs, targets, ASIDE, chain)


@pytest.mark.parametrize("batching", ["epochs", "draws", "fixed", "full"])
@pytest.mark.parametrize("model", [wide, pooled])
def test_pieces_of_padded_cohorts_equal_the_whole(model: Callable[[], nn.Module], batching: str) -> None:
    whole, graphed = both(model)
    task, work = whole.task, LocalSGD(0.1, epochs=2, batch_size=4, batching=batching)
    equal = np.full(6, 9)
    for turn, sizes in enumerate(
        (SIZES, np.full(35, 9), equal, SIZES[:3], equal)
    ):  # its space grows, and is used again
        clients, steps = np.arange(len(sizes)), np.sort(work.num_steps(sizes))[::-1].copy()
        samples = Ragged(np.concatenate([[0], np.cumsum(sizes)]), np.arange(sizes.sum()) % POOL)
        begin = torch.stack([task.initial, 1.2 * task.initial])[: 1 + len(sizes) % 2] * (1 + 0.1 * turn)
        lr = np.full(len(sizes), 0.1 + 0.01 * turn)
        jobs = Jobs(work, key(3, "x", clients, turn), begin, clients % len(begin), samples, {"lr": lr}, {})
        given = jobs, Size(steps)
        with torch.no_grad():
            assert distance(graphed.train(*given), whole.train(*given)) <= 1e-12


def compare(whole: PlainSGD, graphed: GraphedSGD, steps: list[int], lr: Any) -> None:
    clients, work = np.arange(len(steps)), LocalSGD(0.1 if isinstance(lr, np.ndarray) else lr, steps=1, batch_size=4)
    samples = Ragged(np.arange(len(steps) + 1) * 9, np.arange(len(steps) * 9) % POOL)
    options = {"lr": lr} if isinstance(lr, np.ndarray) else {}
    jobs = Jobs(work, key(3, "x", clients), whole.task.initial[None], np.zeros_like(clients), samples, options, {})
    given = jobs, Size(np.array(steps))
    with torch.no_grad():
        torch.testing.assert_close(graphed.train(*given), whole.train(*given), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("batching", ["epochs", "full"])
def test_equal_clients_known_from_before(batching: str) -> None:
    """Only what changes is told the device; the index is there, and what others did in between does not matter."""
    whole, graphed = both(wide)
    task, index = whole.task, Ragged(np.arange(41) * 9, np.arange(360) % POOL)
    works = [LocalSGD(0.1, epochs=2, batch_size=size, batching=batching) for size in (4, 3)]
    other = Ragged(np.arange(41) * 9, (7 * np.arange(360)) % POOL)
    models = task.initial[None]
    for turn in range(12):
        clients = (np.arange(6 if turn % 5 else 34) * 7 + turn) % 40
        work, samples = works[turn % 2], (index if turn % 3 else other).pick(clients)
        many = turn % 4 == 3
        begin, received = (torch.cat([models, 2 * models]), clients % 2) if many else (models, 0 * clients)
        lr = {"lr": np.linspace(0.1, 0.2, len(clients)) if turn % 6 == 0 else np.full(len(clients), 0.1 * (1 + turn))}
        steps = work.num_steps(samples.counts)
        given = Jobs(work, key(3, "x", clients, turn), begin, received, samples, lr, {}), Size(steps, True)
        with torch.no_grad():
            assert distance(graphed.train(*given), whole.train(*given)) <= 1e-12
    assert graphed._known
    for samples in (Ragged(index.offsets[:7], index.values), index.pick(np.arange(6)[::-1])):
        jobs = Jobs(works[0], key(3, "x", np.arange(6)), models, np.zeros(6, int), samples, {}, {})
        given = jobs, Size(works[0].num_steps(samples.counts), True)
        with torch.no_grad():  # one that is not in the index first, which does not take its place
            assert distance(graphed.train(*given), whole.train(*given)) <= 1e-12


@pytest.mark.parametrize(
    "steps", [[3] * 8, [3] * 33, [17] * 3, [5, 5, 4, 4, 1]], ids=["one", "padded", "pieces", "uneven"]
)
def test_no_message_counts_as_read_before_it_is(steps: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the next one would be written over it; also where a graph was just captured, which reads it too."""
    whole, graphed = both(wide)
    replay, unread = GraphedSGD._replay, list[bool]()

    def watched(self: GraphedSGD, shape: Any) -> Any:
        unread.append(self._last_read[0] != self._messages)
        return replay(self, shape)

    monkeypatch.setattr(GraphedSGD, "_replay", watched)
    for _ in range(3):
        before = len(unread)
        compare(whole, graphed, steps, 0.1)
        assert unread[before]  # by the first graph of a cohort
    assert graphed._last_read[0] == graphed._messages


def test_a_client_without_steps_does_not_move() -> None:
    """In the space that another cohort has used before."""
    whole, graphed = both(wide)
    for steps in ([3, 3, 3, 3, 3], [3, 3, 3, 3, 0]):
        compare(whole, graphed, steps, 0.1)


def test_a_rate_for_all_and_one_for_each() -> None:
    whole, graphed = both(pooled)
    for lr in (0.1, np.array([0.5]), 1, np.array([0.2]), np.float32(0.3)):
        compare(whole, graphed, [20], lr)


class Named(nn.Sequential):
    """Called as the engine's own things are."""

    def __init__(self) -> None:
        super().__init__()
        self.add_module("flat", nn.Flatten())
        self.add_module("start", nn.Linear(98, 4))
        self.add_module("rates", nn.Linear(4, 3))


class Bare(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.ones(98, 3) / 98)
        self.rates = nn.Parameter(torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ self.start + self.rates


@pytest.mark.parametrize("model", [Named, Bare])
def test_parameters_may_have_any_name(model: Callable[[], nn.Module]) -> None:
    whole, graphed = both(model)
    for steps in ([2, 2], [2, 2], [20, 3, 1], [2, 2]):
        compare(whole, graphed, steps, 0.1)


@pytest.mark.parametrize("steps", [[1], [40] * 50, STEPS, sorted(range(100), reverse=True), [300, 2, 2, 1, 0]])
def test_pieces_hold_every_step_once(steps: Any) -> None:
    steps, reached = np.asarray(steps), 0
    for first, count, clients in pieces(steps):
        assert first == reached
        reached += count
        active = steps > first
        assert active.sum() <= clients <= rounded(int(active.sum()))
        assert (steps[active] >= reached).mean() >= 0.75
    assert reached == steps[0]


def test_rounding_up() -> None:
    assert [rounded(n) for n in (1, 31, 33, 50, 63, 100, 101, 1000)] == [1, 31, 34, 50, 64, 100, 104, 1024]


# -- the choice of a form -----------------------------------------------------------------------------------------


def test_the_fastest_form_is_tried_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "some device")
    tried: list[str] = []

    def seconds(_task: Task, _inputs: Tensor, _targets: Tensor, plan: Plan) -> float:
        tried.append(plan.convolution)
        return 1.0 if plan.convolution == "grouped" else 2.0

    monkeypatch.setattr(trial, "_seconds", seconds)
    plan, (inputs, targets), task = Plan("cuda"), pool(), Task(pooled)
    task.activations(inputs[:1])
    assert trial.convolution(task, inputs, targets, plan).form == "grouped"
    assert "patches" in tried and "client_by_client" not in tried
    tried.clear()
    assert trial.convolution(task, inputs, targets, plan).form == "grouped"
    assert not tried
    assert trial.convolution(task, inputs, targets, plan).seconds["patches"] == 2.0
    (file,) = (tmp_path / "turnout").iterdir()
    assert json.loads(file.read_text())["seconds"]["patches"] == 2.0
    file.write_text("{")
    assert trial.convolution(task, inputs, targets, plan).form == "grouped"
    assert tried


def test_no_trial_where_there_is_nothing_to_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "_seconds", lambda *_: 1 / 0)
    inputs, targets = pool()
    other = Task(lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(100, 3)))
    task, flat = Task(pooled), Task(models.mlp(98, [5], 3))
    for each in (task, other, flat):
        each.activations(inputs[:1])
    cuda = Plan("cuda")
    for one, plan in ((task, Plan()), (other, cuda), (flat, cuda), (Task(pooled), Plan("cuda", kernels="general"))):
        assert trial.convolution(one, inputs, targets, plan) == ("client_by_client", {})
    assert trial.convolution(Task(pooled), inputs, targets, Plan("cuda", convolution="patches")) == ("patches", {})


@pytest.mark.parametrize("option", ["kernels", "convolution", "precision"])
def test_unknown_choices(option: str) -> None:
    with pytest.raises(UserError, match=f"engine.{option}: unknown name 'fast'"):
        Plan(**{option: "fast"})  # type: ignore[arg-type]
