"""Boston Housing: the median value of homes in 506 districts from 13 features (Harrison and Rubinfeld 1978, public).

Files: `boston_housing.csv` with a header, here or in tabular/, or UCI's `housing.data`. The feature B encodes race:
fit to reproduce a paper, not to teach with.
"""

from __future__ import annotations

from turnout.data._tables import from_files

FEATURES = ("CRIM", "ZN", "INDUS", "CHAS", "NOX", "RM", "AGE", "DIS", "RAD", "TAX", "PTRATIO", "B", "LSTAT")

load = from_files("boston", FEATURES, "MEDV", "boston_housing.csv", "housing.data")
