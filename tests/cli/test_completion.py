"""What TAB offers, in every shell, and that it takes no import of torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from terminal import Terminal
from typer.testing import CliRunner

from turnout.cli import completion
from turnout.cli.commands import COMMANDS, app
from turnout.config import registry
from turnout.config.kinds import KINDS
from turnout.config.sections import ABOUT


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> completion.Catalogue:
    """The catalogue, read from the code once and then from the cache of this module's tests."""
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    try:
        made = completion.catalogue()
        assert completion.catalogue() == made
        return made | {"cache": os.environ["XDG_CACHE_HOME"]}
    finally:
        os.environ.pop("XDG_CACHE_HOME")
        if before is not None:
            os.environ["XDG_CACHE_HOME"] = before


def offered(known: completion.Catalogue, line: str) -> set[str]:
    """What is offered for the last word of a line."""
    *words, last = line.split(" ")
    return set(completion.answers(known, words, last))


def test_everything_that_has_a_name_is_offered(known: completion.Catalogue) -> None:
    assert offered(known, "") == set(COMMANDS)
    assert offered(known, "list ") == {*KINDS, "configs", "sections"}
    names = {f"algorithm.name={name}" for name in registry.names("algorithm")}
    assert offered(known, "run digits algorithm.name=") == names
    assert offered(known, "run digits ") == {f"{section}." for section in ABOUT}
    assert {"scaffold", "uniform", "crashes", "digits"} <= offered(known, "show ")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("ru", {"run"}),
        ("run dig", {"digits"}),
        ("run --overwrite dig", {"digits"}),
        ("topology de", {"design"}),
        ("run digits --ov", {"--overwrite"}),
        ("run digits --tensorboard ", set()),
        ("run digits --tensorboard logs algorithm.name=scaf", {"algorithm.name=scaffold"}),
        ("run digits crashes.", {"crashes.probability=", "crashes.clock=", "crashes.during="}),
        (
            "run digits crash",
            {"crashes.probability=", "crashes.clock=", "crashes.during="},
        ),  # one section: what is in it
        ("run digits partition.al", {"partition.alpha=", "partition.alpha=0.5"}),  # the configuration's partition
        (
            "run digits partition.name=shards partition.cl",
            {"partition.classes_per_client=", "partition.classes_per_client=2"},
        ),
        ("run digits algorithm.name=fedprox algorithm.mu=", {"algorithm.mu=0.1"}),
        ("run digits algorithm.mu=", set()),  # FedAvg has none
        ("run digits run.report=", {"run.report=true", "run.report=false"}),
        ("run digits local.lr=", {"local.lr=0.3"}),
        ("run digits local.modifiers=proximal,cl", {"local.modifiers=proximal,clip"}),
        ("run digits local.prox", {"local.proximal.mu=", "local.proximal.mu=0.1"}),
        ("run digits clients.test=", {"clients.test=split", "clients.test=matched", "clients.test=none"}),
        ("run digits algoritm.", set()),
        ("sweep digits rule.name=kr", {"rule.name=krum"}),
        ("nothing ", set()),
    ],
)
def test_what_is_offered(known: completion.Catalogue, line: str, expected: set[str]) -> None:
    assert offered(known, line) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("run digits algorithm.name = scaf", {"scaffold"}),
        ("run digits algorithm.name ", {*registry.names("algorithm")}),
        ("run digits rule.name=krum clients.test = ma", {"matched"}),
        ("run digits data.name = csv_table data.pa", {"data.path="}),
    ],
)
def test_bash_breaks_words_at_the_equals_sign(known: completion.Catalogue, line: str, expected: set[str]) -> None:
    assert offered(known, line) == expected


def test_configurations_and_runs_that_are_here(known: completion.Catalogue, terminal: Terminal) -> None:
    terminal.own()
    for name in ("a", "b"):
        Path(f"runs/{name}").mkdir(parents=True)
        Path(f"runs/{name}/config.toml").touch()
    assert offered(known, "run ow") == {"own.toml"}
    assert offered(known, "resume ") == {"runs/a", "runs/b"}
    assert offered(known, "compare runs/a runs/") == {"runs/a", "runs/b"}
    assert offered(known, "run own.toml model.na") >= {"model.name=", "model.name=linear"}


@pytest.mark.parametrize(
    ("shell", "given", "answer"),
    [
        ("bash", {"COMP_WORDS": "turnout\nrun\ndigits\nrule.name\n=\nkr", "COMP_CWORD": "5"}, "krum"),
        ("zsh", {"_TYPER_COMPLETE_ARGS": "turnout run digits rule.name=kr"}, '"rule.name=krum":"Take the one row'),
        ("fish", {"_TYPER_COMPLETE_ARGS": "turnout show sca", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}, "scaffold\t"),
    ],
)
def test_shells_are_answered_without_an_import(
    known: completion.Catalogue, shell: str, given: dict[str, str], answer: str
) -> None:
    script = """
import sys
from turnout.cli.commands import app
try:
    app(prog_name="turnout")
finally:
    print({"torch", "numpy", "turnout.cli.run", "turnout.config"} & set(sys.modules))
"""
    environment = os.environ | given | {"_TURNOUT_COMPLETE": f"complete_{shell}", "XDG_CACHE_HOME": known["cache"]}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=True)
    *lines, imported = done.stdout.splitlines()
    assert answer in "\n".join(lines)
    assert imported == "set()"
    assert done.stderr == ""
    assert all(line.count("\t") <= 1 for line in lines)


def test_a_cache_of_other_code_is_not_read(
    known: completion.Catalogue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(completion, "_catalogue", lambda: known)
    old = tmp_path / "turnout/completion-0.json"
    old.parent.mkdir()
    old.write_text(json.dumps({"commands": {}}))
    assert completion.catalogue() == known
    (kept,) = (tmp_path / "turnout").iterdir()
    assert kept != old
    kept.write_text("{")  # damaged
    assert completion.catalogue() == known
    assert json.loads(kept.read_text()) == known


def test_it_can_be_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("typer._completion_shared._get_shell_name", lambda: "bash")
    answer = CliRunner().invoke(app, ["--install-completion"], prog_name="turnout")
    assert answer.exit_code == 0, answer.output
    assert "complete -o default" in (tmp_path / ".bash_completions/turnout.sh").read_text()
