"""The files around the package agree: one version, groups and commands that exist, a map with every folder of tests."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

import turnout

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
MAKEFILE = (ROOT / "Makefile").read_text()


def read(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text())


def test_the_version_has_one_place() -> None:
    """The project reads it from the package; the citation repeats it."""
    assert "version" not in PROJECT["project"] and PROJECT["project"]["dynamic"] == ["version"]
    assert PROJECT["tool"]["setuptools"]["dynamic"] == {"version": {"attr": "turnout.core.version.VERSION"}}
    assert re.fullmatch(r"\d+\.\d+\.\d+", turnout.__version__)
    assert read("CITATION.cff")["version"] == turnout.__version__


def test_the_citation_has_what_its_format_requires() -> None:
    citation = read("CITATION.cff")
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert citation["cff-version"] == "1.2.0"
    assert citation["license"] == PROJECT["project"]["license"]


def test_what_the_makefile_installs_exists() -> None:
    """Groups, and the pip that knows them."""
    assert set(re.findall(r"--group (\S+)", MAKEFILE)) == PROJECT["dependency-groups"].keys()
    extras = [name for names in re.findall(r'-e "\.\[(.+?)\]"', MAKEFILE) for name in names.split(",")]
    assert set(extras) <= PROJECT["project"]["optional-dependencies"].keys()
    pinned = re.search(r"^pip==(\d+)\.(\d+)", (ROOT / "constraints.txt").read_text(), re.M)
    assert pinned is not None and (int(pinned[1]), int(pinned[2])) >= (25, 1)


def test_the_workflow_calls_the_makefile_on_every_python() -> None:
    workflow = read(".github/workflows/test.yml")
    said = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    assert said == ["make test", "make docs"]
    assert all(re.search(rf"^{command.split()[1]}:", MAKEFILE, re.M) for command in said)
    supported = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["project"]["classifiers"]))
    assert workflow["jobs"]["test"]["strategy"]["matrix"]["python"] == supported
    assert PROJECT["project"]["requires-python"] == f">={supported[0]}"


def test_the_hooks_are_those_of_make_lint() -> None:
    (repository,) = read(".pre-commit-config.yaml")["repos"]
    assert repository["repo"] == "local"
    assert {hook["language"] for hook in repository["hooks"]} == {"system"}
    said = [re.sub(r"^\.venv/bin/| --.*", "", hook["entry"]) for hook in repository["hooks"]]
    lint = MAKEFILE.partition("\nlint:")[2].partition("\n\n")[0]
    assert len(said) == lint.count("$(BIN)/") and all(f"$(BIN)/{words}" in lint for words in said)


def test_the_map_has_every_folder_of_tests() -> None:
    named = re.findall(r"`(\w+)/`", (ROOT / "CONTRIBUTING.md").read_text())
    folders = [path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and path.name != "__pycache__"]
    assert sorted(set(named) - {"tests", "benchmarks"}) == sorted(folders)
