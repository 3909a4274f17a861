"""A hospital's table as hospitals have them: semicolons, decimal commas, dates, ids, cells that say nothing."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

SITES = ("Berlin", "Lyon", "Oslo", "Porto", "Turin", "Zürich")
SHARES = (0.3, 0.25, 0.2, 0.1, 0.1, 0.05)
HEADER = ("patient_id", "hospital", "admitted", "age", "creatinine", "smoker", "ward", "died")


def write_hospitals(path: Path, rows: int = 300, seed: int = 0, target: bool = True) -> None:
    """Write patients of six sites, of whom one in ten or so died; new ones have no target."""
    draws = np.random.default_rng(seed)

    def sometimes(value: object, absent: float) -> object:
        return "" if draws.random() < absent else value

    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, delimiter=";")
        table.writerow(HEADER if target else HEADER[:-1])
        for number in range(rows):
            age, creatinine, smoker = draws.normal(62, 12), draws.lognormal(0, 0.5), draws.choice(["yes", "no"])
            logit = -3.4 + 0.1 * (age - 62) + 1.5 * (creatinine - 1) + (smoker == "yes")
            died = "yes" if draws.random() < 1 / (1 + np.exp(-logit)) else "no"
            row = [
                f"P{10_000 * seed + number:06}",
                draws.choice(SITES, p=SHARES),
                np.datetime64("2024-01-01") + draws.integers(0, 700),
                sometimes(f"{age:.0f}", 0.05),
                sometimes(f"{creatinine:.2f}".replace(".", ","), 0.1),
                sometimes(smoker, 0.08),
                draws.choice(["A", "B", "C"]),
            ]
            table.writerow([*row, died] if target else row)
