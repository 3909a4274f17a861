"""Who was heard, and whether that is chance or bias: sentences from the record of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from turnout.core import chance
from turnout.core.random import FloatArray, IntArray
from turnout.record.views import Columns, telling
from turnout.report import words
from turnout.report.read import Recorded
from turnout.report.timeline import ENDS, endings

_WEAK = 0.2  # a rank correlation that hardly matters, however sure it is
_STRONG = 0.5  # a rank correlation that would matter if it were sure
_DECIMALS = 9  # of a share: what is beyond comes from rounding, and must not be ranked
_AS_MEANT = 0.01  # of a share: so far from what was meant nobody looks
_BECAUSE = {  # how jobs ended that did not count
    "cancelled": "were cut off when a round closed",
    "crashed": "crashed",
    "offline": "ended because they went offline",
    "left": "ended because they left",
    "silenced": "were silenced by the adversary",
    "not used": "arrived and were not used",
}
_CLOSES = ("wait_for", "count", "deadline", "window", "buffer_size", "size", "fraction")  # what ends a round early
_CURES = {
    "cancelled": "a round that waits for more of them, or a method that takes updates as they come, with unbiased "
    "weights (fedfix, fedbuff); turnout plan shows what each would do with these clients",
    "crashed": "mifa, which remembers the silent, or a sampler that knows who answers (unbiased)",
    "offline": "the sampler unbiased, which weighs by who is there how often, or mifa, which remembers the silent",
    "silenced": "robust_fedavg or mifa, which remember the silent",
}


@dataclass(frozen=True)
class Clients:
    """What the record knows of each client `[N]`; NaN where it does not."""

    names: list[str] | None
    meant: FloatArray  # importance
    counted: FloatArray  # share of all realised weights / share that was meant; NaN where nothing was meant
    used: IntArray  # updates that counted
    samples: FloatArray
    seconds: FloatArray  # of a whole job
    served: FloatArray  # the most telling measure
    measure: str

    @property
    def silent(self) -> IntArray:
        return np.flatnonzero((self.meant > 0) & (self.used == 0))


def clients_of(run: Recorded) -> Clients:
    """Gather it from the tables of a finished run."""
    told = run.summary["clients"]
    meant, got = (np.asarray(told[name], np.float64) for name in ("intended", "realised"))
    shares, due = got / (got.sum() or 1.0), meant / (meant.sum() or 1.0)
    counted = np.divide(shares, due, out=np.full(len(meant), np.nan), where=meant > 0).round(_DECIMALS)
    jobs, table, size = run.jobs(), run.clients(), len(meant)
    samples = _known(table, "train_samples", size)
    if jobs:
        asked = np.full(size, np.nan)
        np.fmax.at(asked, jobs["client"], jobs["samples"].astype(np.float64))
        samples = np.where(np.isnan(samples), asked, samples)
    measure = "_".join(telling(run.rounds()) or ())
    names = names_of(run)
    used = np.asarray(told["contributions"], np.int64)
    served = _known(table, measure, size)
    return Clients(names, meant, counted, used, samples, _seconds(jobs, size), served, measure)


def names_of(run: Recorded) -> list[str] | None:
    """What the clients are called; None where they have numbers."""
    return [str(name) for name in run.summary["clients"].get("name") or ()] or None


def called(names: list[str] | None, clients: Iterable[int]) -> str:
    """Some clients in a sentence."""
    if names is not None:
        return words.listed([names[i] for i in clients])
    numbers = [str(i) for i in clients]
    return f"client{'s' * (len(numbers) > 1)} {words.listed(numbers, 2 * words.SHOWN)}"


def _known(table: Columns, column: str, size: int) -> FloatArray:
    found = np.full(size, np.nan)
    if column in table:
        found[table["client"]] = table[column]
    return found


def _seconds(jobs: Columns, size: int) -> FloatArray:
    """How long a job takes each client, in the median; of clients whose jobs never arrive, by how far these had got."""
    found = np.full(size, np.nan)
    if not jobs:
        return found
    arrived = jobs["outcome"] == "arrived"
    worked = (jobs["progress"] > 0) & (jobs["outcome"] != "used_later")
    heard = np.bincount(jobs["client"], arrived, size) > 0
    worked &= arrived | ~heard[jobs["client"]]
    whole = jobs["download_seconds"] + jobs["compute_seconds"] / np.where(worked, jobs["progress"], 1.0)
    whole, who = (whole + jobs["upload_seconds"])[worked], jobs["client"][worked]
    order = np.lexsort((whole, who))
    starts = np.flatnonzero(np.r_[True, np.diff(who[order]) > 0]) if len(order) else order
    middle = (starts + np.r_[starts[1:], len(order)]) // 2  # the upper median
    found[who[order][starts]] = whole[order][middle]
    return found


def sentences(run: Recorded) -> list[str]:
    """Who was never heard, why, whether that is chance, and whom it concerns; of a finished run whose clients send
    updates."""
    if not run.finished or run.summary.get("nobody_heard"):
        return []
    people = clients_of(run)
    if not people.used.any():
        return []
    asked = asked_in(run)
    if asked is None:
        return [_who(people), *_bias(people), *_served(people)]
    told, biased = _chance(asked)
    found = [_who(people), *_why(people, asked, run), *told, *_cure(people, asked, biased)]
    return [*found, *_bias(people), *_served(people)]


class Asked(NamedTuple):
    """The jobs that were begun: whose, with which version of the model, and a number of `ENDS`."""

    client: IntArray
    version: IntArray
    end: IntArray


def asked_in(run: Recorded) -> Asked | None:
    """Gather them; None where jobs were not recorded."""
    jobs = run.jobs()
    if not jobs:
        return None
    begun = jobs["outcome"] != "used_later"
    return Asked(jobs["client"][begun], jobs["version"][begun], endings(jobs)[begun])


def _who(people: Clients) -> str:
    silent, all_of_them = people.silent, int((people.meant > 0).sum())
    if not len(silent):
        low, high = np.nanmin(people.counted), np.nanmax(people.counted)
        heard = f"All {all_of_them:,} clients were heard" if all_of_them > 1 else "The one client was heard"
        if max(1 - low, high - 1) <= _AS_MEANT:
            return f"{heard}, and counted as meant."
        return f"{heard}; they counted {low:.2f} to {high:.2f} times as much as meant."
    extremes = _extreme(people.seconds, silent, "slowest"), _extreme(people.samples, silent, "largest")
    known = " and ".join(filter(None, extremes))
    lost = people.meant[silent].sum() / people.meant.sum()
    return (
        f"{words.capital(words.count(len(silent)))} of {all_of_them:,} clients {'was' if len(silent) == 1 else 'were'} "
        f"never heard: {called(people.names, silent)}{f', {known}' if known else ''}; "
        f"{words.share(lost)} of what was meant to count had no say."
    )


def _extreme(values: FloatArray, some: IntArray, what: str) -> str:
    """`the two slowest`, if these clients are; empty where that is not so, or not known of everybody."""
    others = np.delete(values, some)
    if not len(others) or np.isnan(values).any() or values[some].min() <= others.max():
        return ""
    return f"the {what}" if len(some) == 1 else f"the {words.count(len(some))} {what}"


def _why(people: Clients, asked: Asked, run: Recorded) -> list[str]:
    """How the jobs of the silent ended."""
    silent = people.silent
    if not len(silent):
        return []
    quiet = np.zeros(len(people.meant), bool)
    quiet[silent] = True
    theirs = asked.end[quiet[asked.client]]
    times_asked = np.bincount(asked.client, minlength=len(quiet))
    never = int((times_asked[silent] == 0).sum())
    if not len(theirs):
        return [f"None of them was ever asked. {_by_the_sampler(people, asked, times_asked)}"]
    end, times = Counter(ENDS[end] for end in theirs.tolist()).most_common(1)[0]
    many = f"{times:,} of the {len(theirs):,} jobs"
    if times == len(theirs):
        many = {1: "The one job", 2: "Both jobs"}.get(times, f"All {times:,} jobs")
    cause = f" ({closing})" if end in ("cancelled", "not used") and (closing := _closing(run)) else ""
    found = [f"{many} they were asked for {_BECAUSE.get(end, end)}{cause}."]
    if never:
        were = f"{words.capital(words.count(never))} of them {'was' if never == 1 else 'were'} never asked."
        found.append(f"{were} {_by_the_sampler(people, asked, times_asked)}")
    return found


def _closing(run: Recorded) -> str:
    """The option that closes rounds before everybody has answered, with its value."""
    for section in ("wait", "algorithm"):
        for name in _CLOSES:
            if (value := run.config.get(section, {}).get(name)) is not None:
                return f"{section}.{name}={value}"
    return ""


def _by_the_sampler(people: Clients, asked: Asked, times_asked: IntArray) -> str:
    """Whether equal chances of being asked would leave out as many."""
    matter = people.meant > 0
    each = np.bincount(asked.version)
    never = int((times_asked[matter] == 0).sum())
    expected, spread = chance.left_out(int(matter.sum()), each[each > 0])
    if never <= expected + 2 * spread + 0.5:  # so far from the mean is one in forty
        return f"That may be chance: with equal chances, so few invitations leave out {expected:.1f} on average."
    return (
        f"That is more than chance: equal chances would leave out {expected:.1f} on average (standard deviation "
        f"{spread:.1f}); the sampler prefers others, or they were not there to be asked."
    )


def _chance(asked: Asked) -> tuple[list[str], bool]:
    """Whether those asked whose work did not count are always the same: in words, and if so."""
    tested = chance.same_ones(asked.version, asked.client, asked.end > 0)
    if tested is None:
        return [], False
    p, rounds = tested
    how = f"{words.chance(p)}, permutations within {words.plural(rounds, 'round')}"
    if p < chance.LEVEL:
        return [f"Whose work does not count is not chance: it is the same clients again and again ({how})."], True
    return [f"Whose work does not count looks like chance ({how})."], False


def _cure(people: Clients, asked: Asked, biased: bool) -> list[str]:
    """What to try where some are never heard, by how most work was lost."""
    if not len(people.silent):
        return []
    if not biased:
        return ["More rounds, or more clients a round, would hear more of them."]
    lost = Counter(ENDS[end] for end in asked.end.tolist() if end)
    return [f"Try {_CURES[end]}." for end, _ in lost.most_common(1) if end in _CURES]


def _bias(people: Clients) -> list[str]:
    """Whether how much clients counted goes by their size or speed. Sizes may decide how much a client is meant to
    count; what it did count is taken relative to that."""
    if np.nanmax(np.abs(people.counted - 1)) <= _AS_MEANT:
        return []
    asked: dict[str, tuple[str, chance.Association | None]] = {
        "size": ("larger", chance.association(people.counted, people.samples)),
        "speed": ("slower", chance.association(people.counted, people.seconds)),
    }
    known = {name: (more, one) for name, (more, one) in asked.items() if one is not None}
    if not known:
        return []
    raised = dict(zip(known, chance.holm([one.p for _, one in known.values()]), strict=True))
    told = {name: f"rank correlation {one.rho:.2f}, {words.chance(raised[name])}" for name, (_, one) in known.items()}
    found = [name for name in known if raised[name] < chance.LEVEL]
    size = max(one.clients for _, one in known.values())
    if not found:
        tests = "; ".join(f"{name}: {how}" for name, how in told.items())
        by = " or ".join(known)
        if max(abs(one.rho) for _, one in known.values()) > _STRONG:
            return [f"Whether it goes by {by} in general, {size:,} clients are too few to tell ({tests})."]
        return [f"There is no sign that it goes by {by} ({size:,} clients; {tests})."]
    return [
        f"{words.capital(more)} clients counted {'a little ' if abs(one.rho) < _WEAK else ''}"
        f"{'less' if one.rho < 0 else 'more'} than meant ({told[name]}, "
        f"{one.clients:,} clients)."
        for name, (more, one) in known.items()
        if name in found
    ]


def _served(people: Clients) -> list[str]:
    """How the model serves those who were never heard, beside the others."""
    silent = np.zeros(len(people.meant), bool)
    silent[people.silent] = True
    known = np.isfinite(people.served)
    theirs, others = people.served[silent & known], people.served[~silent & known]
    tested = chance.association(silent.astype(np.float64), people.served)  # of two kinds of clients: a rank-sum test
    if tested is None:
        return []
    what = people.measure.replace("_", " ")
    more = "more than chance" if tested.p < chance.LEVEL else "which may be chance"
    return [
        f"The model gives those never heard {what} {theirs.mean():.3f}, the others {others.mean():.3f} on average: "
        f"{more} (permutation of clients' ranks, {words.chance(tested.p)})."
    ]


def over_seeds(runs: list[Recorded]) -> str | None:
    """Whom the runs of one setting never heard: the end of a sentence; None where all of them heard everybody."""
    silent: list[NDArray[Any]] = []
    names: list[str] | None = None
    size = 0
    for run in runs:
        told = run.summary["clients"]
        meant, used = np.asarray(told["intended"]), np.asarray(told["contributions"])
        if used.any():
            silent.append(np.flatnonzero((meant > 0) & (used == 0)))
            names, size = names_of(run), len(meant)
    counts = sorted({len(one) for one in silent})
    if not counts or counts == [0]:
        return None
    always = sorted(set.intersection(*(set(one.tolist()) for one in silent)))
    many = f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}"
    whom = f": {called(names, always)}{' in every seed' if len(silent) > 1 else ''}" if always else ""
    return f"never heard {many} of {size:,} clients{whom}"
