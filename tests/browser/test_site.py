"""The documentation site, as `make docs` has built it, read from the disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

SITE = Path(__file__).parents[2] / "site"
INSIDE = (
    "() => [...document.querySelectorAll('*')].filter(e => e.shadowRoot).map(e => e.shadowRoot.textContent).join(' ')"
)


def test_the_site_is_searched_without_a_server_or_a_network(browser: Any) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"file://{SITE}/index.html")
    page.keyboard.press("Control+k")
    page.keyboard.type("staleness", delay=20)
    page.wait_for_function(f"({INSIDE})().includes('What an old update is worth')")
    assert not [url for url in asked if not url.startswith("file:")]
    page.close()


def test_pictures_follow_the_colours(browser: Any) -> None:
    for scheme in ("light", "dark"):
        page = browser.new_page(color_scheme=scheme)
        page.goto(f"file://{SITE}/index.html")
        shown = {
            picture.get_attribute("src"): picture.is_visible() for picture in page.query_selector_all("article img")
        }
        assert shown == {
            "pictures/law.svg#gh-light-mode-only": scheme == "light",
            "pictures/law-dark.svg#gh-dark-mode-only": scheme == "dark",
        }
        page.close()
