"""Which setting is better, and whether that is more than chance."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np

from turnout.core import chance
from turnout.core.chance import Difference
from turnout.core.statistics import interval
from turnout.report import words
from turnout.report.blocks import number
from turnout.report.compare import Row

Values = Mapping[int | None, float | None]  # by seed; None where a run ended without one


@dataclass(frozen=True)
class Setting:
    """What one setting came to, by seed."""

    label: str
    values: dict[int | None, float]
    lost: list[int | None] = field(default_factory=list)  # seeds that diverged
    missing: list[int | None] = field(default_factory=list)  # seeds for which it is not known

    @property
    def mean(self) -> float:
        return float(np.mean(list(self.values.values()))) if self.values else math.nan

    @property
    def shown(self) -> str:
        return words.within(self.mean, interval(list(self.values.values()))[1])


def setting(label: str, values: Values, diverged: Collection[int | None] = ()) -> Setting:
    """Keep the numbers apart from the seeds that have none."""
    known = {
        seed: float(value)
        for seed, value in values.items()
        if value is not None and math.isfinite(value) and seed not in diverged
    }
    missing = [seed for seed in values if seed not in known and seed not in diverged]
    return Setting(label, known, list(diverged), missing)


def of_row(row: Row, measure: str) -> Setting:
    """The runs of a row that are finished, each seed once."""
    quantity = row.quantities.get(measure)
    found: dict[int | None, float | None] = {}
    diverged: list[int | None] = []
    for place, run in enumerate(row.runs):
        if run.finished and run.seed not in found:
            found[run.seed] = None if quantity is None else quantity.values[place]
            diverged += [run.seed] if str(run.summary.get("stopped", "")).startswith("diverged") else []
    return setting(row.label, found, diverged)


@dataclass(frozen=True)
class Ranking:
    """Settings from the best to the worst, and the best against each other one. P-values are those of all pairs, raised
    by Holm's method: the best was not known before."""

    what: str  # the measure in words
    order: list[Setting]
    against: list[Difference]  # of the best, in the order of the others; positive where it is better

    @property
    def told(self) -> list[bool]:
        """Whether each of the others is worse by more than chance, or by the same in every seed."""
        return [one.mean > 0 and (one.p < chance.LEVEL or one.alike) for one in self.against]

    @property
    def tied(self) -> set[str]:
        """Labels of the settings that are not worse than the best by more than chance, and of the best."""
        return {self.order[0].label} | {s.label for s, told in zip(self.order[1:], self.told, strict=True) if not told}


def rank(what: str, settings: Sequence[Setting], low: bool) -> Ranking | None:
    """Compare settings, with `low` those of the lowest values first; those of which a seed diverged or has no number
    come after all others. None where none has one."""
    sign = -1.0 if low else 1.0
    known = [one for one in settings if one.values]
    if not known:
        return None
    order = sorted(known, key=lambda one: (bool(one.lost or one.missing), -sign * one.mean))
    pairs = [chance.difference(one.values, other.values) for one, other in combinations(order, 2)]
    raised = chance.holm([pair.p for pair in pairs])
    against = [
        Difference(sign * pair.mean, pair.half_width, p, pair.seeds, pair.paired, pair.spread)
        for pair, p in zip(pairs, raised, strict=True)
    ]
    return Ranking(what.replace("_", " "), order, against[: len(order) - 1])


# -- in words -------------------------------------------------------------------------------------------------


def sentences(ranking: Ranking | None, settings: Sequence[Setting]) -> list[str]:
    """Which setting is best, whether that is more than chance, and what its seeds cannot tell."""
    if ranking is None:
        return []
    found = _verdict(ranking)
    for one in settings:
        for what, seeds in (("diverged", one.lost), (f"has no {ranking.what}", one.missing)):
            rest = "it is judged by the others and ranked last" if one.values else "it is not compared"
            which = f"seed{'s' * (len(seeds) > 1)} {words.listed([str(seed) for seed in seeds])}"
            found += [f"{one.label} {what} with {which}: {rest}."] if seeds else []
    return found


def _verdict(ranking: Ranking) -> list[str]:
    best, others, what = ranking.order[0], ranking.order[1:], ranking.what
    if not others:
        return _alone(best, what)
    if len(others) == 1:
        return _two(best, others[0], ranking.against[0], what)
    single = sum(one.seeds < 2 for one in ranking.against)
    if single == len(others):
        then = words.listed(_with_values(others), 4)
        return [f"{best.label} ends best, but one seed proves nothing: {what} {best.shown}, then {then}."]
    worse = [place for place, told in enumerate(ranking.told) if told]
    level = [place for place in range(len(others)) if place not in worse]
    first = f"{best.label} is best: {what} {best.shown}."
    told = words.listed([_ahead(ranking, place) for place in level])
    tests = f"{_tests([ranking.against[place] for place in worse or level])}, Holm's method over all pairs"
    if len(worse) == len(others):
        ahead = ", ".join(_ahead(ranking, place) for place in worse[: words.SHOWN])
        return [f"{first} That is more than chance against every other: {ahead} ({tests})."]
    if not worse:
        return [
            f"{best.label} ends best, but that may be chance: {what} {best.shown}; these seeds cannot tell it from "
            f"{told} ({tests})."
        ]
    ahead = words.listed([_ahead(ranking, place) for place in worse])
    return [
        f"{first} That is more than chance against {ahead} ({tests}).",
        f"Between it and {told} these seeds cannot tell.",
    ]


def _with_values(settings: Sequence[Setting]) -> list[str]:
    return [f"{one.label} ({one.shown})" for one in settings]


def _ahead(ranking: Ranking, place: int) -> str:
    one, gap = ranking.order[place + 1], ranking.against[place]
    p = " in every seed" if gap.alike else "" if math.isnan(gap.p) else f", {words.chance(gap.p)}"
    return f"{one.label} (by {number(gap.mean, 3)}{p})"


def _tests(gaps: Sequence[Difference]) -> str:
    names = sorted({f"{one.test}s" for one in gaps if one.seeds > 1})
    seeds = sorted({one.seeds for one in gaps if one.seeds > 1})
    return f"{' and '.join(names)} over {' to '.join(map(str, seeds[:: max(1, len(seeds) - 1)]))} seeds"


def _alone(best: Setting, what: str) -> list[str]:
    if len(best.values) > 1:
        return [f"{best.label} ends at {what} {best.shown} (mean and 95 % interval over {len(best.values)} seeds)."]
    return [f"{best.label} ends at {what} {best.shown}, with one seed: one seed proves nothing."]


def _two(best: Setting, other: Setting, gap: Difference, what: str) -> list[str]:
    values = f"{what} {best.shown} against {other.shown}"
    if gap.seeds < 2:
        return [
            f"{best.label} ends better than {other.label} ({values}), but one seed proves nothing: another may turn it "
            "round."
        ]
    if gap.p == 1 and not gap.spread > 0:
        return [
            f"{best.label} and {other.label} end the same in each of {gap.seeds} seeds ({what} {best.shown}): what "
            "they differ in may change nothing here."
        ]
    if gap.alike:
        return [
            f"{best.label} is ahead of {other.label} by {number(gap.mean, 3)} in each of {gap.seeds} seeds alike "
            f"({values}): seeds change nothing here, so there is no chance to test against."
        ]
    test = (
        f"ahead by {words.within(gap.mean, gap.half_width)} in the mean and its 95 % interval; {gap.test} over "
        f"{gap.seeds} seeds, {words.chance(gap.p)}"
    )
    if gap.mean < 0:  # seeds that only one of them has
        return [
            f"{best.label} ends better than {other.label} ({values}), but not in the seeds that both have ({test})."
        ]
    if gap.p < chance.LEVEL:
        return [f"{best.label} is better than {other.label}, and that is more than chance: {values} ({test})."]
    return [f"{best.label} ends better than {other.label}, but that may be chance: {values} ({test})."]


def remedy(ranking: Ranking | None) -> list[str]:
    """How many seeds would tell the best from the next, where these do not."""
    if ranking is None or not ranking.against:
        return []
    gap, names = ranking.against[0], f"{ranking.order[0].label} from {ranking.order[1].label}"
    if not gap.p >= chance.LEVEL or not gap.mean:
        return []
    needed = gap.seeds_needed()
    if needed is None:
        return []
    if needed > 50:
        return [f"To tell {names} would take some {needed:,} seeds: take them for equal."]
    return [f"If the difference is as it looks, about {max(needed, gap.seeds + 1)} seeds would tell {names}."]
