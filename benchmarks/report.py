"""A report of a long run: the time to write it, its size, and the time a browser takes to open it.

    python benchmarks/report.py                                    # 10,000 rounds, 1,000 clients, a million jobs
    python benchmarks/report.py --rounds 1000 --clients 100 --json

The run is invented: its record is written, nothing is trained. Opening is from the request of the page to the last
chart that is in view and the timeline, with Chromium (`apt install chromium`, `pip install --group browser`), where
these are installed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from turnout.core.files import as_json_text
from turnout.report import page, read

CONFIG = """[run]
name = "{name}"
rounds = {rounds}
seed = {seed}
[data]
name = "digits"
[clients]
count = {clients}
[availability]
name = "bernoulli"
probability = 0.7
clock = "round"
[algorithm]
name = "{algorithm}"
"""


def invented(folder: Path, rounds: int, clients: int, cohort: int, *, seed: int = 0, algorithm: str = "fedavg") -> Path:
    """The folder of a run that nobody ran: every round a cohort, of which one client in ten crashes."""
    draws = np.random.default_rng(seed)
    numbers, closes = np.arange(rounds + 1), np.append(0.0, np.cumsum(draws.uniform(3, 6, rounds)))
    who = draws.integers(0, clients, (rounds, cohort))
    loss = 2.3 * np.exp(-numbers / rounds * 4) + draws.normal(0, 0.02, rounds + 1)
    used, heard = np.zeros(clients, np.int64), np.zeros(rounds + 1)
    crashed = draws.uniform(size=who.shape) < 0.1
    np.add.at(used, who[~crashed], 1)
    seen = np.zeros(clients, bool)
    for number in range(rounds):
        seen[who[number][~crashed[number]]] = True
        heard[number + 1] = seen.sum()
    history = {
        "round": numbers, "time": closes, "invited": np.full(rounds + 1, cohort), "heard": heard.astype(np.int64),
        "arrived": np.append(0, (~crashed).sum(1)), "failed": np.append(0, crashed.sum(1)),
        "cancelled": np.zeros(rounds + 1, np.int64), "bytes_down": np.full(rounds + 1, 10_000 * cohort),
        "bytes_up": np.full(rounds + 1, 9_000 * cohort), "work_assigned": np.full(rounds + 1, float(cohort)),
        "work_lost": np.append(0.0, crashed.sum(1) / 2),
    }  # fmt: skip
    for name, values in (("test_loss", loss), ("test_accuracy", 1 - loss / 2.5)):
        history |= {
            name: values,
            f"{name}_mean": values,
            f"{name}_std": 0.1 * loss,
            f"{name}_worst_decile": 0.8 * values,
        }
    sent = np.repeat(closes[:-1], cohort)
    seconds = draws.uniform([[0.05, 0.3, 0.1]], [[0.1, 2.5, 0.2]], (rounds * cohort, 3))
    jobs = {
        "round": np.repeat(numbers[1:], cohort), "client": who.ravel(), "job": np.repeat(numbers[:-1], cohort),
        "outcome": np.where(crashed, "crashed", "arrived").ravel(), "weight": np.where(crashed, 0, 1 / cohort).ravel(),
        "staleness": np.zeros(rounds * cohort, np.int64), "sent_at": sent, "ended_at": sent + seconds.sum(1),
        "samples": np.full(rounds * cohort, 20), "download_seconds": seconds[:, 0], "compute_seconds": seconds[:, 1],
        "upload_seconds": seconds[:, 2], "version": np.repeat(numbers[:-1], cohort),
        "progress": np.where(crashed, 0.5, 1.0).ravel(),
    }  # fmt: skip
    for name, columns in (("history", history), ("jobs", jobs)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(columns), folder / name / "000000.parquet")
    people = {"client": np.arange(clients), "test_accuracy": draws.uniform(0.5, 1, clients)}
    pq.write_table(pa.table(people), folder / "clients.parquet")
    (folder / "plan.json").write_text('{"device": "cpu", "engine": "vectorised"}')
    facts = {"name": folder.name, "rounds": rounds, "clients": clients, "seed": seed, "algorithm": algorithm}
    (folder / "config.toml").write_text(CONFIG.format(**facts))
    (folder / "result.json").write_text(as_json_text(_result(history, used, int(crashed.sum()))))
    return folder


def _result(history: dict[str, Any], used: np.ndarray[Any, Any], lost: int) -> dict[str, Any]:
    realised, intended = used / used.sum(), np.full(len(used), 1 / len(used))
    ratio = realised / intended
    audit = {
        "rounds": len(history["round"]) - 1, "clients": len(used), "contributions": int(used.sum()),
        "never_heard": int((used == 0).sum()), "ratio_min": ratio.min(), "ratio_max": ratio.max(),
        "chi_square": float(((realised - intended) ** 2 / intended).sum()), "weight_variance": 0.1, "mean_weight": 0.9,
        "staleness": {"0": int(used.sum())}, "failures": {"crashed": lost}, "events": {}, "linear": True,
    }  # fmt: skip
    columns = {"intended": intended.tolist(), "realised": realised.tolist(), "contributions": used.tolist()}
    measures = {name: values[-1] for name, values in history.items() if name.startswith("test_")}
    return {
        "rounds": audit["rounds"], "virtual_seconds": history["time"][-1], "stopped": "rounds", "measures": measures,
        "audit": audit, "clients": columns,
    }  # fmt: skip


def opened(path: Path) -> float | None:
    """Seconds until the page is drawn; None without a browser."""
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    if chromium is None:
        return None
    with sync_playwright() as tool:
        browser = tool.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1200, "height": 900})
        started = time.perf_counter()
        tab.goto(path.resolve().as_uri())
        tab.wait_for_selector("html[data-ready]")
        seconds = time.perf_counter() - started
        browser.close()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("rounds", 10_000), ("clients", 1_000), ("cohort", 100)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = invented(Path(place) / "invented", given.rounds, given.clients, given.cohort)
        started = time.perf_counter()
        path = page.write([read.recorded(folder)], Path(place) / "report.html")
        written = time.perf_counter() - started
        found = {"written_seconds": written, "mib": path.stat().st_size / 2**20, "opened_seconds": opened(path)}
    if given.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name.replace('_', ' '):20} {'no browser' if value is None else f'{value:.2f}'}")


if __name__ == "__main__":
    main()
