"""Diabetes progression after a year from 10 measurements of 442 patients (Efron et al. 2004, public).

Bundled with scikit-learn: nothing to download.
"""

from __future__ import annotations

from turnout.data._tables import bundled

load = bundled("diabetes", 10, num_classes=None, scaled=False)
