"""What a tracked run has left when it ended: a hash of every file that a request or a certificate may rest on.

They are in a log of the kind of `turnout.record.signed`, RUN/sensitivity/log.jsonl: an entry `ended` with the hashes,
and `resumed` where the run goes on after that. The log of requests carries the last hash of this one.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from turnout.core.errors import UserError
from turnout.core.files import sha256
from turnout.record.signed import AuditLog

if TYPE_CHECKING:
    from turnout.record.sensitivity import Sensitivity

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
    found = []
    for name, digest in left.items():
        path = home / name
        if name not in skip and not (path.exists() and sha256(path) == digest):
            found.append(f"{path} is {'not as the run left it when it ended' if path.exists() else 'gone'}")
    return found
