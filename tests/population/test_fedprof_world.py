"""The time and energy model of the FedProf experiments: oracles O13 to O16 of the spec."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import turnout
from support import local, mlp, population
from turnout import FedAvg, Population, Ragged, Task, Uniform
from turnout.algorithms._algorithm import Algorithm
from turnout.algorithms.cfcfm import CFCFM
from turnout.algorithms.fedprof import FedProf
from turnout.core.random import FloatArray, key, normal
from turnout.local.answers import ProfileReport
from turnout.server.durations import Durations
from turnout_studies.worlds.fedprof import TASKS, FedProfTask

MEAN = {name: {"comm": 36.0457, "train": train, "profile": made} for name, train, made in (
    ("S", 0.4342, 0.2171), ("L", 3.0106, 0.6021),
)}  # fmt: skip


def people(
    task: FedProfTask, counts: FloatArray | None = None, seed: int = 0, clients: int | None = None
) -> Population:
    """Clients of that many (empty) samples in the world of a task."""
    counts = np.full(clients or task.clients, task.samples) if counts is None else counts.astype(int)
    rows = Ragged(np.concatenate([[0], np.cumsum(counts)]), np.arange(counts.sum()))
    empty = torch.zeros(len(rows.values), 1)
    return Population(empty, empty[:, 0], rows, seed=seed, **task.world(clients, seed))


def ordinary(task: FedProfTask) -> FedProfTask:
    """All devices at the mean."""
    return FedProfTask(**{**vars(task), "spread": 1e-12})


@pytest.mark.parametrize("name", TASKS)
def test_times_of_a_mean_client(name: str) -> None:
    """O14, from the durations that the simulator uses: down and up, training, and the profile's pass."""
    task = ordinary(TASKS[name])
    world = people(task, clients=3)
    size = task.model_bytes
    plain = Durations.of(world, task.local, size, size)
    assert (plain.down + plain.up)[0] == pytest.approx(MEAN[name]["comm"], abs=1e-4)
    assert plain.compute(0)[0] == pytest.approx(MEAN[name]["train"], abs=1e-4)
    beside = Durations.of(world, task.local.reporting("profile:0"), size, size)
    assert beside.compute(0)[0] - plain.compute(0)[0] == pytest.approx(MEAN[name]["profile"], abs=1e-4)
    alone = Durations.of(world, ProfileReport.extend(task.local).bind({"report": "profile:0"}))
    assert alone.compute(0)[0] == pytest.approx(MEAN[name]["profile"], abs=1e-4)


def test_time_to_send_a_profile() -> None:
    """O13: 8 * 128 bytes at half of 1 MHz * log2(101)."""
    world = people(ordinary(TASKS["L"]), clients=1)
    seconds = world.links.upload_seconds(0, np.array([0]), 8 * 128)[0]
    assert seconds == pytest.approx(0.00246, abs=5e-6)
    assert seconds == pytest.approx(8 * 128 * 8e-6 / (0.5 * math.log2(101)))


@pytest.mark.parametrize(("name", "profiling", "joules"), [("S", False, 18.9), ("L", False, 20.3), ("L", True, 20.8)])
def test_energy_of_a_participation(name: str, profiling: bool, joules: float) -> None:
    """O15: within 2 %, over 20,000 devices."""
    task = TASKS[name]
    world = people(task, clients=20_000)
    work = task.local.reporting("profile:0") if profiling else task.local
    durations = Durations.of(world, work, task.model_bytes, task.model_bytes)
    jobs = {
        "client": world.ids,
        "download_seconds": durations.down,
        "upload_seconds": durations.up,
        "compute_seconds": durations.compute(0),
    }
    assert world.power is not None
    assert world.power.watt_hours(jobs).mean() * 3600 == pytest.approx(joules, rel=0.02)


def test_twice_the_speed_is_four_times_the_energy() -> None:
    """O15: P_f s^3 over a time that falls with s."""

    def energy(speed: float) -> float:
        task = ordinary(FedProfTask(**{**vars(TASKS["S"]), "speed": speed}))
        world = people(task, clients=1)
        seconds = Durations.of(world, task.local).compute(0)
        nothing = np.zeros(1)
        assert world.power is not None
        jobs = {"client": np.array([0]), "download_seconds": nothing, "upload_seconds": nothing}
        return float(world.power.watt_hours(jobs | {"compute_seconds": seconds})[0])

    assert energy(1.0) / energy(0.5) == pytest.approx(4)


def mean_round(name: str, algorithm: Algorithm, worlds: int, rounds: int) -> float:
    """Mean length of a round, over worlds."""
    task, lengths = TASKS[name], []
    for seed in range(worlds):
        counts = np.full(task.clients, float(task.samples))
        if name == "S":
            counts = np.maximum(1, np.rint(514 + 154 * normal(key(seed, "sizes"), task.clients)))
        server = turnout.rehearse(algorithm, people(task, counts, seed), rounds=rounds, seed=seed)
        lengths.append(server.now / server.version)
    return float(np.mean(lengths))


@pytest.mark.parametrize(
    ("name", "k", "seconds"), [("L", 50, 49.8), ("L", 100, 51.3), ("S", 10, 54.8), ("S", 15, 58.7)]
)
def test_rounds_of_random_clients(name: str, k: int, seconds: float) -> None:
    """O16. One draw of 50 devices scatters by 10 %: 100 worlds and 4 % for S, 10 worlds and 2 % for L."""
    worlds, close = (10, 0.02) if name == "L" else (100, 0.04)
    algorithm = FedAvg(TASKS[name].local, Uniform(k))
    assert mean_round(name, algorithm, worlds, rounds=10) == pytest.approx(seconds, rel=close)


@pytest.mark.parametrize(
    ("name", "k", "first", "later"),
    [("L", 50, 34.0, 34.4), ("L", 100, 35.0, 35.7), ("S", 10, 31.2, None), ("S", 15, 33.0, 35.6)],
)
def test_rounds_of_first_comers(name: str, k: int, first: float, later: float | None) -> None:
    """O16: the first round of CFCFM ends at the K-th arrival of all N, which is what the oracle computes. In the next
    ones those just picked come last, so that they are longer: the published means over a run (34.4, 35.7, 31.6, 35.6)
    follow from that rule and not from the K-th arrival alone, except S with K = 10 (32.8 here; there one draw of 50
    devices)."""
    task = TASKS[name]
    algorithm = CFCFM(task.local, fraction=k / task.clients)
    worlds = 5 if name == "L" else 60
    assert mean_round(name, algorithm, worlds, rounds=1) == pytest.approx(first, rel=0.02)
    if later is not None:
        assert mean_round(name, algorithm, worlds, rounds=6) == pytest.approx(later, rel=0.02)


def test_energy_of_a_run() -> None:
    """Summed over its jobs: the profiles of all clients at the start are in it, and so is what was cancelled."""
    task = TASKS["S"]
    world = task.world(8, seed=2)
    reference = normal(key(1, "reference"), 50).reshape(10, 5)
    algorithm = FedProf(local(epochs=2), clients_per_round=2, reference=reference)
    result = turnout.simulate(Task(mlp), population(**world), algorithm, rounds=1)
    jobs = result.jobs()
    energy = world["power"].watt_hours(jobs)
    start = (jobs["steps"] == 0) & (jobs["weight"] == 0)
    assert start.sum() == 8
    assert (jobs["bytes_down"][start] == 0).all()  # the first model follows from a seed
    assert (jobs["bytes_up"][start] == 8 * 8).all()
    assert (energy[start] > 0).all()
    speed, _ = task.speeds(8, seed=2)
    by_hand = sum(
        0.5 * (down + up) + 0.7 * speed[client] ** 3 * compute
        for client, down, up, compute in zip(
            jobs["client"], jobs["download_seconds"], jobs["upload_seconds"], jobs["compute_seconds"], strict=True
        )
    )
    assert energy.sum() * 3600 == pytest.approx(by_hand)
