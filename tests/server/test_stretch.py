"""Rounds passed in one go leave behind what rounds gone through event by event do: every bit, row and event."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import turnout
from support import chained, conv, images, local, mlp, population, same
from turnout import (
    Algorithm,
    AsyncFedAvg,
    Evaluation,
    Experiment,
    FedBuff,
    FedFix,
    Observer,
    Plan,
    Population,
    Stopping,
    Task,
    devices,
)
from turnout.aggregation.optimisers import Adam, Momentum
from turnout.aggregation.rules import CoordinateMedian
from turnout.core.errors import UserError
from turnout.engine.engine import Engine
from turnout.record.audit import Audit
from turnout.record.history import History
from turnout.server import stretch
from turnout.server.closing import Buffer, EachArrival
from turnout.server.fleet import Fleet
from turnout.server.observer import Event, Round
from turnout.server.policy import Policy
from turnout.server.stretch import Stretch

SIZES = (4, 9, 6, 3, 12, 5, 8, 4, 7, 10)
DELAYS = [0.5, 0.9, 0.4, 1.7, 0.8, 0.35, 3.1, 0.6, 1.1, 0.7]
TIES = [0.5, 1.0, 0.5, 1.5, 1.0, 0.5, 3.0, 0.5, 1.0, 1.0]


class Looking(Observer):
    """Wants every round by itself."""

    def on_round(self, server: turnout.Server, record: Round) -> None: ...


class Listening(Observer):
    """Counts rounds passed, and keeps events."""

    def __init__(self) -> None:
        self.passed, self.events = 0, list[str]()

    def on_rounds(self, server: turnout.Server, stretch: Stretch) -> None:
        self.passed += len(stretch.times)

    def on_event(self, server: turnout.Server, event: Event) -> None:
        self.events.append(str(event))


def people(delays: list[float] = DELAYS, **columns: Any) -> Population:
    return population(SIZES, devices=devices.table(delays), **columns)


def left(experiment: Experiment, *observers: Observer, **options: Any) -> dict[str, Any]:
    """Everything that a run leaves."""
    listening = Listening()
    result = turnout.execute(experiment, observers=[listening, *observers], **options)
    history = result.history
    assert history.jobs is not None
    return {
        "passed": listening.passed,
        "model": result.model,
        "rounds": history.rounds.read(),
        "jobs": history.jobs.read(),
        "audit": {name: np.asarray(value) for name, value in result.audit.as_dict().items() if value is not None},
        "ratio": result.audit.ratio,
        "efficiency": result.efficiency,
        "events": listening.events,
        "measures": result.measures,
        "clients": result.clients(),
    }


def compare(make: Callable[[], Experiment], rounds: int | None) -> None:
    """Passed, and event by event; `rounds` that are to be passed at least."""
    passed, gone_through = left(make()), left(make(), Looking())
    assert gone_through["passed"] == 0
    assert passed["passed"] >= rounds if rounds else passed["passed"] == 0
    assert torch.equal(passed["model"], gone_through["model"])
    assert list(passed["rounds"]) == list(gone_through["rounds"])
    for table in ("rounds", "jobs", "clients"):
        assert same(passed[table], gone_through[table]), table
    assert same(passed["audit"], gone_through["audit"])
    assert np.array_equal(passed["ratio"], gone_through["ratio"], equal_nan=True)
    for part in ("efficiency", "events", "measures"):
        assert repr(passed[part]) == repr(gone_through[part]), part  # NaN is NaN


def experiment(method: Algorithm, rounds: int | None = 40, **options: Any) -> Experiment:
    return Experiment(
        options.pop("task", None) or Task(mlp, seed=3),
        options.pop("people", None) or people(),
        method,
        seed=5,
        stopping=Stopping(rounds, options.pop("seconds", None)),
        evaluation=options.pop("evaluation", Evaluation(rounds=7)),
        plan=options.pop("plan", Plan(threads=1)),
        **options,
    )


METHODS: dict[str, Callable[[], Algorithm]] = {
    "arrival": lambda: AsyncFedAvg(local()),
    "naive": lambda: AsyncFedAvg(local(), weight_rule="naive", server_lr=0.3),
    "discounted": lambda: AsyncFedAvg(local(), staleness_discount="hinge", discount_rate=2.0, discount_from=3),
    "momentum": lambda: AsyncFedAvg(local(lr=0.02), optimiser=Momentum(0.5)),
    "falling rate": lambda: AsyncFedAvg(local(schedules=(turnout.local.RoundStep(20, 0.5),))),
    "clipped": lambda: AsyncFedAvg(local(modifiers=chained("clip:0.05,noise:0.01:4"))),
    "adam at clients": lambda: AsyncFedAvg(local(optimiser=turnout.local.Adam())),
    "buffer": lambda: FedBuff(local(), buffer_size=3),
    "everybody": lambda: FedBuff(local(), buffer_size=len(SIZES)),
    "naive buffer": lambda: FedBuff(local(), buffer_size=4, weight_rule="naive", optimiser=Adam(0.01)),
    "window": lambda: FedFix(local(), window=0.9),
    "narrow window": lambda: FedFix(local(), window=0.2),  # the first round is empty
    "naive window": lambda: FedFix(local(), window=1.3, weight_rule="naive"),
}


@pytest.mark.parametrize("delays", [DELAYS, TIES], ids=["apart", "ties"])
@pytest.mark.parametrize("name", METHODS)
def test_what_is_left_is_the_same(name: str, delays: list[float]) -> None:
    compare(lambda: experiment(METHODS[name](), people=people(delays)), 1 if name == "narrow window" else 40)


WORLDS: dict[str, dict[str, Any]] = {
    "evaluated in every round": {"evaluation": Evaluation()},
    "evaluated by the clock": {"evaluation": Evaluation(rounds=None, seconds=1.3)},
    "never evaluated": {"evaluation": Evaluation(rounds=None)},
    "until a second": {"rounds": None, "seconds": 6.02},
    "double precision": {"plan": Plan(threads=1, precision="float64")},
    "two threads": {"plan": Plan(threads=2)},
    "one after another": {"plan": Plan(engine="sequential", threads=2)},
    "links": {"people": people(links=turnout.Links(down=1e4, up=3e3, latency=0.02))},
}


@pytest.mark.parametrize("name", ["arrival", "buffer", "window"])
@pytest.mark.parametrize("world", WORLDS)
def test_whatever_the_world(name: str, world: str) -> None:
    compare(lambda: experiment(METHODS[name](), **WORLDS[world]), 5)


@pytest.mark.parametrize("name", ["arrival", "buffer"])
def test_more_ticks_than_a_float_can_tell(name: str) -> None:
    compare(lambda: experiment(METHODS[name](), people=people([1e10 * delay for delay in DELAYS])), 40)


def test_rounds_of_several_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stretch, "MOST", 30)
    for name in ("arrival", "buffer", "window"):
        compare(lambda name=name: experiment(METHODS[name](), 90, evaluation=Evaluation(rounds=None)), 90)  # type: ignore[misc]


@pytest.mark.parametrize("name", ["arrival", "buffer", "window"])
@pytest.mark.parametrize("room", [1, 3, 6])
def test_in_little_memory(name: str, room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As few results are trained ahead as there is room for."""
    monkeypatch.setattr(Plan, "results_kept", lambda *_: room)
    compare(lambda: experiment(METHODS[name]()), 40)


@pytest.mark.parametrize("name", ["arrival", "buffer", "window"])
@pytest.mark.parametrize("threads", [1, 2])
def test_convolutions_trained_in_the_background(name: str, threads: int) -> None:
    world = {"task": Task(conv, seed=3), "people": images(SIZES, devices=devices.table(DELAYS))}
    compare(lambda: experiment(METHODS[name](), 40, plan=Plan(threads=threads), **world), 40)


@pytest.mark.parametrize("name", ["arrival", "buffer", "window"])
def test_a_run_goes_on_as_if_it_had_not_stopped(name: str, tmp_path: Path) -> None:
    """Whichever way it came, and whichever it goes on."""
    whole = left(experiment(METHODS[name](), 60))
    for before, after in (((), ()), ((Looking(),), ()), ((), (Looking(),))):
        folder = tmp_path / f"{len(before)}{len(after)}"
        for rounds, observers in ((33, before), (60, after)):
            going_on = {"folder": folder, "checkpoint_every": 11, "resume": rounds == 60}
            found = left(experiment(METHODS[name](), rounds), *observers, **going_on)
        assert (found["passed"] > 0) == (not after)
        assert torch.equal(found["model"], whole["model"])
        assert same({**found["jobs"]}, {**whole["jobs"]})


def test_models_that_are_no_longer_finite() -> None:
    """They are met event by event: the row is rejected, and the run goes on."""
    made = people()
    made.inputs[sum(SIZES[:6])] = torch.inf  # of the slowest client
    compare(lambda: experiment(AsyncFedAvg(local()), 40, people=made, evaluation=Evaluation(rounds=None)), 10)


UNFORESEEN: dict[str, Callable[[], Experiment]] = {
    "crashes": lambda: experiment(METHODS["arrival"](), people=people(crashes=turnout.Crashes(0.2))),
    "absence": lambda: experiment(METHODS["arrival"](), people=people(availability=turnout.Bernoulli(0.8))),
    "measured weights": lambda: experiment(AsyncFedAvg(local(), weight_rule="measured")),
    "rates of their own": lambda: experiment(AsyncFedAvg(local(), weight_rule="learning_rate")),
    "places": lambda: experiment(AsyncFedAvg(local(), concurrency=4)),
    "old updates dropped": lambda: experiment(AsyncFedAvg(local(), max_staleness=2)),
    "growing windows": lambda: experiment(FedFix(local(), window=0.5, window_growth=1.1)),
    "clients restart": lambda: experiment(FedBuff(local(), buffer_size=3, mode="restart")),
    "a rule": lambda: experiment(FedBuff(local(), buffer_size=3, rule=CoordinateMedian())),
    "clients that keep something": lambda: experiment(AsyncFedAvg(local(modifiers=chained("top_k:0.2")))),
    "a method of one's own": lambda: experiment(Halving(local())),
}


@dataclass
class Halving(AsyncFedAvg):
    """Looks at what arrives."""

    def aggregate(self, server: turnout.Server, updates: Any, policy: Any, durations: Any) -> None:
        assert len(updates) == 1
        server.step(updates, np.full(1, 0.5))


@pytest.mark.parametrize("name", UNFORESEEN)
def test_what_is_not_known_beforehand_is_gone_through(name: str) -> None:
    listening = Listening()
    result = turnout.execute(UNFORESEEN[name](), observers=[listening])
    assert listening.passed == 0
    assert result.history.rounds.rows == 41


def test_a_method_or_a_wait_of_ones_own_may_change_from_round_to_round() -> None:
    """What a subclass says is asked in every round, and not taken for what its base says."""

    @dataclass(frozen=True)
    class Growing(Buffer):
        def policy(self, durations: Any, version: int = 0, concurrency: int | None = None) -> Policy:
            return Policy(count=2 + version // 10)

    @dataclass(frozen=True)
    class Fading(EachArrival):
        def naive(self, server: turnout.Server, clients: Any) -> Any:
            return np.full(len(clients), 1 / (1 + server.version))

    @dataclass
    class Doubling(AsyncFedAvg):
        def policy(self, durations: Any, version: int = 0) -> Policy:
            return Policy(count=1 + (version > 10))

    @dataclass
    class Ramped(AsyncFedAvg):
        def inverse_rates(self, policy: Any, durations: Any) -> Any:
            return np.linspace(1, 2, len(SIZES))

    for method in (
        lambda: AsyncFedAvg(local(), wait=Growing(2)),
        lambda: AsyncFedAvg(local(), wait=Fading(), weight_rule="naive"),
        lambda: Doubling(local()),
        lambda: Ramped(local()),
    ):
        compare(lambda method=method: experiment(method(), 30), None)  # type: ignore[misc]


class Noting(Listening):
    """Notes, looks at the history, and raises when a model is evaluated."""

    def __init__(self, fails_at: int = 10**9) -> None:
        super().__init__()
        self.fails_at, self.known = fails_at, list[tuple[int, int]]()
        self.history: History | None = None

    def on_start(self, server: turnout.Server) -> None:
        self.history = next(one for one in server.observers if isinstance(one, History))

    def on_evaluate(self, server: turnout.Server, measures: dict[str, float]) -> None:
        assert self.history is not None
        self.known.append((server.version, self.history.rounds.rows))
        server.note(known=self.history.rounds.rows)
        if server.version >= self.fails_at:
            raise UserError("enough")


def test_who_is_told_of_an_evaluation_knows_of_all_rounds_before() -> None:
    noting = Noting()
    found = turnout.execute(experiment(METHODS["arrival"](), 30), observers=[noting])
    assert noting.known == [(0, 1), *((version, version) for version in (7, 14, 21, 28, 30))]
    known = found.history.rounds.read()["known"]
    assert {int(round): int(value) for round, value in enumerate(known) if np.isfinite(value)} == {
        1: 1, 8: 7, 15: 14, 22: 21, 29: 28,
    }  # fmt: skip
    assert noting.passed > 20


def test_what_was_passed_before_a_mistake_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    train, calls = Engine.train, count()

    def failing(engine: Engine, *arguments: Any, **options: Any) -> Any:
        if next(calls) == 5:
            raise UserError("a broken client")
        return train(engine, *arguments, **options)

    monkeypatch.setattr(Engine, "train", failing)
    made = experiment(METHODS["arrival"](), evaluation=Evaluation(rounds=None))
    history = History()
    server = turnout.Simulation(
        made.task, made.population, made.algorithm, seed=5, evaluation=made.evaluation, observers=[history]
    )
    with pytest.raises(UserError, match="a broken client"):
        server.run()
    assert history.rounds.rows == 1 + server.version > 10


def test_observers_that_come_later_have_every_round() -> None:
    class Inviting(Listening):
        def on_rounds(self, server: turnout.Server, stretch: Stretch) -> None:
            super().on_rounds(server, stretch)
            if len(server.observers) < 6:
                server.observers.append(later)

    class Later(Observer):
        rounds = 0

        def on_round(self, server: turnout.Server, record: Round) -> None:
            self.rounds += 1

    later, inviting = Later(), Inviting()
    turnout.execute(experiment(METHODS["arrival"](), 70), observers=[inviting])
    assert later.rounds == 70 - inviting.passed > 0


def test_results_that_nobody_waits_for_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most as many rows are kept as there is room for, and twice as many as are waited for."""
    kept, room = list[tuple[int, int]](), 6
    bring = Fleet.bring

    def counted(fleet: Fleet, *arguments: Any) -> None:
        bring(fleet, *arguments)
        kept.append((sum(block.rows for block in fleet.blocks), int((fleet.block >= 0).sum())))

    monkeypatch.setattr(Fleet, "bring", counted)
    monkeypatch.setattr(Plan, "results_kept", lambda *_: room)
    turnout.execute(experiment(METHODS["arrival"](), 200))
    assert kept
    assert all(rows <= max(2 * waited, room) for rows, waited in kept)


def test_a_rehearsal_trains_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Engine, "train")
    server = turnout.rehearse(METHODS["arrival"](), people(), 30, observers=[Listening()])
    assert server.version == 30


def test_an_observer_is_told_of_each_round_or_says_what_it_does_with_many() -> None:
    class Half(Audit):
        def on_round(self, server: turnout.Server, record: Round) -> None: ...

    class Both(Half):
        def on_rounds(self, server: turnout.Server, stretch: Stretch) -> None: ...

    class Stranger:
        def on_round(self, server: turnout.Server, record: Round) -> None: ...

    kinds = (Observer, Looking, Listening, Audit, Half, Both, Stranger)
    assert {kind.__name__: stretch.follows(kind()) for kind in kinds} == {
        "Observer": True, "Looking": False, "Listening": True, "Audit": True, "Half": False, "Both": True,
        "Stranger": False,
    }  # fmt: skip


def test_a_clock_that_cannot_tell_more_says_so() -> None:
    slow = people([1e11] * len(SIZES))
    with pytest.raises(UserError, match="the most a clock can tell"):
        turnout.execute(experiment(METHODS["arrival"](), 1000, people=slow, evaluation=Evaluation(rounds=None)))
