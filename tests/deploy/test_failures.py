"""Failures are events: nothing counts twice, nothing is lost in silence, nothing malformed changes the model."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fake_network import FIRST_NODE, World
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.proto.node_pb2 import NodeInfo
from test_deployment import ALGORITHMS

import support
from turnout import FedAvg, FedFix, Full, Observer, UserError
from turnout.deploy.replay import replay
from turnout.deploy.screen import Rejection
from turnout.deploy.wire import apart


class Killed(BaseException):
    """Nobody may catch it."""


class Killer(Observer):
    """Kills the server when it has just asked clients in that round."""

    def __init__(self, version: int) -> None:
        self.version = version

    def on_invite(self, server: Any, jobs: Any) -> None:
        if server.version == self.version:
            raise Killed


# -- a server that is killed --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def never_killed(tmp_path_factory: pytest.TempPathFactory) -> torch.Tensor:
    return World(tmp_path_factory.mktemp("whole"), ALGORITHMS["scaffold"]).server(rounds=4).run().model


@pytest.mark.parametrize("version", range(4))
def test_a_server_killed_in_any_round_goes_on(version: int, tmp_path: Path, never_killed: torch.Tensor) -> None:
    """Every second round has a checkpoint: whatever was done since is done again, by clients that remember it and the
    state they had before."""
    world = World(tmp_path, ALGORITHMS["scaffold"])
    server = world.server(rounds=4, every=2)
    server.observers.append(Killer(version))
    with pytest.raises(Killed):
        server.run()
    resumed = world.server(rounds=4, every=2, resume=True).run()
    assert torch.equal(resumed.model, never_killed)
    jobs = world.jobs()
    assert len(set(zip(jobs["client"].tolist(), jobs["job"].tolist(), strict=True))) == len(jobs["job"]) == 16
    stale = [facts["why"] for facts in world.events.of("rejected_reply")]
    assert stale  # answers to the first life arrive in the second
    assert set(stale) == {str(Rejection.UNKNOWN_JOB)}
    assert [what for _, what, _ in world.timeline.rows()].count("joined") == 4  # nobody joins twice
    again = replay(world.experiment(world.population), jobs, world.timeline.rows(), 4)
    assert torch.equal(again.model, resumed.model)


def test_an_asynchronous_run_goes_on_with_the_jobs_that_were_in_flight(tmp_path: Path) -> None:
    world = World(tmp_path, ALGORITHMS["fedbuff"])
    server = world.server(every=1)
    server.observers.append(Killer(3))
    with pytest.raises(Killed):
        server.run()
    resumed = world.server(every=1, resume=True)
    in_flight = {job.name for job in resumed._in_flight.values()}
    assert in_flight
    before = len(world.grid.asked)
    resumed.run()
    asked = {(client, message.content.config_records["ask"]["number"]) for client, message in world.grid.asked[before:]}
    assert in_flight <= asked
    jobs = world.jobs()
    assert len(set(zip(jobs["client"].tolist(), jobs["job"].tolist(), strict=True))) == len(jobs["job"])
    again = replay(world.experiment(world.population), jobs, world.timeline.rows(), 6)
    assert torch.equal(again.model, resumed.model)


def test_a_client_asked_again_computes_nothing_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, ALGORITHMS["scaffold"])
    world.server(rounds=1).run()
    client, message = world.grid.asked[0]
    first = world.workers[client].train(message.content)
    monkeypatch.setattr(world.workers[client], "_trained", None)
    again = world.workers[client].train(message.content)
    assert apart(first, "answer", "payload")[1] == apart(again, "answer", "payload")[1]


# -- clients that are killed, hang, are slow, or forget -----------------------------------------------------------


def run_with(world: World, tamper: Callable[[int, Message, Message], list[Message]], **settings: Any) -> Any:
    world.grid.tamper = tamper
    return world.server(rounds=3, **settings).run()


def once(client: int, job: int, replies: Callable[[Message, Message], list[Message]]) -> Callable[..., list[Message]]:
    """Tamper with one answer of one client."""

    def tamper(who: int, asked: Message, reply: Message) -> list[Message]:
        this = who == client and asked.content.config_records["ask"]["number"] == job
        return replies(asked, reply) if this else [reply]

    return tamper


def dies(asked: Message, _: Message) -> list[Message]:
    return [Message(Error(ErrorCode.NODE_UNAVAILABLE, "the node is gone"), reply_to=asked)]


def test_a_killed_client_is_a_failure_that_the_audit_shows(tmp_path: Path) -> None:
    world = World(tmp_path, ALGORITHMS["fedavg"])
    server = run_with(world, once(1, 1, dies))
    jobs = world.jobs()
    lost = jobs["outcome"] != "arrived"
    assert jobs["outcome"][lost].tolist() == ["offline"]
    assert (jobs["client"][lost], jobs["job"][lost], jobs["weight"][lost]) == (1, 1, 0.0)
    assert world.events.of("failed_job") == [{"client": 1, "job": 1, "why": "the node is gone"}]
    assert server.version == 3


def test_an_exception_in_a_client_is_a_crash(tmp_path: Path) -> None:
    world = World(tmp_path, ALGORITHMS["fedavg"])
    error = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "traceback\nValueError: no")
    run_with(world, once(2, 0, lambda asked, _: [Message(error, reply_to=asked)]))
    assert world.jobs()["outcome"].tolist().count("crashed") == 1
    assert world.events.of("failed_job")[0]["why"] == "ValueError: no"


def test_a_client_that_hangs_is_given_up_by_this_clock(tmp_path: Path) -> None:
    world = World(tmp_path, ALGORITHMS["fedavg"])
    server = run_with(world, once(3, 0, lambda _asked, _reply: []), reply_seconds=20.0)
    assert world.events.of("gave_up") == [{"client": 3, "job": 0}]
    assert 20 < server.now < 40


def test_a_slow_client_is_cancelled_and_its_late_answer_does_not_count(tmp_path: Path) -> None:
    world = World(tmp_path, ALGORITHMS["fedavg_deadline"])
    server = world.server(rounds=3).run()  # client 3 takes 3.9 of 3 seconds
    jobs = world.jobs()
    assert set(jobs["outcome"][jobs["client"] == 3]) == {"cancelled"}
    assert {facts["why"] for facts in world.events.of("rejected_reply")} == {str(Rejection.DUPLICATE)}
    without = World(tmp_path / "without", ALGORITHMS["fedavg_deadline"])
    without.grid.tamper = lambda client, _, reply: [] if client == 3 else [reply]
    assert torch.equal(without.server(rounds=3).run().model, server.model)


def test_a_client_whose_clock_is_wrong_is_heard_all_the_same(tmp_path: Path) -> None:
    def elsewhen(client: int, _: Message, reply: Message) -> list[Message]:
        reply.metadata.__dict__["_created_at"] = [0.0, 4e9, 1e12, 2e9][client]
        return [reply]

    world, honest = World(tmp_path / "wrong", ALGORITHMS["fedavg"]), World(tmp_path / "right", ALGORITHMS["fedavg"])
    server = run_with(world, elsewhen)
    assert torch.equal(server.model, honest.server(rounds=3).run().model)
    assert (world.jobs()["compute_seconds"] <= world.jobs()["ended_at"] - world.jobs()["sent_at"] + 1e-9).all()


def test_a_client_that_has_lost_a_model_is_sent_it_again(tmp_path: Path) -> None:
    world = World(tmp_path / "forgets", ALGORITHMS["cafed"])  # asks for losses, then trains on the model it sent

    def forget(client: int, _: Message, reply: Message) -> list[Message]:
        shutil.rmtree(tmp_path / "forgets" / f"client{client}" / "memory" / "models", ignore_errors=True)
        return [reply]

    server = run_with(world, forget)
    honest = World(tmp_path / "remembers", ALGORITHMS["cafed"])
    assert torch.equal(server.model, honest.server(rounds=3).run().model)
    assert len(world.grid.asked) == 3 * 4 * 3
    assert len(honest.grid.asked) == 3 * 4 * 2


def test_a_client_that_has_lost_its_state_says_so(tmp_path: Path) -> None:
    world = World(tmp_path, ALGORITHMS["scaffold"])

    def forget(client: int, asked: Message, reply: Message) -> list[Message]:
        if client == 2 and asked.content.config_records["ask"]["number"] == 0:
            shutil.rmtree(tmp_path / "client2" / "memory")
        return [reply]

    run_with(world, forget)
    assert world.events.of("lost_state") == [{"client": 2, "job": 1}]
    jobs = world.jobs()
    assert jobs["outcome"][jobs["client"] == 2].tolist() == ["arrived", "crashed", "arrived"]


# -- lies ---------------------------------------------------------------------------------------------------------


def changed(reply: Message, answer: dict[str, Any] | None = None, arrays: dict[str, Any] | None = None) -> Message:
    """An answer with other facts and arrays; None takes an array away."""
    content = reply.content
    facts, honest = apart(content, "answer", "payload")
    said, payload = ConfigRecord({**facts, **(answer or {})}), {**honest, **(arrays or {})}
    kept = ArrayRecord({name: array for name, array in payload.items() if array is not None})
    reply.__dict__["_content"] = RecordDict({"answer": said, "payload": kept})
    return reply


def delta(reply: Message) -> np.ndarray[Any, Any]:
    return apart(reply.content, "answer", "payload")[1]["delta"].numpy().copy()


def with_nan(reply: Message) -> Message:
    values = delta(reply)
    values[3] = np.nan
    return changed(reply, arrays={"delta": Array(values)})


def huge_header(reply: Message) -> Message:
    """A few bytes that claim to be 2^50 numbers."""
    array = Array(np.zeros(1, np.float32))
    data = array.data.replace(b"(1,)", b"(1125899906842624,)").replace(b" " * 15 + b"\n", b"\n")
    return changed(reply, arrays={"delta": Array("float32", (1,), array.stype, data)})


def replaced(reply: Message, content: RecordDict) -> Message:
    reply.__dict__["_content"] = content
    return reply


MALFORMED: dict[str, tuple[Callable[[Message], Message], Rejection]] = {
    "missing array": (lambda r: changed(r, arrays={"delta": None}), Rejection.MISSING_ARRAY),
    "extra array": (lambda r: changed(r, arrays={"more": Array(np.zeros(2))}), Rejection.EXTRA_ARRAY),
    "shape": (lambda r: changed(r, arrays={"delta": Array(delta(r)[:-1])}), Rejection.WRONG_SHAPE),
    "two dimensions": (lambda r: changed(r, arrays={"delta": Array(delta(r)[None])}), Rejection.WRONG_SHAPE),
    "header": (huge_header, Rejection.UNDECODABLE),
    "dtype": (lambda r: changed(r, arrays={"delta": Array(delta(r).astype(np.float16))}), Rejection.WRONG_DTYPE),
    "nan": (with_nan, Rejection.NOT_FINITE),
    "infinity": (lambda r: changed(r, arrays={"delta": Array(delta(r) * np.float32(np.inf))}), Rejection.NOT_FINITE),
    "size": (lambda r: changed(r, arrays={"delta": Array(np.zeros(10**6, np.float32))}), Rejection.TOO_LARGE),
    "samples": (lambda r: changed(r, {"samples": 10**9}), Rejection.BAD_COUNTS),
    "negative samples": (lambda r: changed(r, {"samples": -9}), Rejection.BAD_COUNTS),
    "steps": (lambda r: changed(r, {"steps": 10**6}), Rejection.BAD_COUNTS),
    "steps as text": (lambda r: changed(r, {"steps": "6"}), Rejection.BAD_COUNTS),
    "another job": (lambda r: changed(r, {"job": 99}), Rejection.BAD_COUNTS),
    "another client": (lambda r: changed(r, {"client": 0}), Rejection.BAD_COUNTS),
    "seconds": (lambda r: changed(r, {"seconds": float("nan")}), Rejection.BAD_COUNTS),
    "no answer": (lambda r: replaced(r, RecordDict()), Rejection.UNDECODABLE),
    "bytes": (
        lambda r: changed(r, arrays={"delta": Array("float32", (75,), "numpy.ndarray", b"\x80\x04K\x01.")}),
        Rejection.UNDECODABLE,
    ),
    "cut short": (
        lambda r: changed(
            r,
            arrays={"delta": Array("float32", (75,), "numpy.ndarray", Array(delta(r)).data[:-4])},
        ),
        Rejection.UNDECODABLE,
    ),
}


def test_a_malformed_answer_is_as_good_as_none(tmp_path: Path) -> None:
    """Client 1 lies in every round, each time in another way: as if it had died each time."""
    kinds, lied, died = list(MALFORMED.values()), *(World(tmp_path / name, ALGORITHMS["fedavg"]) for name in "ab")

    def lies(client: int, asked: Message, reply: Message) -> list[Message]:
        if client != 1:
            return [reply]
        lie, _ = kinds[int(asked.content.config_records["ask"]["number"])]  # type: ignore[arg-type]
        return [lie(reply)]

    lied.grid.tamper = lies
    died.grid.tamper = lambda client, asked, reply: dies(asked, reply) if client == 1 else [reply]
    model = lied.server(rounds=len(kinds), evaluate="server").run().model
    assert torch.equal(model, died.server(rounds=len(kinds), evaluate="server").run().model)
    expected = [
        {"node": FIRST_NODE + 1, "client": 1, "job": job, "why": str(why)} for job, (_, why) in enumerate(kinds)
    ]
    assert lied.events.of("rejected_reply") == expected
    jobs = lied.jobs()
    assert jobs["outcome"][jobs["client"] == 1].tolist() == ["rejected"] * len(kinds)


def test_an_answer_counts_once(tmp_path: Path) -> None:
    world, honest = World(tmp_path / "twice", ALGORITHMS["fedavg"]), World(tmp_path / "once", ALGORITHMS["fedavg"])
    server = run_with(world, once(1, 1, lambda _, reply: [reply, reply, reply]))
    assert torch.equal(server.model, honest.server(rounds=3).run().model)
    assert [facts["why"] for facts in world.events.of("rejected_reply")] == [str(Rejection.DUPLICATE)] * 2


def test_an_answer_in_the_name_of_another_does_not_count(tmp_path: Path) -> None:
    def forged(asked: Message, reply: Message) -> list[Message]:
        lie = Message(RecordDict({"answer": ConfigRecord(), "payload": ArrayRecord()}), reply_to=asked)
        lie.metadata.__dict__["_src_node_id"] = FIRST_NODE
        return [lie, reply]

    world, honest = World(tmp_path / "forged", ALGORITHMS["fedavg"]), World(tmp_path / "true", ALGORITHMS["fedavg"])
    server = run_with(world, once(1, 1, forged))
    assert torch.equal(server.model, honest.server(rounds=3).run().model)
    assert [facts["why"] for facts in world.events.of("rejected_reply")] == [str(Rejection.WRONG_CLIENT)]


def test_a_rejected_answer_leaves_the_client_s_state_as_it_was(tmp_path: Path) -> None:
    """The client has computed a new state, which the server must not build on."""
    worlds = [World(tmp_path / name, ALGORITHMS["scaffold"]) for name in ("lied", "died")]
    lied = run_with(worlds[0], once(1, 1, lambda _, reply: [with_nan(reply)]))
    died = run_with(worlds[1], once(1, 1, dies))
    assert torch.equal(lied.model, died.model)
    again = replay(worlds[0].experiment(worlds[0].population), worlds[0].jobs(), worlds[0].timeline.rows(), 3)
    assert torch.equal(again.model, lied.model)


# -- who takes part -----------------------------------------------------------------------------------------------


def test_a_node_that_is_not_enrolled_is_refused(tmp_path: Path) -> None:
    world = World(tmp_path, ALGORITHMS["fedavg"])
    world.grid.strangers = [NodeInfo(node_id=5, public_key=b"nobody")]
    world.server(rounds=2).run()
    assert world.events.of("refused_node") == [{"node": 5, "why": "its key is not enrolled"}]
    assert {message.metadata.dst_node_id for _, message in world.grid.asked} == {FIRST_NODE + i for i in range(4)}


def test_clients_join_and_leave_while_a_run_goes_on(tmp_path: Path) -> None:
    class Operator(Observer):
        """Client 3 comes after round 1, client 0 goes after round 3."""

        def on_round(self, server: Any, record: Any) -> None:
            if record.number in (1, 3):
                world.enrol((record.number == 1, True, True, True))

    world = World(tmp_path, lambda: FedFix(support.local(), window=2.0, weight_rule="naive"))
    world.enrol((True, True, True, False))
    server = world.server(rounds=8)
    server.observers.append(Operator())
    server.run()
    assert world.events.of("joined") == [{"client": 3}]
    assert world.events.of("left") == [{"client": 0}]
    assert server.importance[0] == 0
    assert server.importance.sum() == pytest.approx(1)
    jobs = world.jobs()
    assert (jobs["round"][(jobs["client"] == 3) & (jobs["outcome"] == "arrived")] > 1).all()
    assert (jobs["round"][(jobs["client"] == 0) & (jobs["outcome"] == "arrived")] <= 4).all()
    assert "arrived" in jobs["outcome"][jobs["client"] == 3]
    again = replay(world.experiment(world.population), jobs, world.timeline.rows(), 8)
    assert torch.equal(again.model, server.model)


def test_a_node_that_comes_back_is_asked_again(tmp_path: Path) -> None:
    class Cable(Observer):
        def on_round(self, server: Any, record: Any) -> None:
            world.grid.connected[2] = record.number >= 3

    world = World(tmp_path, lambda: FedAvg(support.local(), Full()))
    server = world.server(rounds=5)
    server.observers.append(Cable())
    server.run()
    jobs = world.jobs()
    assert jobs["outcome"][jobs["client"] == 2].tolist() == ["arrived"] * 3
    again = replay(world.experiment(world.population), jobs, world.timeline.rows(), 5)
    assert torch.equal(again.model, server.model)


def test_a_wrong_table_of_clients_is_logged_and_the_old_one_holds(tmp_path: Path) -> None:
    class Slip(Observer):
        def on_round(self, server: Any, record: Any) -> None:
            if record.number == 1:
                (tmp_path / "clients.toml").write_text("[[client]]\nid = 7\n")

    world = World(tmp_path, ALGORITHMS["fedavg"])
    server = world.server(rounds=3)
    server.observers.append(Slip())
    assert server.run().version == 3
    assert len(world.events.of("unread_enrolment")) == 1


# -- what cannot be deployed --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["centralised", "dpasgd"])
def test_algorithms_that_need_more_than_a_server_refuse(name: str, tmp_path: Path) -> None:
    world = World(tmp_path, ALGORITHMS["fedavg"])
    world.algorithm = lambda: support.algorithm(name)
    with pytest.raises(UserError, match="deploy"):
        world.server(rounds=1).run()
