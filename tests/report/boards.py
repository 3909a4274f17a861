"""A folder of runs, of which each has come to another end."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from turnout.record.run_folder import reseal

BEGUN = 1_700_000_000  # seconds; each run a minute after the one before


def copied(run: Path, folder: Path, begun: float = BEGUN) -> Path:
    """The same run elsewhere, begun then."""
    shutil.copytree(run, folder)
    return began(folder, begun)


def began(folder: Path, begun: float) -> Path:
    os.utime(folder / "history" / "000000.parquet", (begun, begun))
    return folder


def changed(folder: Path, **facts: Any) -> None:
    """Another result."""
    path = folder / "result.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | facts), encoding="utf-8")
    reseal(folder, "result.json")


def renamed(folder: Path, name: str) -> None:
    reconfigured(folder, ('name = "digits"', f"name = {json.dumps(name)}"))


def reconfigured(folder: Path, *changes: tuple[str, str]) -> None:
    """Another configuration: of each text the first is replaced."""
    path = folder / "config.toml"
    text = path.read_text(encoding="utf-8")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    path.write_text(text, encoding="utf-8")
    reseal(folder, "config.toml")


def whole(_: Path) -> None:
    """Leave it as it ended."""


def unfinished(folder: Path) -> None:
    for name in ("result.json", "clients.parquet", "model.safetensors"):
        (folder / name).unlink()
    reseal(folder)


def died(folder: Path) -> None:
    unfinished(folder)
    with (folder / "log.txt").open("a", encoding="utf-8") as file:
        file.write("round 6, 9.5 s: died (why the wire was cut, last after the answer of client 3)\n    a traceback\n")


def truncated(folder: Path) -> None:
    os.truncate(folder / "history" / "000000.parquet", 100)


ENDS: dict[str, Callable[[Path], None]] = {
    "finished": whole,
    "diverged": lambda folder: changed(folder, stopped="diverged: the loss is not finite"),
    "unheard": lambda folder: changed(folder, nobody_heard=True),
    "stopped": unfinished,
    "died": died,
    "broken": truncated,
    "short": lambda folder: os.truncate(folder / "model.safetensors", 10),
    "sweep/lr=0.1": whole,
}


def every_end(run: Path, folder: Path) -> Path:
    for place, (name, end) in enumerate(ENDS.items()):
        end(copied(run, folder / name))
        began(folder / name, BEGUN + 60 * place)
    return folder
