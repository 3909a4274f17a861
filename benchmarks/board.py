"""A board of many runs: the time to look at them first, again, and again when one has changed; and to make the page.

    python benchmarks/board.py               # 500 runs of 200 rounds, of which one is changed
    python benchmarks/board.py --runs 50 --json

The runs are invented: their records are written, nothing is trained. Opening is with Chromium, where it is installed.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from report import invented, opened
from turnout.record.run_folder import RunFolder
from turnout.report import board
from turnout.report.index import Index


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    started = time.perf_counter()
    found = work()
    return time.perf_counter() - started, found


def measured(folder: Path, runs: int, rounds: int) -> dict[str, float | None]:
    for number in range(runs):
        place = folder / f"sweep-{number % 10}" / f"run-{number}"
        invented(place, rounds, 100, 10, seed=number, algorithm=("fedavg", "fedprox", "fedfix")[number % 3])
        RunFolder(place).seal(finished=True)
    index = Index(folder, fresh=0)
    first, rows = timed(index.rows)
    again, _ = timed(index.rows)
    os.utime(rows[0].folder / "config.toml")
    one, _ = timed(index.rows)
    made, text = timed(lambda: board.board(board.document(rows, folder, live=False)))
    page = folder / "index.html"
    page.write_text(text, encoding="utf-8")
    return {
        "first_seconds": first, "again_seconds": again, "one_changed_seconds": one, "page_seconds": made,
        "page_mib": page.stat().st_size / 2**20, "opened_seconds": opened(page),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        found = measured(Path(place), given.runs, given.rounds)
    if given.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name.replace('_', ' '):20} {'no browser' if value is None else f'{value:.3f}'}")


if __name__ == "__main__":
    main()
