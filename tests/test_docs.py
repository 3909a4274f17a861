"""What the documentation shows is true: its Python runs, its commands parse and mostly run, its configurations
are read, its mistakes are answered as printed, its links lead somewhere, its reference has every public name.

The blocks of a page share a folder and a namespace, in order. A title is the name of the file that a block is.
"""

from __future__ import annotations

import importlib.util
import re
import runpy
import shlex
import sys
import tomllib
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
import typer.main
from typer.testing import CliRunner

import turnout
from turnout.cli.commands import app
from turnout.config import config
from turnout.data.schema import Schema
from turnout.deploy import study

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
# Commands are parsed and their configurations built; on the first pages that people read these are carried out, too.
FIRST = {"README.md", "quickstart.md", "command-line.md", "concepts.md", "own-data.md", "own-algorithm.md"}
FIRST |= {"tables.md", "predict.md", "training.md"}
RUNS = {"init", "run", "resume", "inspect", "list", "show", "report", "predict", "export"}
# Of the README, whose block runs from top to bottom.
MORE = {"compare", "plan", "tune", "sweep", "topology design", "study run"}
SHORTER = {
    "run": ["run.rounds=2", "run.report=false"],
    "resume": ["run.rounds=3", "run.report=false"],
    "tune": ["run.rounds=1", "--budget", "6"],
    "sweep": ["run.rounds=1", "--workers", "1"],
    "study run": ["--seeds", "1"],
}
OWN = {  # what stands for the reader's own
    "my.toml": config.builtin_text("digits"),
    "patients.csv": "hospital,age,ill\n" + "".join(f"h{row % 3},{40 + row * 7 % 35},{row % 2}\n" for row in range(60)),
    "new.csv": "hospital,age\nh0,50\nh1,61\n",
    "my-network.json": resources.files("turnout.peers").joinpath("measured/gaia.json").read_text("utf-8"),
}


class Block(NamedTuple):
    language: str
    title: str
    code: str


def blocks(page: Path) -> Iterator[Block]:
    for language, info, code in re.findall(r"^```(\w*)([^\n]*)\n(.*?)^```$", page.read_text("utf-8"), re.S | re.M):
        titled = re.fullmatch(r' title="(.+)"|', info)
        assert titled is not None, (
            f"{page.name}: {info} (every Python block runs: there is no mark for one that does not)"
        )
        yield Block(language, titled[1] or "", code)


def commands(code: str) -> Iterator[list[str]]:
    """The lines of a bash block, as words."""
    return filter(None, (shlex.split(line, comments=True) for line in code.splitlines()))


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


EXAMPLES = sorted(path for folder in ("lora", "sklearn") for path in (ROOT / "examples" / folder).glob("*.py"))
WITH_BLOCKS = [page for page in PAGES if any(True for _ in blocks(page))]
SHOWN = {
    " ".join(words[1:3] if words[1] in ("study", "topology", "streams") else words[1:2])
    for page in WITH_BLOCKS
    for block in blocks(page)
    if block.language == "bash"
    for words in commands(block.code)
    if words[0] == "turnout"
}


@pytest.mark.parametrize("page", WITH_BLOCKS, ids=page_id)
def test_every_block_is_true(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    module = ModuleType("shown")
    monkeypatch.setitem(sys.modules, "shown", module)
    for own, text in OWN.items():
        (tmp_path / own).write_text(text, encoding="utf-8")
    for block in blocks(page):
        if block.title:
            monkeypatch.delitem(sys.modules, Path(block.title).stem, raising=False)  # another test's of that name
            (tmp_path / block.title).write_text(block.code, encoding="utf-8")
        if block.language == "python":
            exec(compile(block.code, page.name, "exec"), vars(module))
            check_learnt(vars(module).get("result"))
        elif block.language == "toml":
            check_toml(Path(block.title))
        elif block.language == "bash":
            for words in commands(block.code):
                carried_out = RUNS if page.name in FIRST else set()
                check_command(words, carried_out | MORE if page.name == "README.md" else carried_out)
        else:
            check_mistakes(block.code)
    for name in [
        name for name, found in sys.modules.items() if str(getattr(found, "__file__", "")).startswith(str(tmp_path))
    ]:
        del sys.modules[name]


class Table:
    """What stands for a table of Hugging Face's."""

    column_names = ["features", "label", "who", "text"]

    def with_format(self, _kind: str) -> dict[str, Any]:
        return {"features": np.ones((2, 3)), "label": np.array([0, 1]), "who": np.array(["ann", "bob"])}


def test_what_you_have_is_read_by_what_you_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = DOCS / "own-data.md"
    shown: dict[str, Any] = {"Dataset": turnout.Dataset, "load": turnout.datasets.load, "table": Table()}
    exec(next(block.code for block in blocks(page) if block.language == "python"), shown)
    written = re.findall(r"^\| .* \| `(.+)` \|$", page.read_text("utf-8").partition("## Larger")[0], re.M)
    assert len(written) == 21
    for line in written:
        data = eval(line, shown)
        assert isinstance(data, turnout.Dataset), line
        assert data.num_classes or "[[1, 0" in line, line


def check_learnt(result: Any) -> None:
    """An example that trains has learnt something."""
    if isinstance(result, turnout.Result):
        assert result.measures.get("test_accuracy", result.measures.get("test_concordance", 0.0)) > 0.5


def check_toml(path: Path) -> None:
    """A schema, a configuration for sites that have it, or a configuration."""
    if path.name == "schema.toml":
        Schema.read(path)
    else:
        known = study.people(Schema.read(Path("schema.toml")), [1]) if Path("schema.toml").exists() else None
        config.build(config.read(str(path)), known=known)


def check_command(words: list[str], carry_out: set[str]) -> None:
    match words:
        case ["make", target]:
            assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text("utf-8"), re.M)
        case ["pip", "install", "-e", wanted]:
            project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
            extra = re.fullmatch(r"\.\[(\w+)\]", wanted)
            assert extra and extra[1] in project["optional-dependencies"]
        case ["python", "-m", module, *_]:
            assert importlib.util.find_spec(module)
        case ["turnout", *arguments]:
            check_turnout(arguments, carry_out)
        case _:
            raise AssertionError(f"nothing checks {words}")


def check_turnout(arguments: list[str], carry_out: set[str]) -> None:
    command: Any = typer.main.get_command(app)
    name, rest = "", arguments
    while hasattr(command, "commands"):
        assert rest[0] in command.commands, f"there is no command {rest[0]}"
        command, name, rest = command.commands[rest[0]], f"{name} {rest[0]}".strip(), rest[1:]
    parameters = command.make_context(name, list(rest)).params
    if name in carry_out or (name == "topology design" and "--out" in arguments):
        answer = CliRunner().invoke(app, [*arguments, *SHORTER.get(name, [])])
        assert answer.exit_code == 0, answer.output
    elif name == "sweep":
        assert CliRunner().invoke(app, [*arguments, "--dry-run"]).exit_code == 0
    elif "overrides" in parameters and "source" in parameters and not parameters.get("schema"):
        config.build(config.read(parameters["source"], parameters["overrides"]))


def check_mistakes(code: str) -> None:
    """`$ turnout ...` followed by the sentence that answers it."""
    for command, sentence in re.findall(r"^\$ turnout (.*)\nturnout: (.*)\n", code, re.M):
        answer = CliRunner().invoke(app, shlex.split(command))
        assert answer.exit_code == 2
        assert sentence in answer.output


@pytest.mark.parametrize("example", EXAMPLES, ids=page_id)
def test_every_example_is_short_and_learns(example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = example.read_text("utf-8").partition('"""\n')[2]
    lines = [line for line in code.splitlines() if line and not line.startswith(("import", "from"))]
    assert len(lines) <= 25
    check_learnt(runpy.run_path(str(example))["result"])


def test_there_is_something_to_run() -> None:
    assert len(WITH_BLOCKS) > 10
    assert {"run", "resume", "plan", "tune", "study run"} <= SHOWN


@pytest.mark.parametrize("command", sorted(SHOWN))
def test_commands_that_are_shown_have_an_example(command: str) -> None:
    answer = CliRunner().invoke(app, [*command.split(), "--help"])
    assert answer.exit_code == 0
    assert f"Example: turnout {command.split()[0]}" in answer.output


def test_own_data_takes_less_than_ten_lines() -> None:
    first = next(block for block in blocks(DOCS / "quickstart.md") if block.language == "python")
    lines = [line for line in first.code.splitlines() if line and not line.startswith(("import", "from"))]
    assert len(lines) < 10


def test_own_algorithm_takes_thirty_lines() -> None:
    first = next(block for block in blocks(DOCS / "own-algorithm.md") if block.title)
    assert (
        len([line for line in first.code.splitlines() if line and not line.startswith(("import", "from", "#"))]) <= 30
    )


def slug(heading: str) -> str:
    """As the site names its headings."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading.replace("`", "")).strip().lower())


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for link, anchor in re.findall(r"\]\((?!http)([^)#\s]*)#?([^)]*)\)", page.read_text("utf-8")):
            target = (page.parent / link) if link else page
            assert target.exists(), f"{page.name}: {link}"
            if anchor and target.suffix == ".md":
                headings = re.findall(r"^#+ (.*)$", target.read_text("utf-8"), re.M)
                assert anchor in map(slug, headings), f"{page.name}: {link}#{anchor}"


def test_every_page_is_on_the_site() -> None:
    listed = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text("utf-8").split("nav:")[-1]))
    assert listed == {str(page.relative_to(DOCS)) for page in PAGES[1:]}


def test_the_reference_has_every_public_name() -> None:
    shown = {
        name
        for page in (DOCS / "api").glob("*.md")
        for name in re.findall(r"^::: turnout\.(\S+)$", page.read_text(), re.M)
    }
    spaces = {name for name in turnout.__all__ if hasattr(getattr(turnout, name), "__all__")}
    assert shown >= set(turnout.__all__) - spaces
    inside = {f"{space}.{name}" for space in spaces for name in getattr(turnout, space).__all__}
    assert not {name for name in inside - shown if name.rpartition(".")[2] not in shown}


def test_figures_of_the_decision_page_are_those_of_the_studies() -> None:
    studies = (DOCS / "studies.md").read_text("utf-8")
    figures = re.findall(r"\b\d\.\d{3,}\b", (DOCS / "which-algorithm.md").read_text("utf-8"))
    assert len(figures) > 60
    assert not [figure for figure in figures if figure.removeprefix("0") not in studies]


def test_pictures_are_as_drawn() -> None:
    for name, text in runpy.run_path(str(DOCS / "pictures" / "draw.py"))["drawn"]().items():
        assert (DOCS / "pictures" / name).read_text("utf-8") == text, "run docs/pictures/draw.py again"
