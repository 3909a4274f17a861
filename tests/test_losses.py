"""Losses and metrics against torch's: classes first and last, positions that do not count, options, torch's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import turnout
from turnout import Dataset, FedAvg, LocalSGD, Plan, Population, Task, UserError
from turnout.engine.train import Cohort
from turnout.task.losses import LOSSES, Bce, CrossEntropy, Dice, Focal, NextToken
from turnout.task.metrics import TopK

GENERATOR = torch.Generator().manual_seed(0)
SEQUENCES = torch.randn(6, 7, 4, generator=GENERATOR)  # [B, T, K]
TOKENS = torch.randint(0, 4, (6, 7), generator=GENERATOR)
SOME = torch.where(torch.rand(6, 7, generator=GENERATOR) < 0.4, -100, TOKENS)
SOME[:, 3] = TOKENS[:, 3]  # one counts in each


def each(loss: Callable[[Tensor, Tensor], Tensor], outputs: Tensor, targets: Tensor) -> Tensor:
    """A sample at a time."""
    return torch.stack([loss(outputs[i : i + 1], targets[i : i + 1]) for i in range(len(targets))])


@pytest.mark.parametrize("targets", [TOKENS, SOME], ids=["all count", "some"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_of_sequences(smoothing: float, targets: Tensor) -> None:
    """With classes last, or first as torch wants them."""
    loss = CrossEntropy(smoothing=smoothing)
    expected = each(nn.CrossEntropyLoss(label_smoothing=smoothing), SEQUENCES.mT, targets)
    assert torch.allclose(loss(SEQUENCES, targets), expected, atol=1e-6)
    assert torch.allclose(loss(SEQUENCES.mT, targets), expected, atol=1e-6)


def test_where_classes_may_stand_at_both_places_they_are_last() -> None:
    outputs, targets = torch.randn(2, 3, 3), torch.tensor([[0, 1, 2], [2, 1, 0]])
    assert torch.allclose(CrossEntropy()(outputs, targets), each(nn.CrossEntropyLoss(), outputs.mT, targets))


def test_no_bit_changes_where_all_positions_count() -> None:
    """As it was computed before positions could be left out: the gradient, too."""
    outputs = SEQUENCES.clone().requires_grad_()
    new = CrossEntropy()(outputs, TOKENS)
    old = -F.log_softmax(outputs, -1).gather(-1, TOKENS.unsqueeze(-1)).squeeze(-1).flatten(1).mean(1)
    assert new.equal(old)
    assert torch.autograd.grad(new.sum(), outputs)[0].equal(torch.autograd.grad(old.sum(), outputs)[0])


def test_a_sample_in_which_nothing_counts_has_no_loss() -> None:
    outputs = SEQUENCES.clone().requires_grad_()
    losses = CrossEntropy()(outputs, torch.full((6, 7), -100))
    losses.sum().backward()
    assert outputs.grad is not None
    assert losses.tolist() == [0] * 6 and not outputs.grad.any()


def test_options_of_cross_entropy() -> None:
    """Class weights as torch has them without its mean over the batch; any target may be the one that is ignored."""
    outputs, targets = SEQUENCES[:, 0], TOKENS[:, 0]
    weights = (1.0, 0.5, 2.0, 0.0)
    plain = F.cross_entropy(outputs, targets, torch.tensor(weights), label_smoothing=0.2, reduction="none")
    assert torch.allclose(CrossEntropy(weights=weights, smoothing=0.2)(outputs, targets), plain)
    ignoring = F.cross_entropy(outputs, targets, ignore_index=2, reduction="none")
    assert torch.allclose(CrossEntropy(ignore=2)(outputs, targets), ignoring)
    with pytest.raises(UserError, match=r"task.cross_entropy.weights: 2 numbers, and the model has 4 outputs"):
        CrossEntropy(weights=(1.0, 2.0))(outputs, targets)
    with pytest.raises(UserError, match=r"task.cross_entropy.smoothing: 1.5 must be from 0 to 1"):
        CrossEntropy(smoothing=1.5)


@pytest.mark.parametrize("stored", [torch.uint8, torch.int32])
def test_masks_may_be_stored_as_small_numbers(stored: torch.dtype) -> None:
    """Where 255 says that a pixel does not count, as many datasets have it."""
    outputs, targets = torch.randn(2, 3, 4, 5), torch.randint(0, 3, (2, 4, 5))
    targets[:, 1] = 255
    assert CrossEntropy(ignore=255)(outputs, targets.to(stored)).equal(CrossEntropy(ignore=255)(outputs, targets))
    mask = (targets == 1).long()
    for given in (mask.to(stored), mask.float()):
        assert Dice()(outputs[:, :1], given).equal(Dice()(outputs[:, :1], mask))
        metric = Task(nn.Linear(1, 1), "dice").metrics["accuracy"]
        assert metric(outputs[:, :1], given).equal(metric(outputs[:, :1], mask))


def test_focal() -> None:
    outputs, targets = SEQUENCES[:, 0].double(), TOKENS[:, 0]
    plain = F.cross_entropy(outputs, targets, reduction="none")
    assert torch.allclose(Focal(gamma=0.0)(outputs, targets), plain)
    assert torch.allclose(Focal(gamma=3.0)(outputs, targets), (1 - torch.exp(-plain)) ** 3 * plain)
    weights = torch.tensor([1.0, 0.5, 2.0, 0.0]).double()
    weighted = Focal(gamma=0.0, weights=tuple(weights.tolist()))(outputs, targets)
    assert torch.allclose(weighted, plain * weights[targets])


def test_next_token() -> None:
    expected = each(nn.CrossEntropyLoss(), SEQUENCES[:, :-1].mT, SOME[:, 1:])
    assert torch.allclose(NextToken()(SEQUENCES, SOME), expected)
    accuracy = Task(nn.Linear(1, 1), "next_token").metrics["accuracy"](SEQUENCES, SOME)
    for i in range(6):
        right = (SEQUENCES[i, :-1].argmax(-1) == SOME[i, 1:])[SOME[i, 1:] != -100]
        assert float(accuracy[i]) == pytest.approx(float(right.float().mean()))


def test_dice() -> None:
    """Of classes and of a mask, by hand; positions of -100 count in no sum."""
    outputs, targets = torch.randn(2, 3, 4, 5), torch.randint(0, 3, (2, 4, 5))
    targets[0, 0] = -100
    chances, expected = outputs.softmax(1), []
    for i in range(2):
        kept, parts = targets[i] != -100, []
        for k in range(3):
            p, y = chances[i, k][kept], (targets[i][kept] == k).float()
            parts.append((2 * (p * y).sum() + 1) / (p.sum() + y.sum() + 1))
        expected.append(1 - torch.stack(parts).mean())
    assert torch.allclose(Dice()(outputs, targets), torch.stack(expected))
    assert torch.allclose(Dice()(outputs.movedim(1, -1), targets), torch.stack(expected))
    mask = (targets == 1).long()
    p, y = outputs[:, 0].sigmoid().flatten(1), mask.flatten(1)
    soft = 1 - (2 * (p * y).sum(1) + 0.5) / (p.sum(1) + y.sum(1) + 0.5)
    for shaped in (outputs[:, :1], outputs[:, 0]):
        assert torch.allclose(Dice(smooth=0.5)(shaped, mask), soft)
    assert (
        Task(nn.Linear(1, 1), "dice")
        .metrics["accuracy"](outputs[:, :1], mask)
        .allclose(((outputs[:, 0] > 0) == mask).float().flatten(1).mean(1))
    )


def test_bce() -> None:
    outputs, labels = torch.randn(5, 3), torch.randint(0, 2, (5, 3))
    weights = torch.tensor([1.0, 2.0, 0.5])
    plain = F.binary_cross_entropy_with_logits(outputs, labels.float(), pos_weight=weights, reduction="none").mean(1)
    assert torch.allclose(Bce(weights=(1.0, 2.0, 0.5))(outputs, labels), plain)
    right = ((outputs > 0) == labels).float().mean(1)
    assert Task(nn.Linear(1, 1), "bce").metrics["accuracy"](outputs, labels).equal(right)


@pytest.mark.parametrize("name", LOSSES)
def test_losses_can_be_mapped_over_clients(name: str) -> None:
    outputs, targets = torch.randn(3, 5, 6, 4), torch.randint(0, 4, (3, 5, 6))
    if not issubclass(LOSSES[name], CrossEntropy | Dice | Focal | LOSSES["nll"]):
        targets = torch.randn(3, 5, 6, 4)
    mapped = torch.vmap(LOSSES[name]())(outputs, targets)
    assert torch.allclose(mapped, torch.stack([LOSSES[name]()(o, t) for o, t in zip(outputs, targets, strict=True)]))


CHAINED, MAPPED = nn.Linear(5, 3), nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))


def trained(model: nn.Module, loss: Any, inputs: Tensor, targets: Tensor) -> turnout.Result:
    rows = turnout.Ragged(np.array([0, 10, len(inputs)]), np.arange(len(inputs)))
    work = FedAvg(LocalSGD(0.1, batch_size=4), turnout.Full())
    return turnout.simulate(Task(model, loss), Population(inputs, targets, rows), work, 1, plan=Plan(threads=1))


@pytest.mark.parametrize("engine", ["auto", "sequential"])
@pytest.mark.parametrize("loss", ["cross_entropy", "nll", "focal", nn.CrossEntropyLoss(), nn.NLLLoss()])
@pytest.mark.parametrize("model", [CHAINED, MAPPED], ids=["chain", "vmap"])
def test_classes_are_whole_numbers(model: nn.Module, loss: Any, engine: str) -> None:
    """Numbers between two classes are none, and so are those that happen to be whole."""
    for targets in (KINDS.float(), KINDS + 0.7):
        with pytest.raises(UserError, match=r"task\.loss: it cannot compare .*(whole numbers|Long)") as refused:
            Cohort(Task(model, loss), INPUTS, targets, Plan(engine=engine, threads=1))
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize("model", [CHAINED, MAPPED], ids=["chain", "vmap"])
def test_false_and_true_are_two_classes(model: nn.Module) -> None:
    kinds = KINDS > 0
    said, meant = (trained(model, "cross_entropy", INPUTS, targets) for targets in (kinds, kinds.long()))
    assert said.server.paths[0]["name"] == ("chain" if model is CHAINED else "vmap")
    assert torch.equal(said.model, meant.model)


def test_classes_that_do_not_count_are_said() -> None:
    """One target a sample is left out where the user says so; it is never a class."""
    targets = torch.where(torch.arange(40) == 7, -100, KINDS)
    with pytest.raises(UserError, match=r"some are -100; say with task\.cross_entropy\.ignore=-100"):
        trained(CHAINED, "cross_entropy", INPUTS, targets)
    task = examined(CrossEntropy(ignore=-100), CHAINED, INPUTS, targets)
    assert float(task.loss(task.outputs(task.initial, INPUTS), targets)[7]) == 0


def test_top_k() -> None:
    outputs, targets = SEQUENCES[:, 0], TOKENS[:, 0]
    best = outputs.topk(2).indices
    task = Task(nn.Linear(1, 1), metrics=["accuracy", TopK(2)])
    assert task.metrics["top_k"](outputs, targets).tolist() == (best == targets[:, None]).any(1).float().tolist()
    assert list(Task(nn.Linear(1, 1), metrics="top_k").metrics) == ["top_k"]
    with pytest.raises(UserError, match=r"task.metrics: unknown name 'recall'"):
        Task(nn.Linear(1, 1), metrics="recall")
    with pytest.raises(UserError, match="accuracy is for losses of classes or labels"):
        Task(nn.Linear(1, 1), "mse", metrics="accuracy")


# -- torch's own losses, and the user's -------------------------------------------------------------------------


def examined(loss: Any, model: nn.Module, inputs: Tensor, targets: Tensor, **options: Any) -> Task:
    task = Task(model, loss, **options)
    task.examine(inputs, targets)
    return task


class Transposed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mT


INPUTS = torch.randn(40, 5, generator=GENERATOR)
KINDS = torch.arange(40) % 3
LABELS = (INPUTS[:, :3] > 0).float()
STEPS = torch.randn(40, 7, 5, generator=GENERATOR)
ROWS = torch.arange(280).view(40, 7) % 3
HOLES = torch.where(torch.arange(280).view(40, 7) % 4 == 0, -100, ROWS)
WEIGHTS = torch.tensor([1.0, 2.0, 0.5])


def own(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets)


@pytest.mark.parametrize(
    ("loss", "model", "inputs", "targets", "metrics", "coupled"),
    [
        (nn.CrossEntropyLoss(), nn.Linear(5, 3), INPUTS, KINDS, ["accuracy"], False),
        (nn.CrossEntropyLoss(label_smoothing=0.1), nn.Linear(5, 3), INPUTS, KINDS, ["accuracy"], False),
        (nn.CrossEntropyLoss(WEIGHTS), nn.Linear(5, 3), INPUTS, KINDS, ["accuracy"], True),
        (nn.CrossEntropyLoss(), nn.Sequential(nn.Linear(5, 3), Transposed()), STEPS, ROWS, ["accuracy"], False),
        (nn.CrossEntropyLoss(), nn.Sequential(nn.Linear(5, 3), Transposed()), STEPS, HOLES, ["accuracy"], True),
        (own, nn.Sequential(nn.Linear(5, 3), Transposed()), STEPS, HOLES, ["accuracy"], True),
        (nn.CrossEntropyLoss(), nn.Linear(5, 3), INPUTS, LABELS, [], False),  # probabilities
        (nn.BCEWithLogitsLoss(pos_weight=WEIGHTS), nn.Linear(5, 3), INPUTS, LABELS, ["accuracy"], False),
        (nn.MSELoss(), nn.Linear(5, 3), INPUTS, LABELS, [], False),
        (own, nn.Linear(5, 3), INPUTS, KINDS, ["accuracy"], False),
        (own, nn.Linear(5, 3), INPUTS, LABELS, [], False),
    ],
    ids=[
        "classes",
        "smoothing",
        "class weights",
        "rows",
        "rows with holes",
        "own, rows with holes",
        "probabilities",
        "labels",
        "numbers",
        "own",
        "own of labels",
    ],
)
def test_losses_of_torch_mean_what_they_mean(
    loss: Any, model: nn.Module, inputs: Tensor, targets: Tensor, metrics: list[str], coupled: bool
) -> None:
    task = examined(loss, model, inputs, targets)
    outputs = task.outputs(task.initial, inputs)
    assert ("loss" in task.coupled) == coupled
    assert float(task.loss(outputs, targets).mean()) == pytest.approx(float(loss(outputs, targets)), rel=1e-5)
    assert list(task.metrics) == metrics
    if metrics and targets.is_floating_point():
        assert task.metrics["accuracy"](outputs, targets).allclose(((outputs > 0) == (targets > 0)).float().mean(1))
    elif metrics and targets.ndim == 1:
        assert task.metrics["accuracy"](outputs, targets).equal((outputs.argmax(1) == targets).float())


def test_what_is_ignored_late_in_long_sequences_couples() -> None:
    """A single ignored position among many, in a sample that would not be looked at."""
    rows = torch.arange(300 * 90).view(300, 90) % 3
    rows[7, 80] = -100
    model = nn.Sequential(nn.Linear(2, 3), Transposed())
    assert examined(nn.CrossEntropyLoss(), model, torch.randn(300, 90, 2), rows).coupled == {"loss"}


def test_a_users_metrics_stay_theirs() -> None:
    def mine(outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs[:, 0] * targets

    assert list(examined(own, nn.Linear(5, 3), INPUTS, KINDS, metrics={"mine": mine}).metrics) == ["mine"]
    assert not examined(own, nn.Linear(5, 3), INPUTS, KINDS, metrics={}).metrics


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("weighted", [False, True])
def test_training_with_a_loss_of_torch_is_a_plain_loop(weighted: bool, precision: str) -> None:
    """Its numbers come along in the precision of the model."""
    loss = nn.CrossEntropyLoss(WEIGHTS if weighted else None, label_smoothing=0.1)
    people = Population.of(Dataset("toy", INPUTS, KINDS, 3), 4, seed=1, test_fraction=0)
    work = LocalSGD(0.3, steps=2, batching="full")
    model = nn.Linear(5, 3)
    task = Task(model, loss)
    plan = Plan(precision=precision, threads=1)
    result = turnout.simulate(task, people, FedAvg(work, turnout.Full()), 1, plan=plan)
    dtype = getattr(torch, precision)
    total = torch.zeros(18, dtype=dtype)
    for client in range(4):
        net = nn.Linear(5, 3)
        net.load_state_dict(model.state_dict())
        net.to(dtype)
        rows = torch.as_tensor(people.train.row(client))
        for _ in range(2):
            value = nn.CrossEntropyLoss(loss.weight, label_smoothing=0.1).to(dtype)(
                net(INPUTS[rows].to(dtype)), KINDS[rows]
            )
            gradients = torch.autograd.grad(value, list(net.parameters()))
            with torch.no_grad():
                for parameter, gradient in zip(net.parameters(), gradients, strict=True):
                    parameter.sub_(gradient, alpha=0.3)
        total = total + float(people.train.counts[client] / 40) * torch.cat(
            [p.detach().flatten() for p in net.parameters()]
        )
    close = 5e-6 if precision == "float32" else 1e-9
    assert float((result.model - total).abs().max()) < close
    assert "test_accuracy" in result.measures or "train_accuracy" in result.measures
    assert np.isfinite(list(result.measures.values())).all()
