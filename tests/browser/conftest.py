"""A real browser: Debian's Chromium, or the one that the environment variable CHROMIUM names."""

from __future__ import annotations

import os
import runpy
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from turnout.report import page, read

Open = Callable[..., Any]
invented = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "report.py"))["invented"]


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="no playwright; pip install --group browser")
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if chromium is None:
        pytest.skip("no Chromium; install Debian's package chromium, or name the program in CHROMIUM")
    with playwright.sync_playwright() as tool:
        started = tool.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="session")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Reports of invented runs: one, ten compared of which three are seeds, and a long one."""
    place = tmp_path_factory.mktemp("reports")
    names = ("fedyogi", "fedprox", "scaffold", "fedfix", "fedbuff", "safa", "fedasync")
    folders = [invented(place / f"fedavg-{seed}", 60, 40, 10, seed=seed) for seed in range(3)]
    folders += [invented(place / f"other-{name}", 60, 40, 10, seed=9, algorithm=name) for name in names]
    long = invented(place / "long", 10_000, 1_000, 100)
    made = {"one": folders[:1], "ten": folders, "long": [long]}
    return {name: page.write(list(map(read.recorded, runs)), place / f"{name}.html") for name, runs in made.items()}


@pytest.fixture
def tabs(browser: Any) -> Iterator[Open]:
    """Open an address; whatever the page complains of or asks others than its own server for is a failure."""
    complaints: list[str] = []
    contexts = []

    def opened(address: str, width: int = 1200, **options: Any) -> Any:
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        tab = context.new_page()
        own = (address if address.startswith("http") else "file:", "data:", "blob:")
        tab.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        tab.on("request", lambda asked: None if asked.url.startswith(own) else complaints.append(asked.url))
        tab.goto(address)
        tab.wait_for_selector("html[data-ready]")
        return tab

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture
def visit(tabs: Open, reports: dict[str, Path]) -> Open:
    """Open a report."""
    return lambda name, width=1200, **options: tabs(reports[name].as_uri(), width, **options)
