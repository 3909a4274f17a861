"""Detectors: their nulls against draws, what each sees and what it cannot, and the power against free-riders."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from scipy.stats import kstest

import turnout
from support import simulation
from turnout import FedAvg, Full, LocalSGD, Population, Stopping, Task
from turnout.clients import behaviour
from turnout.clients.behaviour import Behaviour
from turnout.core.random import key, normal
from turnout.data import synthetic
from turnout.record.detectors import (
    DETECTORS,
    Alignment,
    Detector,
    IdenticalUpload,
    Isotropy,
    Norm,
    NormSchedule,
    Reading,
    Replay,
    Spectral,
    Step,
    UpdatePersistence,
)
from turnout.record.watch import Screening, Watch
from turnout.task.models import linear

SIZES = [300, 30, 160, 10]  # of a model of 500 parameters
D = sum(SIZES)
CLIENTS = 6


def rows(purpose: str, count: int, size: int = D) -> torch.Tensor:
    return torch.from_numpy(normal(key(3, purpose, np.arange(count)), size))


def step(deltas: torch.Tensor, version: int = 1, model: torch.Tensor | None = None) -> Step:
    clients = np.arange(len(deltas))
    model = torch.zeros(deltas.shape[1], dtype=deltas.dtype) if model is None else model
    return Step(clients, np.full(len(deltas), version), deltas, model, SIZES)


def started(detector: Detector, clients: int = CLIENTS) -> Detector:
    detector.begin(clients)
    return detector


def after(detector: Detector, steps: list[Step]) -> Reading:
    """What it says of the last of these steps."""
    readings = [detector.look(one) for one in steps]
    return readings[-1]


# -- nulls --------------------------------------------------------------------------------------------------------


def test_cosines_of_noise() -> None:
    """O14: mean 0 and standard deviation 1 / sqrt(D) with any vector, to 5 % over 10,000 draws."""
    noise, fixed = rows("cosines", 10_000), torch.linspace(-1, 3, D, dtype=torch.float64)
    cosines = torch.cosine_similarity(noise, fixed[None]).numpy()
    assert abs(cosines.mean()) < 4 / math.sqrt(D * 10_000)
    assert cosines.std() == pytest.approx(1 / math.sqrt(D), rel=0.05)


@pytest.mark.parametrize(
    "detector",
    [UpdatePersistence(start=1), Alignment(start=0), Isotropy(start=0), NormSchedule(start=0)],
    ids=lambda detector: type(detector).__name__,
)
def test_p_values_of_noise_are_uniform_and_it_is_suspected(detector: Detector) -> None:
    """Noise whose size falls as 1 / t, of 300 clients and ten steps."""
    started(detector, 300)
    last = after(detector, [step(rows(f"noise {t}", 300) / t, t) for t in range(1, 11)])
    assert (last.score > detector.limit).all()
    assert kstest(last.p_value, "uniform").pvalue > 1e-3


def test_honest_rows_are_not_suspected() -> None:
    """Updates that share a direction, of unequal layers and heavy tails, as training makes them."""
    scale = torch.repeat_interleave(torch.tensor([0.1, 1.0, 0.3, 2.0]), torch.tensor(SIZES)).double()
    common = rows("direction", 1).pow(3) * scale
    steps = [
        step((common + rows(f"own {t}", CLIENTS) * scale) * math.exp(0.2 * math.sin(3 * t)) / t, t)
        for t in range(1, 21)
    ]
    for name, kind in DETECTORS.items():
        detector = started(kind())
        assert not (after(detector, steps).score > detector.limit).any(), name


# -- each of them -------------------------------------------------------------------------------------------------


def test_identical_upload() -> None:
    deltas = rows("moved", 4)
    deltas[1] = 0
    deltas[2, :460] = 0  # two of four layers: not most of them
    deltas[3, :490] = 0  # three of four
    found = IdenticalUpload().look(step(deltas))
    assert found.score.tolist() == [0, 1, 0.5, 0.75]
    assert found.p_value.tolist() == [1, 0, 1, 0]


def test_persistence_of_zero_and_of_a_direction() -> None:
    detector = started(UpdatePersistence(start=1), 2)
    kept = rows("kept", 1)[0]
    zero = torch.zeros_like(kept)
    first = detector.look(step(torch.stack([kept, zero])))
    assert np.isnan(first.score).all()
    second = detector.look(step(torch.stack([3 * kept, zero])))
    assert second.evidence["mean_cosine"].tolist() == pytest.approx([1, 0])
    assert second.score.tolist() == pytest.approx([-math.sqrt(D), 0])


def test_averages_begin_where_they_are_told() -> None:
    detector = started(UpdatePersistence(start=3), 1)
    kept, other = rows("kept", 1), rows("other", 1)
    signs = [kept, -kept, kept, kept, other, other]  # cosines of the third and later: 1, 0.., 1
    last = after(detector, [step(deltas) for deltas in signs])
    cosine = float(torch.cosine_similarity(kept, other))
    assert last.evidence["mean_cosine"][0] == pytest.approx((1 + cosine + 1) / 3)


def test_alignment_looks_at_the_distance_from_zero() -> None:
    """Of either sign: against the others as much as with them; nothing can be said of one alone."""
    common = rows("common", 1)
    deltas = torch.cat([common, common, common, -common, rows("noise", 1)])
    found = started(Alignment(start=0)).look(step(deltas))
    assert found.evidence["cosine"][3] < -0.9
    assert (found.score > -4).tolist() == [False, False, False, False, True]
    assert np.isnan(started(Alignment(start=0)).look(step(common)).score).all()


def test_replay_is_found_whatever_its_scale() -> None:
    models = rows("walk", 6).cumsum(0).float() * 0.01
    detector = started(Replay(memory=4))
    for t in range(4):
        detector.look(step(rows("others", 1).float(), t, models[t]))
    changes = torch.stack([models[4] - models[3], -3.7 * (models[4] - models[1]), models[3] - models[2]])
    honest = (models[4] - models[3]) + 0.01 * (models[2] - models[0])
    found = detector.look(step(torch.cat([changes, honest[None]]), 4, models[4]))
    assert (found.score > detector.limit).tolist() == [True, True, True, False]
    assert found.p_value.tolist() == [0, 0, 0, 1]
    forgotten = detector.look(step((models[1] - models[0])[None], 5, models[5]))
    assert not (forgotten.score > detector.limit).any()  # models 0 and 1 are no longer kept


def test_norms_and_the_spectrum() -> None:
    """One of six is ten times as long; one of six points the other way."""
    common = rows("common", 1)
    close = common + 0.1 * rows("own", CLIENTS)
    long, flipped = close.clone(), close.clone()
    long[2] *= 10
    flipped[4] *= -1
    found = started(Norm(start=0)).look(step(long))
    assert np.flatnonzero(found.score > 4).tolist() == [2]
    assert not (started(Norm(start=0)).look(step(flipped)).score > 4).any()
    found = started(Spectral(start=0)).look(step(flipped))
    assert np.flatnonzero(found.score > 4).tolist() == [4]
    assert np.isnan(started(Spectral(start=0)).look(step(close[:2])).score).all()


def test_norm_schedule_fits_the_decay() -> None:
    """gamma is found; a schedule that trembles by a tenth is training."""
    scripted, shaken = started(NormSchedule(start=0)), started(NormSchedule(start=0))
    tremble = normal(key(1, "tremble"), 20)
    steps = [(t, rows(f"schedule {t}", CLIENTS) * t**-0.7) for t in range(1, 21)]
    found = after(scripted, [step(deltas, t) for t, deltas in steps])
    assert found.evidence["gamma"].tolist() == pytest.approx([0.7] * CLIENTS, abs=0.05)
    assert (found.score > -4).all()
    other = after(shaken, [step(deltas * math.exp(0.2 * tremble[t - 1]), t) for t, deltas in steps])
    assert not (other.score > -4).any()


# -- power --------------------------------------------------------------------------------------------------------


def suspects(lies: Behaviour, seed: int, iid: bool) -> dict[int, list[str]]:
    """Five honest clients and a liar after 20 rounds of logistic regression in 500 dimensions."""
    data = synthetic.load(clients=CLIENTS, dims=49, iid=iid, max_samples=120, test_fraction=0.0, seed=seed)
    people = Population.of(data, CLIENTS, "natural", seed=seed, test="none", importance="equal", behaviour=lies)
    names = ["identical_upload", "update_persistence", "alignment", "isotropy", "norm_schedule", "replay"]
    watch = Watch(Screening(names))
    algorithm = FedAvg(LocalSGD(0.1, steps=2, batching="full"), Full())
    task = Task(partial(linear, 49, 10), seed=seed)
    options = {"stopping": Stopping(20), "evaluation": turnout.Evaluation(rounds=None, clients=1), "seed": seed}
    simulation(algorithm, people, task=task, observers=[watch], **options).run()
    return watch.suspects


@pytest.mark.parametrize("iid", [True, False], ids=["iid", "skewed"])
def test_the_power_of_persistence(iid: bool) -> None:
    """A run with a disguised free-rider of every sort: persistence finds at least .95 and accuses at most .05, which is
    all of them and at most one of thirty. The study `liar_detectors` has forty runs a sort."""
    sorts = [(scale, decay) for scale in (1.0, 3.0) for decay in (0.5, 1.0, 2.0)]
    found, accused = 0, 0
    for seed, (scale, decay) in enumerate(sorts):
        by = suspects(behaviour.DisguisedDecay(clients=[5], scale=scale, decay=decay), seed, iid)
        by_persistence = {client for client, names in by.items() if "update_persistence" in names}
        found += 5 in by_persistence
        accused += len(by_persistence - {5})
    assert found == len(sorts)
    assert accused <= 1


def test_what_finds_a_plain_rider_and_a_replay_and_what_does_not() -> None:
    """O14: a plain upload is always found. A replay persists as honest updates do; the check for it sees it."""
    plain = suspects(behaviour.FreeRider(clients=[5]), 1, True)
    assert "identical_upload" in plain[5]
    replayed = suspects(behaviour.Replay(clients=[5]), 1, True)
    assert "replay" in replayed[5]
    assert not {"identical_upload", "update_persistence", "alignment", "isotropy"} & set(replayed[5])


def test_detectors_begin_anew() -> None:
    """A watch that is used twice says the same twice."""
    watch = Watch(Screening(start=0))
    people = replace(Population.of(synthetic.load(clients=4), 4, "natural"), behaviour=behaviour.FreeRider(clients=[1]))
    seen = []
    for _ in range(2):
        server = simulation(
            FedAvg(LocalSGD(0.1), Full()), people, task=Task(partial(linear, 60, 10)), stopping=Stopping(3),
            observers=[watch],
        )  # fmt: skip
        server.run()
        seen.append((watch.suspects, watch.records.rows))
    assert seen[0] == seen[1]
    assert seen[0][1] == 12
