"""Jobs that stay together as columns: nobody can tell, whenever they are looked at."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support import Idle, local, mlp, population, simulation
from turnout import Evaluation, FedAvg, LocalSGD, Observer, Server, Simulation, Stopping, Task, Uniform, devices
from turnout.clients.power import Power
from turnout.core.errors import UserError
from turnout.record.audit import Audit
from turnout.record.efficiency import Efficiency, Energy
from turnout.record.history import History
from turnout.server.jobs import Crew, Job, together
from turnout.server.observer import Round

DELAYS = [5.0, 4.0, 3.0, 2.5, 2.0, 1.5, 1.0, 4.0, 6.0, 0.5]
EVERYBODY = list(range(len(DELAYS)))


class Quiet(Idle):
    clients_keep = "nothing"  # type: ignore[assignment]


def server(work: LocalSGD | None = None) -> tuple[Simulation, LocalSGD]:
    """One that has asked everybody for this work before."""
    work = work or local()
    s = simulation(Quiet(), population(tuple(4 for _ in DELAYS), devices=devices.table(DELAYS)))
    s.invite(EVERYBODY, work)
    s.step(s.wait(), np.full(len(DELAYS), 0.1))
    return s, work


class Looking(Observer):
    """Looks at every job at some point of a round."""

    def __init__(self, when: str) -> None:
        self.when, self.seen = when, 0

    def _look(self, when: str, jobs: Sequence[Job]) -> None:
        if self.when == when:
            self.seen += sum(job.ends_at > job.sent_at for job in jobs)

    def on_invite(self, server: Server, jobs: Sequence[Job]) -> None:
        self._look("invite", jobs)

    def on_step(self, server: Server, updates: Any, weights: Any) -> Any:
        self._look("step", updates.jobs if self.when == "step" else ())
        return weights

    def on_round(self, server: Server, record: Round) -> None:
        self._look("round", record.jobs)


def run(looking: Looking) -> tuple[torch.Tensor, float, dict[str, Any], dict[str, Any], dict[str, Any]]:
    people = population(tuple(3 + i % 4 for i in range(40)), devices=devices.fx(80, 40))
    history, audit, efficiency = History(), Audit(), Efficiency()
    observers: list[Observer] = [looking, Energy(Power()), efficiency, history, audit]
    s = Simulation(
        Task(mlp),
        people,
        FedAvg(LocalSGD(0.1, epochs=1, batch_size=2), Uniform(12)),
        stopping=Stopping(7),
        evaluation=Evaluation(rounds=3),
        observers=observers,
    )
    s.run()
    assert history.jobs is not None
    tables = {"rounds": history.rounds.read(), "jobs": history.jobs.read()}
    return s.model, s.now, tables, audit.findings.as_dict(), efficiency.findings


class Writing(Observer):
    """Writes into what it was shown."""

    def __init__(self) -> None:
        self.weights: Any = None
        self.records: list[Round] = []

    def on_step(self, server: Server, updates: Any, weights: Any) -> Any:
        self.weights = weights
        updates.versions[:] = 7
        return weights

    def on_round(self, server: Server, record: Round) -> None:
        self.weights[:] = 5.0
        self.records.append(record)


def test_a_record_is_nobody_elses() -> None:
    writing = Writing()
    people = population(tuple(4 for _ in DELAYS), devices=devices.table(DELAYS))
    Simulation(Task(mlp), people, FedAvg(local()), stopping=Stopping(4), observers=[writing]).run()
    assert together(writing.records[-1].jobs) is not None
    for record in writing.records:
        assert record.weights.sum() == pytest.approx(1.0)
        assert not record.staleness.any()
        assert record.facts["staleness_mean"] == 0.0


def test_a_table_keeps_nothing_but_its_rows() -> None:
    """What jobs cost is known of all clients, and is let go with the jobs."""
    s, work = server()
    history = History()
    s.observers = [history]
    for _ in range(2):
        s.invite(EVERYBODY, work)
        s.step(s.wait(), np.full(len(DELAYS), 0.1))
        s._rounds.close(s)
    assert history.jobs is not None
    kept = weakref.ref(s._dispatch.demand(work).costs.seconds)
    del s
    gc.collect()
    assert kept() is None
    assert len(history.jobs.read()["client"]) == 3 * len(DELAYS)


@pytest.mark.parametrize("when", ["invite", "step", "round"])
def test_whoever_looks_changes_nothing(when: str) -> None:
    looking = Looking(when)
    (model, now, tables, audit, efficiency), alone = run(looking), run(Looking("never"))
    assert looking.seen == 7 * 12
    assert torch.equal(model, alone[0])
    assert now == alone[1]
    for name, table in tables.items():
        assert list(table) == list(alone[2][name])
        for column, values in table.items():
            np.testing.assert_array_equal(values, alone[2][name][column], err_msg=f"{name} {column}")
    assert audit == alone[3]
    assert efficiency == alone[4]


def test_a_synchronous_run_makes_no_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    jobs = vars(Crew)["jobs"].fget
    monkeypatch.setattr(Crew, "jobs", property(lambda crew: made.append(len(crew)) or jobs(crew)))  # type: ignore[func-returns-value]
    run(Looking("never"))
    assert made == []
    run(Looking("round"))
    assert made


def test_it_arrives_in_order_with_everything_known_of_it() -> None:
    s, work = server()
    begun = s.now
    s.invite(EVERYBODY, work)
    assert s.in_flight == len(DELAYS)
    updates = s.wait()
    assert together(updates.crew or []) is not None
    order = sorted(EVERYBODY, key=lambda i: (DELAYS[i], i))
    assert updates.clients.tolist() == order
    assert updates.arrived_at.tolist() == [begun + DELAYS[i] for i in order]
    assert updates.sent_at.tolist() == [begun] * len(order)
    assert updates.versions.tolist() == [1] * len(order)
    assert updates.staleness.tolist() == [0] * len(order)
    assert updates.numbers.tolist() == [1] * len(order)
    assert updates.samples.tolist() == [4] * len(order)
    assert s.now == begun + 6.0
    assert s.in_flight == 0
    assert [job.client for job in updates.jobs] == order
    assert updates.columns is None
    assert [job.seconds[1] for job in updates.jobs] == [DELAYS[i] for i in order]
    assert updates.clients.tolist() == order


LOOKS: dict[str, Callable[[Any], Any]] = {
    "before": lambda updates: updates.jobs[0].result,
    "deltas": lambda updates: updates.deltas.shape,
    "norms": lambda updates: updates.norms().shape,
    "length": len,
}


@pytest.mark.parametrize("first", LOOKS)
@pytest.mark.parametrize("then", LOOKS)
def test_vectors_are_the_same_whenever_they_are_looked_at(first: str, then: str) -> None:
    def rows() -> torch.Tensor:
        s, work = server()
        s.invite(EVERYBODY, work)
        updates = s.wait()
        for look in (first, then):
            LOOKS[look](updates)
        total = updates.weighted_sum(np.linspace(0.1, 1, len(DELAYS)))
        return torch.stack([total, *updates.select([3]).deltas, *updates.deltas])

    s, work = server()
    s.invite(EVERYBODY, work)
    jobs = list(s._in_flight.values())  # one by one from the beginning
    updates = s.wait()
    assert [job.client for job in jobs] == EVERYBODY
    weights = np.linspace(0.1, 1, len(DELAYS))
    assert torch.equal(rows()[0], updates.weighted_sum(weights))
    assert torch.equal(rows()[2:], updates.deltas)
    assert torch.equal(rows()[1], updates.deltas[3])


def test_an_update_counts_once() -> None:
    s, work = server()
    s.invite(EVERYBODY, work)
    updates = s.wait()
    s.step(updates, np.full(len(DELAYS), 0.1))
    with pytest.raises(UserError, match="may be used once"):
        s.step(updates, np.full(len(DELAYS), 0.1))
    assert all(job.used for job in updates.jobs)
    with pytest.raises(UserError, match="may be used once"):
        s.step(updates.select([0]), [1.0])


def test_a_wait_for_some_a_deadline_and_a_cancellation_find_them_one_by_one() -> None:
    s, work = server()
    begun = s.now
    s.invite(EVERYBODY, work)
    assert s.wait(2).clients.tolist() == [9, 6]
    assert s.wait(seconds=0.9).clients.tolist() == [5]
    assert s.now == begun + 1.9
    assert s.cancel([0, 1]).clients.tolist() == [0, 1]
    assert s.wait().clients.tolist() == [4, 3, 2, 7, 8]
    s.invite(EVERYBODY, work)
    assert s.wait(len(DELAYS), seconds=5.5).clients.tolist()[-1] == 0
    assert s.in_flight == 1
    s.cancel(EVERYBODY)
    assert s.in_flight == 0
    s.invite(EVERYBODY, work)
    assert len(s.wait(len(DELAYS), seconds=6.0)) == len(DELAYS)  # the last at the very end of it


def test_more_invitations_and_clients_of_interest() -> None:
    s, work = server()
    s.invite(EVERYBODY[:8], work)
    with pytest.raises(UserError, match="client 3 has a job in flight"):
        s.invite([3], work)
    s.invite([9], work)
    assert s.in_flight == 9
    assert s.wait(1).clients.tolist() == [9]
    assert s.wait(of=[0, 1]).clients.tolist() == [1, 0]
    assert sorted(s.wait().clients.tolist()) == [2, 3, 4, 5, 6, 7]
    assert s.online().contains(EVERYBODY).all()


def test_they_survive_a_checkpoint_in_mid_flight() -> None:
    def finished(s: Simulation) -> tuple[torch.Tensor, float]:
        s.step(s.wait(), np.full(len(DELAYS), 0.1))
        return s.model, s.now

    s, work = server()
    s.invite(EVERYBODY, work)
    facts, tensors = s.save()
    again, _ = server()
    again.load(facts, tensors)
    assert again.in_flight == len(DELAYS)
    s2, work2 = server()
    s2.invite(EVERYBODY, work2)
    (model, now), (other, later), (untouched, last) = finished(s), finished(again), finished(s2)
    assert torch.equal(model, other)
    assert torch.equal(model, untouched)
    assert now == later == last


def test_what_counted_before_a_checkpoint_is_in_the_record() -> None:
    s, _ = server()
    facts, tensors = s.save()  # the first step has not been recorded
    again, _ = server()
    again.load(facts, tensors)
    for one in (s, again):
        one.observers = [History()]
        one._rounds.open = True
        next(one.rounds())
    first, second = (one.observers[0].jobs.read() for one in (s, again))  # type: ignore[attr-defined]
    assert len(first["client"]) == len(DELAYS)
    for name, values in first.items():
        np.testing.assert_array_equal(values, second[name], err_msg=name)


def test_a_history_keeps_no_models() -> None:
    s, work = server()
    s.observers = [History()]
    for _ in range(3):
        s.invite(EVERYBODY, work)
        s.step(s.wait(), np.full(len(DELAYS), 0.1))
        s._rounds.close(s)
        received = weakref.ref(s.model)  # by the next crew
    gc.collect()
    assert received() is not None
    s.invite(EVERYBODY, work)
    s.step(s.wait(), np.full(len(DELAYS), 0.1))
    s._rounds.close(s)
    gc.collect()
    assert received() is None


def test_it_shares_no_array_with_anybody() -> None:
    """Callers go on changing their own; nobody is trained in another's place."""

    def outcome(meddle: bool) -> tuple[torch.Tensor, dict[str, Any], dict[str, Any]]:
        s, work = server()
        history, audit = History(), Audit()
        s.observers = [history, audit]
        audit.on_start(s)
        ids = np.array(EVERYBODY)
        for _ in range(2):
            s.invite(ids, work)
            if meddle:
                ids[:] = 0
            updates = s.wait()
            if meddle:
                updates.clients.sort()
                updates.samples[:] = 99
                updates.steps[:] = 99
            weights = np.linspace(0.1, 0.2, len(ids))
            s.step(updates, weights)
            if meddle:
                weights[:] = 0
            ids[:] = EVERYBODY
            s._rounds.close(s)
        assert history.jobs is not None
        return s.model, history.jobs.read(), audit.findings.as_dict()

    (model, jobs, audit), (same, rows, found) = outcome(False), outcome(True)
    assert torch.equal(model, same)
    assert audit == found
    for name, values in jobs.items():
        np.testing.assert_array_equal(values, rows[name], err_msg=name)


def test_a_record_that_is_changed_later_changes_no_table() -> None:
    s, work = server()
    history = History()

    class Meddling(Observer):
        def on_round(self, server: Server, record: Round) -> None:
            record.weights[:], record.staleness[:] = 9, 9

    s.observers = [history, Meddling()]
    s._rounds.close(s)  # of the first step
    s.invite(EVERYBODY, work)
    s.step(s.wait(), np.full(len(DELAYS), 0.1))
    s._rounds.close(s)
    copied = copy.deepcopy(history)
    for one in (history, copied, pickle.loads(pickle.dumps(history))):
        assert one.jobs is not None
        rows = one.jobs.read()
        assert rows["weight"].tolist() == [0.1] * 2 * len(DELAYS)
        assert rows["staleness"].tolist() == [0] * 2 * len(DELAYS)


def test_who_is_told_of_an_invitation_knows_the_jobs_that_arrive() -> None:
    s, work = server()
    told: list[Sequence[Job]] = []

    class Told(Observer):
        def on_invite(self, server: Server, jobs: Sequence[Job]) -> None:
            told.append(jobs)

    s.observers = [Told()]
    s.invite(EVERYBODY, work)
    updates = s.wait()
    s.step(updates, np.full(len(DELAYS), 0.1))
    assert all(job.used and job.result is not None for job in told[0])
    assert {id(job) for job in told[0]} == {id(job) for job in updates.jobs}


def test_a_report_can_be_summed() -> None:
    s, work = server(local().reporting("loss"))
    s.invite(EVERYBODY, work)
    updates = s.wait()
    assert updates.columns is not None
    weights = np.linspace(0.1, 1, len(DELAYS))
    total = updates.weighted_sum(weights, "loss")
    assert total.shape == ()
    assert float(total) == pytest.approx(float((updates["loss"] * torch.as_tensor(weights)).sum()))


def test_numbers_of_their_own_may_lie_in_a_file(tmp_path: Path) -> None:
    """Any kind of array says that clients differ; they are no crew."""
    np.save(tmp_path / "lr.npy", np.linspace(0.1, 0.2, len(DELAYS)))
    s, _ = server()
    s.invite(EVERYBODY, replace(local(), lr=np.load(tmp_path / "lr.npy", mmap_mode="r")))
    updates = s.wait()
    assert updates.columns is None
    rates = {job.client: job.options["lr"] for job in updates.jobs}
    assert rates == dict(zip(EVERYBODY, np.linspace(0.1, 0.2, len(DELAYS)).tolist(), strict=True))
