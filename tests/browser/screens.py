"""What is left of a page when a test is done: pictures, in the folder that SCREENSHOTS names."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def keep(tab: Any, name: str, whole: bool = True) -> None:
    """Take a picture of a page, or of what is in view."""
    if folder := os.environ.get("SCREENSHOTS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        if whole:
            tab.evaluate("scrollTo({ top: 0, behavior: 'instant' })")
        tab.screenshot(path=str(Path(folder) / f"{name}.png"), full_page=whole)
