"""What other published implementations make of some rows: Flower 1.41.0 and ByzFL 0.0.11.

PYTHONPATH=src python tests/robustness/published.py     # writes published_means.json anew; needs both packages
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from turnout.core.random import FloatArray, IntArray, integers, key, normal

STORED = Path(__file__).with_name("published_means.json")
SHAPES = ((3, 2), (5,))  # of the layers that Flower is given
CASES = ((11, 2), (10, 3), (23, 6))  # clients, and how many of them lie
RADIUS, TRIM, KEEP = 2.5, 0.2, 5


def inputs(clients: int, liars: int) -> tuple[FloatArray, IntArray]:
    """Rows, of which the last are far away, and numbers of samples."""
    size = sum(int(np.prod(shape)) for shape in SHAPES)
    rows = normal(key(9, "published rows", np.arange(clients)), size)
    rows[-liars:] = 30 * rows[-liars:] + 7
    return rows, 1 + integers(key(9, "published sizes"), clients, 40)


def _layers(row: FloatArray) -> list[FloatArray]:
    cuts = np.cumsum([int(np.prod(shape)) for shape in SHAPES])[:-1]
    return [part.reshape(shape).copy() for part, shape in zip(np.split(row, cuts), SHAPES, strict=True)]


def flower(rows: FloatArray, sizes: IntArray, liars: int) -> dict[str, FloatArray]:
    from flwr.server.strategy import aggregate
    from flwr.supercore.differential_privacy import clip_inputs_inplace

    results = [(_layers(row), int(size)) for row, size in zip(rows, sizes, strict=True)]
    clipped = [(_layers(row), int(size)) for row, size in zip(rows, sizes, strict=True)]
    for layers, _ in clipped:
        clip_inputs_inplace(layers, RADIUS)
    found = {
        "mean": aggregate.aggregate(results),
        "coordinate_median": aggregate.aggregate_median(results),
        "trimmed_mean": aggregate.aggregate_trimmed_avg(results, TRIM),
        "krum": aggregate.aggregate_krum(results, liars, 0),
        "multi_krum": aggregate.aggregate_krum(results, liars, KEEP),
        "norm_clipping": aggregate.aggregate(clipped),
    }
    return {name: np.concatenate([layer.ravel() for layer in layers]) for name, layers in found.items()}


def byzfl(rows: FloatArray) -> dict[str, FloatArray]:
    import byzfl as package

    return {
        "centred_clipping": package.CenteredClipping(L=3, tau=RADIUS)(rows),
        "geometric_median": package.GeometricMedian(nu=1e-6, T=2000)(rows),
    }


def main() -> None:
    stored = []
    for clients, liars in CASES:
        rows, sizes = inputs(clients, liars)
        found = flower(rows, sizes, liars) | byzfl(rows)
        stored.append({name: values.tolist() for name, values in found.items()})
    STORED.write_text(json.dumps(stored, indent=1) + "\n")


if __name__ == "__main__":
    main()
