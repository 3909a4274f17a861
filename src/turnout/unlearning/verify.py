"""Check a run's certificates without trusting the code that wrote them: standard library only.

    python -m turnout.unlearning.verify RUN

Reads the audit log, the sensitivity tables and the files; recomputes the hash chain, every choice of a rollback and
every promise, and compares. A problem is a sentence on standard output, and exit code 1.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ENTRIES = ("requested", "planned", "noised", "retrained", "destroying", "destroyed", "superseded", "certified")

BUDGET = ("epsilon", "delta", "sigma", "calibration", "bound", "group_rule", "budget", "weights", "retention")


def problems(run: Path) -> list[str]:
    """What is wrong with the run's record of forgetting; nothing, if all is well."""
    found: list[str] = []
    path = run / "unlearning" / "log.jsonl"
    if not path.exists():
        return [f"{path} does not exist: no client was ever forgotten"]
    entries = check_chain(path.read_bytes(), found)
    if found:
        return found
    requests: dict[int, dict[str, dict[str, Any]]] = {}
    for entry in entries:
        requests.setdefault(entry["request"], {})[entry["event"]] = entry
    groups: list[list[int]] = []
    lineage: list[list[int]] = []
    for number in sorted(requests):
        steps = requests[number]
        if list(steps) != list(ENTRIES[: len(steps)]):
            found.append(f"request {number}: its entries are {', '.join(steps)}")
        if "certified" not in steps:
            found.append(f"request {number}: it is not finished")
            break
        try:
            groups.append(steps["requested"]["clients"])
            found += check_request(run, number, steps, groups, lineage)
        except (KeyError, IndexError, TypeError, ValueError, ArithmeticError) as error:
            found.append(f"request {number}: its record is not whole ({type(error).__name__}: {error})")
        if found:  # what comes after builds on it
            break
        lineage = steps["planned"]["lineage"]
    for kind in ("json", "html"):
        written = {certificate.name for certificate in (run / "unlearning").glob(f"certificate*.{kind}")}
        found += [f"{name} is not in the log" for name in written if _number_of(name) not in requests]
    last = requests[max(requests)]
    if "superseded" in last and _hash(run / "model.safetensors") != last["superseded"]["model"]:
        found.append("model.safetensors is not the model that was certified last")
    return found


def check_chain(text: bytes, found: list[str]) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = []
    previous = "0" * 64
    lines = text.split(b"\n")
    if lines.pop():
        found.append("log: its last line is not whole")
    for number, line in enumerate(lines):
        try:
            entry = json.loads(line)
            rest = {name: value for name, value in entry.items() if name != "hash"}
            right = hashlib.sha256(_canonical(rest)).hexdigest()
            told = (entry["hash"], entry["previous"], entry["number"])
            good = (
                line == _canonical(entry) and told == (right, previous, number) and {"event", "request"} <= set(entry)
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            good = False
        if not good:
            found.append(f"log: line {number + 1} is not as it was written")
            return entries
        previous = entry["hash"]
        entries.append(entry)
    return entries


def check_request(
    run: Path, number: int, steps: dict[str, dict[str, Any]], groups: list[list[int]], before: list[list[int]]
) -> list[str]:
    settings, planned = steps["requested"]["settings"], steps["planned"]
    found: list[str] = []
    tables = []
    for branch, (table_hash, facts_hash) in enumerate(zip(planned["tables"], planned["facts"], strict=True)):
        folder = (run if branch == 0 else run / "unlearning" / f"branch{branch}") / "sensitivity"
        if _hash(folder / "table.jsonl") != table_hash or _hash(folder / "facts.json") != facts_hash:
            return [f"request {number}: the table of branch {branch} is not the one it was planned with"]
        known = json.loads((folder / "facts.json").read_text(encoding="utf-8"))["groups"]
        lines = (folder / "table.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
        tables.append((known, [json.loads(line) for line in lines]))

    def psi(group: list[int], rule: str) -> Callable[[int, int], float]:
        columns = [bound(known, turns, group, rule) for known, turns in tables]
        return lambda branch, at: columns[branch][at]

    threshold = settings["sigma"] / ratio(settings["epsilon"], settings["delta"], settings["calibration"])
    if not _near(threshold, planned["threshold"]):
        found.append(f"request {number}: the threshold is {threshold:.9g}, not {planned['threshold']:.9g}")
    bounds = [psi(group, settings["group_rule"]) for group in (groups[-1], *groups[:-1])]
    total = settings["budget"] == "per_client_total"
    chosen = choose(before, planned["stored"], bounds, threshold * (1 + 1e-12), total)
    if chosen != planned["lineage"]:
        return [*found, f"request {number}: it should have been rolled back to {chosen}, not {planned['lineage']}"]
    path = run / "unlearning" / f"certificate{number}"
    for kind in ("json", "html"):
        if _hash(path.with_suffix(f".{kind}")) != steps["certified"][kind]:
            found.append(f"request {number}: certificate{number}.{kind} is not the one in the log")
            return found
    certificate = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    everybody = sorted(client for group in groups for client in group)
    promises = [(certificate["guarantee"], groups[-1], settings["group_rule"])]
    promises += [
        (promise, group, settings["group_rule"]) for promise, group in zip(certificate["earlier"], groups, strict=False)
    ]
    promises.append((certificate["together"], everybody, "sum"))
    for promise, group, rule in promises:
        at_cuts = [psi(group, rule)(*cut) for cut in planned["lineage"]]
        mu = math.hypot(*(0.0 if value == 0 else value / settings["sigma"] for value in at_cuts))
        right = (mu, _least_epsilon(mu, settings["delta"]), excess(mu, settings["epsilon"]))
        stated = (promise["mu"], promise["epsilon"], promise["delta"])
        if promise["clients"] != group and promise["clients"] != sorted(group):
            found.append(f"request {number}: a promise names {promise['clients']}, not {group}")
        if not all(_near(a, b) for a, b in zip([*right, *at_cuts], [*stated, *promise["psi"]], strict=True)):
            words = "mu {:.6g}, epsilon {:.6g}, delta {:.6g}".format(*right)
            found.append(f"request {number}: the promise to {group} should be {words}")
    found += [
        f"request {number}: its certificate does not say of {name} what the log says"
        for name, value in facts_of(number, steps, everybody).items()
        if certificate[name] != value
    ]
    found += [
        f"request {number}: {name} was to be destroyed"
        for name in steps["destroying"]["files"]
        if _reborn(run, name, steps)
    ]
    start = run / "unlearning" / f"start{number}.safetensors"
    if start.exists() and _hash(start) != steps["noised"]["start"]:
        found.append(f"request {number}: {start.name} is not the model that was noised")
    return found


def facts_of(number: int, steps: dict[str, dict[str, Any]], everybody: list[int]) -> dict[str, Any]:
    """What a certificate repeats of the log."""
    settings, planned, noised = steps["requested"]["settings"], steps["planned"], steps["noised"]
    return {
        "request": number,
        "received": steps["requested"]["at"],
        "version": steps["requested"]["version"],
        "forgotten": everybody,
        "budget": {name: settings[name] for name in BUDGET},
        "threshold": planned["threshold"],
        "rollback": planned["lineage"][-1],
        "lineage": planned["lineage"],
        "noise": {
            "sigma": settings["sigma"],
            "source": planned["noise"],
            "private": planned["noise"] != "a seed that was given",
        },
        "retraining": {name: steps["retrained"][name] for name in ("rounds", "stopped")},
        "destroyed": len(steps["destroying"]["files"]),
        "models": {
            "before": steps["requested"]["model"],
            "rolled back to": noised["rolled_back_to"],
            "retraining began with": noised["start"],
            "after": steps["superseded"]["model"],
        },
        "log": {"entry": steps["superseded"]["number"], "hash": steps["superseded"]["hash"]},
    }


def _reborn(run: Path, name: str, steps: dict[str, dict[str, Any]]) -> bool:
    return (run / name).exists() and _hash(run / name) == steps["destroying"]["files"][name]


# -- the mathematics, once more --------------------------------------------------------------------------------


def bound(known: list[list[int]], turns: list[dict[str, Any]], group: list[int], rule: str) -> list[float]:
    """psi after 0, 1, ... rounds."""
    if rule == "max":
        return [max(values) for values in zip(*(bound(known, turns, [client], "sum") for client in group), strict=True)]
    psi = [0.0]
    for turn in turns:
        rows = [row for row, client in enumerate(turn["clients"]) if client in group]
        left = 1 - sum(turn["shares"][row] for row in rows)
        if rule == "joint" and len(group) > 1:
            step = turn["joint"][[set(each) for each in known].index(set(group))]
        elif not turn["clients"] or (rows and (len(rows) == len(turn["clients"]) or left < 1e-12)):
            step = turn["moved"]
        else:
            step = sum(turn["shares"][row] * turn["distances"][row] for row in rows) / left
        psi.append(turn["contraction"] * psi[-1] + step)
    return psi


def choose(
    lineage: list[list[int]],
    stored: list[list[int]],
    bounds: list[Callable[[int, int], float]],
    threshold: float,
    total: bool,
) -> list[list[int]]:
    kept: list[list[int]] = []
    current = len(stored) - 1
    for branch, last in [*lineage, [current, max(stored[current])]]:
        spent = [math.hypot(*(psi(*cut) for cut in kept)) if total else 0.0 for psi in bounds]
        if branch < current and math.hypot(spent[0], bounds[0](branch, last)) <= threshold:
            kept.append([branch, last])
            continue
        for at in sorted(stored[branch], reverse=True):
            fits = (math.hypot(so_far, psi(branch, at)) <= threshold for so_far, psi in zip(spent, bounds, strict=True))
            if at == 0 or (at <= last and all(fits)):
                return [*kept, [branch, at]]
    return kept


def log_phi(x: float) -> float:
    """log of the normal distribution function."""
    if x > -30:
        return math.log(math.erfc(-x / math.sqrt(2)) / 2)
    ratio_ = 0.0
    for k in range(60, 0, -1):  # Mills ratio as a continued fraction
        ratio_ = k / (-x + ratio_)
    return -x * x / 2 - math.log(math.sqrt(2 * math.pi) * (-x + ratio_))


def excess(mu: float, epsilon: float) -> float:
    """The least delta at this epsilon."""
    if mu == 0:
        return 0.0
    if math.isinf(mu):
        return 1.0
    return max(0.0, math.exp(log_phi(mu / 2 - epsilon / mu)) - math.exp(epsilon + log_phi(-mu / 2 - epsilon / mu)))


def ratio(epsilon: float, delta: float, calibration: str) -> float:
    """sigma / psi."""
    if calibration == "classic":
        return math.sqrt(2 * math.log(1.25 / delta)) / epsilon if epsilon else math.inf
    return _least(lambda sigma: sigma > 0 and excess(1 / sigma, epsilon) <= delta)


def _least_epsilon(mu: float, delta: float) -> float:
    return _least(lambda epsilon: excess(mu, epsilon) <= delta)


def _least(holds: Callable[[float], bool]) -> float:
    if holds(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while not holds(high):
        low, high = high, 2 * high
        if math.isinf(high):
            return high
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


# -- small things ----------------------------------------------------------------------------------------------


def _near(a: float | None, b: float | None) -> bool:
    """JSON has no infinity: it is null there."""
    one, other = (math.inf if value is None else value for value in (a, b))
    return one == other or math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-12)


def _canonical(document: Any) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""


def _number_of(name: str) -> int:
    digits = "".join(filter(str.isdigit, name))
    return int(digits) if digits else -1


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: python -m turnout.unlearning.verify RUN")
        return 2
    found = problems(Path(sys.argv[1]))
    print("\n".join(found) or "The log is whole, and every promise follows from it.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
