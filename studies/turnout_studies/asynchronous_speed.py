"""Which waiting policy learns fastest in virtual time? Synchronous, asynchronous, FedFix and FedBuff, each tuned.

Fraboni, Vidal, Kameni, Lorenzi, "A general theory for federated optimization with asynchronous and heterogeneous
clients updates", JMLR 2023, section 5.2.3 and figures 4 to 7; Fraboni's thesis (2023), figures 4.3 and C.1 to C.4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
from torch import nn

from turnout.algorithms._algorithm import Algorithm
from turnout.algorithms.async_fedavg import AsyncFedAvg
from turnout.algorithms.fedavg import FedAvg
from turnout.algorithms.fedbuff import FedBuff
from turnout.algorithms.fedfix import FedFix
from turnout.clients.population import Population
from turnout.core.random import FloatArray
from turnout.data.dataset import Dataset
from turnout.engine.plan import Plan
from turnout.local.sgd import LocalSGD
from turnout.sampling.full import Full
from turnout.task.models import cnn_cifar, linear
from turnout_studies.images import cifar10_subset, small_digits
from turnout_studies.losses import bounded_loss, climb, federation, train, unrest
from turnout_studies.study import Claim, Experiment, Measures, Results, Study, Trial, Trials

SCENARIOS = {"F0": 0, "F80": 80}
SYNC, ASYNC, FEDFIX, FEDBUFF = SCHEMES = ("sync", "async", "fedfix", "fedbuff")
SMALL_RATES = (0.002, 0.0002)
DECADES = (0.0001, 0.001, 0.01, 0.1)
THESIS = "Fraboni, thesis, section 4.5"


@dataclass(frozen=True)
class Size:
    clients: int
    buffer_size: int
    local_steps: int
    horizon: float  # units of time: what the slowest client needs for a job
    first_rates: dict[str, float]  # where the search for each scheme's learning rate begins
    batch_size: int = 64
    digits: bool = False  # bundled digits and a linear model instead of CIFAR-10 and a convolutional network


def scheme(name: str, local: LocalSGD, size: Size) -> Algorithm:
    """FedBuff's weights are the naive 1 / c, as the source ran it."""
    if name == SYNC:
        return FedAvg(local, Full())
    if name == ASYNC:
        return AsyncFedAvg(local)
    if name == FEDFIX:
        return FedFix(local, window=0.5)
    return FedBuff(local, weight_rule="naive", buffer_size=size.buffer_size)


# -- claims ---------------------------------------------------------------------------------------------------

Values = Callable[[Results], FloatArray]
Quantity = Callable[[Measures], float]


def _tuned(results: Results, scenario: str, name: str, quantity: Quantity = bounded_loss) -> FloatArray:
    lr = results.tuned[f"{scenario} {name}"]
    return results.each(quantity, scenario=scenario, scheme=name, lr=lr)


def advantage(scenario: str, better: str, worse: str, quantity: Quantity = bounded_loss) -> Values:
    """How much lower the quantity is, a number a seed, each scheme at its own learning rate."""
    return lambda results: _tuned(results, scenario, worse, quantity) - _tuned(results, scenario, better, quantity)


def _at(results: Results, lr: float) -> dict[str, FloatArray]:
    """The loss of every scheme under F80 at one learning rate."""
    return {name: results.each(bounded_loss, scenario="F80", scheme=name, lr=lr) for name in SCHEMES}


def _async_first(results: Results, lr: float) -> FloatArray:
    loss = _at(results, lr)
    return np.minimum(loss[FEDFIX], loss[FEDBUFF]) - loss[ASYNC]


def _sync_last(results: Results, lr: float) -> FloatArray:
    loss = _at(results, lr)
    return loss[SYNC] - np.maximum(loss[FEDFIX], loss[FEDBUFF])


def _large_rate(results: Results) -> FloatArray:
    loss = _at(results, results.tuned["F80 sync"])
    return loss[ASYNC] - np.maximum(np.maximum(loss[SYNC], loss[FEDFIX]), loss[FEDBUFF])


def _sync_at_small_rate(results: Results) -> FloatArray:
    lr = results.tuned["F80 async"]
    return results.each(bounded_loss, scenario="F80", scheme=SYNC, lr=lr) - _tuned(results, "F80", SYNC)


LOSS = "late federated loss, {} minus {}, each at its own learning rate"


def _compared(scenario: str, better: str, worse: str, sentence: str) -> Claim:
    name = f"{better} beats {worse}, {scenario}"
    return Claim(name, sentence, THESIS, LOSS.format(worse, better), advantage(scenario, better, worse), above=0)


def _claims() -> Iterator[Claim]:
    for scenario in SCENARIOS:
        yield _compared(
            scenario, SYNC, ASYNC, "Tuned, synchronous FedAvg beats asynchronous FedAvg, under F0 and under F80."
        )
    yield _compared("F80", FEDFIX, SYNC, "Tuned, FedFix-0.5 beats synchronous FedAvg under F80.")
    yield _compared("F0", FEDFIX, SYNC, "FedFix-0.5 can beat synchronous FedAvg even under F0.")
    for scenario in SCENARIOS:
        yield _compared(scenario, FEDBUFF, ASYNC, "FedBuff always beats asynchronous FedAvg.")
    for scenario in SCENARIOS:
        sentence = "FedBuff does not always beat synchronous FedAvg (one of the two scenarios is enough)."
        yield _compared(scenario, SYNC, FEDBUFF, sentence)
    for scenario in SCENARIOS:
        yield _compared(scenario, FEDFIX, FEDBUFF, "FedFix balances speed and stability better than FedBuff.")
    sentence = "At a small learning rate async beats FedFix and FedBuff, and these beat sync: most serial work wins."
    for rate in SMALL_RATES:
        yield Claim(
            f"rate {rate}: async first",
            sentence,
            THESIS,
            f"late federated loss at learning rate {rate} under F80, the better of FedFix and FedBuff minus async",
            partial(_async_first, lr=rate),
            above=0,
        )
        yield Claim(
            f"rate {rate}: sync last",
            sentence,
            THESIS,
            f"late federated loss at learning rate {rate} under F80, sync minus the worse of FedFix and FedBuff",
            partial(_sync_last, lr=rate),
            above=0,
        )
    yield Claim(
        "large rate: async fails first",
        "At a large learning rate asynchronous FedAvg slows down, then diverges, before the others do.",
        THESIS,
        "late federated loss under F80 at the learning rate tuned for sync, async minus the worst of the others",
        _large_rate,
        above=0,
    )
    yield Claim(
        "sync needs a high rate",
        "Tuned synchronous FedAvg needs a high learning rate.",
        THESIS,
        "late federated loss of sync under F80, at the learning rate tuned for async minus at its own",
        _sync_at_small_rate,
        above=0,
    )
    for other in (FEDFIX, ASYNC):
        yield Claim(
            f"sync is unstable late, against {other}",
            "Tuned synchronous FedAvg is visibly unstable late in the run (the source shows it on Shakespeare).",
            THESIS,
            f"late unrest of the federated loss under F80, sync minus {other}, each at its own learning rate",
            advantage("F80", other, SYNC, unrest),
            above=0,
        )


class AsynchronousSpeed(Study):
    name = "asynchronous_speed"
    title = "Synchronous, asynchronous, FedFix and FedBuff at equal virtual time"
    source = "Fraboni et al., JMLR 2023, figures 4 to 7; Fraboni's thesis, figures 4.3 and C.1 to C.4"
    setting = """\
CIFAR-10 with Dir(0.1) class mixtures over 20 clients of equal size and importance, scenarios F0 (all delays 1) and F80
(1, ..., 0.2); three-convolution network without dropout; 10 local SGD steps of batch 64. Synchronous FedAvg,
asynchronous FedAvg (TIME-BASED), FedFix with a window of 0.5, FedBuff with a buffer of 10, waiting clients and weights
1 / 10. Each scheme is tuned on the late federated loss of the first seed: from the best of 0.0001, 0.001, 0.01, 0.1 and
a first guess, walking over a 1-2-5 grid until both neighbours are worse. Late values are means of ten evaluations in
the last ten units of time; unrest is the standard deviation of those around their straight line. A diverged or useless
model (loss above twice that of guessing) counts as twice the loss of guessing.
Other than in the source: 60 units of virtual time instead of 5,000; a stratified subset of 10,000 training images;
M = 20 only; no Shakespeare. Meant for a CUDA device."""
    small_data = "bundled 8 x 8 digits and a linear model in the place of CIFAR-10 and a convolutional network"
    sizes = {
        "small": Size(4, 2, 1, 4, {SYNC: 1.0, ASYNC: 0.2, FEDFIX: 1.0, FEDBUFF: 1.0}, batch_size=16, digits=True),
        "default": Size(20, 10, 10, 60, {SYNC: 0.1, ASYNC: 0.005, FEDFIX: 0.05, FEDBUFF: 0.05}),
    }
    claims = tuple(_claims())

    def experiment(self, size: Size, data: Path | None, plan: Plan) -> Experiment:
        @lru_cache(1)
        def dataset() -> Dataset:
            return small_digits() if size.digits else cifar10_subset(data)

        @lru_cache(2 * len(SCENARIOS))
        def people(scenario: str, seed: int) -> Population:
            return federation(dataset(), size.clients, 0.1, SCENARIOS[scenario], seed)

        def carry_out(trial: Trial) -> Measures:
            local = LocalSGD(trial["lr"], steps=size.local_steps, batch_size=size.batch_size)
            algorithm = scheme(trial["scheme"], local, size)
            model: Callable[[], nn.Module] = partial(linear, 64, 10) if size.digits else partial(cnn_cifar, dropout=0.0)
            population = people(trial["scenario"], trial["seed"])
            return train(model, population, algorithm, trial["seed"], size.horizon, plan)

        return carry_out

    def script(self, size: Size, seeds: Sequence[int], trials: Trials) -> dict[str, float]:
        tuned = {}
        for scenario in SCENARIOS:
            for name in SCHEMES:

                def loss(lr: float, scenario: str = scenario, name: str = name) -> float:
                    return bounded_loss(trials(scenario=scenario, scheme=name, lr=lr, seed=seeds[0]))

                tuned[f"{scenario} {name}"] = climb(loss, min((size.first_rates[name], *DECADES), key=loss))
        for seed in seeds:
            for scenario in SCENARIOS:
                for name in SCHEMES:
                    trials(scenario=scenario, scheme=name, lr=tuned[f"{scenario} {name}"], seed=seed)
            for name in SCHEMES:
                for lr in (*SMALL_RATES, tuned["F80 sync"]):
                    trials(scenario="F80", scheme=name, lr=lr, seed=seed)
            trials(scenario="F80", scheme=SYNC, lr=tuned["F80 async"], seed=seed)
        return tuned


STUDY = AsynchronousSpeed()
