"""KDD Cup 1999, the TCP connections of the 10 % file: normal or intrusion (UCI 130, CC BY 4.0).

File: `kddcup99_10pct.csv` or UCI's `kddcup.data_10_percent`, plain or .gz, here or in tabular/; no header.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np

from turnout.core.allowed import NotNegative
from turnout.core.errors import UserError
from turnout.core.spelling import spelt
from turnout.data.dataset import Dataset
from turnout.data.prepare import Held, Scaling, table
from turnout.data.readers import Layout, locate, read_text

SOURCE_BYTES, TARGET_BYTES, LABEL = 4, 5, 41
WORDS = (1, 2, 3)  # protocol, service, flag
CONSTANT = (7, 19, 20)  # wrong_fragment, num_outbound_cmds, is_host_login: one value over all TCP records
FEATURES = [column for column in range(LABEL) if column not in WORDS + CONSTANT]
FILES = (Layout(("kddcup99_10pct.csv",), ("", "tabular")), Layout(("kddcup.data_10_percent",), ("", "tabular")))


@spelt
def load(
    *,
    folder: str | Path | None = None,  # where the files are; none: the folder TURNOUT_DATA names
    labels: Literal["sign", "class"] = "sign",  # sign: -1 and 1, for a linear SVM; class: 0 and 1
    max_bytes: NotNegative | None = 30_000.0,  # connections above are left out; none: none is
    normalise: Scaling = "minmax",  # inputs by the training rows: standard (mean 0, sd 1), minmax (0 to 1) or none
    test_fraction: Held = 0.2,  # share of the samples that is the central test set
    seed: int = 0,  # of the choice of test samples
) -> Dataset:
    """The 35 numeric features that vary, in the order of the file, as Wu et al. (SAFA) use them.

    Connections above `max_bytes` either way are left out. Targets are `[n, 1]` signs for a linear SVM, -1 normal
    and +1 intrusion, or with `labels="class"` the classes 0 and 1. Inputs are scaled by the training rows.
    """
    _, (path,) = locate("kdd99", folder, *FILES)
    records: list[str] = []
    for number, line in enumerate(read_text("kdd99", path).splitlines(), 1):
        if line.count(",") != LABEL:
            raise UserError(f"dataset kdd99: {path} line {number} does not have the {LABEL} features and a label")
        if line.split(",", 2)[1] == "tcp":
            records.append(line)
    if not records:
        raise UserError(f"dataset kdd99: {path} holds no TCP records")
    try:
        values = np.loadtxt(records, delimiter=",", usecols=FEATURES, ndmin=2, comments=None)
    except ValueError as error:
        raise UserError(f"dataset kdd99: {path}, among its TCP records: {error}") from error
    attack = np.array([not line.endswith(",normal.") for line in records], np.int64)
    if max_bytes is not None:
        traffic = values[:, [FEATURES.index(SOURCE_BYTES), FEATURES.index(TARGET_BYTES)]]
        keep = (traffic <= max_bytes).all(axis=1)
        values, attack = values[keep], attack[keep]
    targets, classes = attack if labels == "class" else 2.0 * attack[:, None] - 1, 2 if labels == "class" else None
    return table("kdd99", values, targets, classes, normalise, test_fraction, seed, strata=attack, scale_targets=False)
