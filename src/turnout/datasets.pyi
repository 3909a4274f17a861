"""Datasets by name, and how they are dealt to clients."""

from turnout.data import load, loader, names, partition
from turnout.data.dataset import Dataset

__all__ = [
    "Dataset", "load", "loader", "names", "partition",
]  # fmt: skip
