"""What waiting policies would do with some clients, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from turnout.plan.advice import Prospect

NOTICEABLE, MUCH = 1.1, 1.5  # times the intended weight


def sentences(rows: Sequence[Prospect], reliable: bool) -> list[str]:
    """What the numbers say, in words."""
    usable = [row for row in rows if row.refused is None]
    weighted = [row for row in usable if row.algorithm != "fedavg"]  # those with a weight rule
    moving = [row for row in usable if row.rounds_per_hour > 0]
    return _about_pace(moving) + _about_silence(usable) + _about_bias(weighted, reliable) + _about_refusals(rows)


def _about_refusals(rows: Sequence[Prospect]) -> list[str]:
    refused = [row for row in rows if row.refused is not None]
    names = ", ".join(row.policy for row in refused)
    return [f"Not possible here: {names} ({refused[0].refused})."] if refused else []


def _about_silence(rows: list[Prospect]) -> list[str]:
    worst = max(rows, key=lambda row: row.never_heard, default=None)
    if worst is None or not worst.never_heard:
        return []
    return [
        f"{worst.never_heard} clients were not heard in the {worst.updates_watched} updates of {worst.policy} watched."
    ]


def _about_bias(rows: list[Prospect], reliable: bool) -> list[str]:
    """Whom naive weights favour most, and what to do about it."""
    if not rows:
        return []
    biased = [row for row in rows if row.biased]
    if not biased:
        seen = max(row.ratio_max for row in rows) > NOTICEABLE
        beyond = "beyond what chance explains in the updates watched" if seen else f"above {NOTICEABLE} times its share"
        return [f"Under none of these policies do naive weights count a client too much, {beyond}."]
    worst = max(biased, key=lambda row: row.chi_square)
    others = f" and {worst.over_represented - 1} others more than {MUCH} times" if worst.over_represented > 1 else ""
    cure = "removes this bias" if reliable else "corrects this by measured rates, since jobs can fail here"
    return [
        f"With naive weights, {worst.policy} would count client {worst.most_counted} {worst.ratio_max:.2f} times as "
        f"much as intended{others}; algorithm.weight_rule=unbiased, the default, {cure}."
    ]


def _about_pace(rows: list[Prospect]) -> list[str]:
    """Synchronous rounds against half the slowest client's time, and against each arrival."""
    by_name = {row.algorithm: row for row in rows}
    halfway = [row for row in rows if row.algorithm == "fedfix"][1:2]
    if "fedavg" not in by_name or "async_fedavg" not in by_name:
        return []
    base = by_name["fedavg"]
    parts = [
        f"{row.policy} has {row.rounds_per_hour / base.rounds_per_hour:.3g} times as many, with a staleness of up to "
        f"{row.staleness_max}"
        for row in [*halfway, by_name["async_fedavg"]]
    ]
    return [f"{base.policy} has {base.rounds_per_hour:.4g} rounds an hour; {'; '.join(parts)}."]
