"""Every algorithm with every part that another section can put into it: runs and changes something, or is refused.

PYTHONPATH=tests python tests/walk/part_cells.py               prints the tables of docs/parts.md
PYTHONPATH=tests python tests/walk/part_cells.py docs/parts.md writes them there, below the mark
"""

from __future__ import annotations

import sys
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

from catalogue import settings

from turnout.config import config, registry
from turnout.config.kinds import PARTS
from turnout.core.errors import UserError
from turnout.local.transforms import MODIFIERS
from turnout.run.experiment import execute

Cell = tuple[str, str, str]  # algorithm, section, name
MARK = "<!-- below: PYTHONPATH=tests python tests/walk/part_cells.py docs/parts.md -->"
OPTIONS: dict[tuple[str, str], dict[str, Any]] = {
    ("wait", "answers"): {"count": 2},
    ("wait", "window"): {"seconds": 0.3},
    ("wait", "buffer"): {"size": 2},
    ("rule", "trimmed_mean"): {"trim": 0.34},
    ("rule", "norm_clipping"): {"radius": 0.05},
    ("rule", "centred_clipping"): {"radius": 0.05},
    ("optimiser", "step"): {"lr": 0.5},
    ("optimiser", "projected"): {"radius": 0.1},
    ("serve", "fine_tuned"): {"epochs": 2},
    ("serve", "knn"): {"k": 3},
    ("modifiers", "proximal"): {"mu": 1.0},
    ("modifiers", "sharpness_aware"): {"rho": 0.5},
    ("modifiers", "clip"): {"norm": 0.01},
    ("modifiers", "top_k"): {"share": 0.3},
    ("modifiers", "quantise"): {"bits": 2},
    ("modifiers", "noise"): {"std": 0.1, "seed": 1},
}
BEFORE = {"noise": "clip"}  # a modifier that must stand before another
# Everybody is asked; most answer, at different times, after different numbers of steps.
WORLD: config.Settings = {
    "availability": {"name": "bernoulli", "probability": 0.85},
    "local": {"epochs": 2},
    "data": {"max_samples": 40},
    "partition": {"name": "gaussian_sizes"},
    "clients": {"importance": [0.3, 0.25, 0.2, 0.1, 0.1, 0.05]},
    "model": {"name": "mlp", "hidden": [4]},
    "run": {"rounds": 4},
    "evaluation": {"rounds": 4},
}
OF_ONE: dict[str, config.Settings] = {
    "hierfavg": {"algorithm": {"fraction": 1.0}},
    "hybridfl": {"algorithm": {"fraction": 1.0}},
    "fedprof": {"algorithm": {"preference": 0.0, "clients_per_round": 6}},
    "stream_fedavg": {"stream": {"name": "poisson", "rate": 2.0}},
}
# Parts that a method has of its own: giving them changes nothing, as giving a default does.
OWN = {
    ("async_fedavg", "wait", "arrival"), ("fedasync", "wait", "arrival"), ("mifa", "remember", "last_update"),
    ("fednova", "weigh", "fednova"), ("fedadam", "optimiser", "adam"), ("fedyogi", "optimiser", "yogi"),
    ("fedadagrad", "optimiser", "adagrad"), ("fedavgm", "optimiser", "momentum"),
    ("robust_mean", "rule", "coordinate_median"), ("fedfix", "wait", "window"), ("fedbuff", "wait", "buffer"),
    ("scaffold", "modifiers", "control_variates"),
}  # fmt: skip
PERSONAL = (
    "apfl", "ditto", "fedavg_plus", "fedper", "fedprox_plus", "fedrep", "knn_per", "l2sgd", "pfedme",
)  # whose clients serve models of their own  # fmt: skip


def cells() -> list[Cell]:
    """Every algorithm with every part by name, those that are its own left out."""
    names = {section: list(kinds) for section, kinds in PARTS.items()} | {"modifiers": list(MODIFIERS)}
    every = [
        (algorithm, section, name)
        for algorithm in registry.names("algorithm")
        for section, kinds in names.items()
        for name in kinds
    ]
    own = OWN | {cell for cell in every if cell[2] == "mean" and cell[0] != "robust_mean"}
    own |= {cell for cell in every if cell[2] == "global_model" and cell[0] not in PERSONAL}
    return [cell for cell in every if cell not in own]


def sample() -> list[Cell]:
    """One part of every section for every algorithm, in turn, and every part at least once."""
    by_section: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells():
        by_section.setdefault(cell[:2], []).append(cell)
    turn = {algorithm: number for number, algorithm in enumerate(registry.names("algorithm"))}
    chosen = [kinds[turn[algorithm] % len(kinds)] for (algorithm, _), kinds in by_section.items()]
    missing = {cell[1:]: cell for cell in cells()}.keys() - {cell[1:] for cell in chosen}
    return chosen + [next(cell for cell in cells() if cell[1:] == part) for part in sorted(missing)]


def world(algorithm: str, section: str, name: str) -> config.Settings:
    """The configuration of a cell; without a section, that of the algorithm alone."""
    made = settings("algorithm", algorithm)
    for extra in (WORLD, OF_ONE.get(algorithm, {})):
        for other, values in extra.items():
            made[other] = dict(values) if "name" in values else made.get(other, {}) | values
    for option in ("buffer_size", "deadline") if section == "wait" else ():
        made["algorithm"].pop(option, None)
    made["sampler"] = {"name": "full"}
    given = OPTIONS.get((section, name), {})
    if section == "modifiers":
        chain = [part for part in (BEFORE.get(name), name) if part is not None]
        made["local"] = made["local"] | {"modifiers": chain}
        made["local"] |= {part: OPTIONS.get((section, part), {}) for part in chain}
    elif section:
        made[section] = {"name": name, **given}
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


def reason(cell: Cell, sentence: str) -> str:
    """The sentence that refuses a cell, without the names of the method and of the part."""
    method = registry.find("algorithm", cell[0]).__name__
    kinds = MODIFIERS if cell[1] == "modifiers" else PARTS[cell[1]]
    words = [{method: "METHOD", kinds[cell[2]].__name__: "PART"}.get(word, word) for word in sentence.split(" ")]
    return " ".join(words).removesuffix("; leave it out")


def options() -> dict[str, Counter[str]]:
    """What another value of every option does, by algorithm: the walk over options finds just that."""
    from test_every_option_matters import CELLS, HIDDEN, REFUSED

    counts: dict[str, Counter[str]] = {}
    for cell in CELLS:
        if cell[1] != "sampler":
            kind = "refused" if cell in REFUSED else "hidden" if cell in HIDDEN else "changes"
            counts.setdefault(cell[0], Counter())[kind] += 1
    return counts


def tables() -> str:
    """Rows are algorithms, columns parts and options: how many of them run; then the refusals, by reason."""
    own, results = options(), {cell: found(cell) for cell in cells()}
    sections = list(dict.fromkeys(section for _, section, _ in results))
    lines = [f"| algorithm | {' | '.join(sections)} | options |", f"|---|{'---|' * (len(sections) + 1)}"]
    for algorithm in registry.names("algorithm"):
        here = [[r for (a, s, _), r in results.items() if (a, s) == (algorithm, section)] for section in sections]
        row = [f"{each.count('runs')} of {len(each)}" for each in here]
        row.append(f"{own[algorithm]['changes']} of {own[algorithm].total()}")
        lines.append(f"| `{algorithm}` | {' | '.join(row)} |")
    counts = Counter(result if result in ("runs", "same") else "refused" for result in results.values())
    changed, total = sum(each["changes"] for each in own.values()), sum(each.total() for each in own.values())
    lines += [
        "",
        f"{len(results)} pairs of a method and a part: {counts['runs']} run ({counts['runs'] / len(results):.0%}), "
        f"{counts['refused']} are refused, {counts['same']} change nothing. {total} pairs of a method and an option of "
        f"it or of its local work: another value of {changed} changes the result ({changed / total:.0%}), the others "
        "are refused, but for a cipher and an index that are to change nothing.",
        "",
        "## What is refused, and why",
        "",
        "METHOD and PART stand for the names of the two.",
        "",
    ]
    reasons: dict[str, dict[str, list[str]]] = {}
    for cell, result in results.items():
        if result not in ("runs", "same"):
            reasons.setdefault(reason(cell, result), {}).setdefault(cell[0], []).append(cell[2])
    lines += ["| sentence | pairs | methods |", "|---|---|---|"]
    for sentence, methods in sorted(reasons.items(), key=lambda item: (item[0].split(":")[0], -len(item[1]), item[0])):
        pairs = sum(len(parts) for parts in methods.values())
        lines.append(f"| {sentence} | {pairs} | {', '.join(f'`{method}`' for method in methods)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if len(sys.argv) < 2:
        print(tables())
    else:
        page = Path(sys.argv[1])
        above, mark, _ = page.read_text(encoding="utf-8").partition(MARK)
        page.write_text(f"{above}{mark}\n\n{tables()}", encoding="utf-8")
