"""Every model: shape, size, and vmap(grad) against one client at a time; the LSTM against torch's; the norm swap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from turnout.core.errors import UserError
from turnout.task.models import (
    LSTM,
    MODELS,
    batchnorm_to_groupnorm,
    char_lstm,
    cnn_cifar,
    cnn_large,
    cnn_mnist,
    linear,
    mlp,
)


class Case(NamedTuple):
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    outputs: int
    parameters: int


CASES = {
    "linear": Case(lambda: linear(784, 10), (1, 28, 28), 10, 7_850),
    "mlp": Case(lambda: mlp(784, [50], 10), (1, 28, 28), 10, 39_760),
    "cnn_mnist": Case(cnn_mnist, (1, 28, 28), 10, 431_080),
    "cnn_cifar": Case(lambda: cnn_cifar(dropout=0.0), (3, 32, 32), 10, 122_570),
    "cnn_large": Case(cnn_large, (3, 32, 32), 10, 1_626_442),
    "char_lstm": Case(char_lstm, (80,), 100, 135_700),
}
IMAGES = ["linear", "mlp", "cnn_mnist", "cnn_cifar", "cnn_large"]


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def batch(case: Case, *lead: int) -> Tensor:
    if len(case.shape) == 1:
        return torch.randint(case.outputs, (*lead, *case.shape))
    return torch.randn(*lead, *case.shape, dtype=torch.float64)


def test_every_named_model_has_a_case() -> None:
    assert MODELS.keys() == CASES.keys()


@pytest.mark.parametrize("name", CASES)
def test_output_shape_and_parameter_count(name: str) -> None:
    case = CASES[name]
    model = case.make().double()
    assert model(batch(case, 3)).shape == (3, case.outputs)
    assert sum(parameter.numel() for parameter in model.parameters()) == case.parameters


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("error")  # a missing batching rule is only a warning
def test_vmap_grad_equals_one_client_at_a_time(name: str) -> None:
    case = CASES[name]
    models = [case.make().double() for _ in range(3)]
    names = [key for key, _ in models[0].named_parameters()]
    x, y = batch(case, 3, 2), torch.randint(case.outputs, (3, 2))

    def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(models[0], parameters, (x,)), y)

    stacked = {key: torch.stack([model.get_parameter(key).detach() for model in models]) for key in names}
    together = vmap(grad(loss))(stacked, x, y)
    for i, model in enumerate(models):
        F.cross_entropy(model(x[i]), y[i]).backward()
        for key in names:
            torch.testing.assert_close(together[key][i], model.get_parameter(key).grad, rtol=1e-9, atol=1e-12)


def test_dropout_draws_apart_under_vmap_and_rests_in_eval() -> None:
    model = cnn_cifar(dropout=0.5)
    x = torch.randn(2, 3, 32, 32)
    first, second = vmap(model, randomness="different")(torch.stack([x, x]))
    assert not torch.equal(first, second)
    model.eval()
    assert torch.equal(model(x), model(x))


@pytest.mark.parametrize("name", IMAGES)
def test_flat_vectors_equal_images(name: str) -> None:
    model, x = CASES[name].make().double(), batch(CASES[name], 2)
    assert torch.equal(model(x), model(x.flatten(1)))
    assert torch.equal(model(x), model(x.squeeze(1)))


@pytest.mark.parametrize("shape", [(2, 32, 32, 3), (2, 3, 28, 28), (2, 784)])
def test_wrong_inputs_are_one_sentence(shape: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match=r"model: takes samples of shape \(3, 32, 32\)"):
        cnn_cifar()(torch.zeros(shape))


def test_linear_options() -> None:
    assert not torch.cat([p.flatten() for p in linear(13, 1, zero_init=True).parameters()]).any()
    assert [p.shape for p in linear(13, 1, bias=False).parameters()] == [(1, 13)]
    assert linear(1, 1)(torch.randn(5)).shape == (5, 1)
    assert linear(13, 2)(torch.zeros(0, 13)).shape == (0, 2)


def test_mlp_without_hidden_layers_is_linear() -> None:
    assert [p.shape for p in mlp(4, [], 2).parameters()] == [(2, 4), (2,)]


@pytest.mark.parametrize("layers", [1, 2])
def test_lstm_is_torchs_lstm(layers: int) -> None:
    torch.manual_seed(1)
    theirs = nn.LSTM(8, 20, layers, batch_first=True)
    torch.manual_seed(1)
    ours = LSTM(8, 20, layers)
    assert [name for name, _ in ours.named_parameters()] == [name for name, _ in theirs.named_parameters()]
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(mine, other)  # same initialisation from the same seed

    ours, theirs = ours.double(), theirs.double()
    x = torch.randn(3, 80, 8, dtype=torch.float64)
    states, expected = ours(x), theirs(x)[0]
    torch.testing.assert_close(states, expected, rtol=1e-12, atol=1e-13)
    states[:, -1].square().sum().backward()
    expected[:, -1].square().sum().backward()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-10, atol=1e-13)


def normalised() -> Any:
    shared = nn.BatchNorm2d(64)
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 64, 3), shared, nn.Conv2d(64, 64, 3), shared),
        *(
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(64, 20),
            nn.BatchNorm1d(20),
            nn.BatchNorm1d(20, affine=False),
        ),
    )


def test_batchnorm_is_replaced() -> None:
    model = normalised()
    nn.init.normal_(model[0][1].weight)
    converted: Any = batchnorm_to_groupnorm(model.eval())

    assert isinstance(model[0][1], nn.BatchNorm2d)  # the original is untouched
    assert not any(isinstance(layer, _BatchNorm) for layer in converted.modules())

    norm = converted[0][1]
    assert isinstance(norm, nn.GroupNorm) and norm is converted[0][3] and not norm.training
    assert torch.equal(norm.weight, model[0][1].weight) and norm.weight is not model[0][1].weight
    assert converted[4].weight is not None and converted[5].weight is None
    assert not list(converted.buffers())
    x = torch.randn(4, 3, 8, 8)
    torch.testing.assert_close(converted(x)[:1], converted(x[:1]))  # a sample no longer depends on its batch


@pytest.mark.parametrize(
    ("layer", "groups", "expected"),
    [
        (nn.BatchNorm2d(64), 32, 32),
        (nn.BatchNorm2d(32), 32, 16),
        (nn.BatchNorm3d(48), 32, 24),
        (nn.BatchNorm1d(7), 32, 1),
        (nn.BatchNorm1d(8), 32, 1),
        (nn.BatchNorm1d(64), 32, 8),
        (nn.BatchNorm1d(100), 32, 10),
        (nn.BatchNorm1d(1024), 32, 32),
        (nn.BatchNorm2d(1), 32, 1),
        (nn.BatchNorm2d(12), 5, 4),
    ],
)
def test_number_of_groups(layer: nn.Module, groups: int, expected: int) -> None:
    converted = batchnorm_to_groupnorm(layer, groups)
    assert isinstance(converted, nn.GroupNorm) and converted.num_groups == expected


@pytest.mark.parametrize("width", [8, 16, 64])
def test_the_converted_model_learns(width: int) -> None:
    """Ten labels of random points by heart. Of two values a group only the sign of their difference is left, which has
    no slope: one in ten."""
    layers = (nn.Linear(64, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, width), nn.BatchNorm1d(width))
    model = batchnorm_to_groupnorm(nn.Sequential(*layers, nn.ReLU(), nn.Linear(width, 10)))
    x, y = torch.randn(200, 64), torch.arange(200) % 10
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(150):
        optimiser.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimiser.step()
    assert float((model(x).argmax(1) == y).float().mean()) > 0.8


def test_groups_must_be_positive() -> None:
    with pytest.raises(UserError, match="groups: must be at least 1, got 0"):
        batchnorm_to_groupnorm(normalised(), 0)
