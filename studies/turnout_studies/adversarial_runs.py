"""What studies of adversarial unavailability share: the methods, the adversaries, a run, and what is measured of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from turnout.algorithms._algorithm import Algorithm
from turnout.algorithms.fedavg import FedAvg
from turnout.algorithms.fedprox import FedProx
from turnout.algorithms.mifa import Mifa
from turnout.algorithms.robust_fedavg import RobustFedAvg
from turnout.algorithms.robust_fedprox import RobustFedProx
from turnout.algorithms.robust_momentum import RobustMomentum
from turnout.clients.adversary import Adversary, Silence, WorstCase
from turnout.clients.population import Population
from turnout.core.random import FloatArray
from turnout.engine.plan import Plan
from turnout.local.sgd import LocalSGD
from turnout.record.efficiency import Efficiency
from turnout.sampling.renormalised import Renormalised
from turnout.sampling.uniform import Uniform
from turnout.server.observer import Observer, Round
from turnout.server.server import Server
from turnout.server.simulation import Simulation
from turnout.server.stopping import Evaluation, Stopping
from turnout.task.task import Task
from turnout_studies.losses import USELESS, climb
from turnout_studies.study import Measures, Results, Trial, Trials

SHADOW, WORST = ADVERSARIES = ("shadow", "worst_case")
SEARCH: Trial = {"find": "candidates"}  # a trial that runs the shadows: what they find is part of the trials against it
NAIVE, NAIVE_PROX, ROBUST, ROBUST_PROX, MIFA = "fedavg", "fedprox", "robust_fedavg", "robust_fedprox", "mifa"
CCLIP, GM, CCLIP_BUCKETS, GM_BUCKETS = BYZANTINE = ("cclip", "gm", "cclip_buckets", "gm_buckets")
METHODS = (NAIVE, NAIVE_PROX, ROBUST, ROBUST_PROX, MIFA, *BYZANTINE)
RATES = tuple(float(f"{digit}e{power}") for power in range(-4, 1) for digit in (1, 3))
FIRST_RATES = (1e-2, 1e-1)  # the search begins at the best of these that the size allows
GUESSING = 0.1  # accuracy among ten classes
LATE = 10  # evaluations at the end

Quantity = Callable[[Measures], float]
Values = Callable[[Results], FloatArray]


def method(name: str, local: LocalSGD, prox: LocalSGD, mu: float, invited: int) -> Algorithm:
    """A method by name; naive ones take the mean of those who answered. Momenta are of constant learning rates."""
    uniform, drawn = Uniform(invited), Renormalised(invited)
    if name == NAIVE:
        return FedAvg(local, drawn, normalise="responders")
    if name == NAIVE_PROX:
        return FedProx(prox, drawn, normalise="responders", mu=mu)
    if name == ROBUST:
        return RobustFedAvg(local, uniform)
    if name == ROBUST_PROX:
        return RobustFedProx(prox, uniform, mu=mu)
    if name == MIFA:
        return Mifa(local, uniform)
    rule = "centred_clipping" if name in (CCLIP, CCLIP_BUCKETS) else "geometric_median"
    buckets = 2 if name in (CCLIP_BUCKETS, GM_BUCKETS) else 0
    return RobustMomentum(replace(local, lr_power=0.0), uniform, rule=rule, buckets=buckets)


def adversary(trial: Trial) -> Adversary:
    """It spares the first round, in which MIFA must hear everybody: for all methods alike."""
    if trial["adversary"] == SHADOW:
        return Silence(trial["epsilon"], trial["candidates"], begins=1)
    return WorstCase(trial["epsilon"], begins=1)


class Curves(Observer):
    """Loss and accuracy at every evaluation, and who was missing in every round."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.accuracies: list[float] = []
        self.missing: list[float] = []

    def on_round(self, server: Server, record: Round) -> None:
        self.missing.append(float(f"{record.facts['missing_epsilon']:.6g}"))

    def on_evaluate(self, server: Server, measures: dict[str, float]) -> None:
        self.losses.append(float(f"{measures['train_loss']:.7g}"))
        self.accuracies.append(float(f"{measures['test_accuracy']:.5g}"))


def train(
    task: Task,
    people: Population,
    foe: Adversary,
    algorithm: Algorithm,
    seed: int,
    rounds: int,
    every: int,
    plan: Plan,
) -> Measures:
    """The curves of one run."""
    curves = Curves()
    server = Simulation(
        task,
        replace(people, adversary=foe),
        algorithm,
        seed=seed,
        plan=plan,
        stopping=Stopping(rounds),
        evaluation=Evaluation(rounds=every),
        observers=[Efficiency(), curves],
    )
    server.run()
    return {
        "losses": curves.losses,
        "accuracies": curves.accuracies,
        "missing": curves.missing,
        "diverged": (server.stopped or "").startswith("diverged"),
    }


# -- what follows from a run ----------------------------------------------------------------------------------


def late_loss(measures: Measures) -> float:
    """Mean training loss of the last evaluations; a diverged or useless model counts as twice the loss of guessing."""
    if measures["diverged"]:
        return USELESS
    loss = float(np.mean(measures["losses"][-LATE:]))
    return min(loss, USELESS) if math.isfinite(loss) else USELESS


def late_accuracy(measures: Measures) -> float:
    """Mean test accuracy of the last evaluations; a diverged model guesses."""
    return GUESSING if measures["diverged"] else float(np.mean(measures["accuracies"][-LATE:]))


def unrest(measures: Measures) -> float:
    """Standard deviation of the training loss's change between evaluations, in the second half; losses bounded as
    above, and a diverged run as restless as one that alternates between that bound and nothing."""
    if measures["diverged"]:
        return USELESS
    losses = np.minimum(np.asarray(measures["losses"], np.float64), USELESS)
    return float(np.diff(losses[len(losses) // 2 :]).std())


def of(results: Results, quantity: Quantity, epsilon: float, foe: str, name: str) -> FloatArray:
    """The quantity of a method at its own learning rate, a number a seed."""
    asked: Trial = {"epsilon": epsilon, "adversary": foe, "method": name, "lr": results.tuned[f"{epsilon} {name}"]}
    found = {trial["seed"]: measures for trial, measures in results.trials if asked.items() <= trial.items()}
    return np.array([quantity(found[seed]) for seed in results.seeds])


def difference(quantity: Quantity, epsilon: float, foe: str, larger: str, smaller: str) -> Values:
    return lambda results: of(results, quantity, epsilon, foe, larger) - of(results, quantity, epsilon, foe, smaller)


def over_the_best(quantity: Quantity, epsilon: float, foe: str, name: str, others: Sequence[str]) -> Values:
    """How much larger it is than the best of the others."""
    return lambda results: (
        of(results, quantity, epsilon, foe, name)
        - np.max([of(results, quantity, epsilon, foe, other) for other in others], axis=0)
    )


# -- the script -----------------------------------------------------------------------------------------------


def tune_and_try(
    attacks: Sequence[tuple[float, str]], rates: Sequence[float], seeds: Sequence[int], trials: Trials
) -> dict[str, float]:
    """Whom the shadow adversary silences; the learning rate of every method and budget, by the late training loss of
    the first seed against that adversary; then all seeds against all (budget, adversary)."""
    searches: list[Trial] = [{**SEARCH, "seed": seed} for seed in seeds]
    trials.ahead(searches)
    candidates = {trial["seed"]: trials(**trial)["candidates"] for trial in searches}
    first = {"adversary": SHADOW, "candidates": candidates[seeds[0]], "seed": seeds[0]}
    budgets = dict.fromkeys(epsilon for epsilon, _ in attacks)
    pairs, begin = list(product(budgets, METHODS)), [rate for rate in FIRST_RATES if rate in rates]
    trials.ahead({**first, "epsilon": e, "method": name, "lr": lr} for (e, name) in pairs for lr in begin)
    tuned = {}
    for epsilon, name in pairs:

        def loss(lr: float, epsilon: float = epsilon, name: str = name) -> float:
            return late_loss(trials(epsilon=epsilon, method=name, lr=lr, **first))

        tuned[f"{epsilon} {name}"] = climb(loss, min(begin, key=loss), rates)
    every = list(_every(attacks, candidates, tuned))
    trials.all(every)
    return tuned


def _every(
    attacks: Sequence[tuple[float, str]], candidates: dict[int, list[int]], tuned: dict[str, float]
) -> Iterator[Trial]:
    for seed, (epsilon, foe), name in product(candidates, attacks, METHODS):
        known = {"candidates": candidates[seed]} if foe == SHADOW else {}
        lr = tuned[f"{epsilon} {name}"]
        yield {"epsilon": epsilon, "adversary": foe, "method": name, "lr": lr, "seed": seed, **known}
