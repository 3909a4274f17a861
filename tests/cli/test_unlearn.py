"""`turnout unlearn`: plan, forget, certify, and the sentences that refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from terminal import Terminal

from turnout.trust import verify

TRACKED = ("clients.count=6", "sampler.name=full", "unlearning.track=true", "unlearning.sigma=0.5")


@pytest.fixture()
def run(terminal: Terminal) -> Path:
    return terminal.run("tracked", *TRACKED)


def test_plan_then_forget(terminal: Terminal, run: Path) -> None:
    before = sorted(path.name for path in run.rglob("*"))
    plan = terminal.done("unlearn", "runs/tracked", "--client", "2", "--dry-run", "--json").json()
    assert sorted(path.name for path in run.rglob("*")) == before  # nothing is written
    assert plan["clients"] == [2]
    assert plan["rollback"] == plan["lineage"][-1]
    rounds = [row["round"] for row in plan["outlook"]]
    assert rounds == sorted(rounds)
    assert plan["outlook"][2]["round"] == plan["rollback"][1]
    assert plan["stored_bytes"]["thinned"] <= plan["stored_bytes"]["all"]
    words = terminal.done("unlearn", "runs/tracked", "--client", "2", "--dry-run").out
    assert f"roll back to round {plan['rollback'][1]} of branch 0" in words
    assert "Its retraining would take 3 rounds at most: " in words
    assert plan["cost"]["rounds"] == 3
    assert plan["cost"]["bytes_down"] > plan["cost"]["virtual_seconds"] > 0
    less = terminal.done(
        "unlearn", "runs/tracked", "--client", "2", "--rounds", "1", "--target", "0.5", "--dry-run", "--json"
    ).json()
    assert (less["cost"]["rounds"], less["cost"]["target"]) == (1, 0.5)
    assert less["cost"]["bytes_up"] == pytest.approx(plan["cost"]["bytes_up"] / 3)
    done = terminal.done(
        "unlearn", "runs/tracked", "--client", "2", "--client", "4", "--noise-seed", "1", "--json"
    ).json()
    assert done["forgotten"] == [2, 4]
    assert not done["noise"]["private"]
    assert json.loads(Path(done["certificate"]).read_text())["statement"] == done["statement"]
    assert verify.problems(run) == []
    again = terminal.done("unlearn", "runs/tracked", "--client", "0").out
    assert "certificate2.html" in again
    assert "Last hash of the log: " in again
    assert verify.problems(run) == []
    later = terminal.done("unlearn", "runs/tracked", "--client", "1", "--dry-run", "--json").json()
    assert later["request"] == 3
    assert later["outlook"] == []  # the noise is fixed
    assert terminal.done("inspect", "runs/tracked", "--json").json()["rounds"] == 3
    assert "going on would train with them again" in terminal.refused("resume", "runs/tracked")


def test_a_run_that_was_not_tracked_forgets_from_scratch(terminal: Terminal) -> None:
    run = terminal.run("plain", "clients.count=6", "sampler.name=full")
    words = ("unlearn", "runs/plain", "--client", "2", "--from-scratch")
    assert terminal.done(*words, "--dry-run", "--json").json()["rollback"] == [0, 0]
    assert not (run / "unlearning").exists()
    done = terminal.done(*words, "--rounds", "2", "--json").json()
    assert (done["guarantee"]["epsilon"], done["retraining"]["rounds"]) == (0, 2)
    assert verify.problems(run) == []
    assert "--sigma: 1.0 with --from-scratch" in terminal.refused(*words, "--sigma", "1")


def test_the_hash_to_keep_is_printed(terminal: Terminal) -> None:
    words = terminal.done("run", "digits", "run.rounds=1", "run.name=kept", *TRACKED).out
    head = words.split("--head: ")[1].split()[0]
    assert verify.problems(terminal.here / "runs" / "kept", head) == []


def test_refused(terminal: Terminal, run: Path) -> None:
    def sentence(*words: str) -> str:
        return terminal.refused("unlearn", "runs/tracked", *words)

    assert "there is no client 9; give a number from 0 to 5" in sentence("--client", "9")
    assert "nobody would remain" in sentence(*(word for client in range(6) for word in ("--client", str(client))))
    assert sentence("--client", "1", "--sigma", "-1") == "unlearning.sigma: -1.0 must be at least 0 and finite"
    assert sentence("--client", "1", "--delta", "2") == "unlearning.delta: 2.0 must be above 0 and below 1"
    assert sentence("--client", "1", "--rounds", "0") == "--rounds: 0 must be at least 1"
    assert not (run / "unlearning").exists()
    terminal.run("plain", "clients.count=6", "sampler.name=full")
    assert "was not tracked" in terminal.refused("unlearn", "runs/plain", "--client", "1")
    assert "is not the folder of a run" in terminal.refused("unlearn", "runs/nowhere", "--client", "1")


@pytest.mark.parametrize(
    ("override", "words"),
    [("unlearning.retention=some", "unlearning.retention: unknown name 'some'"),
     ("unlearning.sigm=1", "unlearning.sigm: unknown option; did you mean sigma?"),
     ("unlearning.groups=3", "unlearning.groups: 3 is not a list")],
)  # fmt: skip
def test_refused_configurations(terminal: Terminal, override: str, words: str) -> None:
    assert words in terminal.refused("run", "digits", override)
