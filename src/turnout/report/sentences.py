"""What a person would say of runs, as sentences, the answer first: which is better and whether that is more than
chance, who was not heard and why, what went wrong, what to try.

Every command and every page takes its sentences from here.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from turnout.core import chance
from turnout.core.statistics import WORST_PERCENTILE, lower_is_better
from turnout.record.progress import duration
from turnout.record.views import telling
from turnout.report import better, heard, words
from turnout.report.blocks import number
from turnout.report.compare import Row, Target, compare
from turnout.report.read import Recorded, differences

if TYPE_CHECKING:
    from turnout.plan.advice import Prospect
    from turnout.plan.tune import Tuned, Tuning

_OTHER_DATA = ("data", "partition", "clients", "stream")  # settings that differ here are measured on other samples
_LOST = 0.2  # of the jobs: worth a sentence
_SHOWN = 4  # sentences about whom settings have not heard
_SEEDS = 5  # that are proposed


def of_runs(runs: Sequence[Recorded], aim: Target | None = None) -> list[str]:
    """Of one run, or of several beside each other."""
    if not runs:
        return []
    return of_run(runs[0], aim) if len(runs) == 1 else of_rows(compare(runs, aim), aim)


# -- one run --------------------------------------------------------------------------------------------------


def of_run(run: Recorded, aim: Target | None = None) -> list[str]:
    """Where it ended, who was not heard, what went wrong, what to try."""
    if not run.finished:
        return [_unfinished(run)]
    failed, wasted = _failed(run), _wasted(run)
    found = [*failed, _ended(run), *_reached(run, aim), *heard.sentences(run), *wasted]
    return [*found, *([] if failed else _still_rising(run)), _one_seed(run)]


def _unfinished(run: Recorded) -> str:
    rounds = run.rounds()
    reached = f"round {rounds['round'][-1]}, {duration(rounds['time'][-1])} of virtual time" if rounds else "round 0"
    return f"{run.folder} is unfinished ({reached} recorded). Go on with: turnout resume {shlex.quote(str(run.folder))}"


def _ended(run: Recorded) -> str:
    length = f"after {words.plural(int(run.last('round') or 0), 'round')} and {duration(run.last('time') or 0.0)}"
    judged = telling(run.rounds())
    value = None if judged is None else run.last("_".join(judged))
    if judged is None or value is None:
        return f"Nothing was measured; it ended {length} of virtual time."
    measure = "_".join(judged)
    worst = run.last(f"{measure}_worst_decile")
    beside = "" if worst is None else f" (clients' {WORST_PERCENTILE}: {number(worst)})"
    return f"{words.capital(measure.replace('_', ' '))} {number(value)}{beside} {length} of virtual time."


def _reached(run: Recorded, aim: Target | None) -> list[str]:
    if aim is None:
        return []
    row = aim.first_round(run.rounds())
    if row is None:
        return [f"It never reached {aim}."]
    rounds = run.rounds()
    return [f"It reached {aim} in round {rounds['round'][row]}, after {duration(rounds['time'][row])}."]


def _failed(run: Recorded) -> list[str]:
    """Why the run has no model that its clients have made, and what to try."""
    summary, found = run.summary, []
    if summary.get("nobody_heard"):
        found.append(
            "Nobody was ever heard: no client's update has counted, and the model is the one the run began with. Try a "
            "longer deadline, or fewer crashes; turnout plan shows what these clients can do."
        )
    if str(summary["stopped"]).startswith("diverged"):
        lr = run.config.get("local", {}).get("lr")
        try_lr = f", such as local.lr={lr / 10:g}" if isinstance(lr, int | float) else ""
        found.append(
            f"It went wrong: {summary['stopped']}. Try a smaller learning rate{try_lr}; turnout tune finds one."
        )
    return found


def _wasted(run: Recorded) -> list[str]:
    """What else went wrong."""
    summary, found = run.summary, []
    lost, done = run.total("failed", "cancelled"), run.total("arrived")
    if lost > _LOST * (lost + done):
        reasons = sorted(summary["audit"]["failures"].items(), key=lambda pair: -pair[1])
        how = words.listed([f"{count:,} {reason}" for reason, count in reasons])
        found.append(f"{words.share(lost / (lost + done))} of the jobs brought nothing{f': {how}' if reasons else ''}.")
    for kind, count in summary["audit"].get("events", {}).items():
        if kind.startswith("rejected"):
            whose = summary["audit"].get("event_clients", {}).get(kind)
            of = f" of {words.plural(whose, 'client')}" if whose else ""
            found.append(f"{words.plural(count, kind.replace('_', ' '))}{of}: see the log.")
    return found


def _still_rising(run: Recorded) -> list[str]:
    """Whether the last third of the evaluations went on getting better, beyond how they scatter."""
    judged = telling(run.rounds())
    if judged is None:
        return []
    measure = "_".join(judged)
    values = run.rounds()[measure]
    values = values[np.isfinite(values)]
    values = values[-(len(values) // 3) :]
    if len(values) < 5:
        return []
    steps = np.arange(len(values))
    slope, start = np.polyfit(steps, values, 1)
    scatter = (values - start - slope * steps).std(ddof=2)
    gain = (-slope if lower_is_better(measure) else slope) * (len(values) - 1)
    if gain <= max(2 * scatter, 0.01 * abs(values[-1])):
        return []
    rounds = 2 * int(run.last("round") or 0)
    return [
        f"It was still getting better when it stopped: go on with turnout resume {shlex.quote(str(run.folder))} "
        f"run.rounds={rounds}"
    ]


def _one_seed(run: Recorded) -> str:
    """One seed proves nothing; how to have more."""
    if run.seed is None:
        return "This is one seed, and one seed proves nothing: run others before you compare."
    others = f"{run.seed + 1}..{run.seed + _SEEDS - 1}"
    command = f"turnout sweep {shlex.quote(str(run.folder / 'config.toml'))} seed={others}"
    return f"This is one seed, and one seed proves nothing. Before you compare: {command}"


# -- several --------------------------------------------------------------------------------------------------


def judged_by(rows: Sequence[Row], aim: Target | None = None) -> str | None:
    """The measure that settings are compared by: of the target, else the most telling that all of them have."""
    if aim is not None:
        return aim.measure
    for row in rows:
        found = "_".join(telling(row.runs[0].rounds()) or ())
        if found and all(found in other.quantities for other in rows if any(run.finished for run in other.runs)):
            return found
    return None


def of_rows(rows: Sequence[Row], aim: Target | None = None) -> list[str]:
    """Which setting is better, whether that is more than chance, whom each has not heard, what went wrong."""
    if not rows:
        return []
    runs = [run for row in rows for run in row.runs]
    measure = judged_by(rows, aim)
    found: list[str] = []
    if measure is None:
        found.append("These runs have no measure in common, so none is better than another.")
    else:
        settings = [better.of_row(row, measure) for row in rows]
        ranking = better.rank(measure, settings, lower_is_better(measure))
        found += better.sentences(ranking, settings) or ["None of these runs is finished: nothing can be said yet."]
        found += _sooner(rows, aim) + better.remedy(ranking)
        found += _on_other_data(rows)
    found += _silent(rows)
    unfinished = sum(not run.finished for run in runs)
    if unfinished:
        found.append(f"{words.plural(unfinished, 'unfinished run')} left out of what is said here.")
    if len(runs) > 1 and all(len({run.seed for run in row.runs}) == 1 for row in rows):
        found += _seeds(rows)
    return found


def _sooner(rows: Sequence[Row], aim: Target | None) -> list[str]:
    """Which setting reached the target sooner."""
    if aim is None:
        return []
    reached = [row.quantities.get("seconds_to_target") for row in rows]
    complete = [
        better.of_row(row, "seconds_to_target")
        for row, one in zip(rows, reached, strict=True)
        if one is not None and one.known and len(one.known) == len(one.values)
    ]
    found = []
    for row, one in zip(rows, reached, strict=True):
        known = 0 if one is None else len(one.known)
        if known < len(row.runs):
            found.append(f"{row.label} reached {aim} in {known} of {words.plural(len(row.runs), 'run')}.")
    ranking = better.rank("time", complete, low=True)
    if ranking is None:
        return found
    best = ranking.order[0]
    first = f"{best.label} reached {aim} first, after {duration(best.mean)} of virtual time"
    if not ranking.against:
        return [f"{best.label} reached {aim} after {duration(best.mean)} of virtual time.", *found]
    gap, second = ranking.against[0], ranking.order[1]
    then = f"{second.label} after {duration(second.mean)}"
    if np.isnan(gap.p):
        return [f"{first}, {then}.", *found]
    more = "more than chance" if gap.p < chance.LEVEL else "which may be chance"
    return [f"{first}, {then}: {more} ({gap.test} over {gap.seeds} seeds, {words.chance(gap.p)}).", *found]


def _on_other_data(rows: Sequence[Row]) -> list[str]:
    differing = differences([row.runs for row in rows])
    data = [option for option in differing if option.partition(".")[0] in _OTHER_DATA]
    if not data:
        return []
    return [f"They differ in {words.listed(data)}: what they are measured on may not be the same."]


def _silent(rows: Sequence[Row]) -> list[str]:
    """Whom the settings never heard."""
    alike: dict[str, list[str]] = {}
    for row in rows:
        told = heard.over_seeds([run for run in row.runs if run.finished])
        if told:
            alike.setdefault(told, []).append(row.label)
    if not alike:
        return []
    found = [f"{words.listed(labels)} {told}." for told, labels in list(alike.items())[:_SHOWN]]
    more = sum(map(len, list(alike.values())[_SHOWN:]))
    rest = [f"{words.capital(words.count(more))} other settings left clients out, too."] if more else []
    return [" ".join([*found, *rest, "turnout inspect RUN says whether that is chance or bias."])]


def _seeds(rows: Sequence[Row]) -> list[str]:
    configured = [row.runs[0] for row in rows if row.runs[0].seed is not None]
    if not configured:
        return []
    run = configured[0]
    command = f"turnout sweep {shlex.quote(str(run.folder / 'config.toml'))}"
    return [f"Run more seeds of each, such as: {command} seed={run.seed}..{(run.seed or 0) + _SEEDS - 1}"]


# -- before a run, and between runs ---------------------------------------------------------------------------


def of_tuning(tuning: Tuning, found: Sequence[Tuned]) -> list[str]:
    """The best values of each scheme, whether they are told from the next by more than chance, and which scheme."""
    told: list[str] = []
    bests: list[better.Setting] = []
    for tuned in found:
        settings = [
            better.setting(
                " ".join(f"{choice.option}={value}" for choice, value in zip(tuning.choices, trial.point, strict=True)),
                {run.seed: run.value for run in trial.runs},
                [run.seed for run in trial.runs if run.value is None],
            )
            for trial in tuned.trials
        ]
        if tuned.best is None:
            told.append(f"Every value of {tuned.scheme} diverged: try smaller ones.")
            continue
        ranking = better.rank(tuning.measure, settings, lower_is_better(tuning.measure))
        assert ranking is not None
        sure = better.sentences(ranking, [one for one in settings if not one.lost])
        if tuning.seeds == 1:
            best, *others = ranking.order
            then = f", then {others[0].label} ({others[0].shown})" if others else ""
            sure = [f"{best.label} ends best: {ranking.what} {best.shown}{then}."]
        told += [f"{tuned.scheme}: {sure[0]}", *sure[1:]]
        told += [f"{sentence}." for sentence in tuning.ends(tuned.best)]
        bests.append(better.Setting(tuned.scheme, ranking.order[0].values))
    if len(bests) > 1:
        ranking = better.rank(tuning.measure, bests, lower_is_better(tuning.measure))
        first = better.sentences(ranking, bests)
        note = "Each at its own best value, found on these runs, which flatters all of them: compare with new seeds."
        told = [*first, note, *told]
    if bests and tuning.seeds == 1:
        told.append("With one seed a value, another seed may choose another value: --seeds 3 is surer.")
    return told


def of_outlook(rows: Sequence[Prospect], reliable: bool) -> list[str]:
    """Which waiting policy these clients ask for, and what each would cost."""
    from turnout.report import outlook

    return outlook.sentences(rows, reliable)
