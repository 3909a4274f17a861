"""Every algorithm with every part that another section can put into it: runs and changes something, or is refused.

PYTHONPATH=tests python tests/walk/part_cells.py        prints the table of docs/parts.md and the counts
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

from catalogue import settings

from turnout.config import config, registry
from turnout.config.kinds import PARTS
from turnout.core.errors import UserError
from turnout.run.experiment import execute

Cell = tuple[str, str, str]  # algorithm, section, name
OPTIONS: dict[tuple[str, str], dict[str, Any]] = {
    ("wait", "answers"): {"count": 3},
    ("wait", "window"): {"seconds": 0.3},
    ("wait", "buffer"): {"size": 2},
    ("rule", "trimmed_mean"): {"trim": 0.34},
    ("rule", "norm_clipping"): {"radius": 0.05},
    ("rule", "centred_clipping"): {"radius": 0.05},
    ("rule", "mean"): {"buckets": 2},
    ("optimiser", "step"): {"lr": 0.5},
    ("optimiser", "projected"): {"radius": 0.1},
    ("serve", "fine_tuned"): {"epochs": 2},
    ("serve", "knn"): {"k": 3},
}
MODIFIERS: dict[str, dict[str, Any]] = {
    "proximal": {"mu": 1.0},
    "sharpness_aware": {"rho": 0.5},
    "clip": {"norm": 0.01},
    "top_k": {"share": 0.3},
}
# Everybody is asked; most answer, at different times, after different numbers of steps.
WORLD: config.Settings = {
    "availability": {"name": "bernoulli", "probability": 0.85},
    "local": {"epochs": 2},
    "data": {"max_samples": 40},
    "partition": {"name": "gaussian_sizes"},
    "clients": {"importance": [0.3, 0.25, 0.2, 0.1, 0.1, 0.05]},
    "model": {"name": "mlp", "hidden": [4]},
    "run": {"rounds": 4},
}
# Parts that a method has of its own: giving them changes nothing, as giving a default does.
OWN = {
    ("async_fedavg", "wait", "arrival"), ("fedasync", "wait", "arrival"), ("mifa", "remember", "last_update"),
    ("fednova", "weigh", "fednova"), ("fedadam", "optimiser", "adam"), ("fedyogi", "optimiser", "yogi"),
    ("fedadagrad", "optimiser", "adagrad"), ("fedavgm", "optimiser", "momentum"),
    ("robust_mean", "rule", "coordinate_median"), ("fedfix", "wait", "window"), ("fedbuff", "wait", "buffer"),
}  # fmt: skip
PERSONAL = (
    "apfl", "ditto", "fedavg_plus", "fedper", "fedprox_plus", "fedrep", "knn_per", "l2sgd", "pfedme",
)  # whose clients serve models of their own  # fmt: skip


def cells() -> list[Cell]:
    """Every algorithm with every part by name."""
    names = {section: list(kinds) for section, kinds in PARTS.items()} | {"modifiers": list(MODIFIERS)}
    return [
        (algorithm, section, name)
        for algorithm in registry.names("algorithm")
        for section, kinds in names.items()
        for name in kinds
        if (algorithm, section, name) not in OWN and (name != "global_model" or algorithm in PERSONAL)
    ]


def world(algorithm: str, section: str, name: str) -> config.Settings:
    """The configuration of a cell; without a section, that of the algorithm alone."""
    made = settings("algorithm", algorithm)
    for other, values in WORLD.items():
        made[other] = dict(values) if "name" in values else made.get(other, {}) | values
    for option in ("buffer_size", "deadline") if section == "wait" else ():
        made["algorithm"].pop(option, None)
    made["sampler"] = {"name": "full"}
    if section == "modifiers":
        made["local"] = made["local"] | {"modifiers": name, name: MODIFIERS[name]}
    elif section:
        made[section] = {"name": name, **OPTIONS.get((section, name), {})}
    return made


@cache
def alone(algorithm: str) -> str:
    return print_of(world(algorithm, "", ""))


def print_of(made: config.Settings) -> str:
    """All that a run gives: its model, and what its clients are measured with."""
    result = execute(config.build(made)[0])
    return f"{result.model.tolist()} {result.measures} {result.server.now}"


def found(cell: Cell) -> str:
    """`runs`, `same` (a defect), or the sentence that refuses the cell."""
    algorithm, section, name = cell
    try:
        given = print_of(world(algorithm, section, name))
    except UserError as refusal:
        return str(refusal)
    except Exception as error:
        return f"DEFECT {type(error).__name__}: {error}"
    return "same" if given == alone(algorithm) else "runs"


def table() -> str:
    """Rows are algorithms, columns parts: how many of a part's kinds run; then the refusals with their reasons."""
    everything = cells()
    results = {cell: found(cell) for cell in everything}
    sections = list(dict.fromkeys(section for _, section, _ in everything))
    lines = [f"| algorithm | {' | '.join(sections)} |", f"|---|{'---|' * len(sections)}"]
    reasons: dict[str, list[str]] = {}
    for algorithm in registry.names("algorithm"):
        row = []
        for section in sections:
            here = [result for (a, s, _), result in results.items() if (a, s) == (algorithm, section)]
            row.append(f"{here.count('runs')} of {len(here)}")
            for sentence in sorted({result for result in here if result not in ("runs", "same")}):
                reasons.setdefault(sentence, []).append(algorithm)
        lines.append(f"| `{algorithm}` | {' | '.join(row)} |")
    counts = Counter("runs" if r == "runs" else "same" if r == "same" else "refused" for r in results.values())
    share = counts["runs"] / len(results)
    lines += ["", f"{len(results)} cells: {counts['runs']} run ({share:.0%}), {counts['refused']} are refused, "]
    lines[-1] += f"{counts['same']} change nothing."
    lines += ["", *(f"- {sentence} ({', '.join(names)})" for sentence, names in sorted(reasons.items()))]
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
