"""Invariant 5 and the exact meaning of invite, wait, cancel, fetch, KEEP, standing invitations and detection."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch

from support import Idle, local, population, simulation
from turnout import (
    KEEP,
    Algorithm,
    Bernoulli,
    Crashes,
    Detection,
    Evaluation,
    Links,
    LocalSGD,
    Plan,
    Population,
    Ragged,
    Server,
    Simulation,
    Stopping,
)
from turnout import devices as hardware
from turnout.core.errors import UserError
from turnout.local.sgd import ClientData, Named
from turnout.server.state import load_jobs, save_jobs
from turnout.task.task import Task


def server(delays: list[float] | None = None, **columns: Any) -> Simulation:
    """One client a delay, all links infinite unless given."""
    delays = delays or [5, 4, 3, 2, 1]
    columns.setdefault("devices", hardware.table(delays))
    return simulation(Idle(), population(tuple(4 for _ in delays), **columns))


def events(updates: Any) -> list[tuple[float, int, int]]:
    return [
        (t, c, v)
        for t, c, v in zip(updates.arrived_at, updates.clients.tolist(), updates.versions.tolist(), strict=True)
    ]


def test_invite_never_advances_the_clock_and_wait_does() -> None:
    s = server()
    s.invite([0, 4], local())
    assert s.now == 0
    assert events(s.wait()) == [(1.0, 4, 0), (5.0, 0, 0)]
    assert s.now == 5


def test_count_returns_the_first_and_leaves_the_rest_in_the_inbox() -> None:
    s = server()
    s.invite(range(5), local())
    assert s.wait(2).clients.tolist() == [4, 3]
    assert s.now == 2
    s.wait(seconds=3)
    assert s.now == 5
    s.invite([4], local())
    assert s.wait(1, of=[4]).clients.tolist() == [4]
    assert s.now == 6
    assert s.wait(seconds=0).clients.tolist() == []


def test_what_a_timer_saw_stays_countable() -> None:
    s = server()
    s.invite(range(5), local())
    assert s.wait(1).clients.tolist() == [4]
    assert s.wait(count=1, of=[0]).clients.tolist() == [0]  # the others arrived meanwhile
    assert s.now == 5
    assert s.wait(seconds=0).clients.tolist() == [3, 2, 1]  # a drain, in order of arrival


def test_a_timer_runs_its_whole_time_even_when_everybody_has_answered() -> None:
    s = server()
    s.invite([4], local())
    assert len(s.wait(seconds=10)) == 1
    assert s.now == 10


def test_a_count_with_a_limit_returns_at_whichever_comes_first() -> None:
    s = server()
    s.invite(range(5), local())
    assert len(s.wait(3, seconds=10)) == 3
    assert s.now == 3
    assert len(s.wait(2, seconds=1.5)) == 1
    assert s.now == 4.5


def test_an_arrival_exactly_at_the_close_counts() -> None:
    s = server()
    s.invite(range(5), local())
    assert s.wait(seconds=3).clients.tolist() == [4, 3, 2]


def test_ties_are_broken_by_client_id() -> None:
    s = server([1, 1, 1, 1])
    s.invite([3, 0, 2, 1], local())
    assert s.wait().clients.tolist() == [0, 1, 2, 3]


def test_fx_is_exact_on_its_own_clock() -> None:
    """asynchronous.md 3.8: F80 with M = 5 is ticks 5, 4, 3, 2, 1; a float clock would call .07 / .01 eight."""
    s = simulation(Idle(), population((4,) * 5, devices=hardware.fx(80, 5)))
    s.invite(range(5), local())
    assert s.wait(seconds=0.2).clients.tolist() == [4]
    for _ in range(3):
        assert len(s.wait(seconds=0.2)) == 1
    assert s.wait(seconds=0.2).clients.tolist() == [0]
    assert s.now == 1.0


def test_a_million_windows_do_not_drift() -> None:
    s = simulation(Idle(), population((4,) * 7, devices=hardware.fx(30, 7)))
    for _ in range(1000):
        s.wait(seconds=0.001)
    assert s.now == 1.0


def test_versions_are_those_received() -> None:
    s = server()
    s.invite(range(5), local())
    s.step(s.wait(1), [0.2])
    s.invite([4], local())
    later = s.wait(2)
    assert events(later) == [(2.0, 3, 0), (2.0, 4, 1)]
    assert later.staleness.tolist() == [1, 0]
    assert torch.equal(later.received()[0], s.task.initial)
    assert torch.equal(later.received()[1], s.model)


def test_one_job_at_a_time() -> None:
    s = server()
    s.invite([1], local())
    with pytest.raises(UserError, match="client 1 has a job in flight"):
        s.invite([0, 1], local())
    with pytest.raises(UserError, match="named twice"):
        s.invite([2, 2], local())
    with pytest.raises(UserError, match="client 5 is not in the population"):
        s.invite([5], local())
    with pytest.raises(UserError, match="client -1 is not in the population"):
        s.invite([-1], local())


def test_server_push_delays_every_start() -> None:
    """SAFA: T = T_dist + T_down + T_train + T_up; 10 MB, 1.4 Mbit/s each way, 10 Gbit/s at the server."""
    links = Links(down=1.4e6, up=1.4e6, server=10e9)
    s = server([1, 2], links=links, model_bytes=10_000_000)
    s.invite([0, 1], local())
    updates = s.wait()
    np.testing.assert_allclose(updates.arrived_at, [0.016 + 114.2857142857 + 1, 0.016 + 114.2857142857 + 2], atol=2e-6)
    assert [job.bytes for job in updates.jobs] == [(10_000_000, 10_000_000)] * 2


def test_models_by_group_and_given_vectors() -> None:
    s = server()
    rows = torch.stack([s.model + 1, s.model + 2])
    s.invite([0, 1, 2], local(), (rows, [1, 0, 1]))
    s.invite([3], local(), s.model * 0)
    received = s.wait().received()
    expected = torch.stack([s.model * 0, rows[1], rows[0], rows[1]])
    assert torch.equal(received, expected)
    with pytest.raises(UserError, match="G models"):
        s.invite([0], local(), (rows[:, :3], [0]))
    with pytest.raises(UserError, match="a model of shape"):
        s.invite([0], local(), s.model[:3])


def test_numbers_of_a_work_may_be_arrays_over_the_invited() -> None:
    s = server()
    s.invite([2, 3], local(lr=np.array([0.0, 0.1]), epochs=np.array([1, 3])))
    updates = s.wait()
    assert updates.clients.tolist() == [3, 2]
    assert updates.steps.tolist() == [3, 1]
    assert [float(norm) > 0 for norm in updates.norms()] == [True, False]
    with pytest.raises(UserError, match=r"local.lr: 2 values for 1 invited"):
        s.invite([2], local(lr=np.array([0.0, 0.1])))


# -- failures and how they are learnt -------------------------------------------------------------------------


def crashing(detection: Detection, **columns: Any) -> Simulation:
    return server([4, 4], crashes=Crashes(np.array([1.0, 0.0])), detection=detection, **columns)


def test_oracle_detection_learns_at_the_crash_and_returns_early() -> None:
    s = crashing(Detection())
    s.invite([0, 1], local())
    updates = s.wait(2, of=[0])
    assert len(updates) == 0
    assert updates.failed.clients.tolist() == [0]
    assert updates.failed.reasons == ["crashed"]
    share = s.population.crashes.draw(0, np.array([0]), np.array([0]))[1][0]
    assert s.now == pytest.approx(4 * share, abs=1e-6)
    assert updates.failed.jobs[0].progress == pytest.approx(share, abs=1e-6)


def test_heartbeat_detection_learns_later() -> None:
    exact, late = crashing(Detection()), crashing(Detection("heartbeat", 7.0))
    for s in (exact, late):
        s.invite([0], local())
        s.wait()
    assert late.now == pytest.approx(exact.now + 7)


def test_no_detection_needs_a_time_limit() -> None:
    s = crashing(Detection("none"))
    s.invite([0, 1], local())
    assert s.wait(2, seconds=9).clients.tolist() == [1]
    assert s.now == 9
    with pytest.raises(UserError, match="1 jobs will never be heard of again"):
        s.wait()
    with pytest.raises(UserError, match="client 0 has a job in flight"):
        s.invite([0], local())
    s.cancel([0])
    s.invite([0], local())


def test_failures_are_told_once() -> None:
    s = crashing(Detection())
    s.invite([0, 1], local())
    assert len(s.wait(1).failed) == 1
    assert len(s.wait(seconds=0).failed) == 0


def test_absent_clients_fail_at_once_and_cost_nothing() -> None:
    s = server([1, 1], availability=Bernoulli(np.array([0.0, 1.0])), links=Links(down=1e6, up=1e6))
    assert s.online().ids.tolist() == [1]
    assert s.online().contains([0, 1]).tolist() == [False, True]
    s.invite([0, 1], local())
    updates = s.wait()
    assert updates.failed.reasons == ["offline"]
    assert updates.failed.jobs[0].bytes == (0, 0)
    assert updates.failed.jobs[0].seconds == (0, 0, 0)


def test_going_offline_interrupts_a_job() -> None:
    availability = Bernoulli(0.5, clock="seconds", interval=1.0)
    people = population((4,) * 40, availability=availability, devices=hardware.fixed(2.5))
    s = simulation(Idle(), people)
    ids = s.online().ids
    s.invite(ids, local())
    updates = s.wait()
    until = availability.online_until(0, ids, 0.0)
    assert sorted(updates.clients) == ids[until >= 2.5].tolist()
    assert set(updates.failed.reasons) == {"offline"}
    ends = {job.client: job.ends_at / s.population.ticks_per_second for job in updates.failed.jobs}
    assert ends == {int(i): u for i, u in zip(ids, until, strict=True) if u < 2.5}


def test_clients_join_and_leave() -> None:
    people = population((4, 4, 4), joined_at=np.array([0, 0, 2.0]), left_at=np.array([np.inf, 1.5, np.inf]))
    s = simulation(Idle(), replace(people, devices=hardware.fixed(1.0)), stopping=Stopping(rounds=3))
    np.testing.assert_allclose(s.importance, [0.5, 0.5, 0])
    assert s.online().ids.tolist() == [0, 1]
    s.wait(seconds=1)
    s.invite([0, 1], local())
    updates = s.wait()
    assert updates.clients.tolist() == [0]
    assert updates.failed.reasons == ["left"]
    assert s.now == 2
    assert s.online().ids.tolist() == [0, 2]
    np.testing.assert_allclose(s.population.importance_at(s.now), [0.5, 0, 0.5])


def test_importance_follows_membership_between_rounds() -> None:
    people = population((4, 4, 4), joined_at=np.array([0, 0, 2.0]))

    @dataclass
    class Ticking(Algorithm):
        seen: list[list[float]] = field(default_factory=list, init=False)

        def run(self, server: Server) -> None:
            for _ in server.rounds():
                self.seen.append(server.importance.round(3).tolist())
                server.step(server.wait(seconds=1), [])

    s = simulation(Ticking(), people, stopping=Stopping(rounds=3))
    s.run()
    assert s.algorithm.seen == [[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.333, 0.333, 0.333]]  # type: ignore[attr-defined]


# -- cancel, hold and fetch, standing invitations, KEEP -------------------------------------------------------


def test_cancel_costs_pro_rata() -> None:
    links = Links(down=1e6, up=1e6)
    s = server([10, 10], links=links, model_bytes=125_000)  # a second down, ten of work, a second up
    s.invite([0], local())
    s.wait(seconds=0.5)
    s.cancel([0])
    s.invite([0, 1], local())
    s.wait(seconds=3.5)
    s.cancel([0, 1])
    s.cancel([1])  # nothing left to cancel
    s.step(s.wait(), [])
    record = [job for jobs in s._rounds.ended for job in jobs]
    assert [job.outcome for job in record] == ["cancelled"] * 3
    assert record[0].seconds == (0.5, 0.0, 0.0)
    assert record[0].bytes == (62_500, 0)
    assert record[1].seconds == (1.0, 2.5, 0.0)
    assert record[1].bytes == (125_000, 0)
    assert record[1].progress == pytest.approx(0.25)


def test_hold_sends_a_norm_and_fetch_brings_the_vector_home() -> None:
    s = server([1, 1, 1], links=Links(up=8e6), model_bytes=1_000_000)  # a second to upload
    s.invite([0, 1, 2], local(), hold=True)
    answers = s.wait()
    assert s.now == pytest.approx(1, abs=1e-4)
    norms = answers.norms()
    with pytest.raises(UserError, match="still held by their clients"):
        answers.deltas  # noqa: B018
    before = s.now
    fetched = s.fetch([2, 0])
    assert s.now == pytest.approx(before + 1)
    assert fetched.clients.tolist() == [0, 2]
    torch.testing.assert_close(fetched.deltas.norm(dim=1), norms[[0, 2]])
    assert fetched.jobs[0].bytes[1] == 1_000_008
    with pytest.raises(UserError, match="client 0 holds no update"):
        s.fetch([0])
    s.cancel([1])
    with pytest.raises(UserError, match="client 1 holds no update"):
        s.fetch([1])


def test_other_arrivals_wait_while_vectors_are_fetched() -> None:
    s = server([1, 1.5], links=Links(up=8e6), model_bytes=1_000_000)
    s.invite([0], local(), hold=True)
    s.invite([1], local())
    s.wait(1, of=[0])
    s.fetch([0])
    assert s.wait(seconds=1).clients.tolist() == [1]


def test_a_standing_invitation_restarts_on_the_current_model() -> None:
    s = server([2, 3])
    s.invite([0, 1], local(), again=True)
    s.step(s.wait(1), [1.0])  # at 2, client 0: its update closes the round, so it restarts on the new model
    buffered = s.wait(2)
    assert events(buffered) == [(3.0, 1, 0), (4.0, 0, 1)]  # client 1 restarts at 3, before the round closes
    s.step(buffered, [0.5, 0.5])
    assert events(s.wait(3)) == [(6.0, 0, 2), (6.0, 1, 1), (8.0, 0, 2)]
    s.cancel([0, 1])
    assert len(s.wait()) == 0


def test_a_crash_restarts_under_a_standing_invitation_as_soon_as_it_is_known() -> None:
    """Client 0 crashes after a quarter of its 8 s, 3 s later that is known, and its second job takes 8 s."""
    for detection, known in ((Detection(), 2.0), (Detection("heartbeat", 3.0), 5.0)):
        s = server([8, 40], crashes=FirstJobCrashes(0), detection=detection)
        s.algorithm.restarts_crashed = True  # type: ignore[misc]
        s.invite([0, 1], local(), again=True)
        updates = s.wait(1)
        assert events(updates) == [(known + 8, 0, 0)]
        assert updates.failed.clients.tolist() == [0]
        assert updates.failed.standing.tolist() == [True]
        s.step(updates, [1.0])
        assert events(s.wait(1)) == [(known + 16, 0, 1)]


def test_a_crash_ends_a_standing_invitation_unless_the_algorithm_says_otherwise() -> None:
    s = server([8, 40], crashes=FirstJobCrashes(0))
    s.invite([0, 1], local(), again=True)
    updates = s.wait(1)
    assert events(updates) == [(40.0, 1, 0)]
    assert updates.failed.standing.tolist() == [False]


def test_a_client_that_always_crashes_is_left_alone_until_the_wait_is_over() -> None:
    s = server([8], crashes=Crashes(1.0))
    s.algorithm.restarts_crashed = True  # type: ignore[misc]
    for _ in range(2):
        s.invite([0], local(), again=True)
        updates = s.wait(1)
        assert len(updates) == 0
        assert updates.failed.standing.tolist() == [True, True, True, False]
        assert s.in_flight == 0


def test_one_client_may_be_twice_in_a_buffer() -> None:
    s = server([1, 10])
    s.invite([0, 1], local(), again=True)
    updates = s.wait(4)
    assert updates.clients.tolist() == [0, 0, 0, 0]
    assert updates.numbers.tolist() == [0, 1, 2, 3]
    assert not torch.equal(updates.deltas[0], updates.deltas[1])  # other batches
    s.step(updates, [0.25] * 4)


def test_keep_goes_on_from_the_own_model_without_a_download() -> None:
    links = Links(down=1e6, up=1e6)
    s = server([1], links=links, model_bytes=125_000)
    s.invite([0], local())
    first = s.wait()
    assert s.now == 3
    s.step(first, [0.5])
    s.invite([0], local(), KEEP)
    second = s.wait()
    assert s.now == 5
    assert second.versions.tolist() == [0]
    assert second.jobs[0].bytes == (0, 125_000)
    torch.testing.assert_close(second.received(), first.returned())


def test_keep_finishes_an_interrupted_job_with_the_same_result() -> None:
    """Unfinished progress is kept: only the rest of the time is spent, and the batches are the original ones."""
    whole = server([8])
    whole.invite([0], local())
    expected = whole.wait().deltas
    s = server([8], crashes=FirstJobCrashes())
    s.invite([0], local())
    failed = s.wait().failed.jobs[0]
    assert failed.progress == pytest.approx(0.25)
    s.invite([0], local(), KEEP)
    updates = s.wait()
    assert s.now == 8
    assert torch.equal(updates.deltas, expected)
    assert updates.jobs[0].seconds[1] == 6
    assert updates.jobs[0].done == pytest.approx(0.25)


class FirstJobCrashes(Crashes):
    """The first job of every client, or of one."""

    def __init__(self, client: int | None = None) -> None:
        super().__init__(0.5)
        object.__setattr__(self, "client", client)

    def draw(self, seed: int, ids: Any, number: Any) -> Any:
        whose = True if self.client is None else np.asarray(ids) == self.client  # type: ignore[attr-defined]
        return (np.asarray(number) == 0) & whose, np.full(len(ids), 0.25)


def test_keep_needs_something_to_go_on_from() -> None:
    s = server([1])
    with pytest.raises(UserError, match="client 0 has nothing to go on from"):
        s.invite([0], local(), KEEP)
    s.algorithm.clients_keep = "nothing"  # type: ignore[misc]
    with pytest.raises(UserError, match="clients_keep"):
        s.invite([0], local(), KEEP)


# -- named payloads, scans, state, predict --------------------------------------------------------------------


@dataclass(frozen=True)
class Profile(LocalSGD):
    """No training: a full pass that reports the mean loss and the mean and variance of the inputs."""

    def num_steps(self, counts: Any) -> Any:
        return np.zeros_like(np.asarray(counts))

    def payload_shapes(self, task: Task) -> dict[str, tuple[int, ...]]:
        return {"loss": (), "profile": (2, 5)}

    def state_shapes(self, task: Task) -> dict[str, tuple[int, ...]]:
        return {"visits": ()}

    def finish(
        self, task: Task, received: torch.Tensor, params: torch.Tensor, carry: Any, state: Named, data: ClientData
    ) -> tuple[Named, Named]:
        loss = data.mean(data.scan(lambda x, y: task.losses(params, x, y)))
        mean = data.mean(data.scan(lambda x, _: x))
        variance = data.mean(data.scan(lambda x, _: (x - mean) ** 2))
        return {"loss": loss, "profile": torch.stack([mean, variance])}, {"visits": state["visits"] + 1}


@pytest.mark.parametrize("engine", ["vectorised", "sequential"])
def test_named_payloads_and_full_passes(engine: str) -> None:
    s = simulation(Idle(), population(), plan=Plan(engine=engine, precision="float64", threads=1))
    s.invite(s.population.ids, Profile(0.0, batch_size=4))
    updates = s.wait()
    for i, client in enumerate(updates.clients):
        mine = s.population.train.row(client)
        x = s.cohort.inputs[mine]
        torch.testing.assert_close(updates["loss"][i], s.task.losses(s.model, x, s.cohort.targets[mine]).mean())
        torch.testing.assert_close(updates["profile"][i], torch.stack([x.mean(0), x.var(0, unbiased=False)]))
    assert s._dispatch.demand(Profile(0.0)).bytes_up == 8 * 11


def test_state_is_committed_when_the_job_completes_on_the_clock() -> None:
    s = server([1, 5])
    s.invite([0, 1], Profile(0.0))
    early = s.wait(1)
    early["loss"]  # trains client 1 ahead as well
    shapes: dict[str, tuple[int, ...]] = {"visits": ()}
    assert s.store.get(shapes, np.array([0, 1]))["visits"].tolist() == [1, 0]
    s.wait()
    assert s.store.get(shapes, np.array([0, 1]))["visits"].tolist() == [1, 1]


def test_a_cancelled_job_leaves_no_state() -> None:
    s = server([1, 5])
    s.invite([0, 1], Profile(0.0))
    s.wait(1)["loss"]
    s.cancel([1])
    assert s.store.get({"visits": ()}, np.array([1]))["visits"].tolist() == [0]


def test_state_is_there_for_the_next_job_even_if_nobody_looked() -> None:
    s = server([1])
    for _ in range(3):
        s.invite([0], Profile(0.0))
        s.wait()
    s.settle()
    assert s.store.get({"visits": ()}, np.array([0]))["visits"].tolist() == [3]


def counted(server: Simulation) -> list[int]:
    """How many jobs each training call got."""
    sizes: list[int] = []
    train = server.cohort.train

    def counting(jobs: Any, *options: bool) -> Any:
        sizes.append(len(jobs.keys))
        return train(jobs, *options)

    server.cohort.train = counting  # type: ignore[assignment, method-assign]
    return sizes


def test_nothing_is_trained_until_it_is_looked_at_and_then_everything_in_flight_is() -> None:
    s = server([1, 1.6, 3])
    calls = counted(s)
    s.invite([0, 1, 2], local())
    first = s.wait(1)
    assert calls == []
    s.step(first, [0.1])
    s.invite([0], local())
    assert calls == [3]
    s.step(s.wait(1), [0.1])
    assert calls == [3]
    s.step(s.wait(2), [0.1, 0.1])
    assert calls == [3, 1]


def test_look_ahead_is_bounded_by_the_memory_budget() -> None:
    s = simulation(Idle(), population(), plan=Plan(threads=1))
    object.__setattr__(s.plan, "memory_mib", 0)
    s.invite(s.population.ids, local())
    first = s.wait(1)
    first.deltas  # noqa: B018
    assert [job.result is None for job in s._in_flight.values()] == [True] * 7


def test_unequal_works_train_apart_and_equal_ones_together() -> None:
    s = server([1, 1, 1, 1])
    sizes = counted(s)
    s.invite([0, 1], local())
    s.invite([2], local())
    s.invite([3], local(lr=0.3))
    s.wait().deltas  # noqa: B018
    assert sizes == [3, 1]


def test_a_population_of_many_never_touches_those_who_are_not_asked() -> None:
    """online().sample is O(asked): only the drawn clients' availability is looked up."""
    asked: list[int] = []

    class Counting(Bernoulli):
        def online(self, seed: int, ids: Any, at: Any) -> Any:
            asked.append(len(ids))
            return super().online(seed, ids, at)

    n = 200_000
    base = population((4,))
    many = Population(
        base.inputs, base.targets, Ragged(np.arange(n + 1), np.zeros(n, np.int32)), availability=Counting(0.5)
    )
    s = simulation(Idle(), many, evaluation=Evaluation(clients=5))
    chosen = s.online().sample(50, 0, "anybody", 7)
    assert len(set(chosen.tolist())) == 50
    assert sum(asked) < 1000


def test_jobs_of_version_0_1_are_read() -> None:
    """There `learnt` was called `heard`."""
    s = server([1, 5])
    s.invite([0, 1], local())
    s._in_flight[1].learnt = False
    facts, tensors = save_jobs(list(s._in_flight.values()))
    for row in facts["rows"]:
        row["heard"] = row.pop("learnt")
    assert [job.learnt for job in load_jobs(facts, tensors, "cpu")] == [True, False]
