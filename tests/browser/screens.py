"""Reading a page, and what is left of it when a test is done: pictures, in the folder that SCREENSHOTS names."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def read_through(tab: Any) -> None:
    """Scroll to the end of a report, so that everything has been in view."""
    for place in tab.query_selector_all("[data-chart], .timeline"):
        place.scroll_into_view_if_needed()
        tab.evaluate("new Promise((seen) => requestAnimationFrame(() => requestAnimationFrame(seen)))")
    tab.wait_for_selector("[data-chart]:not(:has(svg.main-svg))", state="detached")


def keep(tab: Any, name: str, whole: bool = True) -> None:
    """Take a picture of a page, or of what is in view."""
    if folder := os.environ.get("SCREENSHOTS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        if whole:
            tab.evaluate("scrollTo({ top: 0, behavior: 'instant' })")
        tab.screenshot(path=str(Path(folder) / f"{name}.png"), full_page=whole)
