"""`turnout demo | run | resume | list | show | inspect`, and the folder a run leaves behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file
from terminal import QUICK, Terminal, bits, digits_inputs, names

import turnout
from turnout import data as datasets
from turnout.cli.names import LISTED
from turnout.config import config, registry
from turnout.record.history import History
from turnout.record.run_folder import reseal
from turnout.run.experiment import execute
from turnout.server.observer import Round
from turnout.server.server import Server

ENTRY = (sys.executable, "-c", "from turnout.cli import app; app()")  # what the installed command does


def shell(here: Path, *words: str) -> subprocess.CompletedProcess[str]:
    source = str(Path(turnout.__file__).parents[1])
    variables = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1", "COLUMNS": "80"}
    return subprocess.run([*ENTRY, *words], cwd=here, env=variables, capture_output=True, text=True, check=False)


# -- the entry point ------------------------------------------------------------------------------------------


def test_entry_point_prints_one_json_document(tmp_path: Path) -> None:
    done = shell(tmp_path, "run", "digits", *QUICK, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rounds"] == 3
    assert done.stderr == ""
    assert (tmp_path / "runs" / "digits" / "model.safetensors").exists()


def test_entry_point_answers_a_mistake_with_a_sentence(tmp_path: Path) -> None:
    refused = shell(tmp_path, "run", "digits", "run.round=3", "--json")
    assert refused.returncode == 2
    assert refused.stdout == ""
    assert refused.stderr == "turnout: run.round: unknown option; did you mean rounds?\n"
    assert list(tmp_path.iterdir()) == []


def test_the_project_names_the_entry_point() -> None:
    """The script that pip installs is this app."""
    project = Path(__file__).parents[2] / "pyproject.toml"
    assert tomllib.loads(project.read_text())["project"]["scripts"] == {"turnout": "turnout.cli:app"}


def test_version_and_help(terminal: Terminal) -> None:
    assert terminal.done("--version").out.strip() == turnout.__version__
    for command in ("demo", "run", "resume", "list", "show", "inspect"):
        assert "Example: turnout" in terminal.done(command, "--help").out


# -- list and show --------------------------------------------------------------------------------------------


def test_list_everything(terminal: Terminal) -> None:
    listing = terminal.done("list", "--json").json()
    assert set(listing) == set(LISTED)
    assert list(listing["algorithms"]) == registry.names("algorithm")
    assert list(listing["samplers"]) == registry.names("sampler")
    assert list(listing["datasets"]) == datasets.names()
    assert list(listing["configs"]) == config.builtin_names()
    assert all(listing[kind][name] for kind, name in names(listing) if kind != "configs")  # a sentence each
    text = terminal.done("list").out
    assert all(name in text for _, name in names(listing))


@pytest.mark.parametrize("kind", LISTED)
def test_list_one_kind(terminal: Terminal, kind: str) -> None:
    listing = terminal.done("list", kind, "--json").json()
    assert list(listing) == [kind]
    text = terminal.done("list", kind).out
    assert all(name in text for name in listing[kind])


def test_list_unknown_kind(terminal: Terminal) -> None:
    assert terminal.refused("list", "algoritms") == "list: unknown name 'algoritms'; did you mean algorithms?"


def test_show_every_name_that_list_prints(terminal: Terminal) -> None:
    for kind, name in names(terminal.done("list", "--json").json()):
        shown = terminal.done("show", name).out
        assert len(shown.split()) > 3, (kind, name)


def test_show_says_what_and_with_which_options(terminal: Terminal) -> None:
    shown = terminal.done("show", "fednova").out
    assert "Wang et al." in shown
    for option, default in (("mu", "0.0"), ("server_lr", "1.0"), ("observed", "false"), ("deadline", "none")):
        line = next(line.split() for line in shown.splitlines() if line.split()[:1] == [option])
        assert line[1] == default
    assert "seconds after the models are out; none: no limit" in " ".join(shown.split())
    assert "[sampler] option" in terminal.done("show", "md").out
    assert "required" in terminal.done("show", "bernoulli").out


def test_show_explains_a_section(terminal: Terminal) -> None:
    """Also one whose name a thing has, too: there is an algorithm `local`."""
    assert "[links] option" in terminal.done("show", "links").out
    shown = terminal.done("show", "local").out
    assert "[algorithm] option" in shown and "[local] option" in shown


def test_show_keeps_brackets(terminal: Terminal) -> None:
    """Shapes such as [n, dims] are text, not markup."""
    assert "`[n, dims]` optima" in terminal.done("show", "quadratics").out
    assert "[batch, 80]" in terminal.done("list", "models").out


def test_show_unknown_name(terminal: Terminal) -> None:
    assert terminal.refused("show", "fedprx") == "show: unknown name 'fedprx'; did you mean fedprox?"


# -- run ------------------------------------------------------------------------------------------------------


def test_demo(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole demo, but three rounds of it; a second one replaces the first."""
    read = config.read
    monkeypatch.setattr(config, "read", lambda source, overrides: read(source, [*overrides, *QUICK]))
    shown = terminal.done("demo").out
    assert "Turnout audit: whose data counted" in shown
    assert "Next: turnout run digits algorithm.name=scaffold" in shown
    assert terminal.done("demo", "--json").json()["run"] == "runs/demo"


def test_run_shows_result_and_audit(terminal: Terminal) -> None:
    shown = terminal.done("run", "digits", *QUICK).out
    for words in (
        "runs/digits: 3 rounds",
        "test accuracy",
        "worst 10th percentile",
        "clients heard",
        "realised / intended share",
    ):
        assert words in shown


def test_run_for_scripts(terminal: Terminal) -> None:
    answer = terminal.done("run", "digits", *QUICK, "--json")
    document = answer.json()
    assert answer.err == ""
    assert document["run"] == "runs/digits"
    assert (document["rounds"], document["stopped"]) == (3, "3 rounds")
    assert 0 < document["measures"]["test_accuracy"] < 1
    assert document["audit"]["clients"] == 100


def test_run_folder(terminal: Terminal) -> None:
    """DESIGN.md 7: everything a run leaves, each file readable by itself."""
    folder = terminal.run("a")
    assert {path.name for path in folder.iterdir()} == {
        "config.toml", "plan.json", "history", "jobs", "checkpoints", "clients.parquet", "model.safetensors",
        "result.json", "log.txt", "report.html", "manifest.json", "model_card.md",
    }  # fmt: skip
    served = pq.read_table(folder / "clients.parquet")
    assert served.column("client").to_pylist() == list(range(100))
    accuracy, samples = (np.array(served.column(f"test_{name}")) for name in ("accuracy", "samples"))
    assert not any(served.column("unseen").to_pylist())
    assert pq.read_table(folder / "history").column("round").to_pylist() == [0, 1, 2, 3]
    assert pq.read_table(folder / "jobs").num_rows == 60
    plan = json.loads((folder / "plan.json").read_text())
    assert (plan["engine"], plan["threads"], plan["torch"]) == ("vectorised", 1, torch.__version__)
    result = json.loads((folder / "result.json").read_text())
    assert result["measures"] == terminal.done("inspect", "runs/a", "--json").json()["measures"]
    assert result["measures"]["test_accuracy_mean"] == pytest.approx(accuracy[samples > 0].mean())
    assert len(result["clients"]["realised"]) == 100
    assert (folder / "log.txt").read_text().endswith("stopped (3 rounds)\n")
    assert not list(folder.rglob("*.partial"))


def test_model_loads_into_a_plain_module(terminal: Terminal) -> None:
    folder = terminal.run("a")
    module = turnout.models.mlp(64, [32], 10)
    module.load_state_dict(load_file(folder / "model.safetensors"))
    predicted = module(digits_inputs()).argmax(1)
    right = float((predicted == datasets.load("digits").targets).float().mean())
    measured = json.loads((folder / "result.json").read_text())["measures"]
    shares = 0.8 * measured["train_accuracy"] + 0.2 * measured["test_accuracy"]  # how the clients' samples are split
    assert right == pytest.approx(shares, abs=0.02)


def test_config_runs_again_to_the_same_bits(terminal: Terminal) -> None:
    first = terminal.run("a", "algorithm.name=scaffold", "local.weight_decay=0.01")
    terminal.done("run", "runs/a/config.toml", "run.name=b")
    second = first.with_name("b")
    assert bits(first) == bits(second)
    assert (first / "result.json").read_text() == (second / "result.json").read_text()
    one, two = (tomllib.loads((folder / "config.toml").read_text()) for folder in (first, second))
    assert {**two, "run": {**two["run"], "name": "a"}} == one


def test_another_seed_is_another_run(terminal: Terminal) -> None:
    assert bits(terminal.run("a"))["model"] != bits(terminal.run("b", "run.seed=1"))["model"]


def test_stop_rules(terminal: Terminal) -> None:
    stopped = terminal.done("run", "digits", "engine.threads=1", "run.seconds=5", "--json").json()
    assert stopped["stopped"] == "5 virtual seconds"
    assert stopped["virtual_seconds"] >= 5
    reached = terminal.done("run", "digits", *QUICK, "run.target=0.05", "run.name=b", "--json").json()
    assert reached["stopped"].startswith("test_accuracy reached")


def test_diverged_run_is_exit_code_1(terminal: Terminal) -> None:
    answer = terminal("run", "digits", *QUICK, "local.lr=30", "algorithm.server_lr=9e37", "--json")
    assert answer.code == 1
    assert answer.json()["stopped"] == "diverged: the model is no longer finite"
    assert "diverged" in (terminal.here / "runs/digits/log.txt").read_text()


def test_json_of_a_useless_model(terminal: Terminal) -> None:
    """A finite model may still have a loss that is not: the document stays JSON."""
    document = terminal("run", "digits", *QUICK, "local.lr=1e12", "--json").json()
    assert document["stopped"] == "diverged: the loss is no longer finite"
    json.loads((terminal.here / "runs/digits/result.json").read_text(), parse_constant=pytest.fail)


# -- resume and inspect ---------------------------------------------------------------------------------------


class Killed(BaseException):
    """As if the process had been killed."""


def kill_in_round(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    record = History.on_round

    def dies(self: History, server: Server, done: Round) -> None:
        if done.number == number:
            raise Killed
        record(self, server, done)

    monkeypatch.setattr(History, "on_round", dies)


def interrupted(terminal: Terminal, number: int) -> Path:
    """A run of eight rounds, checkpoints every two, that died in round `number`."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        kill_in_round(patch, number)
        terminal("run", "digits", "engine.threads=1", "run.rounds=8", "run.checkpoint_every=2", "run.name=a")
    return terminal.here / "runs/a"


def test_resume_ends_with_the_same_bits(terminal: Terminal) -> None:
    folder = interrupted(terminal, 6)
    assert not (folder / "result.json").exists()
    document = terminal.done("resume", "runs/a", "--json").json()
    assert document["rounds"] == 8
    whole = terminal.run("whole", "run.rounds=8", "run.checkpoint_every=2")
    assert bits(folder) == bits(whole)
    (resumed,) = (line for line in (folder / "log.txt").read_text().splitlines() if line.endswith(": resumed"))
    assert "round 4" in resumed
    assert "resumed" in (folder / "log.txt").read_text()


def test_resume_before_the_first_checkpoint(terminal: Terminal) -> None:
    """Only the checkpoint of round 0 is there."""
    folder = interrupted(terminal, 1)
    terminal.done("resume", "runs/a")
    assert bits(folder) == bits(terminal.run("whole", "run.rounds=8", "run.checkpoint_every=2"))


def test_run_with_resume(terminal: Terminal) -> None:
    """`run --resume` goes on where there is a run of that name and begins where there is none."""
    folder = interrupted(terminal, 6)
    words = ("run", "digits", "engine.threads=1", "run.rounds=8", "run.checkpoint_every=2", "--resume")
    terminal.done(*words, "run.name=a")
    terminal.done(*words, "run.name=new")
    assert bits(folder) == bits(folder.with_name("new"))
    assert "resumed" not in (folder.with_name("new") / "log.txt").read_text()


def test_resume_for_longer(terminal: Terminal) -> None:
    folder = terminal.run("a", "run.rounds=4", "run.checkpoint_every=2")
    terminal.done("resume", "runs/a", "run.rounds=6")
    assert bits(folder) == bits(terminal.run("whole", "run.rounds=6", "run.checkpoint_every=2"))
    assert tomllib.loads((folder / "config.toml").read_text())["run"]["rounds"] == 6


def test_resume_keeps_the_recorded_plan(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engine choices are made once, when the run begins: a resumed run takes them from plan.json."""
    folder = interrupted(terminal, 6)
    plan = json.loads((folder / "plan.json").read_text())
    (folder / "plan.json").write_text(json.dumps({**plan, "engine": "sequential", "memory_mib": 77}))
    reseal(folder, "plan.json")
    plans: list[turnout.Plan] = []

    def watched(*args: Any, **options: Any) -> turnout.Result:
        result = execute(*args, **options)
        plans.append(result.server.plan)
        return result

    monkeypatch.setattr("turnout.cli._carry_out.execute", watched)
    terminal.done("resume", "runs/a")
    assert [(plan.engine, plan.memory_mib) for plan in plans] == [("sequential", 77)]


def test_truncated_checkpoint(terminal: Terminal) -> None:
    """The one before is used, log.txt says so, and the result is the same."""
    folder = interrupted(terminal, 7)
    before, newest = sorted((folder / "checkpoints").iterdir())
    assert (before.stem, newest.stem) == ("000000004", "000000006")
    newest.write_bytes(newest.read_bytes()[:-100])
    terminal.done("resume", "runs/a")
    log = (folder / "log.txt").read_text()
    assert "checkpoint 000000006.safetensors is damaged" in log
    assert "falling back to the one before" in log
    assert bits(folder) == bits(terminal.run("whole", "run.rounds=8", "run.checkpoint_every=2"))


def test_altered_checkpoint(terminal: Terminal) -> None:
    """A flipped bit is noticed by the digest."""
    folder = interrupted(terminal, 7)
    newest = max((folder / "checkpoints").iterdir())
    content = bytearray(newest.read_bytes())
    content[-5] ^= 1
    newest.write_bytes(content)
    terminal.done("resume", "runs/a")
    assert "its digest does not match" in (folder / "log.txt").read_text()
    assert bits(folder) == bits(terminal.run("whole", "run.rounds=8", "run.checkpoint_every=2"))


def test_no_checkpoint_can_be_read(terminal: Terminal) -> None:
    folder = interrupted(terminal, 7)
    for path in (folder / "checkpoints").iterdir():
        path.write_bytes(b"")
    assert terminal.refused("resume", "runs/a").startswith("resume: no checkpoint in runs/a/checkpoints can be used")


def test_checkpoint_of_another_configuration(terminal: Terminal) -> None:
    folder = interrupted(terminal, 6)
    path = folder / "config.toml"
    path.write_text(path.read_text().replace("lr = 0.3", "lr = 0.4"))
    assert terminal.refused("resume", "runs/a").startswith("resume: runs/a/config.toml is damaged: it is not what was")
    reseal(folder, "config.toml")
    saved = sorted((folder / "checkpoints").iterdir())
    assert "it was written with another configuration" in terminal.refused("resume", "runs/a")
    assert sorted((folder / "checkpoints").iterdir()) == saved
    path.write_text(path.read_text().replace("lr = 0.4", "lr = 0.3"))
    reseal(folder, "config.toml")
    terminal.done("resume", "runs/a")


def test_refused_resume_changes_nothing(terminal: Terminal) -> None:
    """Otherwise the run can never be resumed again, not even with its own configuration."""
    folder = interrupted(terminal, 6)
    before = (folder / "config.toml").read_text()
    terminal.refused("resume", "runs/a", "local.lr=0.4")
    assert (folder / "config.toml").read_text() == before


def test_resume_of_a_run_that_had_not_begun(terminal: Terminal) -> None:
    """Killed between config.toml and plan.json: `inspect` says to resume, so that must work."""
    folder = interrupted(terminal, 1)
    for path in (folder / "checkpoints").iterdir():
        path.unlink()
    for name in ("plan.json", "manifest.json"):
        (folder / name).unlink()
    assert "turnout resume" in terminal.done("inspect", "runs/a").out
    assert terminal("resume", "runs/a").code == 0


@pytest.mark.parametrize("command", ["resume", "inspect"])
def test_no_such_run(terminal: Terminal, command: str) -> None:
    sentence = terminal.refused(command, "runs/nowhere")
    assert sentence == f"{command}: runs/nowhere is not the folder of a run (it has no config.toml)"
    assert not (terminal.here / "runs").exists()


def test_inspect_finished(terminal: Terminal) -> None:
    ran = terminal.done("run", "digits", *QUICK)
    assert terminal.done("inspect", "runs/digits").out == ran.out
    document = terminal.done("inspect", "runs/digits", "--json").json()
    assert document["run"] == "runs/digits"
    assert document["rounds"] == 3


def test_inspect_unfinished(terminal: Terminal) -> None:
    interrupted(terminal, 7)
    shown = " ".join(terminal.done("inspect", "runs/a").out.split())
    assert "runs/a is unfinished (round 6," in shown
    assert "Go on with: turnout resume runs/a Path of" in shown
    document = terminal.done("inspect", "runs/a", "--json").json()
    assert document["unfinished"] is True
    assert document["last"]["round"] == 6
