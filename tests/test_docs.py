"""Every Python block of the README and the docs that can stand alone runs; every command they show exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from turnout.cli import app

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(language: str) -> list[tuple[str, str]]:
    found = (
        (page.name, re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.S)) for page in PAGES
    )
    return [(page, block) for page, inside in found for block in inside]


WHOLE = [(page, code) for page, code in blocks("python") if "import turnout\n" in code]
SHOWN = [line.split()[1] for _, block in blocks("bash") for line in block.splitlines() if line.startswith("turnout ")]


@pytest.mark.parametrize(("page", "code"), WHOLE)
def test_whole_examples_run(page: str, code: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(code, page, "exec"), {})
    accuracy = float(capsys.readouterr().out.split()[0])
    assert 0.5 < accuracy <= 1


def test_there_is_an_example_to_run() -> None:
    assert WHOLE


@pytest.mark.parametrize("command", sorted(set(SHOWN)))
def test_commands_exist_and_their_help_has_an_example(command: str) -> None:
    answer = CliRunner().invoke(app, [command, "--help"])
    assert answer.exit_code == 0
    assert f"Example: turnout {command}" in answer.output


def test_the_mistake_in_the_readme_is_answered_as_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shown = re.search(r"\$ turnout (run .*)\nturnout: (.*)\n", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert shown is not None
    answer = CliRunner().invoke(app, shown[1].split())
    assert answer.exit_code == 2
    assert shown[2] in answer.output


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), f"{page.name}: {link}"
