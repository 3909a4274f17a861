"""Corners of the server's calls that are easy to get wrong."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import turnout
from support import Idle, experiment, local, population, simulation
from turnout import KEEP, Algorithm, Bernoulli, Crashes, Detection, LocalSGD, Server, Simulation, Stopping
from turnout import devices as hardware
from turnout.core.errors import UserError
from turnout.local.modifiers import ControlVariates
from turnout.local.own import OwnModelSGD
from turnout.server.jobs import Job


def server(delays: list[float], **columns: Any) -> Simulation:
    columns.setdefault("devices", hardware.table(delays))
    return simulation(Idle(), population(tuple(4 for _ in delays), **columns))


class Presence:
    """Online before and after a gap."""

    clock, probability = "seconds", None

    def online(self, seed: int, ids: Any, at: float) -> Any:
        return np.full(len(ids), not 1 <= at < 2)

    def online_until(self, seed: int, ids: Any, at: float) -> Any:
        return np.full(len(ids), np.inf)


def test_keep_goes_on_from_what_the_client_really_has() -> None:
    """A model that was never delivered does not replace the client's own."""
    s = server([1.0], availability=Presence())
    s.invite([0], local())
    first = s.wait()
    s.step(first, [1.0])
    s.invite([0], local())  # nobody is there
    assert s.wait().failed.reasons == ["offline"]
    s.wait(seconds=2)
    s.invite([0], local(), KEEP)
    again = s.wait()
    torch.testing.assert_close(again.received(), first.returned())
    assert again.versions.tolist() == [0]


def test_a_client_that_never_received_anything_has_nothing_to_keep() -> None:
    s = server([1.0, 1.0], availability=Bernoulli(np.array([0.0, 1.0])))
    s.invite([0, 1], local())
    s.wait()
    assert s.keeps([0, 1]).tolist() == [False, True]
    with pytest.raises(UserError, match="client 0 has nothing to go on from"):
        s.invite([0], local(), KEEP)


def test_a_continued_job_spends_the_rest_of_its_own_time() -> None:
    s = simulation(Idle(), population((4,), devices=hardware.exponential(4.0)))
    whole = float(hardware.exponential(4.0).seconds(0, np.array([0]), np.array([0]), 1, 4)[0])
    s.invite([0], local())
    s.wait(seconds=whole / 2)
    s.cancel([0])
    s.invite([0], local(), KEEP)
    s.wait()
    assert s.now == pytest.approx(whole, abs=1e-5)


def test_waiting_for_ever_is_waiting_without_a_limit() -> None:
    s = server([3.0])
    s.invite([0], local())
    assert len(s.wait(1, seconds=np.inf)) == 1
    assert s.now == 3
    for seconds in (-1.0, np.nan):
        with pytest.raises(UserError, match="at least 0"):
            s.wait(seconds=seconds)


def test_waits_that_can_never_end_say_so() -> None:
    s = server([1.0, 1.0], crashes=Crashes(np.array([1.0, 0.0])), detection=Detection("none"))
    s.invite([0], local())
    s.invite([1], local(), again=True)
    with pytest.raises(UserError, match="a standing invitation never ends"):
        s.wait()
    with pytest.raises(UserError, match="never be heard of again"):
        s.wait(1, of=[0])
    assert s.wait(2).clients.tolist() == [1, 1]


def test_a_standing_invitation_keeps_holding() -> None:
    s = server([1.0])
    s.invite([0], local(), hold=True, again=True)
    s.wait(1)
    s.settle()  # it starts again once the algorithm has acted
    assert s._in_flight[0].hold


def test_what_was_sent_does_not_change_afterwards() -> None:
    s = server([1.0, 1.0])
    mine, rows = s.model + 1, torch.stack([s.model, s.model + 2])
    s.invite([0], local(), mine)
    s.invite([1], local(), (rows, [1]))
    mine.zero_()
    rows.zero_()
    updates = s.wait()
    torch.testing.assert_close(updates.received(), torch.stack([s.model + 1, s.model + 2]))
    published = s.model + 3
    s.publish(published, updates, [0.5, 0.5])
    published.zero_()
    assert float(s.model.norm()) > 0


def test_a_row_may_stand_twice_in_a_sum() -> None:
    s = server([1.0, 1.0])
    s.invite([0, 1], local())
    one = s.wait().select([0])
    torch.testing.assert_close((one + one).weighted_sum([1, 1]), 2 * one.deltas[0])


def test_nothing_arrived_is_an_empty_matrix() -> None:
    s = server([1.0])
    nothing = s.wait(0)
    assert nothing.deltas.shape == nothing.received().shape == (0, len(s.model))
    assert nothing.norms().shape == (0,)
    assert nothing.gram().shape == (0, 0)


def test_weights_of_publish_are_checked_before_the_model_changes() -> None:
    s = server([1.0])
    s.invite([0], local())
    updates, before = s.wait(), s.model.clone()
    for weights in ([0.5, 0.5], [np.nan]):
        with pytest.raises(UserError, match="finite weights"):
            s.publish(s.model + 1, updates, weights)
    assert torch.equal(s.model, before)


def test_a_refused_step_does_not_use_up_the_updates() -> None:
    s = server([1.0])
    s.invite([0], local(), hold=True)
    held = s.wait()
    with pytest.raises(UserError, match="still held"):
        s.step(held, [1.0])
    s.step(s.fetch([0, 0]), [1.0])
    assert s.version == 1


def test_two_steps_in_one_round_have_their_own_staleness() -> None:
    @dataclass
    class Twice(Algorithm):
        def run(self, server: Server) -> None:
            for _ in server.rounds():
                for client in (0, 1):
                    server.invite([client], local())
                    server.step(server.wait(), [0.5])

    result = turnout.execute(experiment("x", rounds=2, algorithm=Twice(), people=population()))
    assert result.jobs()["staleness"].tolist() == [0, 0]


def test_a_client_that_left_long_ago_fails_now() -> None:
    s = server([1.0], left_at=np.array([0.5]))
    s.wait(seconds=2)
    s.invite([0], local())
    (job,) = s.wait().failed.jobs
    assert (job.sent_at, job.ends_at) == (2_000_000, 2_000_000)


def test_an_upload_cut_short_is_paid_pro_rata() -> None:
    s = server([1.0], left_at=np.array([3.0]), links=turnout.Links(up=1e6), model_bytes=500_000)  # 4 s to upload
    s.invite([0], local())
    (job,) = s.wait().failed.jobs
    assert job.seconds == (0.0, 1.0, 2.0)
    assert job.bytes == (500_000, 250_000)


def test_cancelled_jobs_are_not_kept_alive_by_the_event_queue() -> None:
    s = server([1000.0])
    for _ in range(3):
        s.invite([0], local())
        s.cancel([0])
    assert len(s._flight.queue) == 3
    assert not any(isinstance(part, Job) for event in s._flight.queue._heap for part in event)


def test_scaffold_refuses_local_momentum() -> None:
    with pytest.raises(UserError, match=r"local\.momentum: SCAFFOLD"):
        local(momentum=0.9, modifiers=(ControlVariates(torch.zeros(75)),))


def test_one_invitation_has_one_batch_size() -> None:
    s = server([1.0, 1.0])
    with pytest.raises(UserError, match=r"local\.batch_size: it must be the same"):
        s.invite([0, 1], local(batch_size=np.array([2, 4])))


# -- checkpoints ----------------------------------------------------------------------------------------------


@dataclass
class Clipping(Algorithm):
    """Jobs in flight with numbers of their own."""

    def begin(self, server: Server) -> None:
        server.invite(server.population.ids, local(clip_norm=np.linspace(0.1, 1, server.population.size)))

    def run(self, server: Server) -> None:
        for _ in server.rounds():
            updates = server.wait(2)
            server.step(updates, np.full(len(updates), 0.5))


@dataclass
class EarlyWork(Algorithm):
    """Waits, keeps state and steps before the first round."""

    def begin(self, server: Server) -> None:
        server.invite([0, 1], OwnModelSGD.extend(local()))
        server.wait()
        server.invite([2], local())
        server.step(server.wait(), [0.5])

    def run(self, server: Server) -> None:
        for _ in server.rounds():
            server.invite([0], OwnModelSGD.extend(local()))
            server.publish(server.model, server.wait(), [0.0])


@pytest.mark.parametrize("algorithm", [Clipping, EarlyWork])
def test_what_a_checkpoint_before_the_first_round_holds(algorithm: type[Algorithm], tmp_path: Path) -> None:
    people = population(devices=hardware.lognormal(1.0, 0.5))

    def run(rounds: int, **options: Any) -> turnout.Result:
        return turnout.execute(experiment("x", rounds=rounds, algorithm=algorithm(), people=people), **options)

    whole = run(3)
    run(0, folder=tmp_path)
    resumed = run(3, folder=tmp_path, resume=True)
    assert torch.equal(whole.model, resumed.model)
    np.testing.assert_array_equal(whole.audit.realised, resumed.audit.realised)
    shapes = OwnModelSGD(0.1).state_shapes(whole.server.task)
    states = [result.server.store.get(shapes, np.arange(2))["model"] for result in (whole, resumed)]
    assert torch.equal(*states)


def test_a_diverged_run_stays_diverged(tmp_path: Path) -> None:
    people = population()
    people = replace(people, targets=people.targets[:, None].float())
    task = turnout.Task(lambda: torch.nn.Linear(5, 1), "mse")

    def run(**options: Any) -> turnout.Result:
        algorithm = turnout.FedAvg(local(), turnout.Full(), server_lr=1e25)
        return turnout.execute(
            turnout.Experiment(task, people, algorithm, stopping=Stopping(5)), tmp_path, checkpoint_every=1, **options
        )

    first, second = run(), run(resume=True)
    assert first.server.version == second.server.version == 1
    assert second.server.stopped == first.server.stopped
    assert second.audit.events == {"diverged": 1}


class Counting(turnout.Observer):
    """An observer with state of its own."""

    def __init__(self) -> None:
        self.rounds = 0

    def on_round(self, server: Server, record: object) -> None:
        self.rounds += 1

    def save(self) -> Any:
        return {"rounds": self.rounds}, {}

    def load(self, facts: Any, tensors: Any) -> None:
        self.rounds = facts["rounds"]


def test_another_audience_may_watch_a_resumed_run(tmp_path: Path) -> None:
    """A run started without a terminal may go on with one, and the other way round."""
    reference = turnout.execute(experiment("fedavg", rounds=4))
    turnout.execute(experiment("fedavg", rounds=2), tmp_path, observers=[Counting()], checkpoint_every=1)
    kept, new = Counting(), turnout.Observer()
    resumed = turnout.execute(
        experiment("fedavg", rounds=4), tmp_path, observers=[new, kept], checkpoint_every=1, resume=True
    )
    assert kept.rounds == 4
    assert torch.equal(reference.model, resumed.model)


def test_jobs_that_shared_a_tensor_share_it_again(tmp_path: Path) -> None:
    """Cohorts are formed by the tensors works share: a resumed run must form the same ones."""

    @dataclass
    class Controlled(Algorithm):
        control: Any = field(default=None, init=False)

        def begin(self, server: Server) -> None:
            self.control = torch.full_like(server.model, 0.01)
            server.invite(server.population.ids, self.work())

        def work(self) -> LocalSGD:
            return local().modified(ControlVariates(self.control))

        def run(self, server: Server) -> None:
            for _ in server.rounds():
                updates = server.wait(2)
                server.step(updates, np.full(len(updates), 0.25))
                server.invite(updates.clients, self.work())

    people = population(devices=hardware.lognormal(1.0, 0.5))
    results = {}
    for name, rounds in (("whole", 4), ("part", 2)):
        algorithm = Controlled()
        results[name] = turnout.execute(
            experiment("x", rounds=rounds, algorithm=algorithm, people=people), tmp_path / name
        )
    algorithm = Controlled()
    again = turnout.execute(
        experiment("x", rounds=4, algorithm=algorithm, people=people), tmp_path / "part", resume=True
    )
    assert torch.equal(again.model, results["whole"].model)
    jobs = [job for job in again.server._in_flight.values() if job.work.modifiers]  # type: ignore[attr-defined]
    assert jobs
    assert all(job.work.modifiers[0].control is algorithm.control for job in jobs)
