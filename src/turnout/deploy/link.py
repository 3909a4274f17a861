"""A SuperLink with TLS and node keys, SuperNodes that connect to it, and runs of Turnout's app on it."""

from __future__ import annotations

import hashlib
import shutil
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
from flwr.cli.build import build_fab_from_files
from flwr.common.serde import fab_to_proto, user_config_to_proto
from flwr.proto.control_pb2 import ListRunsRequest, RegisterNodeRequest, StartRunRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

from turnout.core.errors import FailedError, UserError
from turnout.deploy import enrol, keys
from turnout.deploy.client import FOLDER as CLIENT_FOLDER
from turnout.deploy.processes import Child, environment, free_port, program
from turnout.deploy.server_app import FAILURE, FOLDER, MISTAKE, OVERWRITE, RUN

_APP = b"""\
[project]
name = "turnout-app"
version = "1.0.0"
license = "Apache-2.0"

[tool.flwr.app]
publisher = "turnout"

[tool.flwr.app.components]
serverapp = "turnout.deploy.server_app:app"
clientapp = "turnout.deploy.client:app"

[tool.flwr.app.config]
folder = ""
run = ""
overwrite = false
"""
_ROOM = 1 << 20  # bytes that a disk has free which is not full
_START = 60.0  # seconds for a SuperLink to answer
_RESTARTS = 3  # of a server that was killed


class Link:
    """A SuperLink of a server's folder, as a context: leaving it stops the SuperLink and the ServerApp in it."""

    def __init__(self, folder: Path, host: str = "127.0.0.1", port: int = 0) -> None:
        self.folder = folder.resolve()
        self.address = f"{host}:{port or free_port(host)}"
        self._certificate = (folder / "ca.pem").read_bytes() if (folder / "ca.pem").exists() else None
        if self._certificate is None:
            raise UserError(
                f"deploy: {folder} is not a server's folder (it has no ca.pem); turnout deploy init makes one"
            )

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
            for client in enrol.read(self.folder / "clients.toml"):
                self.control.RegisterNode(RegisterNodeRequest(public_key=keys.as_pem(client.key)))
        except BaseException:
            self.__exit__(None, None, None)
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.control.close()
        self.child.stop()

    def start(self, run: Path, overwrite: bool = False) -> int:
        """Begin a run, or go on with it; its number."""
        for name in (MISTAKE, FAILURE):
            (self.folder / name).unlink(missing_ok=True)
        content, _ = build_fab_from_files({"pyproject.toml": _APP})
        fab = Fab(hashlib.sha256(content).hexdigest(), content, {})
        options: dict[str, str | int | float] = {
            FOLDER: str(self.folder),
            RUN: str(run.resolve()),
            OVERWRITE: overwrite,
        }
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


def node(folder: Path, address: str) -> Child:
    """A SuperNode of a client's folder."""
    folder = folder.resolve()
    for name in ("ca.pem", "node.key", "config.toml", "shard.safetensors"):
        if not (folder / name).exists():
            raise UserError(
                f"deploy: {folder} is not a client's folder (it has no {name}); turnout deploy init makes one"
            )
    command = [program("flower-supernode"), "--superlink", address, "--root-certificates", str(folder / "ca.pem")]
    command += ["--auth-supernode-private-key", str(folder / "node.key"), "--port", str(free_port())]
    command += ["--node-config", f'{CLIENT_FOLDER}="{folder}"']
    return Child(command, folder / "node.log", environment(folder / "flower"))
