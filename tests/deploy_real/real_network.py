"""A SuperLink and three clients on loopback, with TLS and node keys."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from turnout.config import config
from turnout.core.files import write_text
from turnout.deploy.folder import prepare
from turnout.deploy.link import Child, Link, node, stop_all
from turnout.deploy.replay import difference

CLIENTS = 3
BASE = ["clients.count=3", "partition.name=iid", "devices.name=fixed", "local.epochs=1", "local.lr=0.1",
        "engine.threads=1", "run.rounds=2", "run.checkpoint_every=1", "evaluation.rounds=1000",
        "deploy.evaluate=server", "deploy.poll_seconds=0.2"]  # fmt: skip


def settings(*overrides: str) -> config.Settings:
    read = config.read("digits", [*BASE, *overrides])
    for simulated in ("availability", "crashes", "links"):
        del read[simulated]
    return read


class Network:
    """As a context; leaving it stops everything."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        built, _, complete = config.build(settings())
        prepare(folder / "all", built.population, 10, config.as_toml(complete), ["127.0.0.1"], True)
        self.link = Link(folder / "all" / "server")
        self.nodes: list[Child] = []

    def __enter__(self) -> Self:
        self.link.__enter__()
        self.nodes = [self.start(client) for client in range(CLIENTS)]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stop_all(self.nodes)
        self.link.__exit__(kind, error, trace)

    def client(self, number: int) -> Path:
        return self.folder / "all" / "clients" / str(number)

    def start(self, client: int, supernode: bool = False) -> Child:
        return node(self.client(client), self.link.address, supernode)

    def restart(self, supernode: bool = False) -> None:
        """All clients: what they do is in their folders, which they read when they begin."""
        stop_all(self.nodes)
        self.nodes = [self.start(client, supernode) for client in range(CLIENTS)]

    def configure(self, *overrides: str, supernode: bool = False) -> None:
        """Another configuration for the same machines, whose clients begin again."""
        text = config.as_toml(config.build(settings(*overrides))[2])
        for folder in (self.link.folder, *map(self.client, range(CLIENTS))):
            write_text(folder / "config.toml", text)
            shutil.rmtree(folder / "memory", ignore_errors=True)
        self.restart(supernode)

    def run(self, name: str, meanwhile: Callable[[Path], None] | None = None) -> Path:
        """Carry out the configuration; `meanwhile` is called beside it."""
        run, failed = self.folder / name, list[BaseException]()

        def carry_out() -> None:
            try:
                self.link.carry_out(run)
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=carry_out)
        thread.start()
        if meanwhile is not None:
            meanwhile(run)
        thread.join(timeout=170)
        assert not thread.is_alive(), "the run has not ended"
        if failed:
            raise failed[0]
        return run

    def replayed(self, run: Path) -> dict[str, float]:
        return difference(config.build(config.read(str(run / "config.toml")))[0], run)


def until(true: Callable[[], Any], seconds: float = 90.0) -> Any:
    limit = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < limit, "it has not happened"
        time.sleep(0.2)
    return found
