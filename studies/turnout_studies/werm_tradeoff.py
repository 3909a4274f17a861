"""What does reference data buy? WERM, early stopping and adversarial regularisation by all three numbers.

Kaplan, Xu, Marfoq, Neglia, Santana de Oliveira, "A cautionary tale: on the role of reference data in empirical privacy
defenses", PoPETs 2024; Marfoq's thesis, section 1.6.1. Adversarial regularisation (AdvReg): Nasr, Shokri, Houmansadr,
"Machine learning with membership privacy using adversarial regularization", CCS 2018.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from scipy.stats import spearmanr
from torch import Tensor

from turnout.algorithms.werm import WERM
from turnout.clients.population import Population
from turnout.core.ragged import Ragged
from turnout.core.random import FloatArray, integers, key, subset, uniform
from turnout.engine.plan import Plan
from turnout.local.sgd import LocalSGD
from turnout.sampling.full import Full
from turnout.server.observer import Observer
from turnout.server.server import Server
from turnout.server.simulation import Simulation
from turnout.server.stopping import Evaluation, Stopping
from turnout.task.models import mlp
from turnout.task.task import Task
from turnout.trust.leakage import Samples, three_way
from turnout_studies.study import Claim, Experiment, Measures, Results, Study, Trial, Trials

CLASSES, DIMS, FLIPPED = 20, 100, 0.35
HIDDEN = 64
BATCH, RATE = 128, 0.3
SPY_STEPS, SPY_RATE = 2, 0.005  # the adversary's, for each step of the model
THESIS = "Marfoq, thesis, section 1.6.1"
COLUMNS = ("accuracy", "mia_train", "mia_reference", "validation_loss")


@dataclass(frozen=True)
class Size:
    samples: int = 500  # to train on; as many of reference
    tested: int = 2000
    steps: int = 300
    every: int = 20
    weights: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
    strengths: tuple[float, ...] = (0.1, 0.2, 0.5, 1.0, 2.0)


class World:
    """Four sets of one distribution: a class is a word of bits, a sample its word with some of them flipped."""

    def __init__(self, size: Size, seed: int) -> None:
        self.seed = seed
        self.words = uniform(key(seed, "words"), CLASSES * DIMS).reshape(CLASSES, DIMS) < 0.5
        counts = (size.samples, size.samples, size.tested, size.samples)
        self.train, self.reference, self.test, self.validation = map(self.samples, range(4), counts)
        self.task = Task(partial(mlp, DIMS, [HIDDEN], CLASSES), seed=seed)

    def samples(self, part: int, count: int) -> Samples:
        labels = integers(key(self.seed, "labels", part), count, CLASSES)
        flipped = uniform(key(self.seed, "bits", part), count * DIMS).reshape(count, DIMS) < FLIPPED
        return torch.from_numpy(np.where(self.words[labels] ^ flipped, 1, -1)).float(), torch.from_numpy(labels)

    def measure(self, model: Tensor) -> list[float]:
        """A row of `COLUMNS`."""
        found = three_way(self.task, model, self.train, self.test, self.reference, seed=self.seed)
        assert found.reference is not None
        loss = float(self.task.losses(model, *self.validation).mean())
        return [found.test["accuracy"], found.train.accuracy, found.reference.accuracy, loss]


class Curve(Observer):
    def __init__(self, world: World) -> None:
        self.world = world
        self.rows: list[list[float]] = []

    def on_evaluate(self, server: Server, measures: dict[str, float]) -> None:
        self.rows.append(self.world.measure(server.model))


def weighted(world: World, train_weight: float, size: Size, plan: Plan) -> list[list[float]]:
    """WERM with two clients: one holds the training data, the other the reference data."""
    count, curve = size.samples, Curve(world)
    inputs, targets = (torch.cat(parts) for parts in zip(world.train, world.reference, strict=True))
    rows = Ragged(np.array([0, count, 2 * count]), np.arange(2 * count))
    local = LocalSGD(RATE, steps=1, batch_size=BATCH, batching="draws")
    Simulation(
        world.task,
        Population(inputs, targets, rows),
        WERM(local, Full(), train_weight=train_weight, reference_clients=[1]),
        seed=world.seed,
        plan=plan,
        stopping=Stopping(size.steps),
        evaluation=Evaluation(rounds=size.every),
        observers=[curve],
    ).run()
    return curve.rows


def adversarial(world: World, strength: float, size: Size) -> list[list[float]]:
    """AdvReg: minimise the loss on training data + `strength` * the gain of an adversary who learns meanwhile to tell
    training from reference data by what the model says of them. The model never learns from the reference data."""
    task, spy = world.task, Task(partial(mlp, 2 * CLASSES, [HIDDEN], 1), "mse", seed=world.seed)
    model, mind = (part.initial.clone().requires_grad_() for part in (task, spy))
    learn, look = torch.optim.SGD([model], RATE), torch.optim.Adam([mind], SPY_RATE)

    def batch(samples: Samples, *number: int) -> Samples:
        drawn = subset(key(world.seed, "advreg", *number), min(BATCH, size.samples), size.samples)
        return samples[0][drawn], samples[1][drawn]

    def suspicion(samples: Samples) -> Tensor:
        said = task.outputs(model, samples[0]).softmax(-1)
        return spy.outputs(mind, torch.cat([said, F.one_hot(samples[1], CLASSES)], 1))

    rows = [world.measure(model.detach())]
    for step in range(size.steps):
        for turn in range(SPY_STEPS):
            ours, theirs = batch(world.train, step, 0, turn), batch(world.reference, step, 1, turn)
            missed = -F.logsigmoid(suspicion(ours)).mean() - F.logsigmoid(-suspicion(theirs)).mean()
            mind.grad = torch.autograd.grad(missed, mind)[0]
            look.step()
        ours = batch(world.train, step, 2)
        loss = task.losses(model, *ours).mean() + strength * F.logsigmoid(suspicion(ours)).mean()
        model.grad = torch.autograd.grad(loss, model)[0]
        learn.step()
        if (step + 1) % size.every == 0:
            rows.append(world.measure(model.detach()))
    return rows


# -- what follows from the curves ------------------------------------------------------------------------------


def column(measures: Measures, name: str) -> FloatArray:
    """`[E]`"""
    return np.asarray(measures["rows"])[:, COLUMNS.index(name)]


def stopped(measures: Measures) -> int:
    """The evaluation with the least validation loss."""
    return int(column(measures, "validation_loss").argmin())


def at_stop(name: str, measures: Measures) -> float:
    return float(column(measures, name)[stopped(measures)])


def stops(results: Results, name: str, method: str, knobs: str) -> FloatArray:
    """`[knobs, seeds]` where runs were stopped."""
    return np.stack([results.each(partial(at_stop, name), method=method, knob=knob) for knob in results.setting[knobs]])


def gap(name: str, more: float, less: float, results: Results) -> FloatArray:
    """How much higher it is with one weight than with the other."""
    first, second = (results.each(partial(at_stop, name), method="werm", knob=weight) for weight in (more, less))
    return np.asarray(first - second)


def order(name: str, results: Results) -> FloatArray:
    """Rank correlation with w."""
    values, weights = stops(results, name, "werm", "weights"), results.setting["weights"]
    return np.array([float(spearmanr(weights, each).statistic) for each in values.T])


Points = tuple[FloatArray, FloatArray]  # leakage and accuracy


def frontier(results: Results, number: int, method: str = "werm", knobs: str = "weights") -> Points:
    """Of training data, over the knob of a method; of the seed of this number."""
    leakage, accuracy = (stops(results, name, method, knobs)[:, number] for name in ("mia_train", "accuracy"))
    return leakage, accuracy


def until_stopped(results: Results, number: int, weight: float) -> Points:
    """The larger leakage of those data that have a weight, at every evaluation after the first."""
    trial = {"method": "werm", "knob": weight, "seed": results.seeds[number]}
    measures = next(measures for tried, measures in results.trials if tried == trial)
    names = ("mia_train", "mia_reference") if weight < 1 else ("mia_train",)
    leakage = np.max([column(measures, name) for name in names], axis=0)
    kept = slice(1, max(1, stopped(measures)) + 1)
    return leakage[kept], column(measures, "accuracy")[kept]


def lead(points: Points, rival: Points) -> float:
    """Accuracy at the leakages that a rival has, minus the rival's, in the mean."""
    ranked = np.argsort(points[0], kind="stable")
    return float(np.mean(np.interp(rival[0], points[0][ranked], points[1][ranked]) - rival[1]))


def over_early_stopping(results: Results) -> FloatArray:
    seeds = range(len(results.seeds))
    return np.array([lead(frontier(results, number), until_stopped(results, number, 1.0)) for number in seeds])


def over_advreg(weight: float | None, results: Results) -> FloatArray:
    """Of WERM over w; or with one weight, stopped earlier."""
    leads = []
    for number in range(len(results.seeds)):
        ours = frontier(results, number) if weight is None else until_stopped(results, number, weight)
        leads.append(lead(ours, frontier(results, number, "advreg", "strengths")))
    return np.array(leads)


def advreg_on_reference(results: Results) -> FloatArray:
    """The largest leakage over its strengths."""
    return np.asarray(stops(results, "mia_reference", "advreg", "strengths").max(axis=0))


CLAIMS = (
    Claim(
        "w leaks training data",
        "The larger w is, the more it leaks of the training data.",
        THESIS,
        "rank correlation of w and the attack accuracy on training data",
        partial(order, "mia_train"),
        above=0.8,
    ),
    Claim(
        "1 - w leaks reference data",
        "The smaller w is, the more it leaks of the reference data.",
        THESIS,
        "rank correlation of w and the attack accuracy on reference data",
        partial(order, "mia_reference"),
        below=-0.8,
    ),
    Claim(
        "reference privacy buys utility",
        "WERM trades reference privacy for utility.",
        THESIS,
        "test accuracy with w = 0.5 minus that with w = 1",
        partial(gap, "accuracy", 0.5, 1.0),
        above=0,
    ),
    Claim(
        "reference privacy buys privacy",
        "WERM trades reference privacy for the privacy of the training data.",
        THESIS,
        "attack accuracy on training data with w = 1 minus that with w = 0.5",
        partial(gap, "mia_train", 1.0, 0.5),
        above=0,
    ),
    Claim(
        "ahead of early stopping",
        "Early stopping is no fair baseline, since it does not use reference data.",
        THESIS,
        "test accuracy of WERM minus that of w = 1 stopped earlier, at equal leakage of training data",
        over_early_stopping,
        above=0,
    ),
    Claim(
        "ahead of AdvReg, public reference",
        "WERM is the best method in nearly all regimes: where only the training data are private.",
        THESIS,
        "test accuracy of WERM minus that of AdvReg, at equal leakage of training data",
        partial(over_advreg, None),
        above=0,
    ),
    Claim(
        "ahead of AdvReg, equally private",
        "WERM is the best method in nearly all regimes: where reference data are as private as training data.",
        THESIS,
        "test accuracy of w = 0.5, stopped earlier, minus that of AdvReg, where the larger leakage of w = 0.5 is that "
        "of AdvReg on training data",
        partial(over_advreg, 0.5),
        above=0,
    ),
    Claim(
        "AdvReg ahead, private reference",
        "Existing defences work only where reference data are highly private.",
        THESIS,
        "test accuracy of AdvReg minus that of w = 1, stopped earlier, at equal leakage of training data",
        lambda results: -over_advreg(1.0, results),
        above=0,
    ),
    Claim(
        "AdvReg keeps reference data private",
        "Existing defences work only where reference data are highly private: they learn next to nothing from them.",
        THESIS,
        "attack accuracy of AdvReg on reference data, the largest over its strengths",
        advreg_on_reference,
        below=0.55,
    ),
)


class WERMTradeoff(Study):
    name = "werm_tradeoff"
    title = "WERM, early stopping and AdvReg: utility, leakage of training data, leakage of reference data"
    source = "Kaplan et al., PoPETs 2024; Marfoq's thesis, section 1.6.1"
    setting = """\
Twenty classes, each a word of 100 random bits; a sample is its word with 35 % of the bits flipped. 500 samples to train
on, 500 of reference, 500 to stop by, 2,000 to test on. A network of 64 hidden units, 300 steps of lr 0.3 on a batch of
128 of either set. Every 20 steps: test accuracy, and the accuracy of the loss-threshold attack on training and on
reference data, with the test samples as non-members. A run counts as stopped where the validation loss is least.
WERM with w = 0, 0.1, ..., 1; early stopping is w = 1 at every evaluation before that. AdvReg with strengths 0.1, 0.2,
0.5, 1, 2 and an adversary of 64 hidden units that takes two steps of Adam (0.005) for each of the model.
Other than in the source: generated data instead of Purchase100, Texas100 and CIFAR-100, another network and attack, all
chosen here; of the published defences AdvReg only."""
    small_data = "the same generated data, fewer of them"
    sizes = {
        "small": Size(samples=60, tested=100, steps=10, every=5, weights=(0.0, 0.5, 1.0), strengths=(1.0,)),
        "default": Size(),
    }
    claims = CLAIMS

    def experiment(self, size: Size, data: Path | None, plan: Plan) -> Experiment:
        def carry_out(trial: Trial) -> Measures:
            world = World(size, trial["seed"])
            if trial["method"] == "werm":
                return {"rows": weighted(world, trial["knob"], size, plan)}
            return {"rows": adversarial(world, trial["knob"], size)}

        return carry_out

    def script(self, size: Size, seeds: Sequence[int], trials: Trials) -> dict[str, float]:
        knobs = {"werm": size.weights, "advreg": size.strengths}
        trials.all(
            [{"method": name, "knob": knob, "seed": seed} for seed in seeds for name in knobs for knob in knobs[name]]
        )
        return {}


STUDY = WERMTradeoff()
