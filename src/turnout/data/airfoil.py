"""Airfoil self-noise: the sound pressure of 1,503 wind-tunnel runs from 5 settings (NASA, UCI 291, CC BY 4.0).

Files: `airfoil_self_noise.csv` with a header, here or in tabular/, or UCI's `airfoil_self_noise.dat`.
"""

from __future__ import annotations

from pathlib import Path

from turnout.data.dataset import Dataset
from turnout.data.prepare import Scaling, table
from turnout.data.readers import Layout, locate, read_table

FEATURES = ("frequency_hz", "angle_deg", "chord_m", "velocity_mps", "suction_thickness_m")
TARGET = "sound_pressure_db"
CSV = Layout(("airfoil_self_noise.csv",), ("", "tabular"))
UCI = Layout(("airfoil_self_noise.dat",), ("", "tabular"))


def load(
    *,
    folder: str | Path | None = None,  # where the files are; none: the folder TURNOUT_DATA names
    normalise: Scaling = "standard",  # inputs by the training rows: standard (mean 0, sd 1), minmax (0 to 1) or none
    test_fraction: float = 0.2,  # share of the samples that is the central test set
    seed: int = 0,  # of the choice of test samples
) -> Dataset:
    """`[n, 5]` inputs and `[n, 1]` targets, scaled by the training rows (facts turn the targets back)."""
    layout, (path,) = locate("airfoil", folder, CSV, UCI)
    rows = read_table("airfoil", path, (*FEATURES, TARGET) if layout is UCI else None, spaces=layout is UCI)
    return table(
        "airfoil",
        rows.numbers(*FEATURES),
        rows.numbers(TARGET),
        num_classes=None,
        normalise=normalise,
        test_fraction=test_fraction,
        seed=seed,
    )
