"""The board as a reader meets it: served, while a run goes on, on a telephone, in the dark, and as a folder."""

from __future__ import annotations

import json
import os
import re
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow.parquet as pq
import pytest
from screens import keep, read_through

from turnout.record.run_folder import RunFolder, locked
from turnout.report import board
from turnout.report.index import Index
from turnout.report.loopback import Board

Open = Callable[..., Any]
invented = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "report.py"))["invented"]
EVIL = "<img src=x onerror=alert(1)>"
BEGUN = 1_760_000_000
NAMES = "[...document.querySelectorAll('#runs tbody th > :first-child')].map((name) => name.textContent)"


def made(folder: Path, place: int, seed: int, algorithm: str, clients: int = 40) -> Path:
    """A run that nobody ran, the newer the larger its place."""
    invented(folder, 60, clients, 10, seed=seed, algorithm=algorithm)
    RunFolder(folder).seal(finished=True)
    begun = BEGUN + 3600 * place
    os.utime(folder / "history" / "000000.parquet", (begun, begun))
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two settings of three seeds, one that is alone, and one of every other end."""
    folder = tmp_path / "runs"
    for place, (algorithm, seed) in enumerate((name, seed) for name in ("fedavg", "scaffold") for seed in range(3)):
        made(folder / "sweep" / f"algorithm={algorithm},seed={seed}", place, 20 * place + seed, algorithm)
    made(folder / "fedprox", 6, 7, "fedprox", clients=50)
    diverged = made(folder / "diverged", 7, 8, "fedyogi") / "result.json"
    diverged.write_text(json.dumps(json.loads(diverged.read_text()) | {"stopped": "diverged: the loss is not finite"}))
    RunFolder(diverged.parent).seal(finished=True)
    (made(folder / "stopped", 8, 9, "fedadam") / "result.json").unlink()
    RunFolder(folder / "stopped").seal()
    os.truncate(made(folder / "broken", 9, 10, "fedavg") / "history" / "000000.parquet", 99)
    os.utime(folder / "broken" / "history" / "000000.parquet", (BEGUN + 9 * 3600,) * 2)
    return folder


@pytest.fixture
def address(runs: Path) -> Iterator[str]:
    with Board(Index(runs, fresh=0), 0) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.address
        server.shutdown()
        thread.join()


def going_on(folder: Path, rounds: int) -> tuple[Path, Any]:
    """A run of which so many rounds are recorded; the rest of the history, and where it will be."""
    (made(folder, 20, 11, "fedbuff") / "result.json").unlink()
    path = folder / "history" / "000000.parquet"
    table = pq.read_table(path)
    pq.write_table(table.slice(0, rounds + 1), path)
    os.utime(path, (BEGUN + 20 * 3600,) * 2)
    RunFolder(folder).seal()
    return folder / "history" / "000001.parquet", table.slice(rounds + 1)


def tick(tab: Any, *names: str) -> None:
    for name in names:
        tab.get_by_label(f"Tick {name} to compare it", exact=True).check()


def test_all_runs_are_there_the_newest_first(tabs: Open, address: str) -> None:
    tab = tabs(address)
    seeds = [f"algorithm={algorithm},seed={seed}" for algorithm in ("scaffold", "fedavg") for seed in (2, 1, 0)]
    assert tab.evaluate(NAMES) == ["broken", "stopped", "diverged", "fedprox", *seeds]
    assert tab.inner_text("#about") == "10 runs: 7 finished, 1 unfinished, 1 failed, 1 damaged · live"
    said = tab.inner_text("#runs")
    for words in ("damaged · history/000000.parquet is damaged", "failed · diverged: the loss is not finite"):
        assert words in said
    assert "unfinished · stopped in round 60 of 60; go on with: turnout resume" in said
    assert tab.locator("#runs td.curve polyline").count() == 9
    assert re.fullmatch(
        r"Highest test accuracy: .+ with 0\.\d{4} \(.+\); next: .+ with 0\.\d{4} \(.+\).*", tab.inner_text("#leading")
    )
    keep(tab, "board")


def test_it_is_sorted_and_filtered_and_the_address_keeps_that(tabs: Open, address: str) -> None:
    tab = tabs(address)
    cells = "[...document.querySelectorAll('#runs td.measure')].map((cell) => parseFloat(cell.textContent))"
    values = f"{cells}.filter(Number.isFinite)"
    tab.click("[data-sort=measure]")
    known = tab.evaluate(values)
    assert known == sorted(known, reverse=True) and len(known) == 9
    assert tab.evaluate(NAMES)[-1] == "broken"  # of which nothing is known
    assert tab.get_attribute("th.measure", "aria-sort") == "descending"
    tab.click("[data-sort=measure]")
    assert tab.evaluate(values) == known[::-1]
    tab.select_option("#measure", "test_loss")
    assert tab.inner_text("[data-sort=measure]") == "test loss"
    tab.fill("#words", "seed=1 scaffold")
    assert tab.evaluate(NAMES) == ["algorithm=scaffold,seed=1"]
    tab.fill("#words", "clients.count=50")
    assert tab.evaluate(NAMES) == ["fedprox"]
    tab.fill("#words", "")
    tab.click("[data-state=failed]")
    assert tab.evaluate(NAMES) == ["diverged"]
    tab.reload()
    tab.wait_for_selector("html[data-ready]")
    assert tab.evaluate(NAMES) == ["diverged"]
    assert tab.input_value("#measure") == "test_loss"
    tab.click("[data-state='']")
    tab.fill("#words", "no such run")
    assert tab.inner_text("#none") == "No run is like that."
    assert not tab.is_visible("#runs")


def test_some_are_ticked_and_compared(tabs: Open, address: str) -> None:
    tab = tabs(address)
    assert not tab.is_visible("#ticked")
    tick(tab, "fedprox", "sweep/algorithm=fedavg,seed=0", "sweep/algorithm=scaffold,seed=0")
    assert tab.inner_text("#ticked-count") == "3 ticked"
    tab.click("#compare")
    assert tab.inner_text("#compared-title") == "test accuracy of 3 runs"
    assert tab.locator("#chart polyline").count() == 3
    heads = tab.locator("#beside thead th").all_inner_texts()
    assert heads[-2:] == ["clients.count", "algorithm.name"]
    assert tab.locator("#beside tbody tr").first.locator("td").last.inner_text() == "fedprox"
    assert "virtual time" in tab.text_content("#chart")
    tab.click("[data-over=round]")
    assert tab.locator("#chart text").last.text_content() == "round"
    keep(tab, "board-compared")
    tab.reload()
    tab.wait_for_selector("html[data-ready]")
    assert tab.locator("#chart polyline").count() == 3
    tab.click("#full")
    tab.wait_for_selector("html[data-ready]")
    assert tab.inner_text("h1") == "3 runs compared"
    read_through(tab)
    keep(tab, "comparison")
    tab.click("text=All runs")
    tab.wait_for_selector("#runs")
    tick(tab, "fedprox")
    tab.click("#clear")
    assert not tab.is_visible("#ticked")


def test_a_report_is_opened_and_leads_back(tabs: Open, address: str) -> None:
    tab = tabs(address)
    tab.click("text=algorithm=scaffold,seed=1")
    tab.wait_for_selector("html[data-ready]")
    assert tab.inner_text("h1") == "algorithm=scaffold,seed=1"
    read_through(tab)
    tab.wait_for_selector("#lanes-about:not(:empty)")
    tab.click("#theme")
    tab.click("text=All runs")
    tab.wait_for_selector("html[data-ready] #runs")


def test_a_run_that_goes_on_is_followed(tabs: Open, runs: Path, address: str) -> None:
    more, table = going_on(runs / "live", 20)
    with locked(runs / "live"):
        tab = tabs(address)
        tick(tab, "live")
        assert tab.inner_text("#runs tbody tr:first-child td.round").startswith("20 of 60")
        assert tab.inner_text("#about").startswith("11 runs: 1 running, ")
        assert tab.locator("tr.running progress").evaluate("(bar) => bar.position") == pytest.approx(1 / 3)
        pq.write_table(table.slice(0, 20), more.with_name(".more"))
        os.utime(more.with_name(".more"), (BEGUN + 20 * 3600 + 40,) * 2)
        more.with_name(".more").rename(more)
        tab.wait_for_selector("tr.running td.round:has-text('40 of 60')")
        assert "running · 2 s a round, about 40 s to go" in tab.inner_text("tr.running")
        assert tab.get_by_label("Tick live to compare it").is_checked()
        keep(tab, "board-live")
    tab.wait_for_selector("#runs tbody tr.unfinished:first-child")


def test_names_are_only_text(tabs: Open, runs: Path, address: str) -> None:
    made(runs / EVIL, 30, 12, EVIL)
    tab = tabs(address)
    assert tab.evaluate(NAMES)[0] == EVIL
    assert EVIL in tab.inner_text("#leading") or tab.locator("img").count() == 0
    tick(tab, EVIL, "fedprox")
    tab.click("#compare")
    assert tab.locator("img").count() == 0
    tab.click("#runs tbody tr:first-child a")
    tab.wait_for_selector("html[data-ready]")
    assert tab.inner_text("h1") == EVIL
    assert tab.locator("img[src=x]").count() == 0


def test_it_is_dark_where_the_reader_wants_it(tabs: Open, address: str) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    tab = tabs(address, color_scheme="dark")
    assert tab.evaluate(background) == "rgb(20, 24, 30)"
    tick(tab, "fedprox", "sweep/algorithm=fedavg,seed=0", "sweep/algorithm=scaffold,seed=0")
    tab.click("#compare")
    keep(tab, "board-dark")
    tab.click("#theme")
    assert tab.evaluate(background) == "rgb(246, 247, 249)"


def test_it_fits_a_telephone(tabs: Open, address: str) -> None:
    tab = tabs(address, width=390, has_touch=True)
    wide = "document.documentElement.scrollWidth"
    assert tab.evaluate(wide) == 390
    keep(tab, "board-phone")
    tab.select_option("#sort", "measure")
    assert tab.evaluate(NAMES)[-1] == "broken"
    tick(tab, "fedprox", "sweep/algorithm=fedavg,seed=0")
    tab.click("#compare")
    assert tab.evaluate(wide) == 390
    assert tab.evaluate("document.querySelector('#chart svg').getBoundingClientRect().width") > 280
    keep(tab, "board-phone-compared")


def test_the_keyboard_reaches_everything(tabs: Open, address: str) -> None:
    tab = tabs(address)
    reached = []
    for _ in range(24):
        tab.keyboard.press("Tab")
        reached.append(
            tab.evaluate(
                "(({ id, dataset, type, tagName }) => id || dataset.sort || type || tagName)(document.activeElement)"
            )
        )
    assert {"theme", "words", "measure", "name", "begun", "checkbox", "A"} <= set(reached) | {"A"}
    tab.focus("[data-sort=round]")
    tab.keyboard.press("Enter")
    assert tab.evaluate("document.activeElement.dataset.sort") == "round"


def test_it_can_be_read_as_a_folder(tabs: Open, runs: Path, tmp_path: Path) -> None:
    first, remarks = board.write(Index(runs), tmp_path / "public")
    assert len(remarks) == 1
    tab = tabs(first.as_uri())
    assert "as of" in tab.inner_text("#about")
    tick(tab, "fedprox", "sweep/algorithm=fedavg,seed=0")
    tab.click("#compare")
    assert tab.locator("#chart polyline").count() == 2
    assert not tab.is_visible("#full")  # which needs a server
    tab.click("text=algorithm=fedavg,seed=2")
    tab.wait_for_selector("html[data-ready] [data-chart]")
    tab.locator("[data-chart]").first.scroll_into_view_if_needed()  # below what is said first, and drawn when looked at
    tab.wait_for_selector("[data-chart] svg.main-svg")
    tab.click("text=All runs")
    tab.wait_for_selector("html[data-ready] #runs")


def test_ctrl_c_ends_the_command_and_the_page_says_so(browser: Any, runs: Path) -> None:
    words = [sys.executable, "-m", "turnout", "board", str(runs), "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        line = process.stdout.readline()
        said = re.fullmatch(r"10 runs of .* at (http://127\.0\.0\.1:\d+/) \(Ctrl-C ends it\)\n", line)
        assert said is not None
        tab = browser.new_page()
        tab.goto(said[1])
        tab.wait_for_selector("html[data-ready]")
        process.send_signal(signal.SIGINT)
        assert (process.wait(60), process.stderr.read()) == (0, "")
        assert process.stdout.read() == "The board has ended; the runs go on.\n"
        tab.wait_for_selector("#about:has-text('does not answer')")
        assert len(tab.evaluate(NAMES)) == 10
        tab.close()
