"""The folder of a run: who works on it, and whether it still holds what was written there.

`manifest.json` has the length and digest of every file of the run, and a digest of itself. It is written with every
checkpoint, when a run ends, and by whoever changes a file of a finished run. While a run is under way it knows the
files that stay what they are: it is true whenever the process dies. A checkpoint has a digest of its own.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain, count
from pathlib import Path
from typing import Any

from turnout.core.errors import UserError
from turnout.core.files import cannot_write, read_json, write_text

MANIFEST = "manifest.json"
CARD = "model_card.md"
PERSONAL = "personal.safetensors"  # the models of clients, a row a client in every tensor
FORMAT = 2  # of a run's folder; those of format 1, which they do not say, have no manifest
_FILES = (
    "config.toml", "plan.json", "log.txt", "result.json", "model.safetensors", "clients.parquet", "report.html",
    "overlay.svg", "names.json", "preprocess.json", PERSONAL, CARD,
)  # fmt: skip
READ = (MANIFEST, "config.toml", "plan.json", "result.json")  # what every command that shows a run needs
RECORDS = ("history", "jobs", "detectors", "arrivals")  # tables: segments that are written once
_FOLDERS = (*RECORDS, "checkpoints", "sensitivity", "unlearning")
# of an unfinished run, beside what lasts
_UNDER_WAY = ("config.toml", "plan.json", "log.txt", "names.json", "preprocess.json")
_GROWING = ("log.txt", "table.jsonl")  # lines are added behind what the manifest knows
_MISSING, _CHANGED = "is missing", "is damaged: it is not what was written"

Entry = list[Any]  # length in bytes, digest


def _digest(path: Path, length: int | None = None) -> str:
    """Digest of a file, or of its first bytes."""
    with path.open("rb") as file:
        if length is None:
            return str(hashlib.file_digest(file, _hash).hexdigest())
        return str(_hash(file.read(length)).hexdigest())


def _hash(data: bytes = b"") -> Any:
    return hashlib.blake2b(data, digest_size=16)


def _own_digest(files: dict[str, Entry]) -> str:
    return str(_hash(json.dumps(files, sort_keys=True).encode()).hexdigest())


def _names(folder: Path) -> Iterator[str]:
    """Files of a run, as the manifest calls them."""
    paths = [folder / name for name in _FILES]
    for part in _FOLDERS:
        paths += sorted((folder / part).rglob("*"))
    for path in paths:
        if path.is_file() and not path.name.startswith(".") and path.suffix != ".partial":
            yield path.relative_to(folder).as_posix()


def _written_once(name: str) -> bool:
    """Whether a file never changes after it was written."""
    return name.startswith((*RECORDS, "sensitivity/models/"))


def _lasts(name: str) -> bool:
    """Whether a file is written once, or only grows."""
    return _written_once(name) or name == "sensitivity/table.jsonl"


def _fault(folder: Path, name: str, entry: Entry) -> str | None:
    """What is wrong with a file."""
    path, (length, digest) = folder / name, entry
    try:
        size = path.stat().st_size
        growing = path.name in _GROWING and size > length
        whole = (growing or size == length) and _digest(path, length if growing else None) == digest
    except FileNotFoundError:
        return _MISSING
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return None if whole else _CHANGED


class RunFolder:
    """A run that is under way: seals its folder, and keeps an earlier run of the same name until it can go on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.replaced = path.with_name(f".{path.name}.replaced")  # the earlier run, until this one has a checkpoint
        self._files: dict[str, Entry] = {}
        self._seen: dict[str, tuple[int, int, int]] = {}  # inode, length, time of the last change
        self._made = False

    def make(self, overwrite: bool) -> None:
        """Make a new, empty folder; an old run is only replaced when asked for, and nothing else ever is."""
        folder = self.path
        if self.replaced.exists():  # whoever was to replace it was killed
            (self.settle if self.has_checkpoint else self._put_back)()
        try:
            if folder.exists() and any(path.suffix != ".partial" for path in folder.iterdir()):
                if not overwrite:
                    raise UserError(
                        f"run.name: {folder} already holds a run; choose another run.name, pass --overwrite to replace "
                        f"it, or continue it with: turnout resume {folder}"
                    )
                if not (folder / "plan.json").exists():
                    raise UserError(f"run.name: {folder} is not empty and not a run; it is not overwritten")
                folder.rename(self.replaced)
            folder.mkdir(parents=True, exist_ok=True)
            self._made = True
        except OSError as error:
            raise cannot_write(folder, error) from error

    @property
    def has_checkpoint(self) -> bool:
        return any((self.path / "checkpoints").glob("*.safetensors"))

    def undo(self) -> None:
        """Remove what `make` made: nothing half-written. The run it was to replace is there again."""
        if self._made:
            self._made = False
            self._put_back()

    def _put_back(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        if self.replaced.exists():
            self.replaced.rename(self.path)

    def settle(self) -> None:
        """The new run can go on whatever happens: remove the one it replaces."""
        shutil.rmtree(self.replaced, ignore_errors=True)

    def trust(self, lasting: dict[str, Entry]) -> None:
        """Go on from a checkpoint that knows these files."""
        self._files = dict(lasting)

    def lasting(self, version: int) -> dict[str, Entry]:
        """What a checkpoint of that version needs beside itself. The model of this very version is in it."""
        self._look()
        own = f"sensitivity/models/{version:09d}.safetensors"
        return {name: entry for name, entry in self._files.items() if _lasts(name) and name != own}

    def damaged(self, lasting: dict[str, Entry]) -> str | None:
        """The first of the files that a checkpoint knows which is not what it was, with what is wrong."""
        faults = ((name, _fault(self.path, name, entry)) for name, entry in lasting.items())
        return next((f"{name}, which {fault}" for name, fault in faults if fault), None)

    def seal(self, *, finished: bool = False, without: Iterable[str] = ()) -> None:
        """Write the manifest: of all files, or of those that stay what they are; `without` some about to change."""
        self._look()
        kept = (name for name in self._files if finished or _lasts(name) or name in _UNDER_WAY)
        _write(self.path, {name: self._files[name] for name in kept if name not in without})

    def _look(self) -> None:
        """Digest what is new or may have changed."""
        found, seen = {}, {}
        for name in _names(self.path):
            about = (self.path / name).stat()
            seen[name] = (about.st_ino, about.st_size, about.st_mtime_ns)
            known = self._files.get(name) if _written_once(name) or self._seen.get(name) == seen[name] else None
            found[name] = known or _entry(self.path / name)
        self._files, self._seen = found, seen


def _entry(path: Path) -> Entry:
    return [path.stat().st_size, _digest(path)]


def _write(folder: Path, files: dict[str, Entry]) -> None:
    document = {"format": FORMAT, "files": files, "digest": _own_digest(files)}
    write_text(folder / MANIFEST, json.dumps(document, indent=1) + "\n")


def _read(folder: Path) -> dict[str, Entry]:
    """What the manifest knows; raises `UserError` if it is damaged."""
    document = read_json(folder / MANIFEST)
    try:
        files: dict[str, Entry] = document["files"]
        whole = document["digest"] == _own_digest(files)
    except (KeyError, TypeError, ValueError):
        whole = False
    if not whole:
        raise UserError(f"{folder / MANIFEST} {_CHANGED}")
    return files


def check_is_run(command: str, folder: Path, mark: str = "config.toml") -> None:
    """Raise unless a folder is that of a run: it has this file, or had it."""
    if not any((folder / name).exists() for name in (mark, MANIFEST)):
        raise UserError(f"{command}: {folder} is not the folder of a run (it has no {mark})")


def _has_manifest(folder: Path) -> bool:
    """Whether the run is of a version that writes one."""
    if (folder / MANIFEST).exists():
        return True
    try:
        return bool(json.loads((folder / "plan.json").read_text(encoding="utf-8")).get("format", 1) >= FORMAT)
    except (OSError, ValueError, AttributeError, TypeError, RecursionError):
        return False


def damage(folder: Path) -> dict[str, str]:
    """Files of a run that are not what was written, each with what is wrong. A run that is under way changes its files:
    what the manifest has said meanwhile counts."""
    if not _has_manifest(folder):
        return {}
    found: dict[str, str] = {}
    for _ in range(3):
        if not (folder / MANIFEST).exists():
            return {MANIFEST: _MISSING}
        try:
            files = _read(folder)
        except UserError:
            return {MANIFEST: _CHANGED}
        found = {name: fault for name, entry in files.items() if (fault := _fault(folder, name, entry))}
        with suppress(UserError):
            if not found or _read(folder) == files:
                break
    return found


def examine(command: str, folder: Path, needed: Iterable[str]) -> list[str]:
    """Raise if a file or folder that a command needs is damaged; sentences about the others that are."""
    found, needed = damage(folder), tuple(needed)
    for name, fault in found.items():
        if name in needed or name.partition("/")[0] in needed:
            raise UserError(f"{command}: {folder / name} {fault}; {_remedy(folder, name)}")
    return [f"{folder / name} {fault}" for name, fault in found.items()]


def _remedy(folder: Path, name: str) -> str:
    if name == "config.toml":
        return f"restore it, and give changes as overrides: turnout resume {folder} run.rounds=..."
    if name in (MANIFEST, "result.json", "model.safetensors", "clients.parquet", "report.html"):
        return f"restore it, or have it written again by: turnout resume {folder}"
    if name.startswith(RECORDS):
        return f"restore it, or have computed again what checkpoints allow by: turnout resume {folder}"
    return "restore it from a copy"


def reseal(folder: Path, *names: str) -> None:
    """Tell the manifest of a run about files that were changed on purpose; without names, about all that are there."""
    if not (folder / MANIFEST).exists():
        return
    if not names:
        RunFolder(folder).seal(finished=True)
        return
    _write(folder, _read(folder) | {name: _entry(folder / name) for name in names if (folder / name).exists()})


def unseal(folder: Path, *names: str) -> None:
    """Tell the manifest of a run that these files are about to change or go."""
    if (folder / MANIFEST).exists():
        _write(folder, {name: entry for name, entry in _read(folder).items() if name not in names})


def free_name(folder: Path) -> Path:
    """The folder itself if nothing is there, else the next one: digits, digits-2, digits-3."""
    others = (folder.with_name(f"{folder.name}-{number}") for number in count(2))
    return next(found for found in chain([folder], others) if not (found.exists() and any(found.iterdir())))


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Let one process at a time work on a folder; a second one gets a sentence. A process that dies lets go."""
    folder = folder.resolve()
    path = folder.with_name(f".{folder.name}.lock")
    new = [parent for parent in path.parents if not parent.exists()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = _hold(path)
    except OSError as error:
        raise cannot_write(path.parent, error) from error
    if handle is None:
        raise UserError(f"{folder}: another process is working on it; wait until it ends")
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(handle)
        for parent in new:  # nothing is left of what was refused
            with suppress(OSError):
                parent.rmdir()


def _hold(path: Path) -> int | None:
    """Lock a file; None if somebody else has."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return None
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), path.stat()):
                return handle
        os.close(handle)  # who had it before removed the file in between
