"""Every availability model: a pure function of client and time, whose answers agree, in runs that repeat and resume."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from numpy.typing import ArrayLike

import turnout
from support import SMALL, WORLD, experiment, local, population, same, simulation
from turnout.clients.availability import Always, Availability, BoolArray
from turnout.clients.chains import Bernoulli, Diurnal, Grouped, Markov, clustered, heterogeneous
from turnout.clients.traces import Trace
from turnout.config import config, kinds
from turnout.core.random import FloatArray, IntArray

CORRELATIONS = np.array([0.9, 0.5, 0.0, -0.3, 0.99, -0.5, 0.2, 0.7])
SPELLS = ([0, 0, 1, 2, 2], [0.0, 2.0, 0.5, 0.0, 1.25], [1.0, 3.5, 3.0, 0.5, 3.75])
MODELS: dict[str, Availability] = {
    "always": Always(),
    "bernoulli, rounds": Bernoulli(0.6),
    "bernoulli": Bernoulli(0.6, clock="seconds", interval=0.5),
    "markov, rounds": Markov(0.5, CORRELATIONS),
    "markov": Markov(0.5, CORRELATIONS, clock="seconds", interval=0.25),
    "diurnal": Diurnal(0.5, 0.6, interval=0.25, day=4.0, zones=3),
    "diurnal that lasts": Diurnal(0.5, 0.5, 0.8, interval=0.125, day=4.0, peak=1.0),
    "diurnal, rounds": Diurnal(0.6, 0.4, 0.3, clock="round", interval=3600.0),
    "grouped": Grouped(Markov(0.5, CORRELATIONS[:3], clock="seconds", interval=0.25), 3),
    "grouped, rounds": clustered(8, 4),
    "heterogeneous": heterogeneous(8, gap=0.2),
    "trace": Trace(*SPELLS, period=4.0),
    "trace, drawn": Trace(*SPELLS, period=4.0, shift="random", assign="random"),
}
IDS = np.arange(8)
every_model = pytest.mark.parametrize("name", MODELS)
TIMED = [name for name, model in MODELS.items() if model.clock == "seconds" and name != "always"]


@every_model
def test_presence_is_a_function_of_client_and_time(name: str) -> None:
    """Whoever was asked before, in which order, alone or together, about one time or each about its own."""
    model, times = MODELS[name], np.array([-7, 3, 0, 12, 3, -1, 40, 2])
    whole = {at: model.online(9, IDS, at).tolist() for at in sorted(set(times.tolist()))}
    for order in (IDS[::-1], IDS[3:6], np.array([5, 5, 1])):
        for at in set(times.tolist()):
            assert model.online(9, order, at).tolist() == [whole[at][i] for i in order]
    assert model.online(9, IDS, times).tolist() == [whole[at][i] for i, at in enumerate(times.tolist())]
    assert model.online(9, IDS[:0], 0).tolist() == []
    for ask in (model.online_until, model.online_from):
        assert ask(9, IDS, times).tolist() == [ask(9, IDS[i : i + 1], at)[0] for i, at in enumerate(times.tolist())]


@every_model
def test_another_seed_is_another_world(name: str) -> None:
    rows = [[MODELS[name].online(seed, IDS, at).tolist() for at in range(20)] for seed in (0, 1)]
    assert (rows[0] == rows[1]) == (name in ("always", "trace"))


@pytest.mark.parametrize("name", TIMED)
@pytest.mark.parametrize("start", [-50.0, 0.0, 1000.4])
def test_when_clients_come_and_go(name: str, start: float) -> None:
    """Online to just before `online_until`, offline to just before `online_from`: read off a fine grid."""
    model, step, ticks = MODELS[name], 1 / 64, 64 * 40
    times = start + step * np.arange(ticks)
    grid = model.online(2, np.repeat(IDS, ticks), np.tile(times, len(IDS))).reshape(len(IDS), ticks)
    assert grid.any(1).sum() >= 4 and (~grid).any(1).sum() >= 4
    for n in range(0, ticks // 2, 97):
        now = start + step * n
        for online, change in ((True, model.online_until(2, IDS, now)), (False, model.online_from(2, IDS, now))):
            for i in np.flatnonzero(grid[:, n] == online):
                assert (grid[i, n:][times[n:] < change[i] - 1e-9] == online).all()
                assert change[i] > now
                if np.isfinite(change[i]):
                    assert bool(model.online(2, IDS[i : i + 1], change[i])[0]) is not online


@every_model
def test_rounds_have_no_seconds(name: str) -> None:
    if MODELS[name].clock == "round":
        assert np.isinf(MODELS[name].online_until(0, IDS, 3)).all()
        assert np.isinf(MODELS[name].online_from(0, IDS, 3)).all()


@every_model
@pytest.mark.parametrize("algorithm", ["fedavg", "async_fedavg"])
def test_runs_repeat_and_resume(name: str, algorithm: str, tmp_path: Path) -> None:
    people = population(SMALL, **{**WORLD, "availability": MODELS[name]})

    def result(rounds: int, folder: Path | None = None, resume: bool = False) -> turnout.Result:
        return turnout.execute(experiment(algorithm, rounds, people=people), folder, checkpoint_every=1, resume=resume)

    whole = result(5)
    assert (whole.jobs()["outcome"] == "arrived").any()
    result(2, tmp_path)
    other = result(5, tmp_path, resume=True)
    assert torch.equal(whole.model, other.model)
    assert same(whole.rounds(), other.rounds()) and same(whole.jobs(), other.jobs())


# asynchronous methods look only for those who can be back


class Watched:
    """A model that counts who is asked for; one that knows nothing of the future, if told so."""

    clock: Literal["round", "seconds"] = "seconds"
    probability = correlation = None

    def __init__(self, model: Availability, knows: bool = True) -> None:
        self.model, self.knows, self.asked = model, knows, 0

    def online(self, seed: int, ids: IntArray, at: ArrayLike) -> BoolArray:
        self.asked += len(ids)
        return self.model.online(seed, ids, at)

    def online_until(self, seed: int, ids: IntArray, at: ArrayLike) -> FloatArray:
        return self.model.online_until(seed, ids, at)

    def online_from(self, seed: int, ids: IntArray, at: ArrayLike) -> FloatArray:
        return self.model.online_from(seed, ids, at) if self.knows else np.full(len(ids), at, np.float64)


@pytest.mark.parametrize("name", TIMED)
@pytest.mark.parametrize("algorithm", ["async_fedavg", "fedbuff", "fedfix"])
def test_looking_ahead_changes_no_bit(name: str, algorithm: str) -> None:
    """Whoever is looked for at every close and whoever is left alone until it can be back: the same run."""
    joined = {"joined_at": np.array([0, 0, 2.0, 0, 0, 1.5, 0, 0])}
    runs = []
    for knows in (True, False):
        people = population(SMALL, **{**WORLD, **joined, "availability": Watched(MODELS[name], knows)})
        seldom = turnout.Evaluation(rounds=None)
        runs.append(turnout.execute(experiment(algorithm, 25, people=people, evaluation=seldom)))
    assert torch.equal(runs[0].model, runs[1].model)
    assert same(runs[0].jobs(), runs[1].jobs()) and same(runs[0].rounds(), runs[1].rounds())


def test_looking_ahead_on_a_clock_finer_than_microseconds() -> None:
    """A close at 0.4666666... s already belongs to the interval that begins at 0.466667 s."""
    for seed in range(40):
        schedules = []
        for knows in (True, False):
            model = Watched(Bernoulli(0.5, clock="seconds", interval=0.466667), knows)
            people = population((1,) * 4, availability=model, devices=turnout.devices.fx(80, 4), seed=seed)
            schedules.append(turnout.schedule(turnout.AsyncFedAvg(turnout.LocalSGD(0.1)), people, 8))
        np.testing.assert_array_equal(schedules[0].client, schedules[1].client)
        np.testing.assert_array_equal(schedules[0].arrived_at, schedules[1].arrived_at)


def test_the_absent_are_not_looked_for_at_every_close() -> None:
    """2,000 clients, most of them offline for long: after the first round, few are asked for."""
    clients = 2000
    asked = []
    for knows in (True, False):
        model = Watched(Markov(0.1, 0.99, clock="seconds", interval=1.0), knows)
        base = population((1,) * clients)
        people = replace(base, availability=model, devices=turnout.devices.lognormal(50.0, 0.5))
        turnout.rehearse(turnout.AsyncFedAvg(turnout.LocalSGD(0.1)), people, 50)
        asked.append(model.asked)
    assert asked[0] < 6 * clients
    assert asked[1] > 40 * clients


# configurations


OPTIONS: dict[str, dict[str, Any]] = {
    "always": {},
    "bernoulli": {"probability": 0.7},
    "clustered": {"clusters": 5},
    "diurnal": {"level": 0.5, "amplitude": 0.4},
    "heterogeneous": {"gap": 0.3},
    "markov": {"probability": [0.9] * 5 + [0.5] * 5, "correlation": 0.5},
    "trace": {},
}


def settings(name: str, folder: Path, **options: Any) -> config.Settings:
    if name == "trace":
        (folder / "trace.csv").write_text("device,from_s,until_s\n0,0,50\n1,20,60\n", encoding="utf-8")
        options["path"] = str(folder / "trace.csv")
    overrides = {"clients": {"count": 10}, "availability": {"name": name, **OPTIONS[name], **options}}
    return config.read("digits") | overrides


@pytest.mark.parametrize("name", kinds.AVAILABILITY)
@pytest.mark.parametrize("groups", [None, 2, [0, 0, 0, 1, 1, 1, 2, 2, 2, 2]])
def test_by_name_with_its_options_and_groups(name: str, groups: int | list[int] | None, tmp_path: Path) -> None:
    """A complete configuration says all there is to build the same again."""
    given = settings(name, tmp_path, **({} if groups is None else {"groups": groups}))
    built, _, complete = config.build(given)
    again, _, _ = config.build(tomllib.loads(config.as_toml(complete)))
    model, ids = built.population.availability, np.arange(10)
    for at in range(0, 90, 3):
        online = model.online(0, ids, at)
        np.testing.assert_array_equal(again.population.availability.online(0, ids, at), online)
        if groups is not None:
            group = ids % groups if isinstance(groups, int) else np.array(groups)
            assert all(len(set(online[group == g])) == 1 for g in set(group))
    if name not in ("trace", "always", "diurnal", "bernoulli"):
        assert len(np.broadcast_to(model.probability, 10)) == 10  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "options", "complaint"),
    [
        ("markov", {"groups": 0}, "availability.groups: 0"),
        ("markov", {"groups": "two"}, "availability.groups: 'two'"),
        ("markov", {"groups": [0, 1]}, "availability.groups is given for 2 clients; client 9 has none"),
        ("markov", {"correlation": -0.9}, "correlation of client 0 is -0.9"),
        ("markov", {"lambda": 0.5}, "availability.lambda: unknown option"),
        ("heterogeneous", {"clients": 3}, "availability.clients: unknown option"),
        ("trace", {"shift": "some"}, "availability.shift: unknown name 'some'; allowed: none, random"),
        ("diurnal", {"zones": 1.5}, "availability.zones: 1.5 is not a whole number"),
    ],
)
def test_mistakes_are_sentences(name: str, options: dict[str, Any], complaint: str, tmp_path: Path) -> None:
    with pytest.raises(turnout.UserError, match=complaint):
        config.build(settings(name, tmp_path, **options))


def test_nobody_is_looked_for_before_it_has_joined() -> None:
    people = replace(population(availability=turnout.Always()), joined_at=np.array([0, 0, 0, 0, 7.0, 0, 0, 9.0]))
    online = simulation(turnout.FedAvg(local()), people).online()
    assert online.back_at(np.array([0, 4, 7])).tolist() == [0.0, 7.0, 9.0]
