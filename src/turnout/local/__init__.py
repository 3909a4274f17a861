"""What one client computes, written for one client; the cohort engine vectorises it."""

from turnout.local.sgd import Batch, ClientData, LocalSGD

__all__ = ["Batch", "ClientData", "LocalSGD"]
