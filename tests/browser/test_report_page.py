"""The report as a reader meets it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from screens import keep, read_through

Open = Callable[..., Any]
BACKGROUND = "getComputedStyle(document.body).backgroundColor"
DRAWN = """() => {
  const canvas = document.getElementById("lanes");
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const pixels = new Uint32Array(data.buffer);
  return new Set(pixels).size;
}"""


def lanes(tab: Any) -> str:
    """What is on the timeline, as one number."""
    tab.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return hashlib.sha256(tab.evaluate("document.getElementById('lanes').toDataURL()").encode()).hexdigest()


@pytest.mark.parametrize("name", ["one", "ten"])
def test_every_chart_is_drawn(visit: Open, name: str) -> None:
    tab = visit(name)
    read_through(tab)
    lines = tab.evaluate(
        "[...document.querySelectorAll('[data-chart]')].map((c) =>"
        "[...c.querySelectorAll('.plot path, .plot image')].filter((p) => p.getBoundingClientRect().width > 20).length)"
    )
    assert len(lines) >= 8
    assert min(lines) > 0
    titles = tab.evaluate(
        "[...document.querySelectorAll('[data-chart]')].map((c) => c.querySelector('.xtitle')?.textContent || '')"
    )
    assert all(titles)
    assert tab.evaluate(DRAWN) > 4
    keep(tab, f"report-{name}")


def test_ten_runs_are_compared(visit: Open) -> None:
    tab = visit("ten")
    assert tab.inner_text("h1") == "10 runs compared"
    read_through(tab)
    assert tab.locator("[data-chart='0'] .legend .traces").count() == 8  # three seeds are one
    before = lanes(tab)
    assert tab.locator("#lane option").count() == 10
    tab.select_option("#lane", "4")
    assert lanes(tab) != before


@pytest.mark.parametrize(("name", "width"), [("ten", 1200), ("one", 1200), ("ten", 380), ("one", 380)])
def test_the_answer_is_above_the_fold(visit: Open, name: str, width: int) -> None:
    """Which one, and is it more than chance? Of one run: who was not heard, and that one seed proves nothing."""
    tab = visit(name, width)
    answer = tab.locator(".answers p").first
    box = answer.bounding_box()
    assert box["y"] + box["height"] <= 900
    told = " ".join(tab.locator(".answers p").all_inner_texts())
    asked = ("chance" in told or "proves nothing" in told) if name == "ten" else "one seed proves nothing" in told
    assert asked
    keep(tab, f"answer-{name}-{width}")


def test_curves_are_over_time_or_over_rounds(visit: Open) -> None:
    tab = visit("one")
    read_through(tab)
    title = "[data-chart='0'] .xtitle"
    assert tab.text_content(title) == "virtual time (s)"
    tab.click("[data-over=rounds]")
    tab.wait_for_function(f"document.querySelector(\"{title}\").textContent === 'round'")
    assert tab.get_attribute("[data-over=rounds]", "aria-pressed") == "true"


def test_the_timeline_zooms(visit: Open) -> None:
    tab = visit("one")
    tab.locator("#lanes").scroll_into_view_if_needed()
    tab.wait_for_function("document.getElementById('lanes-about').textContent")
    whole = lanes(tab)
    seen = {whole}
    for move in ("in", "taller", "flatter", "out"):
        tab.click(f"[data-move={move}]")
        seen.add(lanes(tab))
    tab.click("[data-move=reset]")
    assert lanes(tab) == whole
    assert len(seen) == 3  # the way back leads through what was seen
    tab.focus("#lanes")
    for key in ("+", "ArrowRight", "PageUp", "ArrowDown"):
        before = lanes(tab)
        tab.keyboard.press(key)
        assert lanes(tab) != before, key
    tab.keyboard.press("0")
    assert lanes(tab) == whole
    tab.hover("#lanes", position={"x": 400, "y": 200})
    assert tab.inner_text("#tip").startswith("client ")
    before = lanes(tab)
    tab.mouse.wheel(0, -400)
    assert lanes(tab) != before
    before = lanes(tab)
    tab.mouse.down()
    tab.mouse.move(560, 300)
    tab.mouse.up()
    assert lanes(tab) != before


def test_the_wheel_scrolls_the_page_until_the_timeline_is_chosen(visit: Open) -> None:
    tab = visit("one")
    tab.locator("#lanes").scroll_into_view_if_needed()
    tab.wait_for_function("document.getElementById('lanes-about').textContent")
    before = lanes(tab)
    tab.hover("#lanes")
    tab.mouse.wheel(0, 200)
    assert lanes(tab) == before


def test_it_is_dark_where_the_reader_wants_it(visit: Open) -> None:
    light, dark = visit("one", color_scheme="light"), visit("one", color_scheme="dark")
    assert light.evaluate(BACKGROUND) == "rgb(246, 247, 249)"
    assert dark.evaluate(BACKGROUND) == "rgb(20, 24, 30)"
    read_through(dark)
    ink = "getComputedStyle(document.querySelector('[data-chart] .xtitle')).fill"
    assert dark.evaluate(ink) == "rgb(231, 234, 240)"
    keep(dark, "report-dark")
    dark.click("#theme")
    assert dark.evaluate(BACKGROUND) == "rgb(246, 247, 249)"
    dark.wait_for_function(f"{ink} === 'rgb(31, 38, 48)'")


def test_it_prints_in_light(visit: Open) -> None:
    tab = visit("one", color_scheme="dark")
    assert len(tab.pdf()) > 20_000
    tab.emulate_media(media="print", color_scheme="dark")
    assert tab.evaluate("getComputedStyle(document.querySelector('.card')).backgroundColor") == "rgb(255, 255, 255)"
    assert not tab.is_visible("#theme")


@pytest.mark.parametrize("name", ["one", "ten"])
def test_it_fits_a_telephone(visit: Open, name: str) -> None:
    tab = visit(name, width=390, has_touch=True)
    read_through(tab)
    assert tab.evaluate("document.documentElement.scrollWidth") == 390
    keep(tab, f"report-phone-{name}")


def test_the_keyboard_reaches_everything(visit: Open) -> None:
    tab = visit("one")
    reached = set()
    for _ in range(40):
        tab.keyboard.press("Tab")
        reached.add(tab.evaluate("(({ id, dataset }) => id || dataset.move || dataset.over)(document.activeElement)"))
    assert {"theme", "lanes", "in", "out", "reset", "rounds"} <= reached


def test_a_long_run_opens_and_is_not_too_large(visit: Open, reports: dict[str, Path]) -> None:
    """10,000 rounds and 1,000 clients; how long it takes to open is told by benchmarks/report.py."""
    assert reports["long"].stat().st_size < 15 * 2**20
    tab = visit("long")
    read_through(tab)
    assert tab.evaluate(DRAWN) > 4
    assert "of 1,000 clients, evenly chosen" in tab.inner_text("#lanes-about")
    keep(tab, "report-long")
