"""Does FEM-OMD learn sooner than one model for all? MNIST by groups of digits, each image once.

Marfoq's thesis (2023), section 4.4.5.2 and figure 4.10.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import torch
from torch.func import grad

from turnout.core import random
from turnout.core.random import FloatArray
from turnout.core.threads import threads
from turnout.data import mnist
from turnout.data.dataset import Dataset
from turnout.engine.plan import Plan
from turnout.record.curves import line_chart
from turnout.task.models import mlp
from turnout.task.task import Task
from turnout_studies.online.baselines import FedOMD
from turnout_studies.online.components import Classifiers
from turnout_studies.online.environment import LabelledStream, classes_in_order
from turnout_studies.online.learner import FEMOMD, DivergedError, Learner
from turnout_studies.online.regret import LINEAR, accuracy_regret, exponents
from turnout_studies.study import Claim, Experiment, Measures, Results, Study, Trial, Trials

THESIS = "Marfoq, thesis, section 4.4.5.2"
METHODS = ("fem_omd", "fem_omd_running_mean", "fedomd")


@dataclass(frozen=True)
class Size:
    steps: int | None = None  # until the images of a group have run out
    clients: int = 10
    samples: int = 6  # a client and step
    sources: int = 4
    hidden: int = 50
    rates: tuple[float, ...] = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
    epochs: int = 5  # of the model that knows everything
    generated: bool = False  # in the place of MNIST


def stand_in() -> Dataset:
    """Ten classes around centres of their own."""
    count, dims = 1500, 12
    centres = 2 * random.normal(random.key(0, "stand-in centres", np.arange(10)), dims)
    labels = np.arange(count) % 10
    inputs = centres[labels] + random.normal(random.key(0, "stand-in images", np.arange(count)), dims)
    x, y = torch.from_numpy(inputs).float(), torch.from_numpy(labels)
    return Dataset("stand_in", x[:1200], y[:1200], 10, test_inputs=x[1200:], test_targets=y[1200:])


def learner_of(method: str, task: Task, lr: float, size: Size) -> Learner:
    family = Classifiers(task, lr)
    if method == "fedomd":
        return FedOMD(family, task.initials(1), size.clients, lr=lr)
    averaging = "running_mean" if method == "fem_omd_running_mean" else "none"
    return FEMOMD(family, task.initials(size.sources), size.clients, em_steps=1, averaging=averaging)


def accuracies(learner: Learner, stream: LabelledStream, steps: int) -> FloatArray:
    """`[T, C]` of what is played at every step, on its test samples; 0 from where it has diverged."""
    found = np.zeros((steps, stream.clients))
    for step in range(steps):
        learner.play()
        tests = stream.tests(step)
        found[step] = (learner.predict(tests).argmax(-1) == tests.targets).double().mean(1).numpy()
        try:
            learner.observe(stream.samples(step))
        except DivergedError:
            break
    return found


def accuracies_in_hindsight(task: Task, stream: LabelledStream, steps: int, epochs: int, seed: int) -> FloatArray:
    """`[T, C]` of one model trained on all samples of all clients and steps, by SGD in batches of 64 at rate 0.1."""
    inputs, targets = stream.everything(steps)
    model = task.initial

    def loss(params: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return task.losses(params, inputs[rows], targets[rows]).mean()

    for epoch in range(epochs):
        order = torch.from_numpy(random.permutation(random.key(seed, "hindsight", epoch), len(inputs)))
        for rows in torch.split(order, 64):
            model = model - 0.1 * grad(loss)(model, rows)
    tests = [stream.tests(step) for step in range(steps)]
    guessed = [task.outputs(model, part.inputs.flatten(0, 1)).argmax(-1).view_as(part.targets) for part in tests]
    pairs = zip(guessed, tests, strict=True)
    return np.stack([(guess == part.targets).double().mean(1).numpy() for guess, part in pairs])


def settled(regrets: Sequence[float]) -> float:
    """The first step from which on, for an eighth of the time, regret grows less than half as fast as in the first
    sixteenth; all steps if there is none. With 800 steps these are 100 and 50."""
    curve = np.concatenate([[0.0], regrets])
    steps, window, first = len(regrets), max(1, len(regrets) // 8), max(1, len(regrets) // 16)
    slow = (curve[window:] - curve[:-window]) / window < curve[first] / first / 2
    return float(np.argmax(slow)) if slow.any() else float(steps)


def late_exponent(measures: Measures) -> float:
    """Over the last three quarters of the time: from about step 200 on."""
    regrets = measures["regrets"]
    times = np.arange(len(regrets) // 4, len(regrets)) + 1
    return float(exponents(times, [np.asarray(regrets)[times - 1]])[0])


def final(measures: Measures) -> float:
    return float(measures["regrets"][-1])


def _each(results: Results, quantity: str, method: str) -> FloatArray:
    measure = {"final": final, "late": late_exponent, "settled": lambda measures: settled(measures["regrets"])}[
        quantity
    ]
    return results.each(measure, method=method, lr=results.tuned[method])


def _gap(results: Results, quantity: str, larger: str, smaller: str) -> FloatArray:
    return _each(results, quantity, larger) - _each(results, quantity, smaller)


SENTENCE = "On MNIST FEM-OMD's regret is sub-linear before step 200; FedOMD takes longer."
CLAIMS = (
    Claim(
        "fem_omd is sub-linear",
        SENTENCE,
        THESIS,
        "b of accuracy regret ~ t^b over the last three quarters of the steps",
        partial(_each, quantity="late", method="fem_omd"),
        below=LINEAR,
    ),
    Claim(
        "before step 200",
        SENTENCE,
        THESIS,
        "step from which fem_omd's regret grows less than half as fast as at first",
        partial(_each, quantity="settled", method="fem_omd"),
        below=200,
    ),
    Claim(
        "fedomd takes longer",
        SENTENCE,
        THESIS,
        "the same step, fedomd minus fem_omd",
        partial(_gap, quantity="settled", larger="fedomd", smaller="fem_omd"),
        above=0,
    ),
    Claim(
        "fem_omd has less regret",
        "FEM-OMD's curve is below FedOMD's (figure 4.10).",
        THESIS,
        "final accuracy regret, fedomd minus fem_omd",
        partial(_gap, quantity="final", larger="fedomd", smaller="fem_omd"),
        above=0,
    ),
    Claim(
        "a running mean stifles networks",
        "Ours: algorithm 17 as printed averages the models over time, which shrinks its steps of SGD by 1 / (t + 1).",
        THESIS,
        "final accuracy regret, with the running mean minus without",
        partial(_gap, quantity="final", larger="fem_omd_running_mean", smaller="fem_omd"),
        above=0,
    ),
)


class FemOmdMnist(Study):
    name = "fem_omd_mnist"
    title = "Accuracy regret of FEM-OMD and FedOMD on MNIST by groups of digits"
    source = "Marfoq's thesis (2023), section 4.4.5.2, figure 4.10"
    setting = """\
MNIST, four sources: digits 0-2, 3-5, 6-7, 8-9. Ten clients, six training images and one test image a step, from the
sources in fresh proportions from Dirichlet(0.1); no image twice, so that it ends when a source has no more. 784-50-10
perceptrons. FEM-OMD with four of them and one EM step of SGD; FedOMD with one. Rates 0.01 to 30, by the final regret
of the first seed. Regret is the test accuracy, summed over time, of one model trained for five epochs on all images
that came, minus that of what was played; mean over clients. A regret whose exponent is 0.9 or more counts as linear.
Grouping, width, rates and seeds are not given in the source."""
    small_data = "ten Gaussian classes in the place of MNIST"
    sizes = {
        "small": Size(12, 3, 4, 2, 8, rates=(0.1, 0.3), epochs=1, generated=True),
        "default": Size(),
    }
    claims = CLAIMS

    def experiment(self, size: Size, data: Path | None, plan: Plan) -> Experiment:
        @lru_cache(1)
        def dataset() -> Dataset:
            return stand_in() if size.generated else mnist.load(folder=data)

        @lru_cache(1)
        def world(seed: int) -> tuple[Task, LabelledStream, int, FloatArray]:
            task = Task(partial(mlp, dataset().inputs[0].numel(), [size.hidden], 10), seed=seed)
            groups = classes_in_order(10, size.sources)
            stream = LabelledStream(dataset(), groups, size.clients, size.samples, seed=seed)
            steps = min(size.steps or stream.horizon, stream.horizon)
            return task, stream, steps, accuracies_in_hindsight(task, stream, steps, size.epochs, seed)

        def carry_out(trial: Trial) -> Measures:
            with threads(plan.threads):
                task, stream, steps, best = world(trial["seed"])
                played = accuracies(learner_of(trial["method"], task, trial["lr"], size), stream, steps)
            regrets = accuracy_regret(best, played).mean(1)
            return {"regrets": [round(value, 6) for value in regrets.tolist()], "hindsight": float(best.mean())}

        return carry_out

    def script(self, size: Size, seeds: Sequence[int], trials: Trials) -> dict[str, float]:
        cells = [{"method": method} for method in METHODS]
        return trials.tune(cells, size.rates, seeds, lambda measures: -final(measures))

    def pictures(self, results: Results) -> dict[str, str]:
        lines = {}
        for method in METHODS:
            chosen = {"method": method, "lr": results.tuned[method]}.items()
            found = [measures["regrets"] for trial, measures in results.trials if chosen <= trial.items()]
            steps = np.arange(min(map(len, found)))
            lines[method] = steps + 1, np.mean([np.array(regrets)[steps] for regrets in found], axis=0)
        return {"accuracy_regret": line_chart(lines, title=self.title, x="step", y="mean accuracy regret")}


STUDY = FemOmdMnist()
