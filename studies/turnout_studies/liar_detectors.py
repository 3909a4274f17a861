"""Which liars do detectors find, and whom do they accuse wrongly? Five honest clients and one or two who are not.

Fraboni, Vidal, Lorenzi, "Free-rider attacks on model aggregation in federated learning", AISTATS 2021, section 5, leave
detection open: outlier tests are unsuited, the distribution of updates should be looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import product
from pathlib import Path

import numpy as np
import torch

from turnout.algorithms.fedavg import FedAvg
from turnout.clients import behaviour
from turnout.clients.behaviour import Behaviour
from turnout.clients.population import Population
from turnout.clients.quality import NORMAL, degrade
from turnout.core import random
from turnout.core.ragged import Ragged
from turnout.core.random import FloatArray, IntArray
from turnout.data.dataset import Dataset
from turnout.engine.plan import Plan
from turnout.local.sgd import LocalSGD
from turnout.record.detectors import DETECTORS
from turnout.record.watch import Screening, Watch
from turnout.sampling.full import Full
from turnout.server.simulation import Simulation
from turnout.server.stopping import Evaluation, Stopping
from turnout.task.models import linear
from turnout.task.task import Task
from turnout_studies.images import mnist_flat, small_digits
from turnout_studies.study import Claim, Experiment, Measures, Results, Study, Trial, Trials

HONEST = 5
SPLITS = ("iid", "shards")
DISGUISES = {
    f"disguised_{scale}_{decay}": partial(behaviour.DisguisedDecay, scale=scale, decay=decay)
    for scale, decay in product((1.0, 3.0), (0.5, 1.0, 2.0))
}
LIES: dict[str, Callable[..., Behaviour]] = {
    "plain": behaviour.FreeRider,
    **DISGUISES,
    "constant": partial(behaviour.DisguisedConstant, std=1e-3),
    "replay": behaviour.Replay,
    "sign_flip": behaviour.SignFlip,
    "gaussian": partial(behaviour.GaussianNoise, scale=3.0),
    "little_is_enough": partial(behaviour.LittleIsEnough, z=1.0),
}
POISONS = ("label_flip", "backdoor")
FEW_SAMPLES = "few_samples"  # honest work on a sixtieth of what is declared
ATTACKS = (*LIES, *POISONS, FEW_SAMPLES)
COLLUDERS = {"little_is_enough": 2}
NOISE = {"disguised": tuple(DISGUISES), "constant": ("constant",)}
FOUND: dict[str, dict[str, tuple[str, ...]]] = {  # what each detector is for: attacks, by the name of the kind
    "identical_upload": {"plain": ("plain",)},
    "update_persistence": {**NOISE, "gaussian": ("gaussian",)},
    "alignment": {**NOISE, "gaussian": ("gaussian",)},
    "isotropy": {**NOISE, "gaussian": ("gaussian",)},
    "norm_schedule": NOISE,
    "replay": {"replay": ("replay",)},
    "norm": {"gaussian": ("gaussian",)},
    "spectral": {attack: (attack,) for attack in ("sign_flip", "gaussian", "little_is_enough", *POISONS)},
}
SPEC = "requirement of the project: at least .9 found, at most .05 accused wrongly"


@dataclass(frozen=True)
class Size:
    rounds: int
    samples: int  # of each client
    repeats: int  # runs a seed
    lr: float = 0.01
    batch_size: int = 100
    digits: bool = False  # bundled digits instead of MNIST


def found(results: Results, detector: str, attacks: Sequence[str], split: str) -> FloatArray:
    """Share of liars suspected at the end, a number a seed."""
    return _mean(results, lambda measures: measures["found"][detector], attacks, split)


def accused(results: Results, detector: str, split: str) -> FloatArray:
    """Share of honest clients suspected at the end, over all attacks, a number a seed."""
    return _mean(results, lambda measures: measures["accused"][detector], ATTACKS, split)


def _mean(results: Results, quantity: Callable[[Measures], float], attacks: Sequence[str], split: str) -> FloatArray:
    each = [results.each(quantity, attack=attack, split=split) for attack in attacks]
    return np.asarray(np.mean(each, axis=0), np.float64)


def curve(results: Results, detector: str, attack: str, split: str) -> tuple[FloatArray, FloatArray]:
    """Shares of honest clients and of liars whose score is above each score that occurs, from none to all."""
    liars, honest = [], []
    for trial, measures in results.trials:
        if (trial["attack"], trial["split"]) == (attack, split):
            scores = np.array(measures["scores"][detector], np.float64)  # null becomes NaN
            liars.append(scores[:, : measures["liars"]].ravel())
            honest.append(scores[:, measures["liars"] :].ravel())
    ours, theirs = np.concatenate(honest), np.concatenate(liars)
    every = np.concatenate([ours, theirs])
    limits = np.unique(every[np.isfinite(every)])[::-1]
    shares = [np.append(0.0, (of[:, None] >= limits).mean(0)) for of in (ours, theirs)]
    return shares[0], shares[1]


def attainable(results: Results, detector: str, attack: str, split: str, accused: float = 0.05) -> float:
    """The largest share of liars that some limit finds which accuses no more honest clients than that."""
    wrongly, rightly = curve(results, detector, attack, split)
    return float(rightly[wrongly <= accused].max())


def table(results: Results, split: str, best: bool = False) -> list[str]:
    """Lines: a row an attack, a column a detector, the share of liars found; then that of honest clients accused. With
    `best` the share that the detector's curve allows."""
    lines = [f"{split:<22}" + "".join(f"{name[:10]:>11}" for name in DETECTORS)]
    for attack in ATTACKS:
        shares = [
            attainable(results, name, attack, split) if best else found(results, name, [attack], split).mean()
            for name in DETECTORS
        ]
        lines.append(f"{attack:<22}" + "".join(f"{share:>11.2f}" for share in shares))
    wrongly = (accused(results, name, split).mean() for name in DETECTORS)
    return [*lines, f"{'honest clients accused':<22}" + "".join(f"{share:>11.3f}" for share in wrongly)]


def _claims() -> Iterator[Claim]:
    for (detector, kinds), split in product(FOUND.items(), SPLITS):
        for kind, attacks in kinds.items():
            yield Claim(
                f"{detector} finds {kind}, {split}",
                f"{detector} finds at least .9 of the liars of the kind {kind}.",
                SPEC,
                "share of liars suspected after the last round",
                partial(found, detector=detector, attacks=attacks, split=split),
                above=0.9,
            )
        yield Claim(
            f"{detector} accuses few, {split}",
            f"{detector} suspects at most .05 of the honest clients.",
            SPEC,
            "share of honest clients suspected after the last round, over all attacks",
            partial(accused, detector=detector, split=split),
            below=0.05,
        )


class LiarDetectors(Study):
    name = "liar_detectors"
    title = "Detectors against free-riders and attackers"
    source = "Fraboni, Vidal, Lorenzi, Free-rider attacks on model aggregation, AISTATS 2021, section 5"
    setting = """\
MNIST; five honest clients and one liar (two who collude for little_is_enough), 600 images each, iid or two digits each
(shards); logistic regression, D = 7,850; one epoch of batch 100 at lr 0.01, everybody in all of 30 rounds, equal
importance; four runs a seed. Liars: plain free-rider; noise that falls (sigma and 3 sigma, gamma 0.5, 1, 2); constant
noise of 0.001; replay of the last change; sign flipped; Gaussian noise three times as long as the update;
little-is-enough with z = 1; labels flipped; backdoor in half of the samples; and honest work on 10 of the 600 samples
declared. Detectors have their own limits, none tuned here, and judge after the last round; averages begin with a
client's sixth update."""
    small_data = "bundled 8 x 8 digits in the place of MNIST"
    sizes = {
        "small": Size(7, 40, 1, lr=0.05, batch_size=40, digits=True),
        "default": Size(30, 600, 4),
    }
    claims = tuple(_claims())

    def experiment(self, size: Size, data: Path | None, plan: Plan) -> Experiment:
        @lru_cache(1)
        def dataset() -> Dataset:
            return small_digits() if size.digits else mnist_flat(data)

        def carry_out(trial: Trial) -> Measures:
            found: dict[str, list[float]] = {name: [] for name in DETECTORS}
            accused: dict[str, list[float]] = {name: [] for name in DETECTORS}
            scores: dict[str, list[list[float]]] = {name: [] for name in DETECTORS}
            for repeat in range(size.repeats):
                seed = 1000 * trial["seed"] + repeat
                people, liars = world(dataset(), trial["attack"], trial["split"], size.samples, seed)
                watch = look(people, size, seed, plan)
                for name, (suspected, score) in watch.items():
                    honest = np.setdiff1d(np.arange(people.size), liars)
                    found[name].append(float(suspected[liars].mean()))
                    accused[name].append(float(suspected[honest].mean()))
                    scores[name].append([float(f"{value:.4g}") for value in score[[*liars, *honest]]])
            means = {
                what: {name: float(np.mean(values)) for name, values in shares.items()}
                for what, shares in (("found", found), ("accused", accused))
            }
            return {**means, "scores": scores, "liars": len(liars)}

        return carry_out

    def script(self, size: Size, seeds: Sequence[int], trials: Trials) -> dict[str, float]:
        trials.all([{"attack": a, "split": s, "seed": seed} for seed, s, a in product(seeds, SPLITS, ATTACKS)])
        return {}


def world(dataset: Dataset, attack: str, split: str, samples: int, seed: int) -> tuple[Population, IntArray]:
    """The clients of one run, and who of them lie."""
    liars = COLLUDERS.get(attack, 1)
    clients = HONEST + liars
    rows = torch.as_tensor(random.subset(random.key(seed, "study rows"), clients * samples, len(dataset.inputs)))
    some = replace(dataset, inputs=dataset.inputs[rows], targets=dataset.targets[rows])
    people = Population.of(some, clients, split, seed=seed, test="none", importance="equal")
    last = np.arange(HONEST, clients)
    if attack in POISONS:
        people, tags = degrade(people, {attack: liars / clients}, seed)
        return people, np.flatnonzero(tags != NORMAL)
    if attack == FEW_SAMPLES:
        kept = [people.train.row(i)[: max(1, samples // 60) if i in last else None] for i in range(clients)]
        return replace(people, train=Ragged.from_rows(kept)), last
    return replace(people, behaviour=LIES[attack](clients=last.tolist())), last


def look(people: Population, size: Size, seed: int, plan: Plan) -> dict[str, tuple[FloatArray, FloatArray]]:
    """By detector: `[N]` whether each client is suspected after the last round, and its score."""
    watch = Watch(Screening(tuple(DETECTORS)))
    task = Task(partial(linear, people.inputs[0].numel(), 10), seed=seed)
    Simulation(
        task,
        people,
        FedAvg(LocalSGD(size.lr, batch_size=size.batch_size), Full()),
        seed=seed,
        plan=plan,
        stopping=Stopping(size.rounds),
        evaluation=Evaluation(rounds=None, clients=1),
        observers=[watch],
    ).run()
    records = watch.records.read()
    last = records["round"] == size.rounds - 1
    order = np.argsort(records["client"][last])
    readings = {}
    for name in DETECTORS:
        suspected = np.array([name in watch.suspects.get(client, []) for client in range(people.size)], np.float64)
        readings[name] = suspected, records[name][last][order]
    return readings


STUDY = LiarDetectors()
