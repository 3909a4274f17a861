"""Forgetting fails closed: what may look at data makes a promise heuristic, budgets hold in total, what a run left is
hashed when it ends, and what cannot be unlearnt is refused before it is trained."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import turnout
from support import chained, experiment, population
from turnout import Evaluation, Experiment, FedAvg, FedProx, Full, LocalSGD, Plan, Stopping, Task, UserError
from turnout.config import registry
from turnout.record import signed as log
from turnout.record.signed import files_left, log_of
from turnout.record.unlearning import Unlearning
from turnout.record.watch import Screening
from turnout.sampling._sampler import Sampler, Selection
from turnout.trust import request, verify
from turnout.trust.certificate import FAILS, assumptions, heuristic
from turnout.trust.forget import SIFU

FIRM: dict[str, Any] = {"convex": True, "smoothness": 4.0}
BLIND = "does not follow from the clients' data"


def made(method: Any = None, rounds: int = 3, people: Any = None, **options: Any) -> Experiment:
    local = LocalSGD(0.1, steps=2, batching="full")
    return Experiment(
        Task(lambda: nn.Linear(5, 3), seed=3),
        people or population((3, 7, 8, 1, 5), test=None),
        method or FedAvg(local, Full()),
        5,
        Stopping(rounds, measure="train_accuracy"),
        Evaluation(rounds=1000),
        Plan(threads=1),
        "toy",
        Unlearning(**{"sigma": 0.03, **FIRM, **options}),
    )


def run_in(folder: Path, **options: Any) -> Path:
    turnout.execute(made(**options), folder, checkpoint_every=2)
    return folder


def forgotten(folder: Path, clients: list[int], **options: Any) -> dict[str, Any]:
    given = {name: options.pop(name) for name in ("stopping", "noise_seed") if name in options}
    scratch = options.pop("from_scratch", False)
    return request.unlearn(request.Run(folder, made(**options), scratch), clients, checkpoint_every=2, **given)


# -- whoever may look at data -----------------------------------------------------------------------------------


@dataclass
class Own(Sampler):
    """Says nothing of itself."""

    def sample(self, server: turnout.Server) -> Selection:
        return Full().sample(server)


@dataclass
class Blind(Own):
    looks_at_data = False


@dataclass
class OwnAverage(FedAvg):
    """Says nothing of itself."""


class Weigher(turnout.Observer):
    def on_step(self, server: turnout.Server, updates: Any, weights: Any) -> Any:
        return weights


def blind(method: Any, people: Any = None, **options: Any) -> bool:
    """Whether a tracked run is known not to have looked at data."""
    observers = options.pop("observers", ())
    plan = replace(made(method, 2, people), **options)
    tracked = turnout.execute(plan, observers=observers).sensitivity
    assert tracked is not None
    found = assumptions(tracked.settings, [tracked.facts])
    failed = any(BLIND in one.sentence and one.state == FAILS for one in found)
    assert heuristic(found) or not failed
    return not failed


@pytest.mark.parametrize("name", registry.names("sampler"))
def test_a_sampler_that_looks_makes_the_promise_heuristic(name: str) -> None:
    sampler = registry.find("sampler", name)
    options: dict[str, Any] = {"clients_per_round": 2} if "clients_per_round" in sampler.__dataclass_fields__ else {}
    options |= {"candidates": 3} if name == "power_of_choice" else {}
    people = population((3, 7, 8, 1, 5), test=None, regions=np.array([0, 1, 0, 1, 0]))
    options |= {"reference": people.inputs.numpy()} if name == "profiled" else {}
    looks = ("afl", "cafed", "clustered_similarity", "oort", "optimal", "power_of_choice", "profiled")
    assert blind(FedAvg(LocalSGD(0.1, steps=2), sampler(**options)), people) == (name not in looks)


def test_so_does_whatever_does_not_say_that_it_does_not_look() -> None:
    local = LocalSGD(0.1, steps=2)
    assert blind(FedAvg(local, Blind()))
    assert not blind(FedAvg(local, Own()))
    assert not blind(OwnAverage(local, Full()))
    assert not blind(FedAvg(local, Full()), observers=[Weigher()])
    assert blind(FedAvg(local, Full()), screening=Screening(response="exclude", confirmed=[1]))
    assert not blind(FedAvg(local, Full()), screening=Screening(response="exclude", automatic=True))
    silenced = population((3, 7, 8, 1, 5), test=None, adversary=turnout.clients.adversary.LargestNorm(0.3))
    assert not blind(FedAvg(local, Full()), silenced)
    for name in ("fedprof", "clustered_fl", "ifca"):
        plan = experiment(name, 2, evaluation=Evaluation(rounds=1000), unlearning=Unlearning())
        if name == "fedprof":
            plan.algorithm.sampler.reference = plan.population.inputs.numpy()  # type: ignore[attr-defined]
        tracked = turnout.execute(plan).sensitivity
        assert tracked is not None
        assert tracked.facts["prying"]


def test_the_certificate_says_so(tmp_path: Path) -> None:
    similar = {"method": FedAvg(LocalSGD(0.1, steps=2, batching="full"), turnout.samplers.ClusteredSimilarity(2))}
    for name, options in (("full", {}), ("similar", similar)):
        folder = run_in(tmp_path / name, sigma=1.0, **options)
        certificate = forgotten(folder, [1], sigma=1.0, **options)
        states = {one["state"] for one in certificate["assumptions"] if BLIND in one["sentence"]}
        assert states == ({"holds"} if name == "full" else {"fails"})
        assert ("heuristic" in certificate["statement"]) == (name == "similar")
        assert verify.problems(folder) == []


def test_local_work_that_the_proof_does_not_know() -> None:
    """FedProx bends the loss by mu: lr (L + mu) <= 2. A step of one's own, or a transform, is not covered."""

    @dataclass(frozen=True)
    class Sharp(LocalSGD):
        """Says nothing of itself."""

    local = LocalSGD(0.1, steps=2, batching="full")
    for method, plain, smooth in (
        (FedProx(local, Full(), mu=0.5), True, True), (FedProx(local, Full(), mu=3.0), True, False),
        (FedAvg(replace(local, weight_decay=3.0), Full()), True, False),
        (FedAvg(Sharp(0.1, steps=2), Full()), False, True),
        (FedAvg(replace(local, modifiers=chained("quantise:8")), Full()), False, True),
    ):  # fmt: skip
        tracked = turnout.execute(made(method, 1, smoothness=19.0)).sensitivity
        assert tracked is not None
        found = {one.sentence: one.state for one in assumptions(tracked.settings, [tracked.facts])}
        assert [state == FAILS for sentence, state in found.items() if "plain SGD" in sentence] == [not plain]
        assert [state == FAILS for sentence, state in found.items() if "times smoothness" in sentence] == [not smooth]


# -- the budget -------------------------------------------------------------------------------------------------


def test_the_budget_holds_for_all_requests_together(tmp_path: Path) -> None:
    """Noise that is enough for each of two cuts, and not for both."""
    table = turnout.execute(made()).sensitivity
    assert table is not None
    sigma = 1.05 * float(table.table.psi([0])[-1]) * 0.350097
    certified = {}
    for budget in ("per_client_total", "per_branch"):
        chosen = {"sigma": sigma, "budget": budget}
        folder = run_in(tmp_path / budget, **chosen)
        for client in (3, 0):
            certificate = forgotten(folder, [client], **chosen)
        certified[budget] = certificate["guarantee"]["epsilon"], *(one["epsilon"] for one in certificate["earlier"])
        assert verify.problems(folder) == []
    assert max(certified["per_client_total"]) <= 10 * (1 + 1e-9)
    assert max(certified["per_branch"]) > 10.5
    assert Unlearning().budget == "per_client_total"


def test_cuts_are_chosen_within_what_is_left() -> None:
    sifu = SIFU(made(rounds=6, sigma=0.05))
    sifu.train()
    for client in (1, 0, 2):
        plan = sifu.branches.plan([client])
        assert math.hypot(*plan.guarantee.psi) <= sifu.branches.settings.threshold
        assert plan.guarantee.epsilon <= 10 * (1 + 1e-9)
        sifu.forget([client], noise_seed=1)


# -- what a run left --------------------------------------------------------------------------------------------


def test_a_table_that_was_changed_before_its_use_is_found(tmp_path: Path) -> None:
    """Distances times 1e-9 would give epsilon 0, and every hash would be right."""
    folder = run_in(tmp_path / "toy")
    head = log_of(folder).head
    path = folder / "sensitivity" / "table.jsonl"
    turns = [json.loads(line) for line in path.read_text().splitlines()]
    for turn in turns:
        turn["distances"] = [distance * 1e-9 for distance in turn["distances"]]
    path.write_text("".join(json.dumps(turn) + "\n" for turn in turns))
    for asked in (forgotten, lambda *given: request.plan(request.Run(given[0], made()), given[1])):
        with pytest.raises(UserError, match=r"table\.jsonl is not as the run left it when it ended; restore"):
            asked(folder, [1])
    with pytest.raises(UserError, match=r"^resume: .*table\.jsonl is not as the run left it"):
        turnout.execute(made(rounds=5), folder, resume=True)
    assert verify.problems(folder) == ["sensitivity/table.jsonl is not as the run left it"]
    # who hashes it anew leaves a log that is whole, and has another end
    left = files_left(folder)
    assert left is not None
    (folder / "sensitivity" / "log.jsonl").unlink()
    log_of(folder).append("ended", 0, files=left | {"sensitivity/table.jsonl": request.sha256(path)})  # type: ignore[attr-defined]
    forgotten(folder, [1])
    assert verify.problems(folder) == []
    assert "is nowhere in it: lines were cut off, or written anew" in verify.problems(folder, head)[0]
    # who throws the log away makes the promise heuristic
    again = run_in(tmp_path / "again")
    (again / "sensitivity" / "log.jsonl").unlink()
    certificate = forgotten(again, [1])
    assert "heuristic" in certificate["statement"]
    assert verify.problems(again) == []


@pytest.mark.parametrize("asked", [False, True])
def test_every_file_that_a_promise_rests_on_is_covered(tmp_path: Path, asked: bool) -> None:
    folder = run_in(tmp_path / "toy")
    if asked:
        forgotten(folder, [1])
    assert verify.problems(folder) == []
    open_files = {"log.txt", "checkpoints", "manifest.json"}  # for who reads or resumes a run, not for a promise
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        if open_files & set(path.relative_to(folder).parts):
            continue
        whole = path.read_bytes()
        path.write_bytes(whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:])
        assert verify.problems(folder), path
        path.unlink()
        assert verify.problems(folder), path
        path.write_bytes(whole)
    assert verify.problems(folder) == []


def test_the_end_of_the_chain_and_logs_that_are_empty(tmp_path: Path) -> None:
    def verified(*words: str) -> tuple[int, str]:
        command = [sys.executable, "-I", "-S", verify.__file__, str(folder), *words]
        done = subprocess.run(command, capture_output=True, text=True)
        assert not done.stderr
        return done.returncode, done.stdout

    folder = run_in(tmp_path / "toy")
    head = log_of(folder).head
    assert verified("--head", head)[0] == 0
    forgotten(folder, [1])
    path = folder / "unlearning" / "log.jsonl"
    entries = log.read(path)
    assert verified("--head", entries[-1]["hash"]) == (0, "The log is whole, and every promise follows from it.\n")
    assert verify.problems(folder, entries[-3]["hash"])[0].startswith("log: 2 entries come after")
    assert "is nowhere in it" in verify.problems(folder, head)[0]
    assert verified("--tail", head)[0] == 2
    shutil.copy(path, tmp_path)
    path.write_bytes(b"")
    assert verified() == (1, f"{path} is empty: its lines were cut off\n")
    shutil.copy(tmp_path / "log.jsonl", path)
    first = folder / "sensitivity" / "log.jsonl"
    first.write_bytes(b"")
    assert "does not end as it did" in verified()[1]


def test_a_resumed_run_ends_anew(tmp_path: Path) -> None:
    folder = run_in(tmp_path / "toy")

    class Kill(turnout.Observer):
        def on_round(self, server: turnout.Server, record: object) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        turnout.execute(made(rounds=5), folder, checkpoint_every=2, resume=True, observers=[Kill()])
    assert files_left(folder) is None
    assert verify.problems(folder) == []  # nothing is promised of it yet
    turnout.execute(made(rounds=5), folder, checkpoint_every=2, resume=True)
    assert [entry["event"] for entry in log_of(folder).entries] == ["ended", "resumed", "ended"]
    certificate = forgotten(folder, [1], rounds=5)
    assert "heuristic" not in certificate["statement"]
    assert verify.problems(folder) == []
    # a table that was changed under a checkpoint
    broken = tmp_path / "broken"
    with pytest.raises(KeyboardInterrupt):
        turnout.execute(made(rounds=5), broken, checkpoint_every=1, observers=[Late()])
    path = broken / "sensitivity" / "table.jsonl"
    path.write_bytes(path.read_bytes().replace(b"1", b"2", 1))
    with pytest.raises(UserError, match=r"needs sensitivity/table\.jsonl, which is damaged"):
        turnout.execute(made(rounds=5), broken, checkpoint_every=1, resume=True)


class Late(turnout.Observer):
    def on_round(self, server: turnout.Server, record: object) -> None:
        if server.version == 3:
            raise KeyboardInterrupt


# -- who never took part, from scratch, and how long ------------------------------------------------------------


def test_a_client_that_never_took_part(tmp_path: Path) -> None:
    method = FedAvg(LocalSGD(0.1, steps=2, batching="full"), turnout.Uniform(2))
    options: dict[str, Any] = {"method": method, "rounds": 2}
    folder = run_in(tmp_path / "toy", **options)
    seen = {client for turn in request.Run(folder, made(**options)).branches.tables[0].turns for client in turn.clients}
    absent, *others = sorted({0, 1, 2, 3, 4} - seen)
    before = (folder / "model.safetensors").read_bytes()
    certificate = forgotten(folder, [absent], **options)
    assert (folder / "model.safetensors").read_bytes() == before
    assert (certificate["guarantee"]["epsilon"], certificate["retraining"]["rounds"]) == (0, 0)
    assert certificate["rollback"] is None
    assert "never took part" in certificate["statement"]
    assert "heuristic" not in certificate["statement"]
    assert not (folder / "unlearning" / "branch1").exists()
    assert verify.problems(folder) == []
    here = min(seen)
    second = forgotten(folder, [here], **options)
    assert second["forgotten"] == sorted([absent, here])
    assert second["retraining"]["rounds"] == 2
    trained = log.read(folder / "unlearning" / "branch1" / "sensitivity" / "log.jsonl")
    assert trained[-1]["event"] == "ended"
    third = forgotten(folder, others[:1] or [next(iter(seen - {here}))], **options)
    assert third["request"] == 3
    assert verify.problems(folder) == []
    sifu = SIFU(made(**options))
    last = sifu.train()
    assert sifu.forget([absent]) is last
    assert sifu.branches.forgotten == [absent]
    # where data decided who was asked, nobody is known to be absent
    looked = SIFU(made(FedAvg(method.local, turnout.samplers.PowerOfChoice(1, candidates=2)), 2))
    looked.train()
    assert all(looked.branches.took_part(client) for client in range(5))

    def taken(entries: list[log.Entry]) -> None:
        entries[0]["clients"] = [here]

    rewritten(tmp_path / "toy", taken)
    assert any("may have taken part, and nothing was done" in words for words in verify.problems(folder))


def rewritten(folder: Path, change: Any) -> None:
    path = folder / "unlearning" / "log.jsonl"
    entries, previous = log.read(path), log.FIRST
    change(entries)
    for entry in entries:
        entry["previous"] = previous
        entry["hash"] = previous = log.hash_of(entry)
    path.write_text("".join(log.line_of(entry) + "\n" for entry in entries))


@pytest.mark.parametrize("tracked", [False, True])
def test_from_scratch_is_exact_for_any_run(tmp_path: Path, tracked: bool) -> None:
    def plan() -> Experiment:
        return made() if tracked else replace(made(), unlearning=None)

    folder = tmp_path / "toy"
    turnout.execute(plan(), folder, checkpoint_every=2)
    if not tracked:
        with pytest.raises(UserError, match=r"was not tracked.* --from-scratch"):
            request.Run(folder, plan())
    gone: list[int] = []
    for client in (1, 3):
        gone.append(client)
        certificate = request.unlearn(request.Run(folder, plan(), True), [client], checkpoint_every=2)
        scratch = turnout.execute(replace(plan(), population=plan().population.without(gone)))
        from safetensors.torch import load_file

        made_anew = torch.cat([value.flatten() for value in load_file(folder / "model.safetensors").values()])
        expected = torch.cat([value.flatten() for _, value in sorted(scratch.state_dict().items())])
        assert torch.equal(made_anew, expected)
        assert certificate["guarantee"]["epsilon"] == 0
        assert "exact" in certificate["statement"]
        assert "heuristic" not in certificate["statement"]
        assert verify.problems(folder) == []
    if tracked:  # and goes on from there as any other
        assert forgotten(folder, [2])["lineage"][0] == [0, 0]
        assert verify.problems(folder) == []


def test_from_scratch_needs_no_tables(tmp_path: Path) -> None:
    folder = run_in(tmp_path / "toy")
    shutil.rmtree(folder / "sensitivity")
    assert forgotten(folder, [1], from_scratch=True)["guarantee"]["epsilon"] == 0


def test_retraining_as_long_as_said(tmp_path: Path) -> None:
    folder = run_in(tmp_path / "toy")
    stopping = replace(made().stopping, rounds=1)

    class Crash(BaseException): ...

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(request, "execute", lambda *_, **__: (_ for _ in ()).throw(Crash))
        with pytest.raises(Crash):
            forgotten(folder, [1], stopping=stopping)
    with pytest.raises(UserError, match=r"^--rounds, --target: this request was begun with .*'rounds': 1"):
        forgotten(folder, [1], stopping=replace(stopping, rounds=2))
    assert forgotten(folder, [1])["retraining"] == {"rounds": 1, "stopped": "1 rounds"}
    low = replace(stopping, rounds=9, target=0.0)
    assert forgotten(folder, [2], stopping=low)["retraining"]["stopped"].startswith("train_accuracy reached")
    assert verify.problems(folder) == []


@pytest.mark.parametrize(
    ("name", "words"), [("fedem", "trains several models"), ("centralised", "data together"), ("alone", "two clients")]
)
def test_what_cannot_be_unlearnt_is_refused_before_it_is_trained(name: str, words: str, tmp_path: Path) -> None:
    plan = experiment("fedavg" if name == "alone" else name, unlearning=Unlearning())
    if name == "alone":
        plan.population = population((5,))
    with pytest.raises(UserError, match=words):
        turnout.execute(plan, tmp_path / "toy")
    assert not (tmp_path / "toy").exists()
    with pytest.raises(UserError, match=r"unlearning\.group_rule: joint needs unlearning\.groups"):
        Unlearning(group_rule="joint")
