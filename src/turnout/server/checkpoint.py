"""Checkpoints: one safetensors file each, written aside, synced, then renamed. The one before is kept as a fallback."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from turnout.core.errors import UserError
from turnout.core.files import write_tensors

if TYPE_CHECKING:
    from turnout.record.run_folder import RunFolder
    from turnout.server.server import Server

FORMAT = 3  # of what a server saves: works and modifiers have short names
READ = (2, 3)  # 2 is that of version 0.1


def _digest(tensors: dict[str, Tensor]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].numpy().tobytes())
    return digest.hexdigest()


class Checkpoints:
    """Checkpoints of one run in one folder. `fingerprint` names the configuration, as `former` did in version 0.1;
    another one is refused. A checkpoint knows the digests of the files in `run` without which it cannot be resumed."""

    def __init__(
        self, folder: Path, every: int = 10, fingerprint: str = "", run: RunFolder | None = None, former: str = ""
    ) -> None:
        if every < 1:
            raise UserError(f"run.checkpoint_every: {every} must be at least 1")
        self.folder, self.every, self.fingerprint, self.run = folder, every, fingerprint, run
        self.former = former or fingerprint
        self.leaving = False  # whoever watches wants to stop: after the next checkpoint, which is due now

    def due(self, version: int) -> bool:
        return self.leaving or version % self.every == 0

    def save(self, server: Server) -> None:
        facts, tensors = server.save()
        about: dict[str, Any] = {"fingerprint": self.fingerprint, "format": FORMAT}
        if self.run is not None:
            about["files"] = self.run.lasting(server.version)
        text = json.dumps({**facts, **about})
        stored = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
        stored["facts"] = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)  # a header is too small for it
        write_tensors(self.folder / f"{server.version:09d}.safetensors", stored, {"digest": _digest(stored)})
        if self.run is not None:
            self.run.seal()
            if server.version:
                self.run.settle()
        for old in self._paths()[2:]:
            old.unlink()
        if self.leaving:
            raise KeyboardInterrupt

    def any(self) -> bool:
        return bool(self._paths())

    @property
    def newest(self) -> int | None:
        """The version that the newest checkpoint holds; None if there is none."""
        return next((int(path.stem) for path in self._paths()), None)

    def _paths(self) -> list[Path]:
        """Newest first."""
        paths = (path for path in self.folder.glob("*.safetensors") if re.fullmatch(r"\d{9}", path.stem))
        return sorted(paths, reverse=True)

    def load(self, server: Server) -> list[str]:
        """Restore the newest whole checkpoint whose record is whole too; returns a sentence for each that had to be
        passed over."""
        passed_over = []
        for path in self._paths():
            try:
                facts, tensors = self._read(path)
            except (OSError, ValueError, KeyError) as error:
                passed_over.append(f"checkpoint {path.name} is damaged ({error}); falling back to the one before")
                continue
            if facts.pop("format", 1) not in READ:
                raise UserError(
                    f"checkpoint {path.name}: it was written by another version of Turnout; start a new run"
                )
            if facts.pop("fingerprint") not in (self.fingerprint, self.former):
                raise UserError(f"checkpoint {path.name}: it was written with another configuration; start a new run")
            lasting = facts.pop("files", {})
            damaged = self.run.damaged(lasting) if self.run is not None else None
            if damaged is not None:
                passed_over.append(f"checkpoint {path.name} needs {damaged}; falling back to the one before")
                continue
            server.load(facts, tensors)
            if self.run is not None:
                self.run.trust(lasting)
            return passed_over
        if passed_over:
            why = passed_over[-1].partition(";")[0]
            raise UserError(f"resume: no checkpoint in {self.folder} can be used ({why}); start the run again")
        raise UserError(f"resume: there is no checkpoint in {self.folder}")

    @staticmethod
    def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata()
                # cloned: as the file has them they lie anywhere, and the last bit of a product depends on where
                tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise ValueError(str(error)) from error
        if _digest(tensors) != metadata["digest"]:
            raise ValueError("its digest does not match")
        return json.loads(tensors.pop("facts").numpy().tobytes()), tensors
