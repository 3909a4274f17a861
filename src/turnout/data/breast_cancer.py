"""Breast cancer Wisconsin (diagnostic): 569 tumours, 30 features, malignant 0 or benign 1 (UCI, CC BY 4.0).

Bundled with scikit-learn: nothing to download.
"""

from __future__ import annotations

from turnout.data._tables import bundled

load = bundled("breast_cancer", 30, num_classes=2)
