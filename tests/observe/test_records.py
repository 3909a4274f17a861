"""The record of a run: a row a round, a row a job, read back as it was written; and an audit that adds up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import turnout
from support import Vector, local, mlp, population, quadratic_loss, same
from turnout import (
    Algorithm,
    Bernoulli,
    Crashes,
    FedAvg,
    Full,
    LocalSGD,
    Observer,
    Plan,
    Population,
    Task,
    Uniform,
    devices,
)
from turnout.record.audit import Audit, Findings
from turnout.record.history import History, Table
from turnout.record.progress import duration
from turnout.server.jobs import Job
from turnout.server.observer import Event, Round
from turnout.server.server import Server
from turnout.server.updates import Updates

WORLD: dict[str, Any] = {
    "devices": devices.lognormal(0.5, 0.7),
    "availability": Bernoulli(0.8),
    "crashes": Crashes(0.3),
    "links": turnout.Links(down=1e5, up=5e4, latency=0.01),
}


class Ledger(Observer):
    """An independent account: what `step` was asked to apply, and every hook that was called."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.invited = self.arrivals = 0
        self.records: list[Round] = []
        self.events: list[Event] = []

    def on_start(self, server: Server) -> None:
        self.calls.append("start")

    def on_invite(self, server: Server, jobs: Sequence[Job]) -> None:
        self.calls.append("invite")
        self.invited += len(jobs)

    def on_arrival(self, server: Server, job: Job) -> None:
        self.arrivals += 1

    def on_round(self, server: Server, record: Round) -> None:
        self.calls.append("round")
        self.records.append(record)

    def on_evaluate(self, server: Server, measures: dict[str, float]) -> None:
        self.calls.append("evaluate")

    def on_event(self, server: Server, event: Event) -> None:
        self.events.append(event)

    def on_end(self, server: Server) -> None:
        self.calls.append("end")


@dataclass
class Recorded(FedAvg):
    """FedAvg that writes down the weights it hands to `step`."""

    handed: list[tuple[list[int], list[float]]] = field(default_factory=list)

    def aggregate(self, server: Server, updates: Updates, chosen: Any) -> None:
        weights = self.weights(server, updates, chosen)
        self.handed.append((updates.clients.tolist(), weights.tolist()))
        server.step(updates, weights)


def run(
    algorithm: Algorithm, people: Population | None = None, rounds: int = 8, folder: Path | None = None, **options: Any
) -> tuple[turnout.Result, Ledger]:
    ledger = Ledger()
    experiment = turnout.Experiment(
        Task(mlp, seed=3), people or population(**WORLD), algorithm, seed=5, plan=Plan(threads=1), **options
    )
    experiment.stopping = turnout.Stopping(rounds)
    return turnout.execute(experiment, folder, checkpoint_every=3, observers=[ledger]), ledger


# -- hooks ----------------------------------------------------------------------------------------------------


def test_hooks_are_called_in_order() -> None:
    _, ledger = run(FedAvg(local(), Full()), population(), rounds=2)
    assert ledger.calls == ["start", "evaluate", "invite", "evaluate", "round", "invite", "evaluate", "round", "end"]
    assert ledger.invited == ledger.arrivals == 16


def test_the_loop_does_not_know_who_listens() -> None:
    """The same bits with observers and without."""
    watched, _ = run(FedAvg(local(), Uniform(3)))
    alone = turnout.simulate(
        Task(mlp, seed=3), population(**WORLD), FedAvg(local(), Uniform(3)), rounds=8, seed=5, plan=Plan(threads=1)
    )
    assert watched.model.equal(alone.model)


# -- history --------------------------------------------------------------------------------------------------


def test_round_rows() -> None:
    result, ledger = run(FedAvg(local(), Uniform(4)))
    rounds, jobs = result.rounds(), result.jobs()
    assert rounds["round"].tolist() == list(range(9))
    assert rounds["time"].tolist() == sorted(rounds["time"].tolist())
    assert rounds["time"][0] == 0
    assert rounds["invited"].sum() == ledger.invited == len(jobs["client"])
    assert (rounds["arrived"] + rounds["failed"] == rounds["invited"]).all()
    assert rounds["failed"].sum() > 0
    assert (np.diff(rounds["heard"]) >= 0).all()
    for number in range(1, 9):
        here = jobs["round"] == number
        assert rounds["used"][number] == (jobs["weight"][here] != 0).sum()
        assert rounds["weight"][number] == pytest.approx(jobs["weight"][here].sum())
        for column in ("bytes_down", "bytes_up"):
            assert rounds[column][number] == jobs[column][here].sum()
    assert rounds["train_loss"][-1] == result.measures["train_loss"]
    assert np.isfinite(rounds["train_loss"]).all()
    assert rounds["heard"][-1] == len(set(jobs["client"][jobs["weight"] != 0]))


def test_evaluation_when_due() -> None:
    """Every third round, and the last; in between the measures are missing, not old."""
    result, _ = run(FedAvg(local(), Uniform(4)), evaluation=turnout.Evaluation(rounds=3))
    measured = np.isfinite(result.rounds()["test_loss"])
    assert np.flatnonzero(measured).tolist() == [0, 3, 6, 8]


def test_job_rows() -> None:
    result, _ = run(FedAvg(local(), Uniform(4)))
    jobs = result.jobs()
    arrived = jobs["outcome"] == "arrived"
    assert set(jobs["outcome"]) == {"arrived", "crashed"}
    assert (jobs["weight"][~arrived] == 0).all()
    assert (jobs["progress"][arrived] == 1).all()
    assert (jobs["progress"][~arrived] < 1).all()
    assert (jobs["bytes_up"][~arrived] == 0).all()
    assert set(jobs["bytes_up"][arrived]) == {4 * result.model.numel()}
    spent = jobs["download_seconds"] + jobs["compute_seconds"] + jobs["upload_seconds"]
    assert jobs["ended_at"] - jobs["sent_at"] == pytest.approx(spent, abs=2e-6)
    sizes = np.array(population().train.counts)
    assert (jobs["samples"] == sizes[jobs["client"]]).all()
    assert (jobs["steps"] == 2 * -(-jobs["samples"] // 4)).all()
    assert (jobs["version"] == jobs["round"] - 1).all()
    names = list(zip(jobs["client"], jobs["job"], strict=True))
    assert len(set(names)) == len(names)
    for client in set(jobs["client"]):
        mine = jobs["job"][jobs["client"] == client]
        assert sorted(mine) == list(range(len(mine)))


def test_read_back_equals_memory(tmp_path: Path) -> None:
    """Parquet segments, written at every checkpoint, say what a run in memory says, to the last bit and type."""
    memory, _ = run(FedAvg(local(), Uniform(4)), evaluation=turnout.Evaluation(rounds=3))
    disk, _ = run(FedAvg(local(), Uniform(4)), folder=tmp_path, evaluation=turnout.Evaluation(rounds=3))
    assert len(list((tmp_path / "history").glob("*.parquet"))) == 4  # rounds 0, 3, 6 and the end
    assert same(memory.rounds(), disk.rounds())
    assert same(memory.jobs(), disk.jobs())
    for one, other in ((memory.rounds(), disk.rounds()), (memory.jobs(), disk.jobs())):
        assert {name: values.dtype for name, values in one.items()} == {n: v.dtype for n, v in other.items()}


def test_segments_are_one_table(tmp_path: Path) -> None:
    """Any Parquet reader opens the folder as one table."""
    import pyarrow.parquet as pq

    result, _ = run(FedAvg(local(), Uniform(4)), folder=tmp_path)
    table = pq.read_table(tmp_path / "jobs")
    assert sorted(table.column("client").to_pylist()) == sorted(result.jobs()["client"].tolist())
    assert set(table.column_names) == set(result.jobs())
    assert pq.read_table(tmp_path / "history").num_rows == 9


def test_history_without_jobs() -> None:
    history = History(jobs=False)
    server = turnout.Simulation(
        Task(mlp, seed=3), population(), FedAvg(local(), Full()), stopping=turnout.Stopping(2), observers=[history]
    )
    server.run()
    assert history.jobs is None
    assert history.rounds.read()["round"].tolist() == [0, 1, 2]


def test_columns_that_come_later() -> None:
    """A column new to the table is missing, not wrong, in the rows before."""
    table = Table(None)
    table.append(("round", "loss"), [(0, 2.0), (1, 1.0)])
    table.append(("round", "accuracy"), [(2, 0.5)])
    read = table.read()
    assert read["round"].tolist() == [0, 1, 2]
    assert np.isnan(read["loss"]).tolist() == [False, False, True]
    assert np.isnan(read["accuracy"]).tolist() == [True, True, False]


def test_cut_back(tmp_path: Path) -> None:
    """What was written after the checkpoint is forgotten, on disk too."""
    table = Table(tmp_path / "t")
    for number in range(3):
        table.append(("round",), [(number,)])
        table.flush()
    table.cut_back(table.segments[:1], {})
    assert table.read()["round"].tolist() == [0]
    assert [path.name for path in (tmp_path / "t").iterdir()] == ["000000.parquet"]
    table.append(("round",), [(7,)])
    table.flush()
    assert table.read()["round"].tolist() == [0, 7]


# -- audit ----------------------------------------------------------------------------------------------------


def added_up(handed: list[tuple[list[int], list[float]]], clients: int) -> np.ndarray[Any, Any]:
    total = np.zeros(clients)
    for ids, weights in handed:
        np.add.at(total, ids, weights)
    return total


@pytest.mark.parametrize("sampler", [Uniform(4), turnout.MD(4), Full()])
def test_audit_adds_up(sampler: Any) -> None:
    """Realised weights are those handed to `step`, client by client, and those the job rows say."""
    algorithm = Recorded(local(), sampler)
    result, _ = run(algorithm, rounds=12)
    audit, jobs = result.audit, result.jobs()
    handed = added_up(algorithm.handed, 8)
    assert audit.realised * 12 == pytest.approx(handed, rel=1e-14)
    assert np.bincount(jobs["client"], jobs["weight"], minlength=8) == pytest.approx(handed, rel=1e-14)
    counts = np.bincount([client for ids, _ in algorithm.handed for client in ids], minlength=8)
    assert audit.contributions.tolist() == counts.tolist()
    assert audit.never_heard.tolist() == np.flatnonzero(counts == 0).tolist()
    assert audit.mean_weight == pytest.approx(handed.sum() / 12)
    assert audit.intended == pytest.approx(result.server.importance)
    assert audit.failures == {"crashed": int((jobs["outcome"] == "crashed").sum())}
    assert audit.staleness == {0: int(counts.sum())}
    assert audit.linear
    by_round = np.zeros((12, 8))
    for number, (ids, weights) in enumerate(algorithm.handed):
        by_round[number, ids] = weights
    assert audit.weight_variance == pytest.approx(by_round.var(axis=0).sum())
    share = handed / handed.sum()
    assert audit.chi_square == pytest.approx((np.square(share - audit.intended) / audit.intended).sum())
    heard = counts > 0
    assert audit.ratio[heard] == pytest.approx((share / audit.intended)[heard])


def test_audit_of_what_was_meant() -> None:
    """Everybody, always: realised as intended, chi-square and variance 0."""
    result, _ = run(FedAvg(local(), Full()), population())
    assert result.audit.ratio == pytest.approx([1.0] * 8)
    assert result.audit.chi_square == pytest.approx(0, abs=1e-12)
    assert result.audit.weight_variance == 0  # a round-off of either sign is none
    assert result.audit.events == {}
    assert result.audit.as_dict()["never_heard"] == 0


@dataclass(frozen=True)
class Poison(LocalSGD):
    """Whoever has a rate above 1 returns NaN."""

    def finish(self, task: Any, received: Any, params: Any, carry: Any, state: Any, data: Any) -> Any:
        delta = params - received
        broken = torch.as_tensor(self.lr) > 1
        return {"delta": torch.where(broken, torch.full_like(delta, torch.nan), delta)}, {}


@dataclass
class Poisoned(Recorded):
    """Client 2 of four is broken in every round."""

    def work(self, server: Server) -> LocalSGD:
        return replace(self.local, lr=np.array([0.5, 0.5, 2.0, 0.5]))  # type: ignore[arg-type]


def quadratic_clients() -> Population:
    data = turnout.datasets.load("quadratics", optima=[0.0, 1.0, 2.0, 3.0])
    return Population.of(data, 4, "natural", test="none", importance=[0.4, 0.3, 0.2, 0.1])


@pytest.mark.parametrize("engine", ["vectorised", "sequential"])
def test_audit_with_a_rejected_update(engine: str) -> None:
    """A NaN update is left out: logged with the weight that is lost, counted by nobody, and the others still count."""
    ledger = Ledger()
    algorithm = Poisoned(Poison(0.5, steps=1, batching="full"), Full())
    experiment = turnout.Experiment(
        Task(Vector(1), quadratic_loss),
        quadratic_clients(),
        algorithm,
        stopping=turnout.Stopping(3),
        plan=Plan(precision="float64", threads=1, engine=engine),
    )
    result = turnout.execute(experiment, observers=[ledger])
    x = 0.0
    for _ in range(3):  # clients 0, 1 and 3, with their own weights: the .2 of client 2 is lost
        x += 0.5 * (0.4 * (0 - x) + 0.3 * (1 - x) + 0.1 * (3 - x))
    assert float(result.model[0]) == pytest.approx(x, rel=1e-14)
    assert [event.kind for event in ledger.events] == ["rejected_update"] * 3
    assert ledger.events[0].facts == {"client": 2, "job": 0, "why": "not finite", "weight": 0.2}
    assert "rejected update (client 2, job 0, why not finite, weight 0.2)" in str(ledger.events[0])
    audit = result.audit
    assert audit.events == {"rejected_update": 3}
    assert audit.event_clients == {"rejected_update": 1}
    assert audit.realised == pytest.approx([0.4, 0.3, 0.0, 0.1])
    handed = added_up(algorithm.handed, 4)
    handed[2] = 0
    assert audit.realised * 3 == pytest.approx(handed)
    assert audit.contributions.tolist() == [3, 3, 0, 3]
    assert audit.never_heard.tolist() == [2]
    assert audit.mean_weight == pytest.approx(0.8)
    jobs = result.jobs()
    assert (jobs["weight"][jobs["client"] == 2] == 0).all()
    assert set(jobs["outcome"]) == {"arrived"}
    assert len(jobs["client"]) == 12
    assert result.rounds()["used"].tolist() == [0, 3, 3, 3]
    assert result.rounds()["weight"].tolist() == pytest.approx([0, 0.8, 0.8, 0.8])


@dataclass
class AllPoisoned(FedAvg):
    def work(self, server: Server) -> LocalSGD:
        return replace(self.local, lr=np.full(4, 2.0))  # type: ignore[arg-type]


def test_nothing_but_rejected_updates_is_an_empty_round() -> None:
    run_ = AllPoisoned(Poison(0.5, steps=1, batching="full"), Full())
    task = Task(Vector(1), quadratic_loss)
    result = turnout.simulate(task, quadratic_clients(), run_, rounds=2)
    assert result.audit.events == {"rejected_update": 8, "empty_round": 2}
    assert result.audit.event_clients == {"rejected_update": 4}
    assert result.model.equal(task.initial)
    assert result.audit.mean_weight == 0
    assert result.audit.as_dict()["ratio_min"] is None


@dataclass
class Median(Algorithm):
    """A rule that is no weighted sum."""

    local: LocalSGD

    def run(self, server: Server) -> None:
        for _ in server.rounds():
            server.invite(server.population.ids, self.local)
            updates = server.wait()
            server.publish(updates.returned().median(0).values, updates, None)


def test_audit_of_a_rule_that_is_not_linear() -> None:
    """Selections are counted, and it says so."""
    result, _ = run(Median(local()), population(), rounds=3)
    assert not result.audit.linear
    assert result.audit.contributions.tolist() == [3] * 8
    assert result.audit.as_dict()["linear"] is False


def leavers(**columns: Any) -> turnout.Result:
    """Three clients of equal importance, rounds of a second."""
    data = turnout.datasets.load("quadratics", optima=[0.0, 1.0, 2.0])
    people = Population.of(data, 3, "natural", test="none", importance="equal", **columns)
    return turnout.simulate(Task(Vector(1), quadratic_loss), people, FedAvg(LocalSGD(0.1), Full()), rounds=4)


def test_realised_weights_when_clients_come_and_go() -> None:
    """Importance is renormalised over the members of each round: (1/3, 1/3, 1/3) twice, then (1/2, 1/2, 0)."""
    result = leavers(left_at=np.array([np.inf, np.inf, 2.0]))
    assert result.audit.realised * 4 == pytest.approx([5 / 3, 5 / 3, 2 / 3])
    assert result.rounds()["weight"].tolist() == pytest.approx([0, 1, 1, 1, 1])
    late = leavers(joined_at=np.array([0.0, 0.0, 3.0]))
    assert late.audit.realised * 4 == pytest.approx([11 / 6, 11 / 6, 1 / 3])


def test_intended_weights_when_clients_come_and_go() -> None:
    """What was intended in a round is the importance it was opened with: with Full, exactly what was realised."""
    for columns in ({"left_at": np.array([np.inf, np.inf, 2.0])}, {"joined_at": np.array([0.0, 0.0, 3.0])}):
        audit = leavers(**columns).audit
        assert audit.intended == pytest.approx(audit.realised)


def test_findings_for_scripts() -> None:
    result, _ = run(FedAvg(local(), Uniform(4)))
    facts = result.audit.as_dict()
    assert facts["clients"] == 8
    assert facts["contributions"] == int(result.audit.contributions.sum())
    assert all(not isinstance(value, np.generic | np.ndarray) for value in facts.values())
    assert result.summary()["audit"] == facts


def test_audit_state_round_trip() -> None:
    audit = Audit()
    people = population(**WORLD)
    server = turnout.Simulation(
        Task(mlp, seed=3), people, FedAvg(local(), Uniform(4)), stopping=turnout.Stopping(5), observers=[audit]
    )
    server.run()
    facts, tensors = audit.save()
    other = Audit()
    other.load(facts, tensors)
    one, two = audit.findings, other.findings
    for name in Findings.__dataclass_fields__:
        a, b = getattr(one, name), getattr(two, name)
        assert np.array_equal(a, b, equal_nan=True) if isinstance(a, np.ndarray) else a == b, name


@pytest.mark.parametrize(
    ("seconds", "words"), [(90, "90 s"), (750, "12.5 min"), (11520, "3.2 h"), (354240, "4.1 d"), (0, "0 s")]
)
def test_durations_for_people(seconds: float, words: str) -> None:
    assert duration(seconds) == words
