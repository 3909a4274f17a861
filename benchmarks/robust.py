"""What robust rules cost: seconds of each for the updates of a hundred clients, and as a multiple of the mean.

    python benchmarks/robust.py                           # 100 rows of 1,000,000 numbers
    python benchmarks/robust.py --rows 20 --numbers 100000 --device cuda --json

Weights are equal, as the rules were published; `weighted` ones are not, which costs a sort that keeps the order.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from turnout.aggregation.rules import RULES

OPTIONS: dict[str, dict[str, Any]] = {"norm_clipping": {"radius": 1.0}, "centred_clipping": {"radius": 1.0}}
WEIGHTED = ("coordinate_median", "trimmed_mean")
REPEATS = 3


def seconds(function: Callable[[], Tensor]) -> float:
    """The best of some, once it is warm."""
    taken = []
    for _ in range(REPEATS + 1):
        started = time.perf_counter()
        function().sum().item()
        taken.append(time.perf_counter() - started)
    return min(taken[1:])


def measure(count: int, numbers: int, device: str) -> dict[str, float]:
    rows = torch.randn(count, numbers, generator=torch.Generator().manual_seed(0)).to(device)
    equal, unequal = torch.full((count,), 1 / count), torch.linspace(1, 2, count)
    start = {"start": torch.zeros(numbers, device=device)}
    found = {}
    for name, rule in RULES.items():
        options = OPTIONS.get(name, {}) | (start if name == "centred_clipping" else {})
        kinds = {name: equal} | ({f"{name} (weighted)": unequal / unequal.sum()} if name in WEIGHTED else {})
        for kind, weights in kinds.items():
            on_device = weights.to(device)
            found[kind] = seconds(lambda rule=rule, w=on_device, o=options: rule(rows, w, **o))  # type: ignore[misc]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100)
    parser.add_argument("--numbers", type=int, default=1_000_000)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = measure(given.rows, given.numbers, given.device)
    if given.json:
        print(json.dumps({"rows": given.rows, "numbers": given.numbers, "device": given.device, "seconds": found}))
        return
    print(f"{given.rows} rows of {given.numbers:,} numbers on {given.device}, {torch.get_num_threads()} threads")
    for name, taken in found.items():
        print(f"{name:32s}{taken:9.3f} s{taken / found['mean']:9.1f} means")


if __name__ == "__main__":
    main()
