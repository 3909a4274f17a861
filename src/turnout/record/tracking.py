"""Runs in TensorBoard and MLflow: every measure and fact of every round, step = round, and the configuration.

After a resume the same record goes on: nothing of the rounds that are computed again is there twice.
"""

from __future__ import annotations

import math
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from turnout.core.errors import UserError
from turnout.core.imports import extra, optional
from turnout.server.observer import Observer, Round

if TYPE_CHECKING:
    from turnout.server.server import Server

TIME = "virtual_seconds"
EXTRA = extra("tracking")
Settings = Mapping[str, Mapping[str, Any]]  # sections of options


class Tracker(Observer):
    """Hands a row of finite numbers a round to `track`; round 0 is the untrained model."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.options = {
            f"{section}.{name}": value
            for section, options in (settings or {}).items()
            for name, value in options.items()
            if value is not None
        }

    def track(self, number: int, row: dict[str, float]) -> None:
        raise NotImplementedError

    def on_evaluate(self, server: Server, measures: dict[str, float]) -> None:
        if not server.begun:
            self._hand_over(0, {TIME: server.now, **measures})

    def on_round(self, server: Server, record: Round) -> None:
        self._hand_over(record.number, {TIME: record.time, **record.facts, **record.measures})

    def _hand_over(self, number: int, row: dict[str, float]) -> None:
        self.track(number, {name: float(value) for name, value in row.items() if math.isfinite(value)})


class TensorBoard(Tracker):
    """Writes into a folder that `tensorboard --logdir` reads."""

    def __init__(self, folder: Path | str, settings: Settings | None = None) -> None:
        super().__init__(settings)
        self.folder, self._tensorboard = folder, optional("--tensorboard", "torch.utils.tensorboard", EXTRA)

    def on_start(self, server: Server) -> None:
        first = server.version + 1 if server.begun else 0  # readers forget what an earlier process said of these rounds
        self._writer = self._tensorboard.SummaryWriter(str(self.folder), purge_step=first)
        if self.options:
            plain = {name: v if isinstance(v, bool | int | float | str) else str(v) for name, v in self.options.items()}
            parts = self._tensorboard.summary.hparams(plain, {server.stopping.measure: 0.0})
            for part in parts:
                self._writer.file_writer.add_summary(part)

    def track(self, number: int, row: dict[str, float]) -> None:
        for name, value in row.items():
            self._writer.add_scalar(name, value, number, new_style=False)

    def on_checkpoint(self, server: Server) -> None:
        self._writer.flush()

    def on_end(self, server: Server) -> None:
        self._writer.close()


class MLflow(Tracker):
    """Logs to an MLflow server or database. Rounds are sent together, at least every `seconds`; what cannot be sent
    waits, and the run goes on."""

    seconds = 2.0
    most = 900  # numbers a request; MLflow takes 1000

    def __init__(
        self,
        uri: str,
        settings: Settings | None = None,
        *,
        experiment: str = "turnout",
        run_name: str = "run",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(settings)
        self.uri, self.run_name, self.clock = uri, run_name, clock
        self.run_id: str | None = None
        self._mlflow = optional("--mlflow", "mlflow", EXTRA)
        self._trouble = (self._mlflow.MlflowException, OSError)
        self._waiting: list[list[Any]] = []  # for each round: name, value, time in ms, round
        self._done = -1  # the last round that is there
        self._next = -math.inf  # when to send
        with self._sentences():
            if uri.startswith("http"):
                _reach(uri)  # MLflow itself would try for minutes
            self._client = self._mlflow.MlflowClient(uri)
            found = self._client.get_experiment_by_name(experiment)
            self._experiment = found.experiment_id if found else self._client.create_experiment(experiment)

    @contextmanager
    def _sentences(self) -> Iterator[None]:
        try:
            yield
        except self._trouble as error:
            why = str(error).splitlines()[0].split(". ")[0]
            raise UserError(f"--mlflow: {self.uri} cannot be used ({why}); give a server or sqlite:///FILE") from error

    def on_start(self, server: Server) -> None:
        with self._sentences():
            if self.run_id is None:
                self.run_id = self._client.create_run(self._experiment, run_name=self.run_name).info.run_id
                options = [self._mlflow.entities.Param(name, str(value)[:6000]) for name, value in self.options.items()]
                for first in range(0, len(options), 100):  # a request takes no more
                    self._client.log_batch(self.run_id, params=options[first : first + 100])
            else:  # an earlier process went on after the checkpoint; its numbers are the same bits
                known = self._client.get_metric_history(self.run_id, TIME)
                self._done = max((metric.step for metric in known), default=-1)
                self._client.update_run(self.run_id, status="RUNNING")

    def track(self, number: int, row: dict[str, float]) -> None:
        if number > self._done:
            now = int(time.time() * 1000)
            self._waiting.append([(name, value, now, number) for name, value in row.items()])

    def on_round(self, server: Server, record: Round) -> None:
        super().on_round(server, record)
        if self.clock() >= self._next:
            self._send(server)

    def on_checkpoint(self, server: Server) -> None:
        if self.clock() >= self._next - self.seconds:  # unless that was no use just now
            self._send(server)

    def on_end(self, server: Server) -> None:
        self._send(server, "FAILED" if (server.stopped or "").startswith("diverged") else "FINISHED")

    def _send(self, server: Server, status: str | None = None) -> None:
        """Whole rounds at a time: one that is there in part would be taken for done by whoever goes on."""
        try:
            while self._waiting:
                count = max(1, int(np.searchsorted(np.cumsum([len(row) for row in self._waiting]), self.most, "right")))
                metrics = [self._mlflow.entities.Metric(*one) for row in self._waiting[:count] for one in row]
                self._client.log_batch(self.run_id, metrics=metrics)
                del self._waiting[:count]
            if status is not None:
                self._client.set_terminated(self.run_id, status=status)
            self._next = self.clock() + self.seconds
        except self._trouble as error:
            server.log("untracked", why=str(error).splitlines()[0], waiting=len(self._waiting))
            self._next = self.clock() + 100 * self.seconds

    def save(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        return {"run_id": self.run_id, "waiting": self._waiting}, {}

    def load(self, facts: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        self.run_id, self._waiting = facts["run_id"], facts["waiting"]


def _reach(uri: str) -> None:
    with suppress(urllib.error.HTTPError):  # which is an answer
        urllib.request.urlopen(uri, timeout=10).close()
