"""What FAISS does, as far as it is asked."""

from __future__ import annotations

import numpy as np


class FlatIndex:
    """What `faiss.IndexFlatL2` does, as far as it is asked: squared distances, -1 where it finds nobody."""

    def __init__(self, blind: int = 0) -> None:
        self.blind = blind  # finds so many fewer than it is asked for

    def train(self, keys: np.ndarray) -> None:
        self.dimension = keys.shape[1]

    def add(self, keys: np.ndarray) -> None:
        self.keys = keys

    def search(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        apart = np.square(queries[:, None] - self.keys).sum(2)
        found = np.argsort(apart, axis=1)[:, :k]
        found[:, found.shape[1] - self.blind :] = -1
        return np.take_along_axis(apart, np.maximum(found, 0), 1), found


class FakeFaiss:
    asked: list[tuple[int, str]] = []
    blind = 0

    @classmethod
    def index_factory(cls, size: int, description: str) -> FlatIndex:
        cls.asked.append((size, description))
        return FlatIndex(cls.blind)
