from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from turnout.data import Dataset, load


def fact(data: Dataset, name: str) -> NDArray[Any]:
    return np.asarray(data.facts[name])


SMALL = {
    "synthetic": {"clients": 8, "max_samples": 60},
    "linear_mixture": {"clients": 6, "max_samples": 60, "test_samples": 20, "dims": 10},
    "quadratics": {"clients": 5, "dims": 3},
    "hospitals": {"patients": 200},
    "handwriting": {"writers": 30},
    "sentences": {"speakers": 3, "sentences": 2},
}


@pytest.mark.parametrize("name", list(SMALL))
def test_the_seed_decides_everything(name: str) -> None:
    first, again, other = (load(name, **SMALL[name], seed=seed) for seed in (3, 3, 4))
    assert torch.equal(first.inputs, again.inputs)
    assert torch.equal(first.targets, again.targets)
    assert not torch.equal(first.targets, other.targets)


def test_synthetic_shapes_and_labels() -> None:
    data = load("synthetic", clients=20, max_samples=100)
    assert data.num_classes == 10
    assert data.inputs.shape[1] == 60
    assert data.inputs.dtype == torch.float32
    assert data.targets.dtype == torch.int64
    assert data.groups is not None
    assert data.test_groups is not None
    assert data.test_inputs is not None
    sizes = np.bincount(data.groups) + np.bincount(data.test_groups)
    assert len(sizes) == 20
    assert sizes.min() >= 50
    assert sizes.max() <= 100
    np.testing.assert_array_equal(np.bincount(data.test_groups), np.rint(0.2 * sizes))
    weights, biases = fact(data, "weights")[data.groups], fact(data, "biases")[data.groups]
    scores = np.einsum("nd,ndc->nc", data.inputs.numpy().astype(np.float64), weights) + biases
    assert (scores.argmax(1) == data.targets.numpy()).mean() > 0.999  # inputs are rounded to float32


def test_synthetic_moments() -> None:
    data = load("synthetic", alpha=2.0, beta=3.0, clients=400, dims=5, max_samples=51, test_fraction=0.0)
    assert data.groups is not None
    means = np.stack([data.inputs.numpy()[data.groups == k].mean(0) for k in range(400)])
    assert np.std(means.mean(1)) == pytest.approx(np.sqrt(9 + 1 / 5), rel=0.1)  # B plus the mean of five v
    within = np.mean([data.inputs.numpy()[data.groups == k].var(0, ddof=1) for k in range(400)], axis=0)
    np.testing.assert_allclose(within, np.arange(1, 6) ** -1.2, rtol=0.05)
    assert np.std(fact(data, "weights").mean((1, 2))) == pytest.approx(np.sqrt(4 + 1 / 50), rel=0.1)


def test_synthetic_sizes_are_lognormal() -> None:
    data = load("synthetic", clients=500, dims=1, classes=2, test_fraction=0.0)
    assert data.groups is not None
    assert data.test_inputs is None
    logs = np.log(np.bincount(data.groups) - 50 + 0.5)
    assert logs.mean() == pytest.approx(4, abs=0.3)
    assert logs.std() == pytest.approx(2, abs=0.2)


def test_synthetic_iid_shares_one_rule() -> None:
    weights = fact(load("synthetic", iid=True, **SMALL["synthetic"]), "weights")
    assert (weights == weights[0]).all()
    weights = fact(load("synthetic", **SMALL["synthetic"]), "weights")
    assert not (weights == weights[0]).all()


def test_synthetic_clients_do_not_depend_on_how_many_there_are() -> None:
    few, many = (load("synthetic", clients=n, max_samples=60) for n in (3, 9))
    assert many.groups is not None
    assert torch.equal(few.inputs, many.inputs[torch.from_numpy(many.groups < 3)])


def test_linear_mixture() -> None:
    data = load("linear_mixture", clients=40, dims=20, max_samples=300, test_samples=30)
    assert data.num_classes == 2
    assert data.targets.dtype == torch.int64
    assert data.inputs.dtype == torch.float32
    assert -1 <= data.inputs.min() < -0.9
    assert 0.9 < data.inputs.max() <= 1
    assert data.groups is not None
    assert data.test_groups is not None
    sizes = np.bincount(data.groups)
    assert sizes.min() >= 50
    assert sizes.max() <= 300
    assert np.bincount(data.test_groups).tolist() == [30] * 40
    theta, weights, origin = (fact(data, name) for name in ("components", "weights", "component_of"))
    assert theta.shape == (3, 20)
    assert weights.shape == (40, 3)
    assert origin.shape == data.groups.shape
    np.testing.assert_allclose(weights.sum(1), 1)
    large = np.flatnonzero(sizes > 250)
    for client in large:
        seen = np.bincount(origin[data.groups == client], minlength=3) / sizes[client]
        np.testing.assert_allclose(seen, weights[client], atol=0.12)
    score = np.sum(data.inputs.numpy() * theta[origin], axis=1)
    likely = 1 / (1 + np.exp(-score))
    assert data.targets.double().mean() == pytest.approx(likely.mean(), abs=0.02)
    assert np.corrcoef(likely, data.targets)[0, 1] == pytest.approx(likely.std() / 0.5, abs=0.05)


def test_linear_mixture_hard_gives_one_component_a_client() -> None:
    data = load("linear_mixture", hard=True, clients=30, dims=5, max_samples=60, test_samples=0)
    assert data.test_inputs is None
    assert data.test_groups is None
    assert data.groups is not None
    weights, origin = fact(data, "weights"), fact(data, "component_of")
    assert set(weights.ravel().tolist()) == {0.0, 1.0}
    assert (weights.sum(1) == 1).all()
    assert (weights[data.groups, origin] == 1).all()
    assert len(set(origin.tolist())) == 3


def test_quadratics_know_their_optimum() -> None:
    data = load("quadratics", optima=[0, 1, 2, 3], importance=[0.4, 0.3, 0.2, 0.1])
    assert data.inputs.tolist() == [[1]] * 4
    assert data.targets.tolist() == [[0], [1], [2], [3]]
    assert data.groups is not None
    assert data.groups.tolist() == [0, 1, 2, 3]
    assert data.num_classes is None
    assert fact(data, "optimum") == pytest.approx([1.0])  # client-sampling.md, 4.5
    curved = load("quadratics", optima=[0, 1, 2, 3], importance=[4, 3, 2, 1], curvatures=[1, 2, 0.5, 4])
    assert fact(curved, "optimum") == pytest.approx([4 / 3])  # O19
    assert fact(load("quadratics", optima=[0, 1, 2, 3, 4]), "optimum") == pytest.approx([2.0])


def test_quadratics_gradient_vanishes_at_the_optimum() -> None:
    data = load(
        "quadratics", clients=6, dims=3, curvatures=[1, 2, 3, 4, 5, 6], importance=[6, 5, 4, 3, 2, 1], samples=2
    )
    assert data.inputs.shape == (12, 1)
    assert data.targets.shape == (12, 3)
    theta = torch.tensor(fact(data, "optimum"), requires_grad=True)
    losses = data.inputs[:, 0] / 2 * (theta - data.targets).square().sum(1)
    loss = torch.tensor(fact(data, "importance")) @ losses.view(6, 2).mean(1)
    (gradient,) = torch.autograd.grad(loss, theta)
    assert gradient.abs().max() < 1e-6
    assert loss.item() == pytest.approx(data.facts["optimal_loss"])


def test_hospitals_are_named_and_differ_as_much_as_asked() -> None:
    data, alike = load("hospitals", patients=4000), load("hospitals", patients=4000, differ=0.0)
    assert data.facts["clients"] == ["north", "east", "south", "harbour"]
    assert data.groups is not None and alike.groups is not None
    np.testing.assert_array_equal(np.bincount(data.groups), [1440, 960, 544, 256])
    ill = [data.targets[data.groups == number].double().mean() for number in range(4)]
    assert max(ill) - min(ill) > 0.15
    assert torch.allclose(data.inputs[:, 4:].sum(1), torch.ones(len(data.inputs)))
    ages = [alike.inputs[alike.groups == number, 0].mean() for number in range(4)]
    assert max(ages) - min(ages) < 0.2  # standard deviations


def test_a_writer_has_a_hand() -> None:
    """Without styles the digits are the bundled ones, twice as large; with them, a writer's differ alike."""
    plain, written = load("handwriting", writers=8, style=0.0), load("handwriting", writers=8)
    assert plain.inputs.shape[1:] == (1, 16, 16)
    assert plain.groups is not None
    assert torch.equal(plain.targets, written.targets)
    small = torch.nn.functional.avg_pool2d(plain.inputs, 2).flatten(1)
    known = load("digits", test_fraction=0.0)
    nearest = known.targets[torch.cdist(small, known.inputs).argmin(1)]
    assert (nearest == plain.targets).double().mean() > 0.95
    ink = written.inputs.mean((1, 2, 3)) - plain.inputs.mean((1, 2, 3))
    means = torch.stack([ink[plain.groups == number].mean() for number in range(8)])
    within = torch.stack([ink[plain.groups == number].std() for number in range(8)])
    assert means.std() > 2 * within.mean()


def test_sentences_are_what_speakers_say() -> None:
    data = load("sentences", speakers=3, sentences=4, window=5, test_fraction=0.25)
    letters, texts = str(data.facts["vocabulary"]), data.facts["texts"]
    assert isinstance(texts, list) and len(texts) == 3
    assert data.groups is not None and data.test_groups is not None
    for speaker, text in enumerate(texts):
        assert text.count(".") == 4
        mine = data.targets[data.groups == speaker].tolist() + _held(data, speaker)
        assert "".join(letters[number] for number in mine) == text
    row = 17
    said = "".join(letters[number] for number in data.inputs[row].tolist())
    assert said == texts[0][row - 5 : row]


def _held(data: Dataset, speaker: int) -> list[int]:
    assert data.test_targets is not None and data.test_groups is not None
    return list(data.test_targets[data.test_groups == speaker].tolist())
