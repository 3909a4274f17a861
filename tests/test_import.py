"""`import turnout` is quick, its names are where its stubs say, and the engine needs torch, numpy and scipy only."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import turnout
from turnout.config import registry
from turnout.core.lazy import places

ROOT = Path(__file__).parents[1]

ABSENT = (
    "pydantic",
    "plotly",
    "typer",
    "rich",
    "ray",
    "flwr",
    "pyarrow",
    "sklearn",
    "safetensors",
    "pandas",
    "PIL",
)

SCRIPT = f"""
import sys
sys.modules |= dict.fromkeys({ABSENT!r})  # None: not to be found, not to be imported
import turnout
data = turnout.datasets.load("synthetic", clients=5)
people = turnout.Population.of(data, clients=5, partition="natural")
task = turnout.Task(lambda: turnout.models.linear(60, 10))
result = turnout.simulate(task, people, turnout.FedAvg(turnout.LocalSGD(lr=0.1), turnout.Full()), rounds=2)
print(result.server.version, "scipy.stats" in sys.modules)
"""


STUBS = sorted((ROOT / "src/turnout").rglob("*.pyi"))
MODULES = [".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__") for path in STUBS]


def test_importing_turnout_imports_nothing_large() -> None:
    """It takes less time than `import torch`, of which there is nothing before a name is used."""
    script = "import sys, turnout; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not {"torch", "numpy", "scipy", "networkx", *ABSENT} & set(done.stdout.split())


@pytest.mark.parametrize("name", MODULES)
def test_a_namespace_has_what_its_stub_says(name: str) -> None:
    module = importlib.import_module(name)
    assert sorted(module.__all__) == sorted(places(str(module.__file__)))
    assert set(module.__all__) <= set(dir(module))
    stub = STUBS[MODULES.index(name)].read_text("utf-8")
    assert sorted(module.__all__) == sorted(re.findall(r'"(\w+)"', stub.partition("__all__ = [")[2]))
    for public in module.__all__:
        assert getattr(module, public) is not None


def test_there_are_about_sixty_names() -> None:
    assert 50 < len(turnout.__all__) < 70


@pytest.mark.parametrize(("kind", "space"), [("algorithm", "algorithms"), ("sampler", "samplers")])
def test_every_algorithm_and_sampler_is_public(kind: str, space: str) -> None:
    module = getattr(turnout, space)
    public = {getattr(module, name) for name in module.__all__}
    assert {registry.find(kind, name) for name in registry.names(kind)} <= public
    assert all(inspect.isclass(found) for found in public)


@pytest.mark.parametrize(
    ("name", "now"),
    [
        ("APFL", "algorithms.APFL"),
        ("CAFed", "samplers.CAFed"),
        ("partition", "datasets.partition"),
        ("SIFU", "trust.SIFU"),
    ],
)
def test_a_name_that_has_moved_says_where_it_is(name: str, now: str) -> None:
    with pytest.raises(AttributeError, match=rf"^turnout\.{name} is turnout\.{now} since 0\.2$"):
        getattr(turnout, name)
    with pytest.raises(ImportError, match=rf"^turnout\.{name} is turnout\.{now} since 0\.2$"):
        exec(f"from turnout import {name}")
    assert not hasattr(turnout, name)


def test_a_name_that_never_was() -> None:
    with pytest.raises(AttributeError, match="module 'turnout' has no attribute 'FedAvgg'"):
        _ = turnout.FedAvgg  # type: ignore[attr-defined]
    with pytest.raises(ImportError, match="FedBufff"):
        from turnout.algorithms import FedBufff  # type: ignore[attr-defined] # noqa: F401


def test_the_engine_runs_without_everything_else() -> None:
    """And without `scipy.stats`, which takes as long to import as half of torch."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert done.stdout == "2 False\n", done.stderr


def test_what_messages_and_pages_tell_to_install_can_be_installed() -> None:
    """Turnout is on no package index: extras come from a checkout, and exist."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    code = [path for part in ("src", "benchmarks", "examples") for path in (ROOT / part).rglob("*.py")]
    texts = {path: path.read_text(encoding="utf-8") for path in pages + code}
    assert not [path for path, text in texts.items() if re.search(r"install\s+[^\n]{0,3}turnout\b", text)]
    named = [name for text in texts.values() for name in re.findall(r'\bextra\("([^"]*)"\)|"\.\[([\w-]*)\]"', text)]
    assert {first or second for first, second in named} <= extras.keys()
    assert len(named) > 10
