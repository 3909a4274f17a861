"""Before a run: what each waiting policy would make of a population, from its clock alone. No model is trained.

Fraboni et al., "A general theory for federated optimization with asynchronous and heterogeneous clients updates", JMLR
2023: table 2 has the closed forms; chi-square is what theorem 3 multiplies the bias of a policy's own objective with.

>>> for prospect in prospects(population, LocalSGD(0.1)):
...     print(prospect.policy, prospect.rounds_per_hour, prospect.chi_square)
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from turnout.algorithms.algorithm import Algorithm
from turnout.algorithms.async_fedavg import AsyncFedAvg
from turnout.algorithms.fedavg import FedAvg
from turnout.algorithms.fedbuff import MODES, FedBuff
from turnout.algorithms.fedfix import FedFix
from turnout.errors import UserError
from turnout.local.sgd import LocalSGD
from turnout.population.durations import Durations
from turnout.population.population import Population
from turnout.random import FloatArray
from turnout.sampling.full import Full
from turnout.server.participation import rates
from turnout.server.policy import Policy, Schedule
from turnout.server.rehearsal import schedule

WINDOWS = (0.2, 0.5, 0.8, 1.0)  # of FedFix, in mean durations of the slowest client
BUFFERS = (10, 4, 2)  # of FedBuff: N over each of these
LONGEST_WINDOW = 1_000_000  # rounds of a window of fairness that anybody would wait for
NOTICEABLE = 1.1  # times its intended weight
# Updates a policy is watched for. A rehearsal costs a hundred times as much as the loop of a policy nobody fails.
_COUNTED = (50, 2_000, 50_000)  # a client; at least; at most
_REHEARSED = (20, 1_000, 4_000)
_SMALL = 20_000_000  # rounds x clients in which a period is looked for


@dataclass(frozen=True)
class Prospect:
    """What to expect of one policy. Rates are in virtual time; a policy that cannot be used has nothing but `refused`.

    `fairness_window` is W, the rounds after which participation repeats: None where it does not, or not while watched;
    infinite beyond a million. `idle_share` is client time that brings no update that is used: waiting, absence, crashed
    jobs. The rest is about naive weights, q_i their normalised long-run sum at client i: `chi_square` is the sum of
    (p_i - q_i)^2 / q_i over the clients that are heard, `ratio_max` the largest q_i / p_i.
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
    ratio_max: float = math.nan
    most_counted: int | None = None  # the client of `ratio_max`
    over_represented: int = 0  # clients with q_i / p_i beyond NOTICEABLE
    never_heard: int = 0  # clients that matter and were not heard while watched
    refused: str | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Candidate:
    """A policy to look at: the algorithm with naive weights, which are its clients' importance or all the same."""

    label: str
    name: str
    options: dict[str, Any]
    algorithm: Algorithm
    by_importance: bool


def candidates(local: LocalSGD, durations: Durations) -> list[Candidate]:
    """Everybody, each arrival, every window, the first c."""
    found = [
        Candidate("fedavg, all", "fedavg", {}, FedAvg(local, Full()), by_importance=True),
        Candidate("async_fedavg", "async_fedavg", {}, AsyncFedAvg(local, weight_rule="naive"), by_importance=False),
    ]
    slowest, clients = float(durations.mean.max()), durations.population.size
    for part in WINDOWS:
        window = part * slowest
        fedfix = FedFix(local, weight_rule="naive", window=window)
        found.append(Candidate(f"fedfix, {window:.4g} s", "fedfix", {"window": window}, fedfix, by_importance=True))
    for mode in MODES:
        for size in sorted({-(-clients // part) for part in BUFFERS}):
            fedbuff = FedBuff(local, weight_rule="naive", buffer_size=size, mode=mode)
            options = {"buffer_size": size, "mode": mode}
            found.append(Candidate(f"fedbuff, {size} {mode}", "fedbuff", options, fedbuff, by_importance=False))
    return found


def prospects(population: Population, local: LocalSGD, model_bytes: int = 4, seed: int = 0) -> list[Prospect]:
    """A row for each policy. `model_bytes` is a model on the wire, unless the population says."""
    people = replace(population, model_bytes=population.model_bytes or model_bytes)
    durations = durations_of(people, local)
    return [_prospect(candidate, durations, seed) for candidate in candidates(local, durations)]


def durations_of(population: Population, local: LocalSGD) -> Durations:
    size = population.model_bytes or 0
    return Durations.of(population, local, size, size)


def horizon(durations: Durations) -> int:
    """Updates a policy is watched for."""
    each, least, most = _COUNTED if durations.reliable else _REHEARSED
    clients = durations.population.size
    return max(2 * clients, min(max(each * clients, least), most))


def _prospect(candidate: Candidate, durations: Durations, seed: int) -> Prospect:
    people, algorithm = durations.population, candidate.algorithm
    policy = algorithm.policy(durations)
    assert policy is not None
    blank = Prospect(candidate.label, candidate.name, candidate.options)
    rounds = max(4, math.ceil(horizon(durations) / _expected_participants(policy, durations)))
    try:
        events = schedule(algorithm, people, rounds, seed=seed)
    except UserError as error:
        return replace(blank, refused=str(error))
    period = _period(policy, durations, events)
    watched = events.between(*_settled(events, period, durations))
    rate, per_second = _pace(policy, durations, events, watched, period)
    importance = people.base_importance
    naive = rate * (importance if candidate.by_importance else 1.0)
    return replace(
        blank,
        rounds_per_hour=3600 * per_second,
        participants_per_round=float(rate.sum()),
        updates_per_hour=3600 * per_second * float(rate.sum()),
        staleness_mean=float(watched.staleness.mean()) if len(watched) else math.nan,
        staleness_max=int(events.staleness.max(initial=0)),
        fairness_window=_fairness_window(policy, durations, period),
        idle_share=max(0.0, 1 - float(np.mean(rate * durations.mean)) * per_second),
        **_bias(importance, naive),
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


def _pace(
    policy: Policy, durations: Durations, events: Schedule, watched: Schedule, period: tuple[int, int] | None
) -> tuple[FloatArray, float]:
    """`[N]` f_i, updates of each client a round, and rounds a second: in closed form where there is one."""
    if durations.reliable and policy.window is not None:
        return rates(policy, durations), 1 / policy.window
    if durations.reliable and _independent(policy):
        return rates(policy, durations), float((1 / durations.mean).sum()) / (policy.count or 1)
    if period is not None:
        first, last = events.closed_at[np.searchsorted(events.round, period, side="right") - 1]
        return watched.rates, (period[1] - period[0]) / float(last - first)
    return watched.rates, events.rounds / events.seconds if events.seconds else math.nan


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
        "over_represented": int((ratio > NOTICEABLE).sum()),
        "never_heard": int((matters & ~heard).sum()),
    }


# -- advice ---------------------------------------------------------------------------------------------------


def sentences(rows: list[Prospect], reliable: bool) -> list[str]:
    """What the numbers say, in words."""
    usable = [row for row in rows if row.refused is None]
    advice = [f"{row.policy} cannot be used here ({row.refused})." for row in rows if row.refused is not None]
    biased = [row for row in usable if math.isfinite(row.chi_square)]
    if biased:
        advice.append(_about_bias(max(biased, key=lambda row: row.chi_square), reliable))
    return advice + _about_pace(usable)


def _about_bias(worst: Prospect, reliable: bool) -> str:
    if worst.ratio_max <= NOTICEABLE:
        return f"Even naive weights would count nobody more than {worst.ratio_max:.2f} times as much as intended."
    others = f" (and {worst.over_represented - 1} others too much)" if worst.over_represented > 1 else ""
    cure = "removes this bias" if reliable else "corrects this with measured rates, since jobs can fail here"
    return (
        f"With naive weights, {worst.policy} would count client {worst.most_counted} {worst.ratio_max:.2f} times as "
        f"much as intended{others}; algorithm.weight_rule=unbiased, the default, {cure}."
    )


def _about_pace(rows: list[Prospect]) -> list[str]:
    """Synchronous rounds against the fastest policy and, between the two, half the slowest client's time."""
    paced = [row for row in rows if math.isfinite(row.rounds_per_hour) and row.rounds_per_hour > 0]
    base = next((row for row in paced if row.algorithm == "fedavg"), None)
    if base is None:
        return []
    between = [row for row in paced if row.algorithm == "fedfix"][1:2]
    compared = [*between, *(row for row in paced if row.algorithm == "async_fedavg")]
    parts = [
        f"{row.policy} closes {row.rounds_per_hour / base.rounds_per_hour:.3g} times as many (updates up to "
        f"{row.staleness_max} rounds old)"
        for row in compared
    ]
    return [f"Against {base.rounds_per_hour:.4g} rounds an hour of {base.policy}, {' and '.join(parts)}."]
