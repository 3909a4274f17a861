"""Measures of a whole set against scikit-learn's, client by client, whatever computes: with padding, weights, positions
that do not count, and clients that lack a class."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics as sk
from torch import Tensor, nn

import turnout
from in_process import shared_work
from support import SIZES, local, mlp, population
from turnout import ArrayTask, Evaluation, FedAvg, Plan, Population, PythonWork, Stopping, Task, UserError
from turnout.core import trees
from turnout.core.statistics import lower_is_better
from turnout.engine.evaluate import distribution
from turnout.local import Adam
from turnout.task.set_metrics import SETS
from turnout.tasks import Auc, CalibrationError

Array = np.ndarray[Any, Any]
CLOSE = 1e-6
pytestmark = pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true")


def ovr(truth: Array, chances: Array, weight: Array | None, score: Callable[..., float]) -> float:
    """One class against the rest; nan where one is missing."""
    if len(np.unique(truth)) < chances.shape[1]:
        return math.nan
    each = [score(truth == k, chances[:, k], sample_weight=weight) for k in range(chances.shape[1])]
    return float(np.mean(each))


def calibration(truth: Array, chances: Array, bins: int = 15) -> float:
    sure, right = chances.max(1), chances.argmax(1) == truth
    places = np.minimum((sure * bins).astype(int), bins - 1)
    gaps = [abs(right[places == b].mean() - sure[places == b].mean()) * (places == b).mean() for b in set(places)]
    return float(sum(gaps))


# (truth [m], chances [m, K], weight) -> a number
OF_CLASSES: dict[str, Callable[[Array, Array, Array | None], float]] = {
    "balanced_accuracy": lambda y, p, w: sk.balanced_accuracy_score(y, p.argmax(1), sample_weight=w),
    "f1_macro": lambda y, p, w: sk.f1_score(y, p.argmax(1), average="macro", sample_weight=w),
    "f1_micro": lambda y, p, w: sk.f1_score(y, p.argmax(1), average="micro", sample_weight=w),
    "f1_weighted": lambda y, p, w: sk.f1_score(y, p.argmax(1), average="weighted", sample_weight=w),
    "subset_accuracy": lambda y, p, w: sk.accuracy_score(y, p.argmax(1), sample_weight=w),
    "auc": lambda y, p, w: ovr(y, p, w, sk.roc_auc_score),
    "average_precision": lambda y, p, w: ovr(y, p, w, sk.average_precision_score),
    "log_loss": lambda y, p, w: sk.log_loss(y, p, labels=range(p.shape[1]), sample_weight=w),
    "brier": lambda y, p, w: sk.brier_score_loss(y, p, labels=range(p.shape[1]), sample_weight=w),
    "perplexity": lambda y, p, w: math.exp(sk.log_loss(y, p, labels=range(p.shape[1]), sample_weight=w)),
    "dice_score": lambda y, p, w: sk.f1_score(y, p.argmax(1), average="macro", sample_weight=w),
    "iou": lambda y, p, w: sk.jaccard_score(y, p.argmax(1), average="macro", sample_weight=w),
}
NAMES = [*OF_CLASSES, "calibration_error"]


def of_client(people: Population, outputs: Tensor, client: int) -> tuple[Array, Array]:
    """What is right of a client's test samples, and what the model says of them."""
    assert people.test is not None
    rows = people.test.row(client)
    return people.targets[rows].numpy(), torch.softmax(outputs[rows].double(), 1).numpy()


def check_classes(found: dict[str, Array], people: Population, outputs: Callable[[int], Tensor]) -> None:
    """Compare every client's test measures with scikit-learn's."""
    for client in people.ids.tolist():
        truth, chances = of_client(people, outputs(client), client)
        for name, score in OF_CLASSES.items():
            expected = score(truth, chances, None)
            assert found[f"test_{name}"][client] == pytest.approx(expected, abs=CLOSE, nan_ok=True), name
        assert found["test_calibration_error"][client] == pytest.approx(calibration(truth, chances), abs=CLOSE)


def python_step(arrays: Any, inputs: Array, targets: Array, _key: np.random.Generator) -> tuple[Any, int]:
    return {"coef": arrays["coef"] + 0.3 * inputs.T @ np.eye(3)[targets] / len(inputs)}, len(inputs)


PATHS: dict[str, Callable[[], turnout.Experiment]] = {
    "chain": lambda: _experiment(lambda: nn.Linear(5, 3), FedAvg(local())),
    "vmap": lambda: _experiment(mlp, FedAvg(local(optimiser=Adam()))),
    "threads": lambda: _experiment(mlp, FedAvg(local()), Plan(threads=1, engine="sequential")),
    "float64": lambda: _experiment(mlp, FedAvg(local()), Plan(threads=1, precision="float64")),
    "python": lambda: _experiment(None, FedAvg(PythonWork(python_step))),
}


def _experiment(model: Any, method: Any, plan: Plan | None = None, **options: Any) -> turnout.Experiment:
    if model is None:
        metrics: Any = {name: SETS[name]() for name in NAMES}
        task: Task = ArrayTask({"coef": np.ones((5, 3))}, lambda arrays, x: x @ arrays["coef"], metrics=metrics)
    else:
        task = Task(model, seed=3, metrics=NAMES)
    evaluation = Evaluation(rounds=None)
    people = options.pop("people", None) or population()
    return turnout.Experiment(task, people, method, 5, Stopping(2), evaluation, plan or Plan(threads=1), **options)


@pytest.mark.parametrize("path", PATHS)
def test_every_path_measures_as_scikit_learn_does(path: str) -> None:
    """Clients of 1 to 25 samples: those of few lack a class."""
    experiment = PATHS[path]()
    result = turnout.execute(experiment)
    outputs = result.server.task.outputs(result.model, experiment.population.inputs.to(result.model.dtype))
    check_classes(result.clients(), experiment.population, lambda _: outputs)
    people = experiment.population
    lacking = [len(people.targets[people.train.row(client)].unique()) < 3 for client in people.ids]
    assert np.isnan(result.clients()["test_auc"]).tolist() == lacking
    assert any(lacking) and not all(lacking)
    assert result.measures["test_auc_undefined"] == sum(lacking)
    defined = ~np.array(lacking)
    weights = np.array(SIZES)[defined]
    expected = np.average(result.clients()["test_auc"][defined], weights=weights)
    assert result.measures["test_auc"] == pytest.approx(expected, abs=1e-12)


def test_workers_elsewhere_measure_the_same() -> None:
    here = turnout.execute(PATHS["vmap"]())
    with shared_work(2):
        there = turnout.execute(PATHS["vmap"]())
    assert there.measures == pytest.approx(here.measures, abs=CLOSE, nan_ok=True)


@pytest.mark.parametrize("engine", ["vectorised", "sequential"])
def test_models_of_clients_own_are_measured_without_their_padding(engine: str) -> None:
    """Of clients computed together, those with fewer samples are padded: what functions are given has none of it."""
    given: dict[bytes, Array] = {}

    def gather(outputs: Any, targets: Tensor) -> float:
        given[targets.numpy().tobytes()] = outputs.numpy().copy()
        return float(len(targets))

    experiment = _experiment(mlp, turnout.algorithms.Ditto(local()), Plan(threads=1, engine=engine))
    experiment.task = Task(mlp, seed=3, metrics=[*(SETS[name]() for name in NAMES), gather])
    result = turnout.execute(experiment)
    people = experiment.population
    assert result.clients()["test_gather"].tolist() == list(SIZES)

    def outputs(client: int) -> Tensor:
        rows = people.test.row(client)  # type: ignore[union-attr]
        whole = torch.zeros(len(people.targets), 3)
        whole[rows] = torch.from_numpy(given[people.targets[rows].numpy().tobytes()])
        return whole

    check_classes(result.clients(), people, outputs)


# -- what else a model may say ----------------------------------------------------------------------------------


def measured(loss: Any, outputs: Tensor, targets: Any, *names: Any) -> dict[str, float]:
    """Measure a model that gives its inputs, on one client."""
    whole = Task(nn.Linear(1, 1), loss=loss, metrics=list(names)).sets.checked(outputs, targets)
    halves = [slice(0, len(outputs) // 2), slice(len(outputs) // 2, None)]
    both = [(trees.at(outputs, half), trees.at(targets, half)) for half in halves]
    return whole.measured([whole.part(*half) for half in both])


DRAW = torch.Generator().manual_seed(1)
SCORES = torch.randn(40, 2, generator=DRAW)
BINARY = (torch.rand(40, generator=DRAW) < 0.4).long()
WEIGHTS = torch.rand(40, generator=DRAW) + 0.1


@pytest.mark.parametrize("loss", ["cross_entropy", "nll", "focal", "bce", "hinge", nn.BCELoss(), nn.CrossEntropyLoss()])
@pytest.mark.parametrize("weigh", [False, True])
def test_two_classes_however_they_are_said(loss: Any, weigh: bool) -> None:
    """Two outputs, one logit, a probability or a margin; a dictionary of targets weighs samples."""
    two = loss in ("cross_entropy", "nll", "focal") or isinstance(loss, nn.CrossEntropyLoss)
    outputs = SCORES if two else SCORES[:, 1:] - SCORES[:, :1]
    if loss == "nll":
        outputs = torch.log_softmax(outputs, 1)
    if isinstance(loss, nn.BCELoss):
        outputs = torch.sigmoid(outputs)
    labels = BINARY if two else BINARY.float()[:, None]
    targets: Any = 2 * labels - 1 if loss == "hinge" else labels
    weight = WEIGHTS.numpy() if weigh else None
    if weigh:
        targets = {"y": targets, "weight": WEIGHTS}
    names = ["auc", "average_precision", "f1", "f1_macro", "balanced_accuracy", "iou", "dice_score"]
    if loss != "hinge":
        names += ["log_loss", "brier"]
    found = measured(loss, outputs, targets, *names)
    truth, chance = BINARY.numpy(), torch.softmax(SCORES.double(), 1)[:, 1].numpy()
    said = chance > 0.5
    expected = {
        "auc": sk.roc_auc_score(truth, chance, sample_weight=weight),
        "average_precision": sk.average_precision_score(truth, chance, sample_weight=weight),
        "f1": sk.f1_score(truth, said, sample_weight=weight),
        "f1_macro": sk.f1_score(truth, said, average="macro", sample_weight=weight),
        "balanced_accuracy": sk.balanced_accuracy_score(truth, said, sample_weight=weight),
        "iou": sk.jaccard_score(truth, said, sample_weight=weight),
        "dice_score": sk.f1_score(truth, said, sample_weight=weight),
        "log_loss": sk.log_loss(truth, chance, sample_weight=weight),
        "brier": sk.brier_score_loss(truth, chance, sample_weight=weight),
    }
    assert found == pytest.approx({name: expected[name] for name in names}, abs=CLOSE)


def test_with_a_loss_of_ones_own() -> None:
    """Whole targets are classes or labels, others numbers; what a model's own loss means of sequences is not known."""
    logit, loss = SCORES[:, 1:] - SCORES[:, :1], lambda _outputs, targets: targets.float()
    expected = sk.roc_auc_score(BINARY, logit[:, 0])
    assert measured(loss, SCORES, BINARY, "auc")["auc"] == pytest.approx(expected, abs=CLOSE)
    assert measured(loss, logit, BINARY, "auc")["auc"] == pytest.approx(expected, abs=CLOSE)
    assert measured(loss, logit, BINARY.float(), "mae")["mae"] == pytest.approx(
        sk.mean_absolute_error(BINARY, logit), abs=CLOSE
    )
    with pytest.raises(UserError, match="of which position outputs are is not known"):
        measured("model", torch.randn(4, 3, 5), torch.zeros(4, 3, dtype=torch.long), "perplexity")


def test_several_labels() -> None:
    scores = torch.randn(30, 4, generator=DRAW)
    labels = (torch.rand(30, 4, generator=DRAW) < 0.4).float()
    names = ["subset_accuracy", "f1_micro", "f1_macro", "auc", "average_precision"]
    found = measured("bce", scores, labels, *names)
    truth, said, chances = labels.numpy(), (scores > 0).numpy(), torch.sigmoid(scores).numpy()
    expected = [
        sk.accuracy_score(truth, said),
        sk.f1_score(truth, said, average="micro"),
        sk.f1_score(truth, said, average="macro"),
        sk.roc_auc_score(truth, chances),
        sk.average_precision_score(truth, chances),
    ]
    assert found == pytest.approx(dict(zip(names, expected, strict=True)), abs=CLOSE)


@pytest.mark.parametrize("weigh", [False, True])
def test_numbers(weigh: bool) -> None:
    says, truth = torch.randn(20, 2, generator=DRAW), torch.randn(20, 2, generator=DRAW)
    weight = WEIGHTS[:20] if weigh else None
    found = measured("mse", says, truth if weight is None else {"y": truth, "weight": weight}, "mae", "rmse", "r2")
    options = {"sample_weight": None if weight is None else weight.numpy()}
    expected = {
        "mae": sk.mean_absolute_error(truth, says, **options),
        "rmse": sk.root_mean_squared_error(truth, says, **options),
        "r2": sk.r2_score(truth, says, **options),
    }
    assert found == pytest.approx(expected, abs=CLOSE)


@pytest.mark.parametrize("loss", ["cross_entropy", "next_token"])
def test_positions_that_do_not_count_are_left_out(loss: str) -> None:
    outputs = torch.randn(6, 7, 4, generator=DRAW)
    targets = torch.randint(0, 4, (6, 7), generator=DRAW)
    targets[:, 4:] = -100  # padding
    found = measured(loss, outputs, targets, "perplexity", "f1_macro", "auc")
    if loss == "next_token":
        outputs, targets = outputs[:, :-1], targets[:, 1:]
    kept = targets != -100
    truth, chances = targets[kept].numpy(), torch.softmax(outputs[kept].double(), 1).numpy()
    expected = {
        "perplexity": math.exp(sk.log_loss(truth, chances, labels=range(4))),
        "f1_macro": sk.f1_score(truth, chances.argmax(1), average="macro"),
        "auc": ovr(truth, chances, None, sk.roc_auc_score),
    }
    assert found == pytest.approx(expected, abs=CLOSE)


@pytest.mark.parametrize("loss", ["dice", "bce"])
def test_masks_are_two_classes_of_positions(loss: str) -> None:
    outputs = torch.randn(5, 1, 4, 4, generator=DRAW)
    mask = (torch.rand(5, 1, 4, 4, generator=DRAW) < 0.3).float()
    found = measured(loss, outputs, mask, "iou", "dice_score")
    truth, said = mask.flatten().numpy(), (outputs > 0).flatten().numpy()
    expected = {"iou": sk.jaccard_score(truth, said), "dice_score": sk.f1_score(truth, said)}
    assert found == pytest.approx(expected, abs=CLOSE)


def test_what_a_set_lacks() -> None:
    """Undefined, or left out of the mean over classes where that is asked for."""
    scores, targets = torch.randn(20, 3, generator=DRAW), torch.arange(20) % 2  # class 2 is missing
    chances = torch.softmax(scores.double(), 1).numpy()
    assert math.isnan(measured("cross_entropy", scores, targets, "auc")["auc"])
    found = measured("cross_entropy", scores, targets, Auc(lacking="left_out"))["auc"]
    expected = np.mean([sk.roc_auc_score(targets == k, chances[:, k]) for k in (0, 1)])
    assert found == pytest.approx(expected, abs=CLOSE)
    nobody = torch.tensor([[2.0, 1.0]] * 4), torch.zeros(4, dtype=torch.long)
    names = ["f1", "iou", "auc", "average_precision", "balanced_accuracy"]
    of_none = measured("cross_entropy", *nobody, *names)
    assert [math.isnan(of_none[name]) for name in names] == [True, True, True, True, False]
    one = measured("mse", torch.zeros(1, 1), torch.ones(1, 1), "r2", "mae")
    assert math.isnan(one["r2"]) and one["mae"] == 1


def test_bins_of_calibration() -> None:
    scores, targets = 2 * torch.randn(200, 3, generator=DRAW), torch.randint(0, 3, (200,), generator=DRAW)
    chances = torch.softmax(scores.double(), 1).numpy()
    for bins in (5, 15):
        found = measured("cross_entropy", scores, targets, CalibrationError(bins=bins))["calibration_error"]
        assert found == pytest.approx(calibration(targets.numpy(), chances, bins), abs=CLOSE)


# -- over clients, and as targets -------------------------------------------------------------------------------


def test_who_has_none_is_left_out_of_means_and_counted() -> None:
    values = {"rmse": np.array([1.0, np.nan, 3, 5]), "loss": np.ones(4)}
    found = distribution("test", values, np.array([0.4, 0.2, 0.2, 0.2]), np.ones(4, int), of_sets=["rmse"])
    assert found["test_rmse"] == pytest.approx(2.5)
    assert (found["test_rmse_mean"], found["test_rmse_undefined"], found["test_loss"]) == (3, 1, 1)
    assert found["test_rmse_worst_decile"] == 5  # of errors the largest is the worst
    nobody = distribution("test", {"auc": np.full(2, np.nan)}, np.ones(2) / 2, np.ones(2, int), of_sets=["auc"])
    assert math.isnan(nobody["test_auc"]) and nobody["test_auc_undefined"] == 2


@pytest.mark.parametrize(
    ("measure", "lower"),
    [("test_loss", True), ("test_log_loss", True), ("validation_rmse", True), ("test_auc", False),
     ("test_calibration_error_worst_decile", True), ("central_perplexity", True), ("test_accuracy", False)],
)  # fmt: skip
def test_what_is_better(measure: str, lower: bool) -> None:
    assert lower_is_better(measure) == lower


def test_a_target_and_an_order() -> None:
    """A run ends at the target of such a measure, and undefined ones do not look like divergence."""
    task = Task(mlp, seed=3, metrics="log_loss,top_k,auc")
    experiment = turnout.Experiment(
        task, population(), FedAvg(local()), 5, Stopping(50, target=0.9, measure="test_log_loss")
    )
    result = turnout.execute(experiment)
    assert result.server.stopped is not None and result.server.stopped.startswith("test_log_loss reached")
    assert [name for name in result.clients() if name.startswith("test_")][:4] == [
        "test_loss", "test_log_loss", "test_top_k", "test_auc",
    ]  # fmt: skip
    plain = turnout.execute(replace(experiment, task=Task(mlp, seed=3), stopping=Stopping(result.server.version)))
    assert torch.equal(plain.model, result.model)
    assert plain.measures["test_loss"] == result.measures["test_loss"]


def test_the_confusion_matrix() -> None:
    experiment = PATHS["vmap"]()
    result = turnout.execute(experiment)
    said = result.server.task.outputs(result.model, experiment.population.inputs).argmax(1)
    expected = sk.confusion_matrix(experiment.population.targets, said).tolist()
    assert result.confusion() == {"split": "test", "counts": expected}
    experiment.task = Task(mlp, seed=3)
    assert turnout.execute(experiment).confusion() is None


# -- what is refused --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loss", "metrics", "sentence"),
    [
        ("cross_entropy", "rmse", "rmse is for numbers, and by its loss this model says classes"),
        ("cross_entropy", "f1", "f1 is for two classes, and there are 3; take f1_macro"),
        ("cross_entropy", "aucc", "unknown name 'aucc'; did you mean auc"),
    ],
)
def test_what_does_not_fit(loss: str, metrics: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        turnout.simulate(Task(mlp, loss=loss, metrics=metrics), population(), FedAvg(local()), rounds=1)


def test_what_a_function_may_do() -> None:
    def fails(_outputs: Tensor, targets: Tensor) -> float:
        if len(targets) < 5:
            raise ValueError("too few. See the manual")
        return 0.5

    with pytest.raises(UserError, match=r"fails fails on 3 samples .ValueError: too few.; it must return a number"):
        turnout.simulate(Task(mlp, metrics=[fails]), population(), FedAvg(local()), rounds=1)


def test_what_is_gathered_is_bounded() -> None:
    people = population((70_000,))
    task = Task(lambda: nn.Linear(5, 3), metrics="auc")
    with pytest.raises(UserError, match=r"auc of 70000 samples at once take 2 MiB; raise engine.memory_mib=1"):
        turnout.simulate(task, people, FedAvg(local(steps=1)), rounds=1, plan=Plan(threads=1, memory_mib=1))
