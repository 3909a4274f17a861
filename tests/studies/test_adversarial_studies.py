"""The studies of adversarial unavailability: what is measured, whom the shadows look at, and a run of each at its
smallest size."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import turnout_studies as studies
from turnout import LocalSGD, Plan, Population, Task
from turnout.data import load
from turnout.run import shadow
from turnout.task.models import linear
from turnout_studies import adversarial_cifar, adversarial_synthetic
from turnout_studies.adversarial_cifar import lenet5, other_images
from turnout_studies.adversarial_runs import (
    BYZANTINE,
    GUESSING,
    METHODS,
    MIFA,
    NAIVE,
    ROBUST,
    SEARCH,
    SHADOW,
    late_accuracy,
    late_loss,
    method,
    of,
    unrest,
)
from turnout_studies.images import small_digits
from turnout_studies.losses import USELESS
from turnout_studies.study import Measures, Results

CURVES: Measures = {
    "losses": [3.0, 2.0, 1.0, 9.0, 1.0],
    "accuracies": [0.1, 0.2, 0.3, 0.4, 0.5],
    "missing": [0.0, 0.7, 0.8, 0.1],
    "diverged": False,
}


def test_what_follows_from_the_curves() -> None:
    assert late_loss(CURVES) == pytest.approx(3.2)
    assert late_accuracy(CURVES) == pytest.approx(0.3)
    assert unrest(CURVES) == pytest.approx(np.std([USELESS - 1, 1 - USELESS]))
    lost = {**CURVES, "diverged": True}
    assert (late_loss(lost), late_accuracy(lost), unrest(lost)) == (USELESS, GUESSING, USELESS)


def test_a_method_is_judged_at_its_own_learning_rate() -> None:
    """Whom the shadow adversary silences differs from seed to seed, and does not matter here."""
    trial = {"epsilon": 0.5, "adversary": SHADOW, "method": MIFA}
    trials = [
        ({**trial, "lr": lr, "seed": seed, "candidates": [seed]}, {"x": lr * seed})
        for seed in (3, 4)
        for lr in (0.1, 1.0)
    ]
    results = Results("any", "small", [4, 3], {}, {f"0.5 {MIFA}": 1.0}, trials)
    assert of(results, lambda measures: float(measures["x"]), 0.5, SHADOW, MIFA).tolist() == [4.0, 3.0]


def test_only_rates_of_the_fedavg_type_fall() -> None:
    falling, constant = LocalSGD(0.1, steps=2, lr_power=0.5), LocalSGD(0.1, steps=2, momentum=0.9)
    powers = {name: method(name, falling, constant, 0.1, 2).local.lr_power for name in METHODS}  # type: ignore[attr-defined]
    assert {name for name, power in powers.items() if power} == {NAIVE, ROBUST, MIFA}
    assert all(powers[name] == 0 for name in BYZANTINE)


def test_the_network_takes_small_images() -> None:
    assert lenet5()(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


# -- whom the shadows look at ---------------------------------------------------------------------------------


def populations(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> tuple[Population, Population]:
    """Those of the run and of its shadows, as a study makes them of seed 1."""
    seen: list[Population] = []

    def watch(_: object, people: Population, *_args: Any, **_options: Any) -> Any:
        seen.append(people)
        return []

    monkeypatch.setattr(module, "train", watch)
    monkeypatch.setattr(module.shadow, "candidates", watch)
    study = module.STUDY
    carry_out = study.experiment(study.sizes["small"], None, Plan(threads=1))
    carry_out({"epsilon": 0.5, "adversary": "worst_case", "method": ROBUST, "lr": 0.1, "seed": 1})
    carry_out({**SEARCH, "seed": 1})
    return seen[0], seen[1]


def test_shadows_of_images_have_the_same_mixtures_and_other_images(monkeypatch: pytest.MonkeyPatch) -> None:
    run, shadows = populations(adversarial_cifar, monkeypatch)
    same = total = 0
    for client in range(run.size):
        rows, others = run.train.row(client), shadows.train.row(client)
        labels, other_labels = run.targets[rows].tolist(), shadows.targets[others].tolist()
        assert sorted(labels) == sorted(other_labels)
        mine = {tuple(image) for image in run.inputs[rows].tolist()}
        same += sum(tuple(image) in mine for image in shadows.inputs[others].tolist())
        total += len(rows)
    assert same < 0.6 * total  # a class has about as many images as a client may draw of it, with replacement


def test_an_image_is_exchanged_for_another_of_its_class() -> None:
    data = small_digits()
    other = other_images(data, 1)
    assert torch.equal(data.targets, other.targets)
    moved = (data.inputs != other.inputs).any(dim=1)
    assert moved.float().mean() > 0.98
    for label in range(10):
        before, after = (sorted(part.inputs[part.targets == label].tolist()) for part in (data, other))
        assert before == after
    assert not torch.equal(other.inputs, other_images(data, 2).inputs)


def test_shadows_of_synthetic_clients_have_the_same_laws_and_other_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    run, shadows = populations(adversarial_synthetic, monkeypatch)
    assert np.array_equal(run.train.counts, shadows.train.counts)
    assert not set(map(tuple, run.inputs.tolist())) & set(map(tuple, shadows.inputs.tolist()))
    centres, others = (
        np.stack([people.inputs[people.train.row(client)].mean(0).numpy() for client in range(run.size)])
        for people in (run, shadows)
    )
    distances = np.linalg.norm(centres[:, None] - others[None], axis=2)
    assert distances.argmin(axis=1).tolist() == list(range(run.size))
    assert np.diag(distances).max() < 0.2 * np.median(distances)


def test_other_samples_of_the_same_synthetic_clients() -> None:
    """The labels follow the rules of the first data set."""
    data = load("synthetic", clients=6, max_samples=80, test_fraction=0.0, seed=3, sample_seed=4)
    usual = load("synthetic", clients=6, max_samples=80, test_fraction=0.0, seed=3)
    weights, biases = (np.asarray(usual.facts[part]) for part in ("weights", "biases"))
    assert data.groups is not None
    scores = np.einsum("nd,ndc->nc", data.inputs.double().numpy(), weights[data.groups]) + biases[data.groups]
    assert (scores.argmax(axis=1) == data.targets.numpy()).mean() > 0.99  # inputs were rounded
    assert not torch.equal(data.inputs, usual.inputs)
    assert torch.equal(
        usual.inputs, load("synthetic", clients=6, max_samples=80, test_fraction=0.0, seed=3, sample_seed=3).inputs
    )


def test_shadows_find_those_whom_a_look_at_the_run_would_find() -> None:
    """Of 24 clients 8 are found: of unrelated ones 8 in three searches would be right by chance."""
    size = adversarial_synthetic.Size(24, 4, 1, 5, 3, 60, (3, 20), (6, 2))
    carry_out = adversarial_synthetic.STUDY.experiment(size, None, Plan(threads=1))
    right = 0
    for seed in range(3):
        data = load("synthetic", alpha=1.0, beta=1.0, clients=24, max_samples=60, test_fraction=0.0, seed=seed)
        known = shadow.candidates(
            Task(partial(linear, 60, 10), seed=seed),
            Population.of(data, 24, "natural", seed=seed),
            LocalSGD(size.shadow_lr, steps=5, batching="full"),
            first=3,
            last=20,
            by_gradient=6,
            by_momentum=2,
            seed=seed,
            plan=Plan(threads=1),
        )
        right += len(set(known) & set(carry_out({**SEARCH, "seed": seed})["candidates"]))
    assert right >= 16


@pytest.mark.parametrize("module", [adversarial_cifar, adversarial_synthetic])
def test_the_small_size_runs_and_is_read_back(module: ModuleType, tmp_path: Path) -> None:
    study = studies.find(module.STUDY.name)
    results = study.run("small", [0], tmp_path)
    judged = study.judge(study.read(tmp_path))
    assert [one.values for one in judged] == [one.values for one in study.judge(results)]
    assert {one.verdict for one in judged} == {"not judged"}  # the small size decides nothing
    assert all(np.isfinite(one.values).all() for one in judged)
    assert set(results.tuned) == {f"{budget} {method}" for budget, _ in module.ATTACKS for method in METHODS}
    (_, found), *trials = results.trials
    for trial, measures in trials:
        assert trial.get("candidates") == (found["candidates"] if trial["adversary"] == SHADOW else None)
        assert max(measures["missing"]) <= trial["epsilon"] + 1e-6
        assert measures["missing"][0] == 0
        assert max(measures["missing"]) > 0 or trial["epsilon"] == 0.2
    assert {(trial["epsilon"], trial["adversary"]) for trial, _ in trials} == set(module.ATTACKS)
