"""What a client's device draws from its battery: on the air, and at work as the cube of its clock rate.

Wu et al., "HybridFL", IEEE Transactions on Parallel and Distributed Systems 2021; Wu's thesis (Warwick), equation 4.42:

    E_k = P_trans T_comm + P_comp s_k^3 T_train
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from turnout.clients.columns import Positives, option
from turnout.core.allowed import Positive
from turnout.core.random import FloatArray
from turnout.core.spelling import Spelt


@dataclass(frozen=True, eq=False)
class Power(Spelt):
    """`transmit` watts while a model is under way, `compute` watts at 1 GHz, `speed` in GHz."""

    section: ClassVar[str] = "power"

    speed: Positives = 1.0  # GHz: one, or one a client
    transmit: Positive = 0.5  # watts while a model is under way
    compute: Positive = 0.7  # watts at 1 GHz

    def watt_hours(self, jobs: Mapping[str, Any]) -> FloatArray:
        """Of each job in a table of them (`result.jobs()`); what was cut short is charged as far as it got.

        >>> np.bincount(jobs["client"], power.watt_hours(jobs))          # of each device
        """
        speed = option(self, "speed", np.asarray(jobs["client"], np.int64))
        on_air = np.asarray(jobs["download_seconds"]) + np.asarray(jobs["upload_seconds"])
        working = self.compute * speed**3 * np.asarray(jobs["compute_seconds"])
        return np.asarray((self.transmit * on_air + working) / 3600)
