"""What a model draws by functions: the same numbers whoever is trained beside a client, on every path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import turnout
from turnout import Plan, Population, Task
from turnout.core.ragged import Ragged
from turnout.engine.batches import Jobs
from turnout.engine.train import Cohort
from turnout.local.sgd import LocalSGD
from turnout.task.draws import KeyedDraws

WIDTH = 8


class Around(nn.Module):
    """A layer, what is done with its output, and another layer."""

    def __init__(self, does: Callable[[Any, Tensor], Tensor], *more: nn.Module) -> None:
        super().__init__()
        self.first, self.last, self.more = nn.Linear(5, WIDTH), nn.Linear(WIDTH, 3), nn.ModuleList(more)
        self.does = does

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(self.does(self, self.first(x).tanh()))
        return y


def in_training(draw: Callable[[Tensor], Tensor]) -> Callable[[Any, Tensor], Tensor]:
    return lambda self, x: draw(x) if self.training else x


def _attends(dropped: nn.Module, x: Tensor) -> Tensor:
    heads = x.view(len(x), 1, 2, 4)
    mixed = F.scaled_dot_product_attention(heads, heads, heads, dropout_p=0.3 * dropped.training, is_causal=True)
    return mixed.reshape(len(x), WIDTH)


def _encodes(self: Any, x: Tensor) -> Tensor:
    y: Tensor = self.more[0](x.view(len(x), 2, 4)).flatten(1)
    return y


def _recurs(self: Any, x: Tensor) -> Tensor:
    y: Tensor = self.more[0](x.view(len(x), 4, 2))[0].flatten(1)
    return y


def _filled(x: Tensor) -> Tensor:
    return x + 0.1 * torch.empty_like(x).normal_() + torch.empty_like(x).uniform_(-0.1, 0.1)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "dropout": lambda: Around(lambda self, x: F.dropout(x, 0.4, self.training)),
    "channels": lambda: Around(lambda self, x: F.dropout2d(x.view(-1, 4, 2, 1), 0.4, self.training).flatten(1)),
    "alpha": lambda: Around(lambda self, x: self.more[0](x), nn.AlphaDropout(0.3)),
    "noise": lambda: Around(in_training(lambda x: x + 0.1 * torch.randn_like(x))),
    "uniform": lambda: Around(in_training(lambda x: x * torch.rand(x.shape))),
    "coins": lambda: Around(in_training(lambda x: x * torch.bernoulli(torch.full_like(x, 0.6)))),
    "filled": lambda: Around(in_training(_filled)),
    "rrelu": lambda: Around(lambda self, x: F.rrelu(x, training=self.training)),
    "gumbel": lambda: Around(in_training(lambda x: x * F.gumbel_softmax(x))),
    "attention": lambda: Around(_attends),
    "transformer": lambda: Around(_encodes, nn.TransformerEncoderLayer(4, 2, 6, 0.2, batch_first=True)),
    "lstm": lambda: Around(_recurs, nn.LSTM(2, 2, 3, dropout=0.4, batch_first=True)),
    "gru, both ways": lambda: Around(_recurs, nn.GRU(2, 1, 2, dropout=0.4, batch_first=True, bidirectional=True)),
    "several": lambda: Around(in_training(lambda x: F.dropout(F.dropout(x, 0.2), 0.2) * torch.rand(WIDTH))),
}


def people(counts: tuple[int, ...] = (7, 4, 9)) -> Population:
    generator = torch.Generator().manual_seed(3)
    n = sum(counts)
    inputs = torch.randn(n, 5, generator=generator)
    rows = torch.arange(n).split(counts)
    return Population(inputs, torch.arange(n) % 3, Ragged.from_rows([part.numpy() for part in rows]))


def train(task: Task, clients: list[int], engine: str, threads: int = 1, **options: Any) -> dict[int, Tensor]:
    """What each of these clients' parameters move by."""
    who = people()
    cohort = Cohort(task, who.inputs, who.targets, Plan(engine=engine, threads=threads, precision="float64").resolve())
    work = LocalSGD(0.1, epochs=2, batch_size=3, **options)
    rows = who.train.rows(torch.tensor(clients).numpy())
    keys = torch.tensor(clients).numpy() * 1000003 + 17
    jobs = Jobs(work, keys, cohort.task.initial[None], 0 * keys, rows, {}, {})
    return dict(zip(clients, cohort.train(jobs).payload["delta"], strict=True))


def built(name: str) -> Task:
    torch.manual_seed(0)
    return Task(MODELS[name]())


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("name", MODELS)
def test_a_client_draws_the_same_on_every_path(name: str, momentum: float) -> None:
    alone = {client: train(built(name), [client], "sequential", momentum=momentum)[client] for client in range(3)}
    for others in (
        train(built(name), [2, 0, 1], "vectorised", momentum=momentum),
        train(built(name), [0, 1, 2], "sequential", threads=2, momentum=momentum),
    ):
        for client, delta in others.items():
            torch.testing.assert_close(delta, alone[client], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_draws_matter_and_the_generator_stays(name: str) -> None:
    task = built(name)
    state = torch.get_rng_state()
    task.examine(people().inputs, people().targets)
    assert task.draws
    params, x = task.initial, people().inputs
    first, again, other = (task.outputs(params, x, torch.tensor(key)) for key in (1, 1, 2))
    assert first.equal(again) and not first.equal(other)
    assert torch.get_rng_state().equal(state)


def test_distributions_are_what_torch_says() -> None:
    with KeyedDraws(torch.tensor(7)) as draws:
        n = 200_000
        checks = {
            "rand": (torch.rand(n), 0.5, 12**-0.5),
            "randn": (torch.randn(n), 0.0, 1.0),
            "normal": (torch.normal(2.0, 3.0, (n,)), 2.0, 3.0),
            "randint": (torch.randint(2, 6, (n,)).float(), 3.5, 1.25**0.5),
            "bernoulli": (torch.bernoulli(torch.full((n,), 0.3)), 0.3, 0.21**0.5),
            "exponential": (torch.empty(n).exponential_(2.0), 0.5, 0.5),
            "geometric": (torch.empty(n).geometric_(0.25), 4.0, 12**0.5),
            "log_normal": (torch.empty(n).log_normal_(0.0, 0.5), 1.1331, 0.6039),
            "multinomial": (torch.multinomial(torch.tensor([1.0, 2.0, 1.0]), n, True).float(), 1.0, 0.5**0.5),
            "dropout": (F.dropout(torch.ones(n), 0.25), 1.0, 3**-0.5),
            "alpha": (F.alpha_dropout(torch.zeros(n).normal_(), 0.2, True), 0.0, 1.0),
        }
        permutation = torch.randperm(1000)
        pairs = torch.stack([torch.multinomial(torch.ones(4), 2) for _ in range(2000)])
        assert draws.count == len(checks) + 2 + 2000
    for name, (values, mean, std) in checks.items():
        assert abs(float(values.mean()) - mean) < 5 * std / n**0.5, name
        assert abs(float(values.std()) - std) < 0.02 * std, name
    assert permutation.sort().values.equal(torch.arange(1000))
    assert (pairs[:, 0] != pairs[:, 1]).all()
    assert all(abs(float((pairs == value).float().mean()) - 0.25) < 0.02 for value in range(4))


def test_attention_with_dropout_attends_as_torch_does_without() -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 4, 5, 6), torch.randn(2, 2, 7, 6), torch.randn(2, 2, 7, 6)
    mask = torch.rand(5, 7) > 0.3
    cases: list[dict[str, Any]] = [{}, {"attn_mask": mask}, {"is_causal": True}]
    cases.append({"attn_mask": mask.float(), "scale": 0.2})
    for options in cases:
        expected = F.scaled_dot_product_attention(query, key, value, enable_gqa=True, **options)
        with KeyedDraws(torch.tensor(1)):
            found = F.scaled_dot_product_attention(query, key, value, dropout_p=1e-9, enable_gqa=True, **options)
        torch.testing.assert_close(found, expected)


class Checkpointed(nn.Module):
    """Blocks that are called again in the backward pass, or not; one of them twice."""

    def __init__(self, again: bool) -> None:
        super().__init__()
        self.first, self.last, self.again = nn.Linear(5, WIDTH), nn.Linear(WIDTH, 3), again
        block = nn.TransformerEncoderLayer(4, 2, 6, 0.2, batch_first=True)
        self.blocks = nn.ModuleList([block, nn.TransformerEncoderLayer(4, 2, 6, 0.2, batch_first=True), block])

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).view(len(x), 2, 4)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.again else block(x)
        y: Tensor = self.last(x.flatten(1))
        return y


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_gradient_checkpointing_draws_what_it_drew(momentum: float) -> None:
    tasks = []
    for again in (False, True):
        torch.manual_seed(1)
        tasks.append(Task(Checkpointed(again)))
    plain, checkpointed = (train(task, [0, 1, 2], "sequential", momentum=momentum) for task in tasks)
    for client in plain:
        torch.testing.assert_close(checkpointed[client], plain[client], rtol=1e-10, atol=1e-14)


def test_a_checkpointed_model_says_why_it_is_trained_alone() -> None:
    torch.manual_seed(1)
    who = people()
    cohort = Cohort(Task(Checkpointed(True)), who.inputs, who.targets, Plan(threads=1).resolve())
    assert "cannot be mapped over clients" in cohort.task.alone
    assert cohort.task.recomputes and cohort.task.draws


def test_several_passes_of_a_checkpointed_model_in_one_gradient_are_refused() -> None:
    torch.manual_seed(1)
    task, who = Task(Checkpointed(True)), people()
    task.examine(who.inputs, who.targets)
    task.vectorised, key = False, torch.tensor(1)

    def twice(params: Tensor) -> Tensor:
        return sum((task.losses(by * params, who.inputs, who.targets, key).sum() for by in (1, 2)), torch.zeros(()))

    with pytest.raises(turnout.UserError, match=r"gradient checkpointing .* one pass a gradient"):
        task.gradient(twice, task.initial)
