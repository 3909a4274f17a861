"""A SuperLink with TLS and node keys, clients that connect to it, and runs of Turnout's app on it: programs
as children of this one, started with everything they need, stopped by their ids."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import httpx
from flwr.cli.build import build_fab_from_files
from flwr.common.serde import fab_to_proto, user_config_to_proto
from flwr.proto.control_pb2 import ListRunsRequest, RegisterNodeRequest, StartRunRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

from turnout.core.errors import FailedError, UserError
from turnout.core.imports import extra, missing
from turnout.deploy import keys
from turnout.deploy.client import FOLDER as CLIENT_FOLDER
from turnout.deploy.folder import read_clients
from turnout.deploy.server import FAILURE, FOLDER, MISTAKE, OVERWRITE, RUN

_APP = b"""\
[project]
name = "turnout-app"
version = "1.0.0"
license = "Apache-2.0"

[tool.flwr.app]
publisher = "turnout"

[tool.flwr.app.components]
serverapp = "turnout.deploy.server:app"
clientapp = "turnout.deploy.client:app"

[tool.flwr.app.config]
folder = ""
run = ""
overwrite = false
"""
_GRACE = 5.0  # seconds between asking a process to end and ending it
_ROOM = 1 << 20  # bytes that a disk has free which is not full
_START = 60.0  # seconds for a SuperLink to answer
_RESTARTS = 3  # of a server that was killed


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


def _stat(pid: int) -> list[str]:
    """Read what the system shows of a process: its state, its parent, ...; nothing of one that has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def descendants(root: int) -> list[int]:
    """List all that a process has started, where the system shows it."""
    shown = {int(path.name): _stat(int(path.name)) for path in Path("/proc").glob("[0-9]*")}
    family = [root]
    for one in family:
        family += [pid for pid, stat in shown.items() if stat and int(stat[1]) == one and pid not in family]
    return family[1:]


def birth(pid: int) -> str | None:
    """When a process began: an id may be given again."""
    stat = _stat(pid)
    return None if not stat or stat[0] == "Z" else stat[19]


class Child:
    """One program and whatever it has started."""

    def __init__(self, command: Sequence[str], log: Path, env: dict[str, str]) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=env, start_new_session=True
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def running(self) -> bool:
        return self.process.poll() is None

    def tail(self, lines: int = 5) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def family(self) -> dict[int, str]:
        """Find the ids of the process and of all it has started, and when each began."""
        births = {pid: birth(pid) for pid in (self.pid, *descendants(self.pid))}
        return {pid: born for pid, born in births.items() if born is not None}

    def wait_for(self, family: dict[int, str], seconds: float) -> None:
        """Wait until all of them have ended, no longer than that."""
        limit = time.monotonic() + seconds
        while time.monotonic() < limit and any(birth(pid) == born for pid, born in family.items()):
            self.process.poll()
            time.sleep(0.02)


def stop_all(children: Sequence[Child], grace: float = _GRACE) -> None:
    """Ask programs to end, all at the same time; what is left of them and of all they have started after that many
    seconds is ended. 0: at once."""
    families = [child.family() for child in children]
    for child in children:
        if grace and child.running():
            child.process.terminate()
    for child, family in zip(children, families, strict=True):
        child.wait_for(family, grace)
        for pid, born in family.items():
            if birth(pid) == born:
                os.kill(pid, signal.SIGKILL)
        child.process.wait()
        child.wait_for(family, _GRACE)


def _check_folder(whose: str, folder: Path, names: list[str]) -> None:
    missed = [name for name in names if not (folder / name).exists()]
    if missed:
        words = f"a {whose}'s folder (it has no {missed[0]})"
        raise UserError(f"deploy: {folder} is not {words}; turnout deploy init makes one")


class Link:
    """A SuperLink of a server's folder, as a context: leaving it stops the SuperLink and the ServerApp in it."""

    def __init__(self, folder: Path, host: str = "127.0.0.1", port: int = 0) -> None:
        self.folder = folder.resolve()
        self.address = f"{host}:{port or free_port(host)}"
        _check_folder("server", folder, ["ca.pem"])
        self._certificate = (folder / "ca.pem").read_bytes()

    def __enter__(self) -> Self:
        host, _, port = self.address.rpartition(":")
        files = {name: str(self.folder / name) for name in ("link.pem", "link.key", "ca.pem")}
        command = [program("flower-superlink"), "--host", host, "--port", port]
        command += ["--ssl-certfile", files["link.pem"], "--ssl-keyfile", files["link.key"]]
        command += ["--ssl-ca-certfile", files["ca.pem"], "--enable-supernode-auth"]
        command += ["--disable-runtime-dependency-installation"]
        self.child = Child(command, self.folder / "link.log", environment(self.folder / "flower"))
        version = RuntimeVersionHttpInterceptor(component_name="flwr CLI")
        self.control = ControlHttpClient.from_server_address(
            self.address, insecure=False, root_certificates=self._certificate, interceptors=[version]
        )
        try:
            self._await()
            for client in read_clients(self.folder / "clients.toml"):
                self.control.RegisterNode(RegisterNodeRequest(public_key=keys.as_pem(client.key)))
        except BaseException:
            self.__exit__()
            raise
        return self

    def _await(self) -> None:
        limit = time.monotonic() + _START
        while True:
            try:
                self.control.ListRuns(ListRunsRequest(limit=1))
                return
            except httpx.TransportError:
                if not self.child.running() or time.monotonic() > limit:
                    raise UserError(f"deploy: the SuperLink did not start:\n{self.child.tail()}") from None
                time.sleep(0.2)

    def __exit__(self, *error: object) -> None:
        self.control.close()
        stop_all([self.child])

    def start(self, run: Path, overwrite: bool = False) -> int:
        """Begin a run, or go on with it; its number."""
        for name in (MISTAKE, FAILURE):
            (self.folder / name).unlink(missing_ok=True)
        content, _ = build_fab_from_files({"pyproject.toml": _APP})
        fab = Fab(hashlib.sha256(content).hexdigest(), content, {})
        options: dict[str, str | int | float]
        options = {FOLDER: str(self.folder), RUN: str(run.resolve()), OVERWRITE: overwrite}
        request = StartRunRequest(fab=fab_to_proto(fab), override_config=user_config_to_proto(options))
        return int(self.control.StartRun(request).run_id)

    def finished(self, number: int) -> str | None:
        """How a run has ended (completed, failed, stopped), or None."""
        run = self.control.ListRuns(ListRunsRequest(run_id=number)).run_dict[number]
        return str(run.status.sub_status) if run.status.status == "finished" else None

    def carry_out(self, run: Path, overwrite: bool = False, poll: float = 0.5) -> None:
        """Start a run and wait for its end; a server that was killed or has failed is started again, and goes on."""
        for attempt in range(1 + _RESTARTS):
            number = self.start(run, overwrite and attempt == 0)
            while (how := self.finished(number)) is None:
                if not self.child.running():
                    raise UserError(f"deploy: the SuperLink has ended:\n{self.child.tail()}")
                time.sleep(poll)
            if how == "completed":
                return
            if (self.folder / MISTAKE).exists():
                raise UserError((self.folder / MISTAKE).read_text(encoding="utf-8"))
            if any(shutil.disk_usage(place).free < _ROOM for place in (self.folder, run.parent)):
                raise UserError(f"deploy: there is no room left for {run}; free some, then go on with the same command")
        told = self.folder / FAILURE
        why = told.read_text(encoding="utf-8") if told.exists() else f"the server was killed:\n{self.child.tail()}"
        raise FailedError(f"deploy, for the {1 + _RESTARTS}th time: {why}; see {run / 'log.txt'} and {self.child.log}")


def node(folder: Path, address: str, supernode: bool = False) -> Child:
    """A client of a folder: one that stays loaded, or Flower's SuperNode, which starts a process for every message."""
    folder = folder.resolve()
    invited = (folder / "invitation.json").exists()
    if invited and not (folder / "node.key").exists():
        raise UserError(f"deploy: {folder} is not enrolled; turnout deploy enrol {folder} --data TABLE")
    own = "schema.toml" if invited else "shard.safetensors"
    _check_folder("client", folder, ["ca.pem", "node.key", "config.toml", own])
    command = [sys.executable, "-P", "-m", "turnout.deploy.node", str(folder), address]
    if supernode or invited:  # a site of a study reads its policy and its table again for every message
        command = [program("flower-supernode"), "--superlink", address, "--root-certificates", str(folder / "ca.pem")]
        command += ["--auth-supernode-private-key", str(folder / "node.key"), "--port", str(free_port())]
        command += ["--node-config", f'{CLIENT_FOLDER}="{folder}"']
    return Child(command, folder / "node.log", environment(folder / "flower"))
