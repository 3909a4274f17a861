"""What a site allows: `policy.toml` in its folder, read again for every message, which nobody else can change.

A request beyond it is refused with a code and a sentence, which the server shows. A file that cannot be read, or that
has an option that nobody knows, refuses everything: nothing falls back to what is usual.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from turnout.core.errors import UserError, unknown
from turnout.core.files import append_lines, read_toml, reading

POLICY, LEDGER = "policy.toml", "ledger.jsonl"
NEVER = -1  # seconds until asking again may help: not before something is changed
CODES = (
    "policy", "study", "preprocess", "expired", "algorithm", "model", "code", "too_much", "spent", "cohort",
    "statistics", "measures", "hours", "data_changed", "data", "malformed", "failed",
)  # fmt: skip
LONGEST = 200  # characters of a reason
TEMPLATE = """\
# What this site allows. Nobody else can change it; it is read again for every message.
# expires = 2027-01-01            # the last day, UTC; without it no day is the last
algorithms = ["*"]                # names, or sha256:... as turnout deploy check shows it
models = ["*"]                    # names, or sha256:...; own code module:Name only if it is named here
max_epochs = 50                   # of a job
max_steps = 1000000               # of a job
max_rounds = 1000                 # of the study
max_bytes_up = 100000000000       # of the study
min_cohort = 3                    # sites that take part, at least
min_cell = 5                      # rows of which nothing is summed where there are fewer
statistics = true                 # sums over training rows: counts, means, deviations, words of min_cell rows
measures = ["*"]                  # what of an evaluation may leave, as sums: loss, accuracy, confusion, scores
hours = ["00:00-24:00"]           # in which it takes part
timezone = "UTC"
data_may_change = false           # whether it goes on when its table is another than at enrolment
"""


@dataclass(frozen=True)
class Policy:
    """Limits of one site."""

    expires: datetime.date | None = None
    algorithms: Sequence[str] = ("*",)
    models: Sequence[str] = ("*",)
    max_epochs: int = 50
    max_steps: int = 1_000_000
    max_rounds: int = 1000
    max_bytes_up: int = 100_000_000_000
    min_cohort: int = 3
    min_cell: int = 5
    statistics: bool = True
    measures: Sequence[str] = ("*",)
    hours: Sequence[str] = ("00:00-24:00",)
    timezone: str = "UTC"
    data_may_change: bool = False

    @classmethod
    def read(cls, folder: Path) -> Policy:
        """Read the file of a site's folder; whatever is wrong with it is one sentence."""
        document = read_toml(folder / POLICY)
        for name, value in document.items():
            if name not in {part.name for part in fields(cls)}:
                raise unknown(f"{POLICY}: option", name, [part.name for part in fields(cls)])
            if not _fits(name, value):
                raise UserError(f"{POLICY}: {name} = {value!r} is no value of it; see the file that init wrote")
        policy = cls(**document)
        policy.opens_in(datetime.datetime.now(datetime.UTC))
        return policy

    def opens_in(self, now: datetime.datetime) -> int:
        """Give the seconds until the hours begin; 0 within them."""
        try:
            local = now.astimezone(ZoneInfo(self.timezone))
        except (OSError, ValueError, KeyError) as error:
            raise UserError(f"{POLICY}: timezone = {self.timezone!r}; write one such as Europe/Berlin") from error
        at = local.hour * 3600 + local.minute * 60 + local.second
        spans = [_span(text) for text in self.hours]
        return min((0 if begin <= at < end else (begin - at) % 86400) for begin, end in spans)


_LISTS = ("algorithms", "models", "measures", "hours")
_LEAST = {"max_epochs": 0, "max_steps": 0, "max_rounds": 0, "max_bytes_up": 0, "min_cohort": 1, "min_cell": 1}


def _fits(name: str, value: Any) -> bool:
    if name in _LISTS:
        words = isinstance(value, list) and all(isinstance(part, str) for part in value)
        return words and (name != "hours" or len(value) > 0)
    if name in _LEAST:
        return type(value) is int and value >= _LEAST[name]
    kinds = {"expires": datetime.date, "timezone": str, "statistics": bool, "data_may_change": bool}
    return type(value) is kinds[name]


def _span(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d\d):(\d\d)-(\d\d):(\d\d)", text)
    begin, end = (int(found[i]) * 3600 + int(found[i + 1]) * 60 for i in (1, 3)) if found else (0, 0)
    if not 0 <= begin < end <= 86400:
        raise UserError(f"{POLICY}: hours has {text!r}; write spans of one day such as 20:00-24:00")
    return begin, end


class RefusedError(Exception):
    """A request that a site does not carry out."""

    def __init__(self, code: str, why: str, until: int = NEVER) -> None:
        super().__init__(why)
        self.code, self.until = code, until
        self.why = "".join(c for c in why.replace("\n", " ") if c.isascii() and c.isprintable())[:LONGEST]


def digest_of(settings: dict[str, Any], sections: Sequence[str]) -> str:
    """Name what a configuration says in some sections, and the files of users' code that it names."""
    said = {section: settings[section] for section in sections if settings.get(section)}
    found = hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode())
    for word in sorted(_code(said)):
        name = word.partition(":")[0].replace(".", "/") + ".py"
        files = [Path(place or ".") / name for place in ("", *sys.path)]
        found.update(next((file.read_bytes() for file in files if file.is_file()), b""))
    return f"sha256:{found.hexdigest()}"


def _code(value: Any) -> set[str]:
    """Find the names of users' code in options."""
    return {word for word in _words(value) if re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", word)}


def _words(value: Any) -> set[str]:
    if isinstance(value, dict):
        return {word for part in value.values() for word in _words(part)}
    if isinstance(value, list):
        return {word for part in value for word in _words(part)}
    return {value} if isinstance(value, str) else set()


OF_ALGORITHM = ("algorithm", "local", "sampler", "wait", "weigh", "remember", "rule", "optimiser", "serve", "privacy")
OF_MODEL = ("model", "task")


def check_standing(policy: Policy, settings: dict[str, Any], now: datetime.datetime) -> None:
    """Refuse what does not depend on the request: the study's method and model, the day and the hour."""
    if policy.expires is not None and now.astimezone(datetime.UTC).date() > policy.expires:
        raise RefusedError("expired", f"the policy ended on {policy.expires}")
    for code, option, sections in (
        ("algorithm", policy.algorithms, OF_ALGORITHM),
        ("model", policy.models, OF_MODEL),
    ):
        name, digest = str(settings.get(code, {}).get("name")), digest_of(settings, sections)
        if not {"*", name, digest} & {*option}:
            raise RefusedError(code, f"{code}s allows {', '.join(option) or 'none'}; this is {name}")
    strange = _code(settings) - {*policy.models, *policy.algorithms}
    if strange and digest_of(settings, OF_MODEL) not in policy.models:
        raise RefusedError("code", f"models does not name {min(strange)}, which is no code of Turnout")
    if seconds := policy.opens_in(now):
        raise RefusedError("hours", f"hours allows {', '.join(policy.hours)} ({policy.timezone})", seconds)


def check_cohort(policy: Policy, members: int) -> None:
    if members < policy.min_cohort:
        raise RefusedError("cohort", f"min_cohort is {policy.min_cohort}; {members} sites take part", 60)


def check_work(policy: Policy, ledger: Ledger, epochs: float, steps: int, version: int) -> None:
    """Refuse a job that takes more than is allowed, or that comes when all is spent."""
    if epochs > policy.max_epochs:
        raise RefusedError("too_much", f"max_epochs is {policy.max_epochs}; the job asks for {epochs:g}")
    if steps > policy.max_steps:
        raise RefusedError("too_much", f"max_steps is {policy.max_steps}; the job asks for {steps}")
    if version not in ledger.versions and len(ledger.versions) >= policy.max_rounds:
        raise RefusedError("spent", f"max_rounds is {policy.max_rounds}; as many were taken part in")
    if ledger.bytes_up >= policy.max_bytes_up:
        raise RefusedError("spent", f"max_bytes_up is {policy.max_bytes_up}; {ledger.bytes_up} were sent")


def check_measures(policy: Policy, asked: Sequence[str]) -> None:
    if "*" not in policy.measures and (others := [name for name in asked if name not in policy.measures]):
        allowed = ", ".join(policy.measures) or "none"
        raise RefusedError("measures", f"measures allows {allowed}; the server asks for {', '.join(others)}")


class Ledger:
    """`ledger.jsonl`: a line for each message that was answered or refused, at the site."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / LEDGER
        self.versions: set[int] = set()
        self.bytes_up = 0
        for line in self.lines():
            self._count(line)

    def lines(self) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        with reading(self.path):
            return [dict(json.loads(line)) for line in self.path.read_text(encoding="utf-8").splitlines()]

    def _count(self, line: dict[str, Any]) -> None:
        self.bytes_up += int(line["bytes_up"])
        if line["asked"] == "train" and not line["refused"]:
            self.versions.add(int(line["version"]))

    def note(self, asked: str, version: int, bytes_up: int, refused: str = "", why: str = "") -> None:
        at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        line = {"at": at, "asked": asked, "version": version, "bytes_up": bytes_up, "refused": refused, "why": why}
        append_lines(self.path, [json.dumps(line)])
        self._count(line)
