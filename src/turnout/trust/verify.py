"""Check a run's certificates without trusting the code that wrote them: standard library only.

    python -m turnout.trust.verify RUN [--head HASH]

Reads the audit log, the sensitivity tables and the files; recomputes the hash chain, every choice of a rollback and
every promise, and compares; and every file that a run had left when it ended with its hash. A problem is a sentence on
standard output, and exit code 1.

Whoever can write all of RUN can write a log anew that is whole in itself. That shows only against a hash kept
elsewhere: `--head` is the last hash of the log, as `turnout run` and `turnout unlearn` print it.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ENTRIES = ("requested", "planned", "noised", "retrained", "destroying", "destroyed", "superseded", "certified")
OF_ABSENT = ("requested", "planned", "certified")  # of clients that never took part
FIRST = "0" * 64
SEED = "a seed that was given"
NOBODY = "none: no client of the request ever took part"
REPLACED = ("model.safetensors", "clients.parquet", "result.json")
BUDGET = ("epsilon", "delta", "sigma", "calibration", "bound", "group_rule", "budget", "weights", "retention")
Steps = dict[str, dict[str, Any]]  # the entries of one request, by event
Tables = dict[int, tuple[dict[str, Any], list[dict[str, Any]]]]  # by branch: facts, and what is known of every round
Bound = Callable[[int, int], float]  # at a branch, at a round
Psi = Callable[[list[int], str], Bound]  # of a group, by which rule


def problems(run: Path, head: str | None = None) -> list[str]:
    """What is wrong with the run's record of forgetting; nothing, if all is well."""
    found: list[str] = []
    path, first = run / "unlearning" / "log.jsonl", run / "sensitivity" / "log.jsonl"
    if not path.exists() and not first.exists():
        return [f"{path} does not exist: no client was ever forgotten, and the run was not tracked to its end"]
    entries = read_log(path, found) if path.exists() else []
    if not found:
        last = entries or read_log(first, found)
        found += check_head(head, [entry["hash"] for entry in last]) if head is not None and last else []
    if found:
        return found
    requests: dict[int, Steps] = {}
    for entry in entries:
        requests.setdefault(entry["request"], {})[entry["event"]] = entry
    found += check_requests(run, requests)
    found = found or list(check_left(run, entries))
    known = {f"certificate{number}" for number in requests}
    for kind in ("json", "html"):
        written = sorted((run / "unlearning").glob(f"certificate*.{kind}"))
        found += [f"{certificate.name} is not in the log" for certificate in written if certificate.stem not in known]
    models = [entry["model"] for entry in entries if entry["event"] == "superseded"]
    if models and _hash(run / "model.safetensors") != models[-1]:
        found.append("model.safetensors is not the model that was certified last")
    return found


def read_log(path: Path, found: list[str]) -> list[dict[str, Any]]:
    text = path.read_bytes() if path.exists() else b""
    if not text:
        found.append(f"{path} is empty: its lines were cut off" if path.exists() else f"{path} does not exist")
        return []
    return check_chain(text, found)


def check_head(head: str, hashes: list[str]) -> list[str]:
    if head == hashes[-1]:
        return []
    if head in hashes:
        return [f"log: {len(hashes) - 1 - hashes.index(head)} entries come after {head}; the last is {hashes[-1]}"]
    return [f"log: it ends with {hashes[-1]}, and {head} is nowhere in it: lines were cut off, or written anew"]


def check_requests(run: Path, requests: dict[int, Steps]) -> list[str]:
    found, groups, lineage = list[str](), list[list[int]](), list[list[int]]()
    for number, steps in sorted(requests.items()):
        order = OF_ABSENT if steps.get("planned", {}).get("noise") == NOBODY else ENTRIES
        if list(steps) != list(order[: len(steps)]):
            found.append(f"request {number}: its entries are {', '.join(steps)}")
        if "certified" not in steps:
            found.append(f"request {number}: it is not finished")
            break
        try:
            groups.append(steps["requested"]["clients"])
            for problem in check_request(run, number, steps, groups, lineage):
                found.append(f"request {number}: {problem}")
        except (KeyError, IndexError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
            found.append(f"request {number}: its record is not whole ({type(error).__name__}: {error})")
        if found:  # what comes after builds on it
            break
        lineage = steps["planned"]["lineage"]
    return found


def check_left(run: Path, entries: list[dict[str, Any]]) -> Iterator[str]:
    """Check that every branch is what it was when its run ended, but for what requests have destroyed or replaced."""
    gone = {name for entry in entries if entry["event"] == "destroying" for name in entry["files"]}
    replaced = [entry.get("files", {}) for entry in entries if entry["event"] == "superseded"]
    for branch, start in enumerate((entry["start"] for entry in entries if entry["event"] == "noised"), 1):
        name = f"unlearning/start{branch}.safetensors"
        if start is not None and name not in gone and _hash(run / name) != start:
            yield f"{name} is not the model that was noised"
    for branch in range(1 + sum(entry["event"] == "retrained" for entry in entries)):
        home, prefix = _home(run, branch), "" if branch == 0 else f"unlearning/branch{branch}/"
        path = home / "sensitivity" / "log.jsonl"
        if not path.exists():
            continue
        log = read_log(path, found := list[str]())
        yield from found
        left = log[-1].get("files", {}) if log and log[-1]["event"] == "ended" else {}
        if branch == 0 and replaced:
            left = {name: value for name, value in left.items() if name not in REPLACED} | replaced[-1]
        for name, value in left.items():
            if prefix + name not in gone and _hash(home / name) != value:
                yield f"{prefix}{name} {'is not as the run left it' if (home / name).exists() else 'is gone'}"


def check_chain(text: bytes, found: list[str]) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = []
    previous = FIRST
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
    run: Path, number: int, steps: Steps, groups: list[list[int]], before: list[list[int]]
) -> Iterator[str]:
    """Check that a request was answered as its log says, and as it should have been."""
    settings, planned = steps["requested"]["settings"], steps["planned"]
    tables: Tables = {}
    for branch, (table_hash, facts_hash) in enumerate(zip(planned["tables"], planned["facts"], strict=True)):
        if table_hash is None:  # not needed
            continue
        folder = _home(run, branch) / "sensitivity"
        if _hash(folder / "table.jsonl") != table_hash or _hash(folder / "facts.json") != facts_hash:
            yield f"the table of branch {branch} is not the one it was planned with"
            return
        lines = (folder / "table.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
        facts = json.loads((folder / "facts.json").read_text(encoding="utf-8"))
        tables[branch] = (facts, [json.loads(line) for line in lines])
    if ended := list(check_ends(run, steps)):
        yield from ended
        return

    def psi(group: list[int], rule: str) -> Bound:
        columns = {branch: bound(facts["groups"], turns, group, rule) for branch, (facts, turns) in tables.items()}
        return lambda branch, at: columns[branch][at] if at else 0.0

    threshold = settings["sigma"] / ratio(settings["epsilon"], settings["delta"], settings["calibration"])
    if not _near(threshold, planned["threshold"]):
        yield f"the threshold is {threshold:.9g}, not {planned['threshold']:.9g}"
    if planned["noise"] == NOBODY:
        if part := [client for client in groups[-1] if took_part(client, tables, before)]:
            yield f"client {part[0]} may have taken part, and nothing was done"
            return
        chosen = before
    elif steps["requested"].get("from_scratch"):
        chosen = [[0, 0]]
    else:
        bounds = [psi(group, settings["group_rule"]) for group in (groups[-1], *groups[:-1])]
        total = settings["budget"] == "per_client_total"
        chosen = choose(before, planned["stored"], bounds, threshold * (1 + 1e-12), total)
    if chosen != planned["lineage"]:
        yield f"it should have been rolled back to {chosen}, not {planned['lineage']}"
        return
    path = run / "unlearning" / f"certificate{number}"
    for kind in ("json", "html"):
        if _hash(path.with_suffix(f".{kind}")) != steps["certified"][kind]:
            yield f"certificate{number}.{kind} is not the one in the log"
            return
    certificate = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    yield from _check_certificate(certificate, number, steps, groups, psi)
    for name, value in steps.get("destroying", {}).get("files", {}).items():
        if (run / name).exists() and _hash(run / name) == value:
            yield f"{name} was to be destroyed"


def check_ends(run: Path, steps: Steps) -> Iterator[str]:
    """Check that the logs of runs end as they did when a request came."""
    ends = dict(enumerate(steps["requested"].get("ended", [])))
    if "ended" in steps.get("retrained", {}):
        ends[steps["planned"]["branch"]] = steps["retrained"]["ended"]
    for branch, head in ends.items():
        path = _home(run, branch) / "sensitivity" / "log.jsonl"
        log = check_chain(path.read_bytes() if path.exists() else b"", found := list[str]())
        yield from found
        if head is not None and (log[-1]["hash"] if log else FIRST) != head:
            yield f"{path} does not end as it did when the request came"


def _check_certificate(
    certificate: dict[str, Any], number: int, steps: Steps, groups: list[list[int]], psi: Psi
) -> Iterator[str]:
    settings, lineage = steps["requested"]["settings"], steps["planned"]["lineage"]
    everybody = sorted(client for group in groups for client in group)
    stated_to = [(certificate["guarantee"], groups[-1]), *zip(certificate["earlier"], groups, strict=False)]
    promises = [(promise, group, settings["group_rule"]) for promise, group in stated_to]
    for promise, group, rule in (*promises, (certificate["together"], everybody, "sum")):
        at_cuts = [psi(group, rule)(*cut) for cut in lineage]
        mu = math.hypot(*(0.0 if value == 0 else value / settings["sigma"] for value in at_cuts))
        right = (mu, _least_epsilon(mu, settings["delta"]), excess(mu, settings["epsilon"]))
        stated = (promise["mu"], promise["epsilon"], promise["delta"])
        if promise["clients"] != group and promise["clients"] != sorted(group):
            yield f"a promise names {promise['clients']}, not {group}"
        if not all(_near(a, b) for a, b in zip([*right, *at_cuts], [*stated, *promise["psi"]], strict=True)):
            yield "the promise to {} should be mu {:.6g}, epsilon {:.6g}, delta {:.6g}".format(group, *right)
    for name, value in facts_of(number, steps, everybody).items():
        if certificate[name] != value:
            yield f"its certificate does not say of {name} what the log says"
    doubtful = any(one["state"] in ("fails", "unknown") for one in certificate["assumptions"])
    if doubtful and "heuristic" not in certificate["statement"]:
        yield "its certificate does not say that the bound is heuristic"


def facts_of(number: int, steps: Steps, everybody: list[int]) -> dict[str, Any]:
    """What a certificate repeats of the log."""
    settings, planned = steps["requested"]["settings"], steps["planned"]
    absent = planned["noise"] == NOBODY
    noised = {"rolled_back_to": None, "start": None} if absent else steps["noised"]
    retrained = {"rounds": 0, "stopped": "not needed"} if absent else steps["retrained"]
    last = planned if absent else steps["superseded"]
    return {
        "request": number,
        "received": steps["requested"]["at"],
        "version": steps["requested"]["version"],
        "forgotten": everybody,
        "budget": {name: settings[name] for name in BUDGET},
        "threshold": planned["threshold"],
        "rollback": None if absent else planned["lineage"][-1],
        "lineage": planned["lineage"],
        "noise": {
            "sigma": settings["sigma"],
            "source": planned["noise"],
            "private": planned["noise"] != SEED,
        },
        "retraining": {name: retrained[name] for name in ("rounds", "stopped")},
        "destroyed": 0 if absent else len(steps["destroying"]["files"]),
        "models": {
            "before": steps["requested"]["model"],
            "rolled back to": noised["rolled_back_to"],
            "retraining began with": noised["start"],
            "after": steps["requested"]["model"] if absent else last["model"],
        },
        "log": {"entry": last["number"], "hash": last["hash"]},
    }


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


def took_part(client: int, tables: Tables, lineage: list[list[int]]) -> bool:
    """Whether a client may have had a part in the model."""
    current = max(tables)
    for branch, number in [*(cut for cut in lineage if cut[1]), [current, len(tables[current][1])]]:
        facts, turns = tables[branch]
        if facts["prying"]:
            return True
        if any(client in turn["clients"] or (turn["moved"] > 0 and not turn["clients"]) for turn in turns[:number]):
            return True
    return False


def choose(
    lineage: list[list[int]], stored: list[list[int]], bounds: list[Bound], threshold: float, total: bool
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
    near, far = log_phi(mu / 2 - epsilon / mu), log_phi(-mu / 2 - epsilon / mu)
    return max(0.0, math.exp(near) - math.exp(min(0.0, epsilon + far)))


def ratio(epsilon: float, delta: float, calibration: str) -> float:
    """sigma / psi."""
    if calibration == "classic":
        return math.sqrt(2 * math.log(1.25 / delta)) / epsilon if epsilon else math.inf
    return _least(lambda sigma: sigma > 0 and excess(1 / sigma, epsilon) <= delta)


def _least_epsilon(mu: float, delta: float) -> float:
    return _least(lambda epsilon: excess(mu, epsilon) <= delta)


def _least(holds: Callable[[float], bool]) -> float:
    """Find the least number from 0 on for which it holds: such numbers are in the order of their bits."""

    def number(bits: int) -> float:
        return float(struct.unpack("<d", bits.to_bytes(8, "little"))[0])

    return number(bisect_left(range(0x7FF << 52), True, key=lambda bits: holds(number(bits))))


def _near(a: float | None, b: float | None) -> bool:
    """JSON has no infinity: it is null there."""
    one, other = (math.inf if value is None else value for value in (a, b))
    return one == other or math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-12)


def _canonical(document: Any) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""


def _home(run: Path, branch: int) -> Path:
    return run if branch == 0 else run / "unlearning" / f"branch{branch}"


def main() -> int:
    run, *rest = sys.argv[1:] or [""]
    if not run or (rest and (len(rest) != 2 or rest[0] != "--head")):
        print("usage: python -m turnout.trust.verify RUN [--head HASH]")
        return 2
    found = problems(Path(run), rest[1] if rest else None)
    print("\n".join(found) or "The log is whole, and every promise follows from it.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
