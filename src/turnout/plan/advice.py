"""Before a run: what each waiting policy would make of a population, from its clock alone. No model is trained.

Fraboni et al., "A general theory for federated optimization with asynchronous and heterogeneous clients updates", JMLR
2023: table 2 has the closed forms, and the chi-square is the factor of the bias in theorem 3.

>>> for prospect in outlook(population, LocalSGD(0.1)).policies:
...     print(prospect.policy, prospect.rounds_per_hour, prospect.chi_square)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from turnout.algorithms._algorithm import Algorithm
from turnout.algorithms.async_fedavg import AsyncFedAvg
from turnout.algorithms.fedavg import FedAvg
from turnout.algorithms.fedbuff import FedBuff
from turnout.algorithms.fedfix import FedFix
from turnout.clients.population import Population
from turnout.core.errors import UserError
from turnout.core.random import FloatArray
from turnout.local.sgd import LocalSGD
from turnout.plan.rehearsal import schedule
from turnout.report import sentences
from turnout.report.outlook import MUCH, NOTICEABLE
from turnout.sampling.full import Full
from turnout.server.closing import MODES
from turnout.server.durations import Durations
from turnout.server.policy import Policy, Schedule, rates

WINDOWS = (0.2, 0.5, 0.8, 1.0)  # of FedFix, in mean durations of the slowest client
BUFFERS = (10, 4, 2)  # of FedBuff: N over each of these
BY_IMPORTANCE = ("fedavg", "fedfix")  # whose naive weights are the clients' importance; of others all are the same
LONGEST_WINDOW = 1_000_000  # rounds of a window of fairness that anybody would wait for
# Updates a policy is watched for: a client, at least, at most. Where jobs fail it takes a rehearsal, which costs a
# hundred times as much an update, and less only if many clients are invited together.
_COUNTED = (50, 2_000, 50_000)
_REHEARSED_TOGETHER = (50, 1_000, 20_000)
_REHEARSED_ALONE = (20, 500, 4_000)
_SMALL = 20_000_000  # rounds x clients in which a period is looked for


@dataclass(frozen=True)
class Prospect:
    """What to expect of one policy. Rates are in virtual time; a policy that cannot be used has nothing but `refused`.

    `fairness_window` is W, the rounds after which participation repeats: None where it does not, or not while watched;
    infinite beyond a million. `idle_share` is client time that brings no update that is used: waiting, absence, crashed
    jobs. The rest is about naive weights, q_i their normalised long-run sum at client i: `chi_square` is the sum of
    (p_i - q_i)^2 / q_i over the clients that are heard, `ratio_max` the largest q_i / p_i. Where updates had to be
    counted, `chance` is how large a chi-square counting so few of them makes by itself.
    """

    policy: str
    algorithm: str
    options: dict[str, Any]
    rounds_per_hour: float = math.nan
    participants_per_round: float = math.nan
    updates_per_hour: float = math.nan
    staleness_mean: float = math.nan
    staleness_max: int | None = None
    fairness_window: float | None = None
    idle_share: float = math.nan
    chi_square: float = math.nan
    chance: float = 0.0
    ratio_max: float = math.nan
    most_counted: int | None = None  # the client of `ratio_max`
    over_represented: int = 0  # clients with q_i / p_i beyond MUCH
    never_heard: int = 0  # clients that matter and were not heard while watched
    updates_watched: int = 0
    refused: str | None = None

    @property
    def by_chance(self) -> bool:
        """Whether the noise of counting explains the chi-square."""
        return self.chance > 0 and self.chi_square <= 2 * self.chance

    @property
    def biased(self) -> bool:
        """Whether naive weights count somebody noticeably too much, and not by chance."""
        return self.ratio_max > NOTICEABLE and not self.by_chance


def candidates(local: LocalSGD, durations: Durations) -> list[tuple[Prospect, Algorithm]]:
    """The policies to look at, each with naive weights: everybody, each arrival, every window, the first c."""
    found: list[tuple[Prospect, Algorithm]] = [
        (Prospect("fedavg all", "fedavg", {}), FedAvg(local, Full())),
        (Prospect("async_fedavg", "async_fedavg", {}), AsyncFedAvg(local, weight_rule="naive")),
    ]
    slowest, clients = float(durations.mean.max()), durations.population.size
    for part in WINDOWS:
        window = part * slowest
        fedfix = FedFix(local, weight_rule="naive", window=window)
        found.append((Prospect(f"fedfix {window:.3g} s", "fedfix", {"window": window}), fedfix))
    for mode in MODES:
        for size in sorted({-(-clients // part) for part in BUFFERS}):
            fedbuff = FedBuff(local, weight_rule="naive", buffer_size=size, mode=mode)
            options = {"buffer_size": size, "mode": mode}
            found.append((Prospect(f"fedbuff {size} {mode}", "fedbuff", options), fedbuff))
    return found


@dataclass(frozen=True)
class Outlook:
    """All policies over one population, and what their numbers say."""

    clients: int
    reliable: bool  # every job ends with an update, and nothing but its own duration delays it
    fixed_durations: bool
    fastest_seconds: float  # mean duration of a job
    slowest_seconds: float
    policies: list[Prospect]
    advice: list[str]


def outlook(population: Population, local: LocalSGD, model_bytes: int = 4, seed: int = 0) -> Outlook:
    """What each policy would do. `model_bytes` is a model on the wire, unless the population says."""
    size = population.model_bytes or model_bytes
    durations = Durations.of(replace(population, model_bytes=size), local, size, size)
    rows = [_watched(blank, algorithm, durations, seed) for blank, algorithm in candidates(local, durations)]
    return Outlook(
        clients=population.size,
        reliable=durations.reliable,
        fixed_durations=durations.fixed,
        fastest_seconds=float(durations.mean.min()),
        slowest_seconds=float(durations.mean.max()),
        policies=rows,
        advice=sentences.of_outlook(rows, durations.reliable),
    )


def horizon(policy: Policy, durations: Durations) -> int:
    """Updates a policy is watched for."""
    rehearsed = _REHEARSED_ALONE if _independent(policy) else _REHEARSED_TOGETHER
    each, least, most = _COUNTED if durations.reliable else rehearsed
    clients = durations.population.size
    return max(2 * clients, min(max(each * clients, least), most))


def _watched(blank: Prospect, algorithm: Algorithm, durations: Durations, seed: int) -> Prospect:
    people, policy = durations.population, algorithm.policy(durations)
    assert policy is not None
    rounds = max(4, math.ceil(horizon(policy, durations) / _expected_participants(policy, durations)))
    try:
        events = schedule(algorithm, people, rounds, seed=seed)
    except UserError as error:
        return replace(blank, refused=str(error))
    period = _period(policy, durations, events)
    first, last = _settled(events, period, durations)
    watched = events.between(first, last)
    known = _closed_form(policy, durations)
    rate, per_second = known or (watched.rates, _counted_pace(events, period))
    naive = people.base_importance if blank.algorithm in BY_IMPORTANCE else np.ones(people.size)
    middle = (first + last) // 2
    halves = [events.between(first, middle), events.between(middle, last)]
    return replace(
        blank,
        rounds_per_hour=3600 * per_second,
        participants_per_round=float(rate.sum()),
        updates_per_hour=3600 * per_second * float(rate.sum()),
        staleness_mean=float(watched.staleness.mean()) if len(watched) else math.nan,
        staleness_max=int(events.staleness.max(initial=0)),
        fairness_window=_fairness_window(policy, durations, period),
        idle_share=max(0.0, 1 - float(np.mean(rate * durations.mean)) * per_second),
        chance=0.0 if known or period else _chance(*(naive * half.counts for half in halves)),
        updates_watched=len(events),
        **_bias(people.base_importance, naive * rate),
    )


# -- pace -----------------------------------------------------------------------------------------------------


def _expected_participants(policy: Policy, durations: Durations) -> float:
    """Updates a round if nobody fails."""
    if policy.window is not None:
        return float(rates(policy, durations).sum())
    return policy.count or durations.population.size


def _settled(events: Schedule, period: tuple[int, int] | None, durations: Durations) -> tuple[int, int]:
    """The rounds to count in: a whole period if one was seen, else what comes after the common start. A rehearsal is
    too short to leave anything out."""
    if period is not None:
        return period[0] + 1, period[1] + 1
    return (events.rounds // 2 if durations.reliable else 0), events.rounds


def _closed_form(policy: Policy, durations: Durations) -> tuple[FloatArray, float] | None:
    """`[N]` f_i, updates of each client a round, and rounds a second, where that is known without counting."""
    if not durations.reliable:
        return None
    if policy.window is not None:
        return rates(policy, durations), 1 / policy.window
    if _independent(policy):
        return rates(policy, durations), float((1 / durations.mean).sum()) / (policy.count or 1)
    return None


def _counted_pace(events: Schedule, period: tuple[int, int] | None) -> float:
    """Rounds a second."""
    if period is not None:
        first, last = events.closed_at[np.searchsorted(events.round, period, side="right") - 1]
        return (period[1] - period[0]) / float(last - first)
    return events.rounds / events.seconds if events.seconds else math.nan


def _independent(policy: Policy) -> bool:
    """Whether clients start again as soon as they have delivered, whatever the others do."""
    return policy.restart or policy.count == 1


# -- window of fairness ---------------------------------------------------------------------------------------


def _period(policy: Policy, durations: Durations, events: Schedule) -> tuple[int, int] | None:
    """Where the schedule begins to repeat, for policies that have no closed form."""
    closed_form = policy.window is not None or _independent(policy)
    steady = durations.reliable and durations.fixed and events.rounds * events.clients <= _SMALL
    return events.period() if steady and not closed_form else None


def _fairness_window(policy: Policy, durations: Durations, period: tuple[int, int] | None) -> float | None:
    """W, infinite where it is beyond what anybody would wait for."""
    if not (durations.reliable and durations.fixed):
        return None
    if policy.window is not None:
        return _limited(math.lcm(*durations.mean_windows(policy.window).astype(int).tolist()))
    if _independent(policy):
        arrivals = _arrivals_a_cycle(durations.ticks(0).tolist(), LONGEST_WINDOW * (policy.count or 1))
        return math.inf if arrivals is None else _limited(arrivals // math.gcd(arrivals, policy.count or 1))
    return None if period is None else _limited(period[1] - period[0])


def _limited(rounds: int) -> float:
    return rounds if rounds <= LONGEST_WINDOW else math.inf


def _arrivals_a_cycle(ticks: list[int], limit: int) -> int | None:
    """Updates between two moments at which everybody starts at once: sum of lcm / tau_i, None beyond the limit."""
    cycle, fastest = 1, min(ticks)
    for duration in ticks:
        cycle = math.lcm(cycle, duration)
        if cycle // fastest > limit:
            return None
    return sum(cycle // duration for duration in ticks)


# -- bias -----------------------------------------------------------------------------------------------------


def _bias(importance: FloatArray, naive: FloatArray) -> dict[str, Any]:
    """How far the objective of these weights is from the intended one."""
    matters, heard = importance > 0, naive > 0
    if not (matters & heard).any():
        return {"never_heard": int(matters.sum())}
    shares = naive / naive.sum()
    ratio = np.divide(shares, importance, out=np.zeros(len(shares)), where=matters)
    return {
        "chi_square": float((np.square(importance - shares)[heard] / shares[heard]).sum()),
        "ratio_max": float(ratio.max()),
        "most_counted": int(ratio.argmax()),
        "over_represented": int((ratio > MUCH).sum()),
        "never_heard": int((matters & ~heard).sum()),
    }


def _chance(one: FloatArray, other: FloatArray) -> float:
    """The chi-square of the mean of two halves about what it estimates: the variance of a mean of two is a quarter of
    the squared difference."""
    if not (one.sum() > 0 and other.sum() > 0):
        return math.nan
    one, other = one / one.sum(), other / other.sum()
    both = one + other
    return float((np.square(one - other)[both > 0] / (2 * both[both > 0])).sum())


# -- for people -----------------------------------------------------------------------------------------------

HEADERS = (
    "policy", "rounds\n/hour", "updates\n/round", "updates\n/hour", "stale\nmean", "stale\nmax", "fair\nafter", "idle",
    "chi2 ", "most"
)  # fmt: skip
LEGEND = """\
fair after: rounds until participation repeats (-: never, or not while watched)
idle: client time that brings no update (waiting, absence, crashed jobs)
chi2, most: bias of naive weights, and how many times too much they count the
client they favour most (?: no more than the noise of counting)"""


def cells(row: Prospect) -> list[str]:
    """A row of the table."""
    counted = [row.rounds_per_hour, row.participants_per_round, row.updates_per_hour, row.staleness_mean]
    doubt = "?" if row.by_chance else " "
    rest = [f"{row.idle_share:.0%}", f"{row.chi_square:.3f}{doubt}", f"{row.ratio_max:.2f}"]
    return [row.policy, *map(_short, counted), str(row.staleness_max), _fair_after(row.fairness_window), *rest]


def _short(number: float) -> str:
    if number >= 1e6:
        return f"{number / 1e6:.3g}M"
    if number >= 1e4:
        return f"{number / 1e3:.3g}k"
    return f"{number:.0f}" if number >= 100 else f"{round(number, 2):.3g}"


def _fair_after(rounds: float | None) -> str:
    if rounds is None:
        return "-"
    return "> 1e6" if math.isinf(rounds) else str(rounds)
