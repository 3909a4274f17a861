"""Jobs of large invitations that are columns while nobody looks: every row and event as of jobs that are objects."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import turnout
from support import local, mlp, population, same, simulation
from turnout import (
    Algorithm,
    AsyncFedAvg,
    Detection,
    FedAvg,
    FedBuff,
    FedFix,
    Observer,
    Server,
    Stopping,
    Task,
    Uniform,
    devices,
)
from turnout.clients.traces import Trace
from turnout.record.audit import Audit
from turnout.record.history import History
from turnout.server.jobs import Job, columns_of
from turnout.server.observer import Event, Round

TRACE = Trace(
    [0, 0, 1, 2, 2], [0.0, 60.0, 5.0, 0.0, 42.5], [55.0, 120.0, 110.0, 35.0, 120.0], 120.0, "random", "random"
)
SIZES = tuple(3 + i % 4 for i in range(200))


DETECTION = {"oracle": Detection(), "heartbeat": Detection("heartbeat", 0.3), "none": Detection("none")}


def people(detection: str = "oracle") -> turnout.Population:
    return population(
        SIZES,
        devices=devices.lognormal(20.0, 0.7, per="step"),
        availability=TRACE,
        crashes=turnout.Crashes(0.1),
        detection=DETECTION[detection],
    )


METHODS: dict[str, Callable[[], Algorithm]] = {
    "buffer": lambda: FedBuff(local(), buffer_size=8, concurrency=20),
    "few": lambda: FedBuff(local(), buffer_size=4, concurrency=20),
    "full buffer": lambda: FedBuff(local(), buffer_size=20, concurrency=20),
    "naive": lambda: FedBuff(local(), buffer_size=8, concurrency=20, weight_rule="naive", server_lr=0.5),
    "everybody": lambda: FedBuff(local(), buffer_size=12),
    "restarting": lambda: FedBuff(local(), buffer_size=8, mode="restart"),
    "old ones dropped": lambda: FedBuff(local(), buffer_size=4, concurrency=20, max_staleness=1),
    "arrival": lambda: AsyncFedAvg(local()),
    "window": lambda: FedFix(local(), window=2.0),
    "window of few": lambda: FedFix(local(), window=1.0, concurrency=15),
    "rounds": lambda: FedAvg(local(), Uniform(12)),
    "deadline": lambda: FedAvg(local(), Uniform(12), deadline=0.5),
}
STAY = ("buffer", "few", "naive", "everybody", "window", "window of few")


class Watching(Observer):
    """Keeps events, and counts rounds whose jobs nobody has looked at."""

    def __init__(self, saves: bool = False) -> None:
        self.events, self.stayed, self.saves, self.saved = list[str](), 0, saves, ""

    def on_event(self, server: Server, event: Event) -> None:
        self.events.append(str(event))

    def on_round(self, server: Server, record: Round) -> None:
        self.stayed += columns_of(record.jobs) is not None
        if self.saves and record.number == 5:
            facts = server.save()[0]
            self.saved = json.dumps([facts[name] for name in ("clock", "places", "jobs", "used")])


class Looking(Watching):
    """Looks at every job when it is invited: none are columns."""

    def on_invite(self, server: Server, jobs: Sequence[Job]) -> None:
        assert type(jobs) is list


class Peeping(Observer):
    """Looks at jobs at some point of every third round."""

    def __init__(self, when: str) -> None:
        self.when, self.seen = when, 0

    def on_step(self, server: Server, updates: Any, weights: Any) -> Any:
        if self.when == "step" and server.version % 3 == 1:
            self.seen += sum(job.ends_at > job.sent_at and bool(job.received.isfinite().all()) for job in updates.jobs)
        return weights

    def on_round(self, server: Server, record: Round) -> None:
        if self.when == "round" and server.version % 3 == 1:
            pairs = zip(record.jobs, record.weights, strict=True)
            self.seen += sum(not job.logged and job.used == bool(weight) for job, weight in pairs)


def left(name: str, watch: Watching, *observers: Observer, **columns: Any) -> dict[str, Any]:
    """Everything that a rehearsal leaves."""
    history, audit = History(), Audit()
    # the audit is told of rounds last: it looks at their jobs
    server = turnout.rehearse(
        METHODS[name](), people(**columns), 25, task=Task(mlp), seed=3, observers=[*observers, history, watch, audit]
    )
    assert history.jobs is not None
    return {
        "rounds": history.rounds.read(),
        "jobs": history.jobs.read(),
        "audit": repr(audit.findings.as_dict()),
        "model": server.model.tolist(),
        "begun": server._numbers.tolist(),  # type: ignore[attr-defined]
        "state": (server.version, server.now, server.in_flight, server.online().ids.tolist()),
        "events": watch.events,
        "saved": watch.saved,
    }


def assert_equal(one: dict[str, Any], two: dict[str, Any]) -> None:
    for table in ("rounds", "jobs"):
        assert list(one[table]) == list(two[table]) and same(one[table], two[table]), table
        assert [column.dtype for column in one[table].values()] == [column.dtype for column in two[table].values()]
    rest = [name for name in one if name not in ("rounds", "jobs")]
    assert [one[name] for name in rest] == [two[name] for name in rest]


@pytest.fixture(autouse=True)
def columns_for_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turnout.server.simulation, "_MANY", 1)
    monkeypatch.setattr(turnout.server.simulation, "_SHARE", 1000)


CASES = [(name, "heartbeat" if name == "naive" else "oracle") for name in METHODS]


@pytest.mark.parametrize(("name", "detection"), [*CASES, ("window", "none"), ("deadline", "none")])
def test_as_objects(name: str, detection: str) -> None:
    watch, looking = Watching(), Looking()
    assert_equal(left(name, watch, detection=detection), left(name, looking, detection=detection))
    assert watch.stayed > (12 if name in STAY else -1) and looking.stayed == 0


@pytest.mark.parametrize("when", ["step", "round"])
@pytest.mark.parametrize("name", ["buffer", "window"])
def test_whoever_looks_sees_them(name: str, when: str) -> None:
    peeping, there = Peeping(when), Peeping(when)
    assert_equal(left(name, Watching(), peeping), left(name, Looking(), there))
    assert peeping.seen == there.seen > 20


@pytest.mark.parametrize("name", ["buffer", "window of few"])
def test_what_is_saved(name: str) -> None:
    one, two = left(name, Watching(saves=True)), left(name, Looking(saves=True))
    assert len(one["saved"]) > 1000
    assert_equal(one, two)


def test_what_is_trained_is_objects() -> None:
    """Waves are for rehearsals."""
    watch = Watching()
    simulation(METHODS["buffer"](), people(), stopping=Stopping(4), observers=[watch]).run()
    assert watch.stayed == 0


def test_a_small_invitation_beside_many_jobs_is_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watching()
    monkeypatch.setattr(turnout.server.simulation, "_SHARE", 1)
    left("few", watch)
    assert watch.stayed < 8
