"""Does a faster round make training faster? Digits over star, trees, ring and MATCHA on two networks.

Marfoq, Xu, Neglia, Vidal, "Throughput-Optimal Topology Design for Cross-Silo Federated Learning", NeurIPS 2020;
Marfoq's thesis, table 2.5, figures 2.8 and 2.9a.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import product
from pathlib import Path

import numpy as np

from turnout.algorithms.dpasgd import DPASGD
from turnout.clients.devices import fixed
from turnout.clients.population import Population
from turnout.core.random import FloatArray
from turnout.data.dataset import Dataset
from turnout.engine.plan import Plan
from turnout.local.sgd import LocalSGD
from turnout.peers import design, underlays
from turnout.server.observer import Observer
from turnout.server.server import Server
from turnout.server.simulation import Simulation
from turnout.server.stopping import Evaluation, Stopping
from turnout.task.models import mlp
from turnout.task.task import Task
from turnout_studies.images import mnist_flat, small_digits
from turnout_studies.study import Claim, Experiment, Measures, Results, Study, Trial, Trials
from turnout_studies.theory.timeline import timeline

THESIS = "Marfoq, thesis, section 2.1.6"
OVERLAYS = ("star", "matcha", "matcha_plus", "mst", "delta_mbst", "ring")
EXCHANGE = design.PAPER["sub_inaturalist"]
ACCESS = {"10 Gbit/s": 10e9, "100 Mbit/s": 0.1e9}
GAINS = {("gaia", "10 Gbit/s"): (2.65, 1.5), ("geant", "10 Gbit/s"): (4.85, 2.5), ("geant", "100 Mbit/s"): (72.0, 30.0)}


@dataclass(frozen=True)
class Size:
    rounds: int = 150
    every: int = 2
    target: float = 0.9  # accuracy on training data
    lr: float = 0.1
    batch_size: int = 64
    share: float = 0.1  # of MNIST: every so many-th image
    networks: tuple[str, ...] = ("gaia", "geant")
    digits: bool = False  # bundled digits in the place of MNIST


class Curve(Observer):
    """Training accuracy of the silos' average at every evaluation, with its round."""

    def __init__(self) -> None:
        self.rounds: list[int] = []
        self.accuracy: list[float] = []

    def on_evaluate(self, server: Server, measures: dict[str, float]) -> None:
        self.rounds.append(server.version)
        self.accuracy.append(measures["train_accuracy"])


def _rounds(target: float) -> Callable[[Measures], float]:
    """To the target; infinitely many where it is not reached."""

    def rounds(measures: Measures) -> float:
        reached = np.flatnonzero(np.array(measures["accuracy"])[1:] >= target)
        return float(measures["rounds"][1:][reached[0]]) if len(reached) else np.inf

    return rounds


def _seconds(target: float, access: str) -> Callable[[Measures], float]:
    """To the target."""

    def seconds(measures: Measures) -> float:
        rounds = _rounds(target)(measures)
        return float(measures["times"][access][int(rounds)]) if np.isfinite(rounds) else np.inf

    return seconds


def _ratio(
    network: str, one: str, other: str, quantity: Callable[[float], Callable[[Measures], float]]
) -> Callable[[Results], FloatArray]:
    def values(results: Results) -> FloatArray:
        measure = quantity(results.setting["target"])
        of_one, of_other = (results.each(measure, network=network, overlay=name) for name in (one, other))
        return np.asarray(of_one / of_other)

    return values


def _apart(network: str) -> Callable[[Results], FloatArray]:
    """Mean over the run of the largest difference of any overlay's accuracy from the star's, after the same rounds."""

    def values(results: Results) -> FloatArray:
        curves = {
            name: results.each(lambda measures: measures["accuracy"], network=network, overlay=name)
            for name in OVERLAYS
        }  # [seeds, evaluations]
        apart = [np.abs(curve - curves["star"]) for curve in curves.values()]
        return np.asarray(np.max(apart, axis=0).mean(axis=1))

    return values


def _claims() -> Iterator[Claim]:
    for network in ("gaia", "geant"):
        yield Claim(
            f"rounds of the ring, {network}",
            "A ring needs at most about 20 % more rounds than a star.",
            THESIS,
            "rounds to the target, ring over star",
            _ratio(network, "ring", "star", _rounds),
            below=1.2,
        )
        yield Claim(
            f"loss by rounds hardly depends on the overlay, {network}",
            "Over rounds the curves of all overlays nearly coincide.",
            f"{THESIS}, figure 2.8",
            "largest difference of any overlay's accuracy from the star's after the same rounds, mean over the run",
            _apart(network),
            below=0.03,
        )
    for (network, access), (gain, least) in GAINS.items():
        yield Claim(
            f"ring over star, {network}, {access}",
            f"With a ring training is {gain:g} times faster than with a star.",
            THESIS,
            f"seconds to the target, star over ring; {least:g} is asked",
            _ratio(network, "star", "ring", partial(_seconds, access=access)),
            above=least,
        )


class TopologyTraining(Study):
    name = "topology_training"
    title = "Training times over star, MATCHA, MATCHA+, MST, delta-MBST and ring"
    source = "Marfoq et al., NeurIPS 2020; thesis table 2.5, figures 2.8 and 2.9a"
    setting = """\
DPASGD on a tenth of MNIST over the 11 silos of Gaia and the 40 of Geant, class mixtures Dirichlet(0.5);
784-50-10 perceptron, one local step of batch 64 a round, lr 0.1 for every overlay, 150 rounds; local-degree mixing, a
star averages. Time is that of the paper's messages (44,961,717 bits, 25.4 ms a step) with access links of 10 Gbit/s or
100 Mbit/s, core links of 1 Gbit/s; star around the first silo. The target is 0.9 of the training samples, of the
silos' average model.
Other than in the source: MNIST and a small network instead of sub-iNaturalist and a ResNet-18, one learning rate for
all, plain SGD, several seeds."""
    small_data = "bundled 8 x 8 digits in the place of MNIST"
    sizes = {
        "small": Size(rounds=10, every=5, target=0.0, digits=True),
        "default": Size(),
    }
    claims = tuple(_claims())

    def experiment(self, size: Size, data: Path | None, plan: Plan) -> Experiment:
        @lru_cache(1)
        def dataset() -> Dataset:
            whole, step = (small_digits(), 1) if size.digits else (mnist_flat(data), round(1 / size.share))
            return Dataset(whole.name, whole.inputs[::step], whole.targets[::step], whole.num_classes)

        def carry_out(trial: Trial) -> Measures:
            underlay = underlays.read(trial["network"])
            networks = {name: underlay.network(rate, 1e9) for name, rate in ACCESS.items()}
            first = next(iter(networks.values()))
            overlay = design.build(trial["overlay"], first, EXCHANGE, center="first", seed=trial["seed"])
            people = Population.of(
                dataset(),
                len(first),
                "dirichlet",
                seed=trial["seed"],
                partition_options={"alpha": 0.5, "min_samples": 10},
                importance="equal",
                devices=fixed(float(np.asarray(EXCHANGE.compute_time)), per="step"),
                model_bytes=round(EXCHANGE.model_bits / 8),
            )
            curve = Curve()
            Simulation(
                Task(lambda: mlp(people.inputs.shape[1], [50], 10), seed=trial["seed"]),
                people,
                DPASGD(LocalSGD(size.lr, steps=1, batch_size=size.batch_size, batching="draws"), overlay, first),
                seed=trial["seed"],
                plan=plan,
                stopping=Stopping(size.rounds),
                evaluation=Evaluation(size.every, train=True),
                observers=[curve],
            ).run()
            times = {
                name: timeline(overlay, network, EXCHANGE, size.rounds).max(1) for name, network in networks.items()
            }
            return {
                "rounds": curve.rounds,
                "accuracy": curve.accuracy,
                "times": {name: seconds.tolist() for name, seconds in times.items()},
            }

        return carry_out

    def script(self, size: Size, seeds: Sequence[int], trials: Trials) -> dict[str, float]:
        every: list[Trial] = [
            {"seed": seed, "network": network, "overlay": overlay}
            for seed, network, overlay in product(seeds, size.networks, OVERLAYS)
        ]
        trials.all(every)
        return {}


STUDY = TopologyTraining()
