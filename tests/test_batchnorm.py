"""Running statistics of BatchNorm, and other buffers: by hand, against torch's own layers, in every method.

O1 to O9 are the oracles of the specification of personal models, section 1.6.
"""

from __future__ import annotations

import copy
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import turnout
from support import SMALL, WORLD, algorithm, population, same
from turnout import LocalSGD, Plan, Population, Ragged, Stopping, Task, UserError
from turnout.config import registry
from turnout.core.imports import dotted
from turnout.sampling._sampler import Selection
from turnout.tasks import Averaged, BatchNorm, Fixed, Local, LocalStatistics

EXACT = Plan(precision="float64", threads=1)
CHOICES: dict[str, BatchNorm | str] = {
    "frozen": "frozen",
    "averaged": "averaged",
    "pooled": Averaged(moments="pooled"),
    "remembered": Averaged(remembered=True),
    "local_statistics": "local_statistics",
    "local": "local",
    "batch": "batch",
    "fixed": Fixed(after=2),
}


@dataclass
class Turns(turnout.Sampler):
    """These clients in each round, each counting its share of them."""

    looks_at_data = False

    rounds: tuple[tuple[int, ...], ...] = ((0,),)

    def sample(self, server: turnout.Server) -> Selection:
        ids = np.array(self.rounds[server.version])
        return Selection(ids, np.full(len(ids), 1 / len(ids)))


def squares(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square().flatten(1).mean(1)


def people(*groups: list[float], **columns: Any) -> Population:
    """Clients with one number a sample."""
    x = torch.tensor([value for group in groups for value in group], dtype=torch.float64)[:, None]
    offsets = np.cumsum([0, *map(len, groups)])
    return Population(x, torch.zeros_like(x), Ragged(offsets, np.arange(len(x))), **columns)


def result(
    task: Task, clients: Population, rounds: int = 1, lr: float = 0.0, turns: Any = None, **options: Any
) -> turnout.Result:
    sampler = turnout.Full() if turns is None else Turns(rounds=turns)
    method = options.pop("algorithm", None) or turnout.FedAvg(LocalSGD(lr, batching="full"), sampler)
    return turnout.simulate(task, clients, method, rounds=rounds, plan=options.pop("plan", EXACT), **options)


def statistics(task: Task, *groups: list[float], **options: Any) -> tuple[float, float]:
    """The running mean and variance of the one layer in the end."""
    state = result(task, people(*groups), **options).state_dict()
    return float(state["running_mean"]), float(state["running_var"])


def one(choice: BatchNorm | str | None, **options: Any) -> Task:
    return Task(nn.BatchNorm1d(1, **options), squares, batchnorm=choice)


# -- the oracles ------------------------------------------------------------------------------------------------


def test_o1_the_step_of_torch() -> None:
    assert statistics(one("averaged"), [1, 3]) == pytest.approx((0.2, 1.1), rel=1e-12)
    batches = people([1, 3, 5, 5, 8])
    for momentum, expected in ((0.1, (0.78, 1.29)), (None, (4.0, 2.5))):
        layer = nn.BatchNorm1d(1, momentum=momentum)
        local = LocalSGD(0.0, batch_size=3)
        first = result(one("averaged", momentum=momentum), people([1, 3])).model
        if momentum is None:
            assert first[-1] == 1  # the counter is averaged, too
        module = copy.deepcopy(layer).double()
        for batch in ([1.0, 3.0], [5.0, 5.0, 8.0]):
            module(torch.tensor(batch, dtype=torch.float64)[:, None])
        assert (float(module.running_mean), float(module.running_var)) == pytest.approx(expected)  # type: ignore[arg-type]
        task = one("averaged", momentum=momentum)
        whole = result(task, people([1, 3], [5, 5, 8]), rounds=2, turns=((0,), (1,))).state_dict()
        assert float(whole["running_mean"]) == pytest.approx(expected[0], rel=1e-12)
        assert float(whole["running_var"]) == pytest.approx(expected[1], rel=1e-12)
        assert int(whole["num_batches_tracked"]) == (2 if momentum is None else 0)
        assert len(batches.train) == 1 and local.batch_size == 3


def test_o2_padding_counts_nothing() -> None:
    """Two clients of two and of four samples, trained together."""
    assert statistics(one("averaged"), [1, 3], [1, 3, 1, 3])[0] == pytest.approx(0.2, rel=1e-12)


def test_o3_averages() -> None:
    groups, turns = ([1.0, 3.0], [11.0, 13.0]), ((0, 1), (1,))
    assert statistics(one("averaged"), *groups) == pytest.approx((0.7, 1.1), rel=1e-12)
    assert statistics(one(Averaged(moments="pooled")), *groups) == pytest.approx((0.7, 1.35), rel=1e-12)
    assert statistics(one("averaged"), *groups, rounds=2, turns=turns) == pytest.approx((1.83, 1.19), rel=1e-12)


def test_o3_remembered_statistics_of_who_is_silent() -> None:
    """Client 1 goes on from the average of the first round, .7, to 1.83; client 0 still counts with its .2."""
    task = one(Averaged(remembered=True))
    found = statistics(task, [1.0, 3.0], [11.0, 13.0], rounds=2, turns=((0, 1), (1,)))
    assert found == pytest.approx(((0.2 + 1.83) / 2, (1.1 + 1.19) / 2), rel=1e-12)


def kept(run: turnout.Result, client: int) -> list[float]:
    """Mean and variance that a client keeps."""
    tail = run.server.task.tail
    assert tail is not None
    held = run.server._store.get({"norms": (tail.size - tail.kept,)}, np.array([client]))
    return [float(value) for value in held["norms"][0, -2:]]


@pytest.mark.parametrize("choice", ["local_statistics", "local"])
def test_o3_own_statistics_stay_while_others_train(choice: str) -> None:
    groups = people([1.0, 3.0], [11.0, 13.0])
    run = result(one(choice), groups, rounds=2, turns=((0, 1), (1,)))
    assert kept(run, 0) == pytest.approx([0.2, 1.1], rel=1e-12)
    assert kept(run, 1) == pytest.approx([0.9 * 1.2 + 1.2, 1.19 + 0.0], rel=0.1)
    assert run.clients()["statistics_age"].tolist() == [2.0, 1.0]
    again = result(one(choice), groups, rounds=3, turns=((0, 1), (1,), (0,)))
    assert kept(again, 0)[0] == pytest.approx(0.38, rel=1e-12)


def test_o4_only_the_statistics_differ_where_nothing_is_learnt() -> None:
    mine, shared = (result(one(choice), people([1, 3], [11, 13])) for choice in ("local", "averaged"))
    assert torch.equal(mine.model[:2], shared.model[:2])
    assert kept(mine, 0) != pytest.approx(shared.model[2:].tolist())


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm, self.other = nn.Conv1d(1, 3, 2), nn.BatchNorm1d(3), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.other(torch.tanh(self.norm(self.one(x[:, None]))).flatten(1))


class Renamed(Net):
    """The same layers, the normalisation inside another and under a name that says nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.Sequential(self.norm)  # type: ignore[assignment]


def net(choice: BatchNorm | str, kind: type[Net] = Net) -> Task:
    torch.manual_seed(0)
    return Task(kind(), batchnorm=choice)


def test_o5_one_client_is_plain_torch() -> None:
    clients, task = population((11,)), net("averaged")
    found = result(task, clients, rounds=3, lr=0.1)
    torch.manual_seed(0)
    module = Net().double()
    optimiser = torch.optim.SGD(module.parameters(), 0.1)
    for _ in range(3):
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(clients.inputs.double()), clients.targets).backward()
        optimiser.step()
    expected = module.state_dict()
    for name, value in found.state_dict().items():
        if "tracked" not in name:
            torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-15)


def test_o6_all_the_same_where_all_clients_are_alike() -> None:
    rows = np.arange(5)
    alike = population((5,))
    alike = Population(alike.inputs, alike.targets, Ragged(np.array([0, 5, 10]), np.concatenate([rows, rows])))
    models = [result(net(choice), alike, rounds=2, lr=0.1).model for choice in ("averaged", "local_statistics")]
    torch.testing.assert_close(models[0], models[1], rtol=0, atol=1e-14)
    own, other = (result(net(choice), alike, rounds=2, lr=0.1) for choice in ("local", "batch"))
    learnt = own.server.task.size - 6
    torch.testing.assert_close(own.model, torch.cat([own.model[:learnt], models[0][-6:]]), rtol=0, atol=1e-14)
    torch.testing.assert_close(
        other.server.task.layers(other.model)["norm.weight"],
        own.server.task.layers(own.model)["norm.weight"],
        rtol=0,
        atol=1e-14,
    )


def test_o7_frozen_is_a_scale_and_a_shift() -> None:
    layer = nn.BatchNorm1d(1, eps=0)
    run = result(Task(layer, squares, batchnorm="frozen"), people([1.0, 3.0]), lr=0.1)
    weight = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    bias = torch.tensor(0.0, dtype=torch.float64, requires_grad=True)
    (weight * torch.tensor([1.0, 3.0], dtype=torch.float64) + bias).square().mean().backward()
    assert run.model.tolist() == pytest.approx([1 - 0.1 * float(weight.grad), -0.1 * float(bias.grad)], rel=1e-12)  # type: ignore[arg-type]


@pytest.mark.parametrize("choice", ["averaged", "local_statistics", "local", "batch"])
def test_o8_names_say_nothing(choice: str) -> None:
    clients = population((5, 3))
    runs = [result(net(choice, kind), clients, rounds=2, lr=0.1) for kind in (Net, Renamed)]
    torch.testing.assert_close(runs[0].model, runs[1].model, rtol=0, atol=0)
    assert same(runs[0].clients(), runs[1].clients())


class Placed(nn.BatchNorm1d):
    """Notes where its tensors begin when it is called in training."""

    begins: ClassVar[list[int]] = []

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            found = (self.weight, self.bias, self.running_mean, self.running_var)
            self.begins.extend(tensor.data_ptr() % 16 for tensor in found if tensor is not None)
        return super().forward(x)


@pytest.mark.parametrize("choice", ["averaged", "local"])
def test_layers_find_tensors_that_begin_where_kernels_read(choice: str) -> None:
    """cuDNN reads four numbers of a layer's at once, wherever they lie in the vector of a model."""
    model = nn.Sequential(nn.Linear(1, 5), Placed(5), nn.Linear(5, 1))
    Placed.begins.clear()
    result(Task(model, squares, batchnorm=choice), people([1.0, 2.0, 3.0], [4.0, 6.0]), rounds=2)
    assert len(Placed.begins) > 8 and set(Placed.begins) == {0}


def test_o9_one_sample_leaves_the_statistics() -> None:
    with pytest.warns(UserWarning, match="one value a channel"):
        assert statistics(one("averaged"), [5.0]) == (0.0, 1.0)


# -- the law ----------------------------------------------------------------------------------------------------


def test_a_late_update_leaves_the_variance_above_zero() -> None:
    """Differences would not: received 5, returned 1, current 1 make -3."""
    fast_slow = people([0.0, 10.0], [-0.1, 0.1], devices=turnout.devices.table([1.0, 3.5]))
    run = result(
        one("averaged", momentum=1.0), fast_slow, rounds=6, algorithm=turnout.AsyncFedAvg(LocalSGD(0.0, steps=1))
    )
    assert float(run.state_dict()["running_var"]) > 0


@pytest.mark.parametrize("name", ["fedadam", "fedyogi", "fedadagrad", "fedavgm", "mifa", "fednova"])
def test_a_server_optimiser_does_not_touch_them(name: str) -> None:
    cls = registry.find("algorithm", name)
    run = result(one("averaged"), people([1, 3], [11, 13]), algorithm=cls(LocalSGD(0.0), turnout.Full()))
    assert run.model[2:].tolist() == pytest.approx([0.7, 1.1], rel=1e-12)


def test_a_share_of_the_way() -> None:
    half = turnout.FedAvg(LocalSGD(0.0), turnout.Full(), server_lr=0.5)
    run = result(one("averaged"), people([1, 3], [11, 13]), algorithm=half)
    assert run.model[2:].tolist() == pytest.approx([0.35, 1.05], rel=1e-12)


@pytest.mark.parametrize("rule", ["coordinate_median", "krum", "geometric_median"])
def test_with_a_rule_one_liar_cannot_move_them(rule: str) -> None:
    made = turnout.FedAvg(LocalSGD(0.0), turnout.Full(), rule=rule)
    run = result(one("averaged"), people([1, 3], [1, 3], [1, 3], [1e6, 3e6]), algorithm=made)
    assert run.model[2:].tolist() == pytest.approx([0.2, 1.1], rel=1e-12)


def test_momenta_of_clients_do_not_hold_statistics() -> None:
    made = registry.find("algorithm", "robust_momentum")(LocalSGD(0.1), turnout.Full(), rule="mean")
    run = result(one("averaged"), people([1, 3], [11, 13]), rounds=1, algorithm=made)
    assert run.model[2:].tolist() == pytest.approx([0.7, 1.1], rel=1e-12)


# -- serving ----------------------------------------------------------------------------------------------------


def served(layer: nn.Module, x: list[float]) -> float:
    with torch.no_grad():
        return float(layer.double().eval()(torch.tensor(x, dtype=torch.float64)[:, None]).square().mean())


def normalising(mean: float, variance: float) -> nn.Module:
    layer = nn.BatchNorm1d(1)
    layer.running_mean, layer.running_var = torch.tensor([mean]), torch.tensor([variance])
    return layer


def test_who_serves_by_what() -> None:
    """Clients 0 and 1 trained, 2 never did."""
    groups = ([1.0, 3.0], [11.0, 13.0], [4.0, 8.0])
    first = (0.2, 1.1), (1.2, 1.1)
    own_pass = normalising(6.0, 8.0)
    expected: dict[str, tuple[BatchNorm | str, list[nn.Module]]] = {
        "averaged": ("averaged", [normalising(0.7, 1.1)] * 3),
        "local": ("local", [*(normalising(*held) for held in first), normalising(0.7, 1.1)]),
        "own": (LocalStatistics(unseen="own"), [*(normalising(*held) for held in first), own_pass]),
        "batch": ("batch", [normalising(2.0, 2.0), normalising(12.0, 2.0), own_pass]),
    }
    for choice, layers in expected.values():
        run = result(one(choice), people(*groups), turns=((0, 1),))
        losses = run.clients()["train_loss"]
        assert losses == pytest.approx([served(layer, x) for layer, x in zip(layers, groups, strict=True)], rel=1e-6)


def test_a_first_job_may_begin_with_the_average() -> None:
    """Client 1 joins in the second round: from (0, 1), or from what client 0 has sent."""
    groups, turns = people([1.0, 3.0], [11.0, 13.0]), ((0,), (1,))
    for start, mean in (("initial", 1.2), ("average", 0.9 * 0.2 + 1.2)):
        run = result(one(LocalStatistics(start=start)), groups, rounds=2, turns=turns)
        assert kept(run, 1)[0] == pytest.approx(mean, rel=1e-12)


def test_fixed_statistics_normalise_in_training() -> None:
    """From version 1 on they are those of the first round, and the gradient is that of a scale and a shift."""
    run = result(one(Fixed(after=1)), people([1.0, 3.0]), rounds=2, lr=0.1)
    first = result(one("averaged"), people([1.0, 3.0]), rounds=1, lr=0.1)
    assert run.model[2:].tolist() == first.model[2:].tolist()
    layer: Any = normalising(0.2, 1.1).double()
    layer.weight.data[:], layer.bias.data[:] = first.model[0], first.model[1]
    layer.eval()(torch.tensor([[1.0], [3.0]], dtype=torch.float64)).square().mean().backward()
    stepped = [float(p - 0.1 * p.grad) for p in (layer.weight, layer.bias)]
    assert run.model[:2].tolist() == pytest.approx(stepped, rel=1e-6)


def test_bytes() -> None:
    """Two parameters and two statistics: who sends what of them."""
    sent = {}
    for name in ("frozen", "averaged", "local_statistics", "batch"):
        jobs = result(one(name), people([1, 3], [11, 13]), plan=Plan(threads=1)).jobs()
        sent[name] = int(jobs["bytes_down"][0]) // 4, int(jobs["bytes_up"][0]) // 4
    own = result(one(Local(unseen="own")), people([1, 3]), plan=Plan(threads=1), lr=0.0)
    assert sent == {"frozen": (2, 2), "averaged": (4, 4), "local_statistics": (2, 4), "batch": (2, 2)}
    assert own.jobs()["bytes_up"].tolist() == [4 * 2]  # gamma and beta, for those who never trained


# -- other buffers ----------------------------------------------------------------------------------------------


def spectral() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(parametrizations.spectral_norm(nn.Linear(5, 4)), nn.Tanh(), nn.Linear(4, 3))


@pytest.mark.parametrize("buffers", ["frozen", "averaged", "kept"])
def test_spectral_norm_is_that_of_torch(buffers: str) -> None:
    """Two clients, two rounds of one step: each begins with the first vectors, the average, or its own."""
    clients = population((6, 4))
    found = result(Task(spectral(), buffers=buffers), clients, rounds=2, lr=0.1)
    modules = [spectral().double() for _ in range(2)]
    first = {name: value.clone() for name, value in modules[0].named_buffers()}
    model = {name: value.detach().clone() for name, value in modules[0].named_parameters()}
    average: dict[str, Tensor] = first
    for _ in range(2):
        for client, module in enumerate(modules):
            rows = torch.as_tensor(clients.train.row(client))
            module.load_state_dict(model, strict=False)
            if buffers != "kept":
                module.load_state_dict(first if buffers == "frozen" else average, strict=False)
            module.zero_grad()
            x, y = clients.inputs[rows].double(), clients.targets[rows]
            nn.functional.cross_entropy(module(x), y).backward()
            with torch.no_grad():
                for own in module.parameters():
                    assert own.grad is not None
                    own.sub_(0.1 * own.grad)
        model = {name: 0.6 * dict(modules[0].named_parameters())[name].detach() for name in model}
        other = dict(modules[1].named_parameters())
        model = {name: value + 0.4 * other[name].detach() for name, value in model.items()}
        average = {n: 0.6 * v + 0.4 * dict(modules[1].named_buffers())[n] for n, v in modules[0].named_buffers()}
    state = found.state_dict()
    for name, value in model.items():
        torch.testing.assert_close(state[name], value, rtol=0, atol=1e-12)
    for name, value in first.items():
        expected = value if buffers == "frozen" else average[name]
        torch.testing.assert_close(state[name], expected, rtol=0, atol=1e-12)


def test_a_model_whose_buffers_change_asks() -> None:
    with pytest.raises(UserError, match=r"^model: 0\.parametrizations\.weight\.0\._u changes.*task\.buffers"):
        result(Task(spectral()), population((6, 4)))


# -- refused ----------------------------------------------------------------------------------------------------


def test_options_without_a_use_are_refused() -> None:
    with pytest.raises(UserError, match=r"^task\.batchnorm: no layer"):
        Task(nn.Linear(2, 2), batchnorm="averaged")
    with pytest.raises(UserError, match=r"^task\.buffers: the model has no buffer"):
        Task(nn.BatchNorm1d(2), batchnorm="averaged", buffers="kept")
    with pytest.raises(UserError, match=r"^task\.batchnorm: .*unknown|^task\.batchnorm: .*averaged"):
        Task(nn.BatchNorm1d(2), batchnorm="avraged")
    with pytest.raises(UserError, match=r"^[tT]ask\.buffers: "):
        Task(spectral(), buffers="avraged")


@pytest.mark.parametrize("choice", ["averaged", "local_statistics", "local", "fixed"])
def test_statistics_are_not_sent_where_noise_should_hide_data(choice: str) -> None:
    privacy = turnout.Privacy(noise=1.0, clip=1.0, noise_seed=1)
    with pytest.raises(UserError, match=r"^privacy: clients would send running statistics"):
        method = turnout.FedAvg(LocalSGD(0.1), turnout.Uniform(4))
        result(net(CHOICES[choice]), population(), algorithm=method, privacy=privacy)


@pytest.mark.parametrize("choice", ["frozen", "batch", LocalStatistics(unseen="own")], ids=str)
def test_noise_goes_with_statistics_that_stay(choice: Any) -> None:
    privacy = turnout.Privacy(noise=1.0, clip=1.0, noise_seed=1)
    method = turnout.FedAvg(LocalSGD(0.1), turnout.Uniform(4))
    run = result(net(choice), population(), algorithm=method, privacy=privacy, rounds=2)
    assert run.model.isfinite().all()
    if choice != "frozen":  # no noise was added where nothing is sent
        assert run.state_dict()["norm.running_mean"].tolist() == [0, 0, 0]


# -- every method -----------------------------------------------------------------------------------------------

SEVERAL = {"apfl", "ditto", "l2sgd", "mocha", "pfedme", "fedem", "d_fedem", "fem_omd"}  # models a job
AVERAGING = {"dpasgd", "fedasync", "fedavg_rp", "hierfavg", "hybridfl", "local", "robust_momentum", "safa"}
AVERAGING |= {"safa_thesis"}  # whole models
SERVING = {"fedavg_plus", "fedprox_plus", "knn_per", "fedper", "fedrep", "local", "clustered_fl"}  # models of their own


def refused(name: str, choice: str) -> bool:
    own = choice in ("local_statistics", "local", "batch")
    return (
        (name in SEVERAL and choice != "frozen")
        or (name in AVERAGING and choice in ("pooled", "remembered"))
        or (name in ("centralised", "ifca") and own)
        or (name in SERVING and choice == "batch")
    )


def normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))


def run(name: str, choice: BatchNorm | str, rounds: int, folder: Path | None = None, **more: Any) -> turnout.Result:
    task, plan = Task(normalised, seed=3, batchnorm=choice), Plan(threads=more.pop("threads", 1))
    seldom = turnout.Evaluation(rounds=None)
    people = population(SMALL, **WORLD)
    made = turnout.Experiment(task, people, algorithm(name), 5, Stopping(rounds), seldom, plan)
    return turnout.execute(made, folder, checkpoint_every=1, **more)


@pytest.mark.filterwarnings("ignore:model. BatchNorm was given one value")
@pytest.mark.parametrize(
    "choice", CHOICES if os.environ.get("TURNOUT_WALK") == "all" else ["averaged", "local", "batch"]
)
@pytest.mark.parametrize("name", registry.names("algorithm"))
def test_every_method_follows_it_or_refuses(name: str, choice: str, tmp_path: Path) -> None:
    """The same bits after a resume, where anything of the statistics is kept, and no variance below 0."""
    if refused(name, choice):
        with pytest.raises(UserError, match=r"^task\.[a-z]+: [^\n]*$"):
            run(name, CHOICES[choice], 2)
        return
    rounds = 10 if name in ("async_fedavg", "fedasync") else 3  # of one job each
    whole = run(name, CHOICES[choice], rounds)
    assert whole.model.isfinite().all()
    if choice != "batch" or name == "fedavg":
        run(name, CHOICES[choice], 1, tmp_path)
        resumed = run(name, CHOICES[choice], rounds, tmp_path, resume=True)
        assert torch.equal(whole.model, resumed.model) and same(whole.clients(), resumed.clients())
    if name in SEVERAL:
        return
    state = whole.state_dict()
    assert (state["1.running_var"] > 0).all()
    changed = not torch.equal(state["1.running_mean"], torch.zeros(8))
    assert changed == (choice not in ("frozen", "batch") and name != "local")  # whose server has the first model


@pytest.mark.parametrize("choice", CHOICES)
def test_threads_change_no_bit_of_the_model(choice: str) -> None:
    models = [run("fedavg", CHOICES[choice], 2, threads=threads).model for threads in (1, 3)]
    assert torch.equal(models[0], models[1])


@pytest.mark.parametrize("choice", [name for name in CHOICES if name not in ("averaged", "local", "batch")])
def test_fedavg_follows_every_choice(choice: str, tmp_path: Path) -> None:
    test_every_method_follows_it_or_refuses("fedavg", choice, tmp_path)


def test_components_of_a_mixture_share_frozen_statistics(tmp_path: Path) -> None:
    test_every_method_follows_it_or_refuses("fedem", "frozen", tmp_path)


def test_in_a_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By name, with options; what cannot be is one sentence."""
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(
        "from torch import nn\n\ndef net(inputs, outputs):\n"
        "    return nn.Sequential(nn.Linear(inputs, 4), nn.BatchNorm1d(4), nn.Linear(4, outputs))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    settings: dict[str, Any] = {
        "data": {"name": "synthetic", "clients": 6}, "partition": {"name": "natural"}, "clients": {"count": 6},
        "model": {"name": "mine:net"}, "local": {"lr": 0.1}, "algorithm": {"name": "fedavg"}, "run": {"rounds": 2},
        "sampler": {"name": "full"},
    }  # fmt: skip
    build = dotted("test", "turnout.config.config:build")
    with pytest.raises(UserError, match="layer 1 is BatchNorm1d"):
        build(settings)
    made, _, complete = build(settings | {"task": {"batchnorm": "averaged", "averaged": {"moments": "pooled"}}})
    assert made.task.batchnorm == Averaged(moments="pooled") and complete["task"]["averaged"]["moments"] == "pooled"
    assert turnout.execute(made).model.isfinite().all()
    with pytest.raises(UserError, match=r"task\.averaged\.moments"):
        build(settings | {"task": {"batchnorm": "averaged", "averaged": {"moments": "pool"}}})
