"""Forgetting and attacks, and where each name is."""

from turnout.trust.forget import SIFU
from turnout.trust.leakage import attack_run, three_way

__all__ = [
    "SIFU", "attack_run", "three_way",
]  # fmt: skip
