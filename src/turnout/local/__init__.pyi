"""What one client computes, and where each name is."""

from turnout.local.personaliser import KNNPersonaliser
from turnout.local.sgd import Batch, ClientData, LocalSGD

__all__ = [
    "Batch", "ClientData", "KNNPersonaliser", "LocalSGD",
]  # fmt: skip
