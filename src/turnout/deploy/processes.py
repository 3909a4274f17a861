"""Flower's programs as children of this one: started with everything they need, stopped by their ids."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from turnout.core.imports import extra, missing

_GRACE = 5.0  # seconds between asking a process to end and ending it


def free_port(host: str = "127.0.0.1") -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def environment(home: Path) -> dict[str, str]:
    """Flower keeps its files in `home`, tells nobody of its use, and finds its own programs."""
    home.mkdir(parents=True, exist_ok=True)
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_HOME": str(home.resolve())}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return os.environ | quiet | {"PATH": path}


def program(name: str) -> str:
    path = Path(sys.executable).parent / name
    if not path.exists():
        raise missing("deploy", name, extra("flower"))
    return str(path)


def _parents() -> dict[int, int]:
    """The parent of every process, where the system shows them."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        found[int(path.parent.name)] = int(fields[1])
    return found


def descendants(root: int) -> list[int]:
    parents, family = _parents(), [root]
    for one in family:
        family += [child for child, parent in parents.items() if parent == one and child not in family]
    return family[1:]


def birth(pid: int) -> str | None:
    """When a process began: an id may be given again."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]


class Child:
    """One program and whatever it has started."""

    def __init__(self, command: Sequence[str], log: Path, env: dict[str, str]) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=env,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def running(self) -> bool:
        return self.process.poll() is None

    def tail(self, lines: int = 5) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def kill(self) -> None:
        """At once, with all it has started."""
        self._finish(self._family(), 0.0)

    def stop(self) -> None:
        """Ask it to end; whatever is left of it after a while is ended."""
        stop_all([self])

    def ask(self) -> dict[int, str]:
        """Ask it to end; all that it has started."""
        family = self._family()
        if self.running():
            self.process.terminate()
        return family

    def _family(self) -> dict[int, str]:
        births = {pid: birth(pid) for pid in (self.pid, *descendants(self.pid))}
        return {pid: born for pid, born in births.items() if born is not None}

    def _finish(self, family: dict[int, str], grace: float) -> None:
        self._wait(family, grace)
        for pid, born in family.items():
            if birth(pid) == born:
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self._wait(family, _GRACE)

    def _wait(self, family: dict[int, str], seconds: float) -> None:
        limit = time.monotonic() + seconds
        while time.monotonic() < limit and any(birth(pid) == born for pid, born in family.items()):
            self.process.poll()
            time.sleep(0.02)


def stop_all(children: Sequence[Child]) -> None:
    """All at the same time."""
    families = [child.ask() for child in children]
    for child, family in zip(children, families, strict=True):
        child._finish(family, _GRACE)
