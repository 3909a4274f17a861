"""Patients of four hospitals, generated: a table with a column of words, and hospitals that are not alike."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from scipy.special import expit

from turnout.core.allowed import NotNegative, Range
from turnout.core.random import integers, key, normal, uniform
from turnout.core.spelling import spelt
from turnout.data.dataset import Dataset
from turnout.data.prepare import Held, room, table

HOSPITALS = ("north", "east", "south", "harbour")
SHARES = np.array([0.45, 0.3, 0.17, 0.08])  # of the patients
AGES = np.array([54.0, 66.0, 58.0, 71.0])  # mean, of each hospital's patients
ASSAYS = np.array([0.0, 0.4, -0.3, 0.8])  # what each laboratory adds to the cholesterol
MEASURED = ("age", "pressure", "cholesterol", "pulse")
PAINS = ("none", "at_rest", "when_walking")
EFFECTS = np.array([-0.6, 0.2, 1.4])  # of each pain, on the log odds of disease


@spelt
def load(
    *,
    patients: Annotated[int, Range(least=40, whole=True)] = 1000,  # of all hospitals together
    differ: NotNegative = 1.0,  # how far hospitals are from each other; 0: one law for all
    test_fraction: Held = 0.2,  # share of a hospital's patients that is for testing
    seed: int = 0,  # of all that is generated
) -> Dataset:
    """`[n, 7]` four measurements, scaled by the training rows, then an indicator for each kind of pain; class 1 is ill.

    The hospitals north, east, south and harbour have 45, 30, 17 and 8 % of the patients, older or younger ones, and
    laboratories that do not agree. Facts: `features`, `classes` and `clients` by number.
    """
    room("hospitals", 8 * patients, patients=patients)
    counts = np.maximum(np.rint(SHARES * patients).astype(np.int64), 2)
    hospital = np.repeat(np.arange(len(HOSPITALS)), counts)
    draws = normal(key(seed, "hospitals", np.arange(len(hospital))), len(MEASURED))
    mean_age = AGES.mean() + differ * (AGES - AGES.mean())
    age = mean_age[hospital] + 9 * draws[:, 0]
    pressure = 130 + 0.4 * (age - 60) + 14 * draws[:, 1]
    cholesterol = 5.5 + 1.0 * draws[:, 2]
    pulse = 150 - 0.8 * (age - 60) + 15 * draws[:, 3]
    pain = integers(key(seed, "hospitals pain", np.arange(len(hospital))), 1, len(PAINS))[:, 0]
    odds = 0.07 * (age - 62) + 0.03 * (pressure - 130) + 0.7 * (cholesterol - 5.5) - 0.03 * (pulse - 150)
    odds += EFFECTS[pain] - 0.9
    ill = uniform(key(seed, "hospitals disease", np.arange(len(hospital))), 1)[:, 0] < expit(odds)
    measured = np.column_stack([age, pressure, cholesterol + differ * ASSAYS[hospital], pulse])
    inputs = np.column_stack([measured.round(1), np.eye(len(PAINS))[pain]])
    facts = {
        "features": [*MEASURED, *(f"pain={word}" for word in PAINS)],
        "classes": ["healthy", "ill"],
        "clients": list(HOSPITALS),
    }
    targets = ill.astype(np.int64)
    return table(
        "hospitals", inputs, targets, 2, "standard", test_fraction, seed, hospital, facts, indicators=len(PAINS)
    )
