"""What is found out of a task before it is trained: it is refused in one sentence, or computed as it needs to be."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import turnout
from support import population
from turnout import FedAvg, Full, LocalSGD, Plan, Task, UserError
from turnout.engine.train import Cohort

ONE = Plan(threads=1)
ENGINES = ["vectorised", "sequential", "ray"]


class Around(nn.Module):
    """A layer between two others; what it does is a function of itself and its inputs."""

    seen: Tensor

    def __init__(self, does: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.one, self.two, self.does = nn.Linear(5, 8), nn.Linear(8, 3), does
        self.dropout = nn.Dropout(0.3)
        self.register_buffer("seen", torch.zeros(8))
        self.frozen = nn.Parameter(torch.zeros(8), requires_grad=False)
        self.generator = torch.Generator().manual_seed(1)
        self.calls = 0

    def forward(self, x: Tensor) -> Any:
        return self.two(self.does(self, self.one(x)))


def cohort(model: Callable[[], nn.Module], engine: str = "vectorised", **options: Any) -> Cohort:
    people = population()
    return Cohort(Task(model, **options), people.inputs, people.targets, Plan(engine=engine, threads=2))


DRAWS: dict[str, tuple[Callable[[Any, Tensor], Any], str]] = {
    "noise": (lambda _, x: x + torch.randn_like(x), "evaluation mode draws from torch"),
    "poisson": (lambda self, x: x + torch.poisson(x.exp()) if self.training else x, "training mode draws from torch"),
    "in evaluation": (lambda self, x: x if self.training else x + torch.rand(1), "evaluation mode draws from torch"),
    "numpy": (lambda _, x: x * np.random.rand(), "draws from NumPy"),
    "gaussian numpy": (lambda _, x: x * np.random.randn(), "draws from NumPy"),
    "python": (lambda _, x: x * random.random(), "draws from Python"),
    "no effect": (lambda _, x: (torch.rand(1), x)[1], "draws from torch"),
    "a generator": (lambda self, x: x + torch.randn(8, generator=self.generator), "a generator of its own has a state"),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", DRAWS)
def test_a_model_that_draws_is_refused(kind: str, engine: str) -> None:
    does, sentence = DRAWS[kind]
    with pytest.raises(UserError, match=sentence) as refused:
        cohort(lambda: Around(does), engine)
    assert "\n" not in str(refused.value)


def test_a_loss_that_draws_is_refused() -> None:
    def noisy(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets, reduction="none") * torch.rand(len(outputs))

    with pytest.raises(UserError, match=r"task\.loss: it draws from torch"):
        cohort(dropping, loss=noisy)
    with pytest.raises(UserError, match=r"task\.metrics: rough: it draws from torch"):
        cohort(dropping, metrics={"rough": noisy})


def dropping() -> nn.Module:
    return Around(lambda self, x: self.dropout(x))


@pytest.mark.parametrize("does", [lambda self, x: self.dropout(x), DRAWS["noise"][0], DRAWS["numpy"][0]])
def test_generators_are_left_as_they_were(does: Callable[[Any, Tensor], Any]) -> None:
    """Whether the model is refused or not."""

    def states() -> tuple[bytes, object, bytes, object]:
        numpy: Any = np.random.get_state()
        return torch.get_rng_state().numpy().tobytes(), random.getstate(), numpy[1].tobytes(), numpy[2:]

    before = states()
    with suppress(UserError):
        cohort(lambda: Around(does))
    assert states() == before


def _assign(self: Around, x: Tensor) -> Tensor:
    self.seen = self.seen + 1
    return x


def _by_data(self: Around, x: Tensor) -> Tensor:
    self.seen.data.add_(1)
    return x


def _frozen(self: Around, x: Tensor) -> Tensor:
    self.frozen.add_(1)
    return x


CHANGES: dict[str, tuple[Callable[[Any, Tensor], Any], str]] = {
    "in place": (lambda self, x: (self.seen.add_(x.detach().mean(0)), x)[1], "seen changes"),
    "assigned": (_assign, "seen changes"),
    "by data": (_by_data, "seen changes"),
    "frozen": (_frozen, "frozen changes"),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", CHANGES)
def test_a_model_that_changes_what_it_holds_is_refused(kind: str, engine: str) -> None:
    does, sentence = CHANGES[kind]
    with pytest.raises(UserError, match=f"model: {sentence} in a forward pass"):
        cohort(lambda: Around(does), engine)


def test_tracked_statistics_are_refused() -> None:
    """InstanceNorm that tracks is like BatchNorm: somebody has to say what becomes of its statistics. One that does not
    track is fine."""
    x, y = torch.randn(20, 3, 6), torch.arange(20) % 2

    def model(track: bool) -> nn.Module:
        return nn.Sequential(
            nn.InstanceNorm1d(3, affine=True, track_running_stats=track), nn.Flatten(), nn.Linear(18, 2)
        )

    with pytest.raises(UserError, match=r"model: layer 0 is InstanceNorm1d.*task\.batchnorm"):
        Cohort(Task(model(True)), x, y, Plan(threads=1, engine="vectorised"))
    assert not Cohort(Task(model(False)), x, y, Plan(threads=1, engine="vectorised")).task.alone


def _counts(self: Around, x: Tensor) -> Tensor:
    self.calls += 1
    return x * self.calls


def test_a_model_with_a_memory_is_refused() -> None:
    with pytest.raises(UserError, match="the same samples give other outputs when they are passed again"):
        cohort(lambda: Around(_counts))


class Several(nn.Module):
    def __init__(self, kind: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.inner, self.kind = nn.Linear(5, 3), kind

    def forward(self, x: Tensor) -> Any:
        return self.kind(self.inner(x))


@pytest.mark.parametrize(
    ("kind", "name"), [(lambda y: y.mean(), "one number"), (lambda _: {"none": None}, "NoneType"), (str, "str")]
)
@pytest.mark.parametrize("engine", ENGINES)
def test_outputs_without_a_row_a_sample_are_refused(kind: Callable[[Tensor], Any], name: str, engine: str) -> None:
    with pytest.raises(UserError, match=f"model: it returns {name}, and the loss compares one tensor .*; give a loss"):
        cohort(lambda: Several(kind), engine)


def test_a_model_that_fails_in_training_mode_says_so() -> None:
    def fails(self: Around, x: Tensor) -> Tensor:
        return x if not self.training else self.dropout.nothing  # type: ignore[return-value]

    with pytest.raises(UserError, match=r"cannot process a batch of shape \(4, 5\) in training mode: .*nothing"):
        cohort(lambda: Around(fails))


def test_a_metric_has_one_value_a_sample_or_one() -> None:
    with pytest.raises(UserError, match=r"task\.metrics: wide: it must return one value a sample, not shape"):
        cohort(dropping, metrics={"wide": lambda o, _: o})
    with pytest.raises(UserError, match=r"task\.loss: it must return one value a sample, not shape"):
        cohort(dropping, loss=lambda o, _: o)


def test_outputs_may_have_other_rows_than_samples() -> None:
    """As long as the loss has one value a sample; that they are each for itself cannot be told."""

    def both(outputs: Tensor, targets: Tensor) -> Tensor:
        return sum(F.cross_entropy(part, targets, reduction="none") for part in outputs)  # type: ignore[return-value]

    made = cohort(lambda: Several(lambda y: torch.stack([y, 2 * y])), loss=both, metrics={})
    assert made.task.alone == "the model's outputs have no row for each sample"


# -- what is computed in another way ------------------------------------------------------------------------------


def _branches(self: Around, x: Tensor) -> Tensor:
    return torch.stack([self.dropout(row) * 2 if row.sum() > 0 else row for row in x])


@pytest.mark.parametrize("algorithm", [FedAvg, turnout.algorithms.FedPer, turnout.algorithms.KNNPer])
def test_control_flow_that_depends_on_data(algorithm: Callable[..., turnout.Algorithm]) -> None:
    """Nobody can be mapped: one client after another, training and evaluation, whichever engine was asked for."""
    models = []
    for engine in ("auto", "sequential"):
        task, people = Task(lambda: Around(_branches), seed=1), population((5, 9, 4))
        made = algorithm(LocalSGD(0.1, epochs=1, batch_size=4), Full())
        result = turnout.simulate(task, people, made, 2, plan=Plan(engine=engine, threads=1))
        assert "cannot be mapped over clients" in result.server.task.alone
        assert result.server.plan.engine == "sequential"
        assert np.isfinite(result.clients()["train_loss"]).all()
        models.append(result.model)
    assert torch.equal(*models)


def test_a_scalar_loss_that_is_a_mean_is_that_of_each_sample() -> None:
    """The same bits as a loss a sample, where that is the same function."""
    results = [
        turnout.simulate(
            Task(dropping, loss, seed=1), population(), FedAvg(LocalSGD(0.1, batch_size=4), Full()), 3, plan=ONE
        )
        for loss in (lambda o, t: F.cross_entropy(o, t), lambda o, t: F.cross_entropy(o, t, reduction="none"))
    ]
    assert results[0].server.task.coupled == frozenset()
    torch.testing.assert_close(results[0].model, results[1].model)
    assert results[0].measures["train_loss"] == pytest.approx(results[1].measures["train_loss"])


@pytest.mark.parametrize("engine", ["vectorised", "sequential"])
@pytest.mark.parametrize("more", [{"hidden": None}, {"layers": 2}, {"name": "scores", "others": (None, 1)}])
def test_what_is_no_tensor_in_outputs_couples_nothing(more: dict[str, Any], engine: str) -> None:
    def mean(outputs: Any, targets: Tensor) -> Tensor:
        assert all(outputs[name] == value for name, value in more.items())
        return F.cross_entropy(outputs["scores"], targets)

    made = cohort(lambda: Several(lambda y: {**more, "scores": y}), engine, loss=mean, metrics={})
    assert (made.task.coupled, made.task.alone) == (frozenset(), "")


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_a_cache_in_outputs_couples_nothing() -> None:
    """That of a language model, as it comes."""
    transformers = pytest.importorskip("transformers")
    shape = {"vocab_size": 20, "n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": 2}
    settings = transformers.GPT2Config(**shape, bos_token_id=0, eos_token_id=0)
    tokens = torch.arange(60).view(10, 6) % 20

    def mean(outputs: Any, targets: Tensor) -> Tensor:
        assert outputs.past_key_values is not None
        return F.cross_entropy(outputs.logits.flatten(0, 1), targets.flatten())

    made = Cohort(Task(transformers.GPT2LMHeadModel(settings), mean), {"input_ids": tokens}, tokens, ONE)
    assert made.path(LocalSGD(0.1), ()).name == "vmap"


class Padded(nn.Module):
    """A layer for sequences of different lengths, which has a form of its own in evaluation: rows of each length."""

    def __init__(self, whole: bool) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(5, 8), nn.Linear(8, 3)
        sizes: dict[str, Any] = {"dim_feedforward": 8, "dropout": 0.0, "batch_first": True}
        self.both = nn.Transformer(8, 2, 1, 1, **sizes) if whole else None
        self.encoder = None if whole else nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, **sizes), 1)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        x = self.one(x)
        if self.both is not None:
            seen = self.both(x, x, src_key_padding_mask=padding)
        elif self.encoder is not None:
            seen = self.encoder(x, src_key_padding_mask=padding)
        mean: Tensor = self.two(seen.masked_fill(padding[..., None], 0).mean(1))
        return mean


@pytest.mark.filterwarnings("ignore:There is a performance drop", "ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("engine", ["vectorised", "sequential"])
@pytest.mark.parametrize("whole", [False, True], ids=["encoder", "transformer"])
def test_a_mask_of_padding(whole: bool, engine: str) -> None:
    inputs = {"x": torch.randn(12, 4, 5), "padding": torch.arange(4) >= 1 + torch.arange(12)[:, None] % 4}
    made = Cohort(Task(Padded(whole)), inputs, torch.arange(12) % 3, Plan(engine=engine, threads=1))
    assert made.task.alone == ""
    assert made.task.layer_shapes["two"] == (3,)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_attention_without_dropout_is_the_same_on_every_engine() -> None:
    def model() -> nn.Module:
        def attention(_: Around, x: Tensor) -> Tensor:
            heads = x.view(len(x), 1, 2, 4)
            return F.scaled_dot_product_attention(heads, heads, heads).reshape(len(x), 8)

        made = Around(attention)
        made.dropout.p = 0.0
        return made

    algorithm, people = FedAvg(LocalSGD(0.1, batch_size=4), Full()), population()
    plans = [Plan(engine=engine, precision="float64", threads=1) for engine in ("vectorised", "sequential")]
    results = [turnout.simulate(Task(model, seed=1), people, algorithm, 2, plan=plan) for plan in plans]
    assert [result.server.plan.engine for result in results] == ["vectorised", "sequential"]
    torch.testing.assert_close(results[0].model, results[1].model, rtol=1e-9, atol=1e-12)


def test_layers_that_come_twice_keep_their_own_tensors() -> None:
    again, drop = nn.Linear(5, 5), nn.Dropout(0.5)
    made = cohort(lambda: nn.Sequential(again, drop, again, drop, nn.Linear(5, 3)))
    assert isinstance(made.task.to().initial, Tensor)
    assert not made.task.alone


def test_attention_has_one_form_on_cuda() -> None:
    """That for many clients at once; other settings of the process come back."""
    made, flags = cohort(dropping), torch.backends.cuda
    made.plan = replace(made.plan, device="cuda")
    before = flags.flash_sdp_enabled(), flags.mem_efficient_sdp_enabled(), flags.math_sdp_enabled()
    tf32 = flags.matmul.allow_tf32, torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic
    with made.on_device():
        assert not flags.flash_sdp_enabled() and not flags.mem_efficient_sdp_enabled() and flags.math_sdp_enabled()
    assert before == (flags.flash_sdp_enabled(), flags.mem_efficient_sdp_enabled(), flags.math_sdp_enabled())
    flags.matmul.allow_tf32, torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic = tf32
