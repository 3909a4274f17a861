"""An append-only log that shows every later change: each line carries the hash of the line before.

A line is one JSON object with sorted keys and no spaces; its `hash` is the SHA-256 of the line without it, and
`previous` is the hash of the line before (zeros for the first). Whoever cuts off the last lines leaves a log that is
whole in itself: keep the last hash, which every certificate names, somewhere else too.

RUN/sensitivity/log.jsonl is such a log, of what a tracked run has left when it ended: an entry `ended` with a hash of
every file that a request or a certificate may rest on, and `resumed` where the run goes on after that. The log of
requests carries the last hash of this one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnout.core.errors import UserError
from turnout.core.files import sha256, write_text

if TYPE_CHECKING:
    from turnout.record.sensitivity import Sensitivity


Entry = dict[str, Any]
FIRST = "0" * 64


def line_of(entry: Entry) -> str:
    return json.dumps(entry, sort_keys=True, separators=(",", ":"), allow_nan=False)


def hash_of(entry: Entry) -> str:
    without = {name: value for name, value in entry.items() if name != "hash"}
    return hashlib.sha256(line_of(without).encode()).hexdigest()


class AuditLog:
    """The entries of one run, read from its file and checked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries = read(path) if path.exists() else []

    @property
    def head(self) -> str:
        return str(self.entries[-1]["hash"]) if self.entries else FIRST

    def append(self, event: str, request: int, **facts: Any) -> Entry:
        """The new entry, once it is safely on the disk."""
        entry: Entry = {
            "number": len(self.entries),
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "event": event,
            "request": request,
            **facts,
            "previous": self.head,
        }
        entry = json.loads(line_of(entry))  # as it will be read back
        entry["hash"] = hash_of(entry)
        write_text(self.path, "".join(f"{line_of(each)}\n" for each in (*self.entries, entry)))
        self.entries.append(entry)
        return entry

    def find(self, event: str, request: int) -> Entry | None:
        return next((e for e in self.entries if (e["event"], e["request"]) == (event, request)), None)


def read(path: Path) -> list[Entry]:
    """All entries, or a sentence that says which is not as it was written."""
    previous, entries = FIRST, list[Entry]()
    lines = path.read_bytes().split(b"\n")
    if lines.pop():
        raise UserError(f"audit log {path}: its last line is not whole; the log was changed")
    for number, line in enumerate(lines):
        try:
            entry = json.loads(line)
            same = line == line_of(entry).encode() and entry["hash"] == hash_of(entry)
            if not same or entry["previous"] != previous or entry["number"] != number:
                raise ValueError
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"audit log {path}: line {number + 1} is not as it was written") from error
        previous = entry["hash"]
        entries.append(entry)
    return entries


RECORDS = (
    "config.toml", "plan.json", "result.json", "model.safetensors", "clients.parquet", "history/*", "jobs/*",
    "detectors/*", "sensitivity/table.jsonl", "sensitivity/facts.json",
)  # fmt: skip


def log_of(home: Path) -> AuditLog:
    """Of a run, or of a branch."""
    return AuditLog(home / "sensitivity" / "log.jsonl")


def files_left(home: Path) -> dict[str, str] | None:
    """Hashes by name; None where the run has not ended, or has not ended again."""
    entries = log_of(home).entries
    return dict(entries[-1]["files"]) if entries and entries[-1]["event"] == "ended" else None


def record_end(home: Path, sensitivity: Sensitivity) -> None:
    """Log what is there. Models have the hash with which they were written."""
    paths = sorted(path for pattern in RECORDS for path in home.glob(pattern) if not path.name.startswith("."))
    files = {str(path.relative_to(home)): sha256(path) for path in paths}
    models = sensitivity.models
    for number in models.rounds:
        path = models.path(number)
        files[str(path.relative_to(home))] = models.digests.get(number) or sha256(path)
    log_of(home).append("ended", 0, files=files)


def check_resumable(home: Path) -> None:
    """Raise where the tables or models of an ended run are not what it has left."""
    left = files_left(home) or {}
    for sentence in changes(home, left, skip=[name for name in left if not name.startswith("sensitivity/")]):
        raise UserError(f"resume: {sentence}; restore the file")


def record_resume(home: Path) -> None:
    """Log that an ended run goes on."""
    if files_left(home) is not None:
        log_of(home).append("resumed", 0)


def changes(home: Path, left: dict[str, str], skip: Collection[str] = ()) -> list[str]:
    """A sentence for every file that is gone or another."""
    files = {home / name: digest for name, digest in left.items() if name not in skip}
    changed = (path for path, digest in files.items() if not (path.exists() and sha256(path) == digest))
    return [f"{path} is {'not as the run left it when it ended' if path.exists() else 'gone'}" for path in changed]
