"""Any trained model with a memory: what it serves, arrivals, files; oracles 1, 2, 10, 11 and 17, and edge cases."""

from __future__ import annotations

import itertools
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from turnout import Task
from turnout.core.errors import UserError
from turnout.core.random import key, normal, permutation
from turnout.local.neighbours import KNN
from turnout.local.personaliser import KNNPersonaliser
from turnout.task import models


def samples(number: int, count: int, size: int = 4) -> tuple[Tensor, Tensor]:
    inputs = torch.from_numpy(normal(key(0, "test samples", number), count * size)).reshape(count, size).float()
    return inputs, (inputs[:, 0] > 0).long() + (inputs[:, 1] > 0)


def network() -> Any:
    return Task(lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)), seed=1).module


def served(model: nn.Module, inputs: Tensor) -> Tensor:
    with torch.no_grad():
        return model(inputs).softmax(1)


def test_it_serves_the_mixture_of_both() -> None:
    """Oracles 1 and 2, with the keys that the last linear layer is given."""
    model, (inputs, targets), others = network(), samples(1, 80), samples(2, 30)[0]
    personal = KNNPersonaliser(model).fit(inputs, targets)
    assert personal.store is not None
    torch.testing.assert_close(personal.store.keys, model[:2](inputs).detach())
    local = KNN().local(model[:2](inputs).detach(), targets, model[:2](others).detach(), 3)
    for lam, expected in ((0.0, served(model, others)), (1.0, local), (0.3, 0.7 * served(model, others) + 0.3 * local)):
        personal.interpolation = lam
        torch.testing.assert_close(personal.predict_proba(others), expected)
        assert torch.equal(personal.predict(others), personal.predict_proba(others).argmax(1))
    torch.testing.assert_close(personal.predict_proba(others).sum(1), torch.ones(30))


def test_lambda_is_tuned_on_samples_the_memory_does_not_hold() -> None:
    model, (inputs, targets) = network(), samples(1, 50)
    personal = KNNPersonaliser(model, seed=4).fit(inputs, targets)
    order = permutation(key(4, "held back"), 50)
    held, rest = order[:10], np.sort(order[10:])
    local = KNN().local(model[:2](inputs[rest]).detach(), targets[rest], model[:2](inputs[held]).detach(), 3)
    assert personal.held is not None
    torch.testing.assert_close(personal.held.local, local)
    assert torch.equal(personal.held.values, targets[held])
    tuned = KNN().tuned(local, served(model, inputs[held]), targets[held], torch.ones(10, dtype=torch.bool))
    assert personal.interpolation == float(tuned)
    assert len(personal.store or ()) == 50  # afterwards it holds them all


class Undecided(nn.Module):
    """Says 0.5 whatever it sees, and represents a sample by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(1, 2)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x)


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("tune", ["grid", "loglik"])
def test_two_clients_with_opposite_labels(flip: bool, tune: str) -> None:
    """Oracle 10."""
    inputs = torch.cat([torch.linspace(-2, -1, 50), torch.linspace(1, 2, 50)])[:, None]
    targets = ((inputs[:, 0] > 0) ^ flip).long()
    personal = KNNPersonaliser(Undecided(), KNN(tune=tune)).fit(inputs, targets)
    assert personal.interpolation == pytest.approx(0.1 if tune == "grid" else 1.0)
    others = torch.tensor([[-1.55], [1.33], [1.99], [-1.01]])
    assert personal.predict(others).tolist() == [flip, not flip, not flip, flip]


def test_where_the_global_model_is_right_nobody_gains() -> None:
    """Oracle 11: y given x is Bernoulli, the same for all clients, and known to the model; 100 samples a client."""
    model = nn.Linear(1, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[-1.0], [1.0]]))
        model.bias.zero_()
    gains = []
    for client in range(40):
        draws = torch.from_numpy(normal(key(1, "test alike", client), 600)).float().reshape(300, 2)
        inputs = draws[:, :1]
        targets = (torch.special.ndtr(draws[:, 1]) < model(inputs).softmax(1)[:, 1]).long()
        personal = KNNPersonaliser(model).fit(inputs[:100], targets[:100])
        right = [
            (said == targets[100:]).float().mean()
            for said in (personal.predict(inputs[100:]), model(inputs[100:]).argmax(1))
        ]
        gains.append(float(right[0] - right[1]))
    assert -0.03 < np.mean(gains) < 0.005


def test_regression() -> None:
    inputs, _ = samples(1, 60)
    targets = inputs.sum(1, keepdim=True) + 5  # the model is wrong by a constant
    model = nn.Linear(4, 1)
    with torch.no_grad():
        model.weight.fill_(1.0)
        model.bias.zero_()
    personal = KNNPersonaliser(model, KNN(5)).fit(inputs, targets)
    others = samples(2, 40)[0]
    errors = [
        float((said - others.sum(1, keepdim=True) - 5).square().mean())
        for said in (personal.predict(others), model(others).detach())
    ]
    assert errors[0] < errors[1] / 5
    assert personal.predict(others).shape == (40, 1)
    assert personal.interpolation >= 0.7


# -- which representation -------------------------------------------------------------------------------------


class MobileHead(nn.Module):
    """The end of MobileNet-v2: 1280 channels averaged over the image, dropout, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 1280, 3, padding=1), nn.BatchNorm2d(1280), nn.ReLU6())
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).mean((2, 3)))


def test_sizes_of_the_representations_of_the_paper() -> None:
    """Oracle 17: 1280 of MobileNet-v2; of a 2 x 256 LSTM, hidden and cell states of both layers, 1024."""
    images = KNNPersonaliser(MobileHead()).fit(torch.rand(4, 3, 4, 4), torch.arange(4))
    assert images.store is not None
    assert images.store.keys.shape == (4, 1280)
    tokens, text = torch.arange(20).reshape(4, 5), models.char_lstm(hidden=256)
    states = KNNPersonaliser(text, layer="lstm.states").fit(tokens, torch.arange(4))
    assert states.store is not None
    assert states.store.keys.shape == (4, 1024)
    fused = nn.LSTM(8, 256, 2, batch_first=True)
    fused.load_state_dict(text.lstm.state_dict())  # type: ignore[union-attr]
    with torch.no_grad():
        hidden, cell = fused(text.embed(tokens))[1]  # type: ignore[operator]
    torch.testing.assert_close(states.store.keys, torch.cat([hidden[0], cell[0], hidden[1], cell[1]], 1))
    default = KNNPersonaliser(text).fit(tokens, torch.arange(4))
    assert default.store is not None
    torch.testing.assert_close(default.store.keys, hidden[1])


def test_a_layer_by_name_or_computed() -> None:
    model, (inputs, targets) = network(), samples(1, 30)
    for layer in ("0", lambda net, x: net[0](x)):
        personal = KNNPersonaliser(model, layer=layer).fit(inputs, targets)
        assert personal.store is not None
        torch.testing.assert_close(personal.store.keys, model[0](inputs).detach())
    with pytest.raises(UserError, match="the model has no 'nine'; its layers: 0, 1, 2"):
        KNNPersonaliser(model, layer="nine").fit(inputs, targets)
    with pytest.raises(UserError, match="no fully connected layer"):
        KNNPersonaliser(nn.Sequential(nn.Conv1d(4, 3, 1), nn.Flatten())).fit(inputs[:, :, None], targets)


def test_company_and_mode_do_not_change_a_key() -> None:
    """Batch normalisation and dropout are in evaluation mode, and the model is left as it was."""
    model: Any = MobileHead().train()
    model.classifier.eval()
    statistics = model.features[1].running_mean.clone()
    images = torch.rand(9, 3, 4, 4)
    keys = [
        KNNPersonaliser(model, batch_size=size).represent(images[:count], torch.zeros(count).long()).keys[0]
        for size, count in ((1, 1), (9, 9), (4, 9))
    ]
    torch.testing.assert_close(keys[0], keys[1])
    torch.testing.assert_close(keys[0], keys[2])
    assert model.training
    assert not model.classifier.training
    assert torch.equal(model.features[1].running_mean, statistics)


# -- edges ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("capacity", "count"), [(0, 40), (0.0, 40), (None, 0)])
def test_an_empty_memory_leaves_the_global_model_and_warns_once(capacity: float | None, count: int) -> None:
    model, (inputs, targets) = network(), samples(1, 40)
    personal = KNNPersonaliser(model, capacity=capacity).fit(inputs[:count], targets[:count])
    assert personal.interpolation == 0
    for lam in (0.0, 0.5, 1.0):
        personal.interpolation = lam
        if lam:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                said = personal.predict_proba(inputs)
        else:
            with pytest.warns(UserWarning, match="the memory is empty"):
                said = personal.predict_proba(inputs)
        assert torch.equal(said, served(model, inputs))


@pytest.mark.parametrize("knn", [KNN(interpolation=0.7), KNN(interpolation=0.7, fraction=0.0)])
def test_with_nothing_to_hold_back_lambda_is_the_default(knn: KNN) -> None:
    count = 1 if knn.fraction else 20
    inputs, targets = samples(1, count)
    assert KNNPersonaliser(network(), knn).fit(inputs, targets).interpolation == 0.7


@pytest.mark.parametrize("keep", ["random", "balanced", "coreset"])
def test_capacity(keep: str) -> None:
    inputs, targets = samples(1, 60)
    personal = KNNPersonaliser(network(), capacity=0.25, keep=keep).fit(inputs, targets)
    assert personal.store is not None
    assert len(personal.store) == 15
    again = KNNPersonaliser(network(), capacity=15, keep=keep).fit(inputs, targets)
    assert torch.equal(personal.predict_proba(inputs), again.predict_proba(inputs))


def test_a_model_that_has_changed_is_refused() -> None:
    model, (inputs, targets) = network(), samples(1, 40)
    personal = KNNPersonaliser(model)
    with pytest.raises(UserError, match="no memory yet"):
        personal.predict(inputs)
    personal.fit(inputs, targets).predict(inputs)
    with torch.no_grad():
        model[2].bias += 0.1
    for call in (lambda: personal.predict_proba(inputs), lambda: personal.update(inputs, targets)):
        with pytest.raises(UserError, match="has changed since the memory was made"):
            call()


def test_a_sample_that_cannot_be_represented_is_named() -> None:
    inputs, targets = samples(1, 40)
    inputs[17, 2] = torch.inf
    with pytest.raises(UserError, match="key of sample 17 is not finite"):
        KNNPersonaliser(network()).fit(inputs, targets)


@pytest.mark.parametrize("kind", [torch.int32, torch.uint8])
def test_labels_of_any_integer_kind(kind: torch.dtype) -> None:
    inputs, targets = samples(1, 40)
    one, two = (KNNPersonaliser(network()).fit(inputs, each) for each in (targets, targets.to(kind)))
    assert torch.equal(one.predict_proba(inputs), two.predict_proba(inputs))


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (torch.full((40,), 3), "targets: 3 is none of the model's 3 classes"),
        (torch.full((40,), -1), "targets: -1 is none of the model's 3 classes"),
        (torch.zeros(40, 2).long(), r"a memory cannot compare 3 outputs with targets of shape \(2,\)"),
        (torch.zeros(40, 2), r"a memory cannot compare 3 outputs with targets of shape \(2,\)"),
        (torch.zeros(39).long(), "targets: 39 of them for 40 inputs"),
    ],
)
def test_targets_that_do_not_fit_the_model(targets: Tensor, message: str) -> None:
    inputs, labels = samples(1, 40)
    with pytest.raises(UserError, match=message):
        KNNPersonaliser(network()).fit(inputs, targets)
    with pytest.raises(UserError, match=message):
        KNNPersonaliser(network()).fit(inputs, labels).update(inputs, targets)


def test_mistakes() -> None:
    with pytest.raises(UserError, match=r"capacity: 2.5 must be a share"):
        KNNPersonaliser(network(), capacity=2.5)
    with pytest.raises(UserError, match="batch_size: 0 must be at least 1"):
        KNNPersonaliser(network(), batch_size=0)
    with pytest.raises(UserError, match=r"knn.k: 0 must be at least 1"):
        KNN(k=0)


# -- arrivals and files ---------------------------------------------------------------------------------------


def test_arrivals_are_asked_about_before_they_are_remembered() -> None:
    model, (inputs, targets) = network(), samples(1, 40)
    personal = KNNPersonaliser(model).fit(inputs, targets)
    before = personal.held
    assert before is not None
    new_inputs, _ = samples(2, 5)
    flipped = torch.full((5,), 2)
    keys = model[:2](new_inputs).detach()
    asked = KNN().local(model[:2](inputs).detach(), targets, keys, 3)
    personal.update(new_inputs, flipped)
    assert personal.store is not None
    assert personal.held is not None
    assert len(personal.store) == 45
    assert len(personal.held.values) == 9  # a fifth of them
    torch.testing.assert_close(personal.held.local, torch.cat([before.local[-4:], asked]))
    assert personal.interpolation == personal.held.best(KNN())
    held, lam = personal.held, personal.interpolation
    personal.update(new_inputs, flipped, "fifo", retune=False)
    assert personal.held is held
    assert personal.interpolation == lam
    assert len(personal.store) == 45
    torch.testing.assert_close(personal.store.keys[-5:], keys)


@pytest.mark.parametrize(("capacity", "most"), [(50, 10), (40, 0), (0.5, 0), (1.0, 99), (None, 99)])
def test_a_memory_grows_to_its_capacity(capacity: float | None, most: int) -> None:
    """40 samples were there at first, all of them kept where there is room."""
    for arrived, policy in itertools.product((most, most + 1), ("growing", "fifo")):
        personal = KNNPersonaliser(network(), capacity=capacity).fit(*samples(1, 40))
        kept = len(personal.store or ())
        if policy == "growing" and arrived > most and most < 99:
            with pytest.raises(UserError, match=rf"policy: growing .* past capacity {capacity}; use fifo"):
                personal.update(*samples(2, arrived), policy)
        else:
            personal.update(*samples(2, arrived), policy)
            assert len(personal.store or ()) == kept + (arrived if policy == "growing" else 0)


def test_lambda_follows_a_model_that_no_longer_fits() -> None:
    """The labels turn round: the memory must be trusted more, once it has seen enough."""
    model = nn.Linear(4, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[-3.0, 0, 0, 0], [3.0, 0, 0, 0]]))
        model.bias.zero_()
    inputs = samples(1, 600)[0]
    targets = (inputs[:, 0] > 0).long()
    personal = KNNPersonaliser(model).fit(inputs[:100], targets[:100])
    assert personal.interpolation == 0
    for start in range(100, 400, 20):
        personal.update(inputs[start : start + 20], 1 - targets[start : start + 20], "fifo")
    assert personal.interpolation >= 0.7
    assert float((personal.predict(inputs[400:]) == 1 - targets[400:]).float().mean()) > 0.75


def test_a_late_client_starts_from_nothing() -> None:
    model, (inputs, targets) = network(), samples(1, 30)
    personal = KNNPersonaliser(model).fit(inputs[:0], targets[:0])
    personal.update(inputs, targets, "fifo")
    assert len(personal.store or ()) == 0
    personal.update(inputs, targets)
    assert torch.equal(
        personal.predict_proba(inputs), KNNPersonaliser(model).fit(inputs, targets).predict_proba(inputs)
    )


def test_saved_and_loaded(tmp_path: Path) -> None:
    model, (inputs, targets) = network(), samples(1, 40)
    path = tmp_path / "memory.safetensors"
    personal = KNNPersonaliser(model, KNN(4, "gaussian", 2.0)).fit(inputs, targets)
    personal.save(path)
    again = KNNPersonaliser(model).load(path)
    assert again.knn == personal.knn
    assert torch.equal(again.predict_proba(inputs), personal.predict_proba(inputs))
    both: list[Any] = [each.update(*samples(2, 9)) for each in (personal, again)]
    assert both[0].interpolation == both[1].interpolation
    assert torch.equal(both[0].predict_proba(inputs), both[1].predict_proba(inputs))
    others = [replace(personal, layer=layer) for layer in ("0", "", lambda net, x: net[:2](x))]
    for other in (*others, KNNPersonaliser(models.mlp(4, [6], 3))):
        with pytest.raises(UserError, match="has changed since the memory was made"):
            other.load(path)
    for wrong in (tmp_path / "none.safetensors", tmp_path / "text"):
        (tmp_path / "text").write_text("not a memory")
        with pytest.raises(UserError, match="holds no memory that can be read"):
            KNNPersonaliser(model).load(wrong)
