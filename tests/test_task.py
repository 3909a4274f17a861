"""Tasks: losses by name against torch, dropout that can be replayed, and the way in and out of a user's module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from turnout import Task, UserError
from turnout.task.dropout import KeyedDropout
from turnout.task.losses import LOSSES
from turnout.task.models import batchnorm_to_groupnorm

CLASSES = torch.tensor([2, 0, 1, 1])
SIGNS = torch.tensor([[1.0], [-1.0], [-1.0], [1.0]])
LOGITS = torch.tensor([[0.3, -1.2, 2.0], [1.5, 0.1, 0.2], [-0.4, 0.9, 1.0], [0.0, 0.0, 0.5]])
SCORES = torch.tensor([[0.4], [0.7], [-2.0], [3.0]])
VALUES = torch.tensor([[0.5, -1.0], [2.0, 0.0], [1.0, 1.0], [0.0, 4.0]])


def margin(outputs: Tensor, targets: Tensor) -> Tensor:
    """Two classes whose scores differ by the output: torch's multi-class hinge, which halves it."""
    return 2 * F.multi_margin_loss(outputs, targets, reduction="none")


TORCH: dict[str, tuple[Tensor, Tensor, Callable[[Tensor, Tensor], Tensor]]] = {
    "cross_entropy": (LOGITS, CLASSES, lambda o, t: F.cross_entropy(o, t, reduction="none")),
    "nll": (LOGITS.log_softmax(1), CLASSES, lambda o, t: F.nll_loss(o, t, reduction="none")),
    "focal": (
        LOGITS,
        CLASSES,
        lambda o, t: (1 - o.softmax(1)[range(4), t]) ** 2 * F.cross_entropy(o, t, reduction="none"),
    ),
    "next_token": (
        LOGITS.expand(4, 4, 3),
        CLASSES.expand(4, 4),
        lambda o, t: F.cross_entropy(o[0, :-1], t[0, 1:]).expand(4),
    ),
    "dice": (  # of a mask
        SCORES,
        (SIGNS > 0).float(),
        lambda o, t: 1 - (2 * o.sigmoid() * t + 1) / (o.sigmoid() + t + 1),
    ),
    "bce": (
        VALUES,
        (VALUES > 0.5).float(),
        lambda o, t: F.binary_cross_entropy_with_logits(o, t, reduction="none").mean(1),
    ),
    "mse": (VALUES, VALUES.flip(0), lambda o, t: F.mse_loss(o, t, reduction="none").mean(1)),
    "hinge": (
        SCORES,
        SIGNS,
        lambda o, t: F.multi_margin_loss(torch.cat([o, -o], 1) / 2, (t[:, 0] < 0).long(), reduction="none") * 2,
    ),
    "squared_hinge": (SCORES, SIGNS, lambda o, t: (1 - o * t).clamp(min=0).square()),
}


class Identity(nn.Module):
    """Outputs are the inputs; one parameter, because a model must have one."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x


@pytest.mark.parametrize("name", LOSSES)
def test_losses_by_name(name: str) -> None:
    outputs, targets, plain = TORCH[name]
    losses = Task(Identity(), name).losses(torch.ones(1), outputs, targets)
    assert losses.shape == (4,)
    assert torch.allclose(losses, plain(outputs, targets).reshape(4))


@pytest.mark.parametrize("name", ["cross_entropy", "nll"])
def test_sequence_losses(name: str) -> None:
    """`[B, T, C]` outputs: a sample's loss is the mean over its steps."""
    outputs = torch.randn(5, 7, 3, generator=torch.Generator().manual_seed(0)).log_softmax(-1)
    targets = torch.arange(35).reshape(5, 7) % 3
    task = Task(Identity(), name)
    plain = torch.stack([F.nll_loss(outputs[i], targets[i]) for i in range(5)])
    assert torch.allclose(task.losses(torch.ones(1), outputs, targets), plain, atol=1e-6)
    right = (outputs.argmax(-1) == targets).float().mean(1)
    assert task.measures(outputs, targets)["accuracy"].equal(right)


def test_accuracies() -> None:
    assert Task(Identity()).measures(LOGITS, CLASSES)["accuracy"].tolist() == [1, 1, 0, 0]
    assert Task(Identity(), "hinge").measures(SCORES, SIGNS)["accuracy"].tolist() == [1, 0, 1, 1]
    assert set(Task(Identity(), "mse").measures(VALUES, VALUES)) == {"loss"}


def test_own_loss_and_metrics() -> None:
    task = Task(Identity(), lambda o, t: (o - t).abs().sum(1), {"worst": lambda o, t: (o - t).abs().amax(1)})
    measured = task.measures(VALUES, torch.zeros(4, 2))
    assert measured["loss"].tolist() == [1.5, 2, 2, 4]
    assert measured["worst"].tolist() == [1, 2, 1, 4]


@pytest.mark.parametrize("bad", [lambda o, t: (o - t).square().mean(), lambda o, t: (o - t).square()])
def test_loss_must_be_one_value_a_sample(bad: Callable[[Tensor, Tensor], Tensor]) -> None:
    with pytest.raises(UserError, match=r"task\.loss: it must return one value a sample, not shape"):
        Task(Identity(), bad).losses(torch.ones(1), VALUES, VALUES)


def test_unknown_loss() -> None:
    with pytest.raises(UserError, match="did you mean cross_entropy"):
        Task(Identity(), "crossentropy")


def test_batchnorm_is_refused() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    with pytest.raises(UserError, match=r"layer 1 is BatchNorm.*turnout\.models\.batchnorm_to_groupnorm\(model\)"):
        Task(model)
    assert Task(batchnorm_to_groupnorm(model)).size == 3 * 4 + 4 + 8


def test_model_without_parameters_is_refused() -> None:
    with pytest.raises(UserError, match="no parameters"):
        Task(nn.ReLU())


@pytest.mark.parametrize(
    ("model", "sentence"), [(lambda: None, "the function given returns NoneType"), ("mlp", "'mlp' is given")]
)
def test_what_is_no_module_is_refused(model: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=f"model: {sentence}; allowed: a torch.nn.Module, or a function"):
        Task(model)


def test_model_that_does_not_fit_the_data() -> None:
    with pytest.raises(UserError, match=r"cannot process an input of shape \(5,\)"):
        Task(nn.Linear(3, 2)).activations(torch.zeros(1, 5))
    assert Task(nn.Sequential(nn.Linear(3, 2), nn.ReLU())).activations(torch.zeros(1, 3)) == 4 * (2 + 2 + 2)


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.last = nn.Embedding(20, 8), nn.Linear(8, 3)

    def forward(self, input_ids: Tensor, mask: Tensor | None = None) -> Tensor:
        scores: Tensor = self.last(self.embedding(input_ids).mean(1))
        return scores


@pytest.mark.parametrize(
    ("model", "sample", "sentence"),
    [
        (Tokens(), {"input_idss": torch.ones(1, 4).long()}, r"\(forward takes input_ids, mask: missing .*'input_ids'"),
        (Tokens(), {"input_ids": torch.ones(1, 4).long(), "masks": torch.ones(1)}, "unexpected keyword .*'masks'"),
        (Tokens(), torch.ones(1, 4).byte(), "uint8 and stay so: tokens are stored in more bits"),
        (nn.Conv2d(1, 2, 3), torch.ones(1, 1, 5, 5).byte(), "uint8; task.prepare=pixels makes numbers"),
        (
            nn.Sequential(nn.Linear(5, 4).bfloat16(), nn.Linear(4, 3)),
            torch.ones(1, 5).bfloat16(),
            r"all trained parameters get engine\.precision, and those given are bfloat16 and float32",
        ),
    ],
    ids=["a name", "another name", "tokens", "images", "precisions"],
)
def test_what_may_be_the_matter_is_said(model: nn.Module, sample: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=f"model: it cannot process an input of shape .*{sentence}"):
        Task(model).activations(sample)


# -- dropout --------------------------------------------------------------------------------------------------


def dropped(x: Tensor, key: int, probability: float = 0.3, layer: type[nn.Module] = nn.Dropout) -> Tensor:
    """The inputs after one dropout layer in training mode."""
    task = Task(nn.Sequential(Identity(), layer(probability)), "mse")
    return task.outputs(torch.ones(1), x, torch.tensor(key))


@pytest.mark.parametrize("probability", [0.1, 0.3, 0.75])
def test_dropout_rate(probability: float) -> None:
    """A share p of the values is 0, the others are divided by 1 - p (5 standard errors)."""
    out = dropped(torch.ones(200, 500), 11, probability)
    share = float((out == 0).double().mean())
    assert abs(share - probability) <= 5 * (probability * (1 - probability) / out.numel()) ** 0.5
    assert torch.allclose(out[out != 0], torch.tensor(1 / (1 - probability)))


def test_dropout_is_off_in_evaluation() -> None:
    task, x = Task(nn.Sequential(Identity(), nn.Dropout(0.5)), "mse"), torch.randn(6, 4)
    assert task.outputs(torch.ones(1), x).equal(x)
    assert not task.outputs(torch.ones(1), x, torch.tensor(1)).equal(x)
    assert task.outputs(torch.ones(1), x).equal(x)


@pytest.mark.parametrize(
    ("layer", "shape"), [(nn.Dropout, (6, 4)), (nn.Dropout2d, (6, 4, 3, 3)), (nn.Dropout, (6, 2, 5))]
)
def test_mask_depends_on_the_key_alone(layer: type[nn.Module], shape: tuple[int, ...]) -> None:
    """The same key gives the same mask to the same rows, whatever padding follows; another key gives another."""
    x = torch.ones(shape)
    mask = dropped(x, 5, 0.5, layer)
    torch.manual_seed(99)  # torch's own generator has no say
    assert dropped(x, 5, 0.5, layer).equal(mask)
    padded = torch.cat([x, torch.zeros(3, *shape[1:])])
    assert dropped(padded, 5, 0.5, layer)[:6].equal(mask)
    assert not dropped(x, 6, 0.5, layer).equal(mask)


def test_channel_dropout_drops_whole_channels() -> None:
    out = dropped(torch.ones(40, 8, 3, 3), 3, 0.5, nn.Dropout2d)
    kept = out.flatten(2).amax(2) > 0
    assert out.flatten(2).amin(2).gt(0).equal(kept)
    assert 0.3 < kept.float().mean() < 0.7


def test_every_layer_draws_its_own_mask() -> None:
    class Two(Identity):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Dropout(0.5), nn.Dropout(0.5)

        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([self.one(x), self.two(x)])

    one, two = Task(Two(), "mse").outputs(torch.ones(1), torch.ones(30, 30), torch.tensor(4))
    assert not one.equal(two)
    assert abs(float(((one > 0) & (two > 0)).float().mean()) - 0.25) < 0.1


def test_neighbouring_keys_and_rows_are_unrelated() -> None:
    """Masks of keys k and k + 1, and of neighbouring rows, agree in half of the places (5 standard errors)."""
    masks = torch.stack([dropped(torch.ones(100, 100), key, 0.5) > 0 for key in (7, 8)])
    for agree in (masks[0] == masks[1], masks[0, 1:] == masks[0, :-1]):
        assert abs(float(agree.double().mean()) - 0.5) <= 5 * 0.5 / agree.numel() ** 0.5


@pytest.mark.parametrize("layer", [nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d])
def test_a_replaced_dropout_looks_like_the_original(layer: type[nn.Module]) -> None:
    """An instance of the same class, with what others read of it; in every place, also where one layer comes twice."""
    twice = layer(0.25, inplace=True)
    task = Task(nn.Sequential(Identity(), twice, nn.Sequential(twice), twice), "mse")
    for made in (task.module[1], task.module[2][0], task.module[3]):  # type: ignore[index]
        assert isinstance(made, layer) and isinstance(made, KeyedDropout)
        assert (made.p, made.inplace) == (0.25, True)
        assert isinstance(made, nn.Dropout) == (layer is nn.Dropout)
    state = torch.get_rng_state()
    task.outputs(torch.ones(1), torch.ones(4, 3, 2, 2, 2), torch.tensor(3))
    assert torch.get_rng_state().equal(state)


def test_a_dropout_of_ones_own_is_left_alone() -> None:
    class Halved(nn.Dropout):
        def forward(self, x: Tensor) -> Tensor:
            return x / 2

    task = Task(nn.Sequential(Identity(), Halved(0.5)), "mse")
    assert task.outputs(torch.ones(1), torch.ones(2, 3), torch.tensor(1)).equal(torch.full((2, 3), 0.5))


def test_all_may_be_dropped() -> None:
    assert dropped(torch.ones(4, 5), 1, 1.0).equal(torch.zeros(4, 5))


def test_layers_left_in_evaluation_mode_stay_so() -> None:
    """A backbone that is to be used as it is; a whole model in evaluation mode, as Hugging Face gives it, trains."""
    x, key = torch.ones(6, 4), torch.tensor(1)
    resting = Task(nn.Sequential(Identity(), nn.Dropout(0.5).eval()), "mse")
    for _ in range(2):  # at the first pass and after an evaluation
        assert resting.outputs(torch.ones(1), x, key).equal(x)
        resting.outputs(torch.ones(1), x)
    assert not Task(nn.Sequential(Identity(), nn.Dropout(0.5)).eval(), "mse").outputs(torch.ones(1), x, key).equal(x)


# -- the user's module ----------------------------------------------------------------------------------------


def test_the_module_given_is_left_alone() -> None:
    model: Any = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5))
    before = model[0].weight.clone()
    task = Task(model)
    task.initial.zero_()
    assert isinstance(model[1], nn.Dropout)
    assert isinstance(task.module[1], KeyedDropout)  # type: ignore[index]
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert model[0].weight.equal(before)


def test_state_dict_round_trip() -> None:
    """Flat parameters out, into a fresh copy of the module by `load_state_dict`: the same outputs, buffers included."""

    class WithBuffer(nn.Sequential):
        offset: Tensor

        def __init__(self) -> None:
            super().__init__(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2))
            self.register_buffer("offset", torch.full((2,), 3.0))

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + self.offset

    task = Task(WithBuffer(), "mse")
    params, x = torch.randn(task.size), torch.randn(5, 3)
    mine = WithBuffer()
    mine.offset.zero_()
    mine.load_state_dict(task.state_dict(params))
    mine.eval()
    assert torch.allclose(mine(x), task.outputs(params, x))
    assert task.layout.flatten(dict(mine.named_parameters())).equal(params)
    again = task.state_dict(params)
    again["0.weight"].zero_()
    assert not task.state_dict(params)["0.weight"].equal(again["0.weight"])  # a copy, not a view


def test_state_dict_of_tied_weights() -> None:
    """A parameter under two names comes out under both: otherwise loading it undoes the training."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
            self.down.weight = self.up.weight

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.down(self.up(x).tanh())
            return out

    task, mine, x = Task(Tied(), "mse"), Tied(), torch.randn(5, 3)
    params = torch.randn(task.size)
    mine.load_state_dict(task.state_dict(params))
    assert torch.allclose(mine(x), task.outputs(params, x))


def test_frozen_parameters_stay_or_are_refused() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    model[0].requires_grad_(False)
    try:
        assert Task(model, "mse").size == 5
    except UserError:
        return


def test_seed_fixes_the_initial_weights() -> None:
    def build() -> nn.Module:
        return nn.Linear(4, 3)

    torch.manual_seed(1)
    state = torch.random.get_rng_state()
    one, again, other = Task(build, seed=1), Task(build, seed=1), Task(build, seed=2)
    assert one.initial.equal(again.initial)
    assert not one.initial.equal(other.initial)
    assert torch.random.get_rng_state().equal(state)  # the user's own randomness is not disturbed
    assert one.initial.equal(Task(build(), seed=5).initial)  # a module keeps the weights it has


def test_precision() -> None:
    task = Task(nn.Linear(4, 3), seed=1).to(dtype=torch.float64)
    assert task.outputs(task.initial, torch.zeros(2, 4, dtype=torch.float64)).dtype == torch.float64


def test_gradient_either_way() -> None:
    """The functional gradient and autograd's are the same, and right."""
    task = Task(nn.Linear(4, 3), "mse")
    x, y = torch.randn(6, 4), torch.randn(6, 3)
    functional = task.gradient(lambda p: task.losses(p, x, y).mean(), task.initial)
    task.vectorised = False
    with torch.no_grad():
        eager = task.gradient(lambda p: task.losses(p, x, y).mean(), task.initial)
    layer = nn.Linear(4, 3)
    layer.load_state_dict(task.state_dict(task.initial))
    F.mse_loss(layer(x), y).backward()
    plain = torch.cat([parameter.grad.flatten() for parameter in layer.parameters() if parameter.grad is not None])
    assert torch.allclose(functional, plain, atol=1e-6)
    assert torch.allclose(eager, plain, atol=1e-6)
