"""The models that a run serves, applied to the rows of a table that it has never seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from turnout.config import config
from turnout.core.errors import UserError, renamed
from turnout.core.files import read_json, read_tensors
from turnout.core.names import called, listed, number_of
from turnout.core.random import FloatArray, IntArray
from turnout.data import parquet
from turnout.data._columns import Column, of_arrays, of_cells
from turnout.data.preprocess import Preprocess
from turnout.data.readers import read_table
from turnout.record.run_folder import PERSONAL, check_is_run, examine
from turnout.task.losses import CrossEntropy, Focal
from turnout.task.task import Task

SHARED = -1  # in place of a client: the model of all
_NEEDED = ("config.toml", "result.json", "model.safetensors", "names.json", "preprocess.json", PERSONAL)
_CHUNK = 4096  # rows in one pass
_NOT_KEPT = {
    "own rules": "its clients are served by rules of their own (a memory, a mixture), which are not kept",
    "too many": "its clients are served models of their own, which would have filled more than 1 GiB and are not kept",
    "far away": "its clients are served models of their own, which never left them",
}


@dataclass(frozen=True)
class Predictions:
    """What a model says of each row."""

    labels: list[str] | FloatArray  # [n] classes, or [n, outputs] values in the units of the target
    scores: FloatArray  # [n, classes] probabilities, or what the model gave; empty of a regression
    models: IntArray  # [n] the client whose model said it, or SHARED


@dataclass(frozen=True)
class Served:
    """A finished run's models, and how a table becomes what they are given."""

    folder: Path
    settings: config.Settings
    task: Task
    summary: dict[str, Any]  # result.json
    names: list[str] | None
    fitted: Preprocess | None  # None: the run was not of a table

    @classmethod
    def open(cls, folder: Path | str, command: str = "predict") -> Served:
        """Read what a run has left behind, without its data."""
        folder = Path(folder)
        check_is_run(command, folder)
        examine(command, folder, _NEEDED)
        for name in ("result.json", "model.safetensors"):
            if not (folder / name).exists():
                raise UserError(f"{command}: {folder} is unfinished; finish it with: turnout resume {folder}")
        settings = config.read_run(folder)
        names = read_json(folder / "names.json")["clients"] if (folder / "names.json").exists() else None
        path = folder / "preprocess.json"
        fitted = Preprocess.load(read_json(path)) if path.exists() else None
        return cls(folder, settings, config.trained_task(settings), read_json(folder / "result.json"), names, fitted)

    @property
    def says_probabilities(self) -> bool:
        """Whether scores of classes are probabilities: the loss says what the outputs mean."""
        return isinstance(self.task.loss, CrossEntropy | Focal)

    # -- models -----------------------------------------------------------------------------------------------

    @property
    def clients(self) -> int:
        return int(self.summary["audit"]["clients"])

    @property
    def by(self) -> str:
        """How clients are served: shared, own models, or why those are not kept."""
        return str(self.summary.get("served", "shared"))

    def client(self, option: str, name: str | int) -> int:
        """Find a client by its name."""
        return number_of(option, self.names, self.clients, name)

    @cached_property
    def _shared(self) -> Tensor:
        """`[P]` the model of all."""
        state = read_tensors(self.folder / "model.safetensors")
        if missing := set(self.task.layout.names) - state.keys():
            method = self.settings.get("algorithm", {}).get("name")
            raise UserError(
                f"{self.folder / 'model.safetensors'} has no {min(missing)}: {method} trains several models, of which "
                "none stands alone; load them from there"
            )
        return self.task.from_state_dict(state)

    @cached_property
    def _personal(self) -> Mapping[str, Tensor]:
        path = self._home / PERSONAL
        if self.by != "own models" or not path.exists():
            why = _NOT_KEPT.get(self.by, "all its clients are served the same model")
            hint = "" if self.by == "shared" else "; --shared takes the model of all"
            raise UserError(f"{self.folder} has no models of clients: {why}{hint}")
        return read_tensors(path)

    @property
    def _home(self) -> Path:
        """Where the models of clients lie: after a request to forget, in the branch that was trained since."""
        branches = sorted(
            self.folder.glob(f"unlearning/branch*/{PERSONAL}"), key=lambda path: int(path.parent.name[6:])
        )
        return branches[-1].parent if branches else self.folder

    def model(self, client: int = SHARED) -> Tensor:
        """Give `[P]` the model of a client, or that of all."""
        if client == SHARED:
            return self._shared
        return self.task.from_state_dict({name: values[client] for name, values in self._personal.items()})

    # -- tables -----------------------------------------------------------------------------------------------

    @property
    def table_fitted(self) -> Preprocess:
        if self.fitted is None:
            data = self.settings.get("data", {}).get("name")
            why = f"its dataset is {data}, or it is a run of an earlier version"
            raise UserError(f"{self.folder} keeps no preprocessing of a table: {why}")
        return self.fitted

    def table(self, path: Path | str) -> dict[str, Column]:
        """Read a table that is written as the one of the training was, or a Parquet file."""
        path, read = Path(path), self.table_fitted.read
        if path.suffix == ".parquet":
            arrays, *_ = parquet.columns_of(path, [path])
            return {one.name: one for own in of_arrays(str(path), arrays).values() for one in own}
        separator = read.get("separator", ",")
        with renamed({"dataset predict: ": ""}):
            rows = read_table("predict", path, separator=separator)
        return of_cells(rows, read.get("decimal", "."), read.get("missing_words", ()), of=str(path))

    def whose(self, columns: Mapping[str, Column]) -> tuple[IntArray, list[str]]:
        """Say `[n]` whose model each row is for, by the column that named the clients; and remarks."""
        natural = self.settings.get("partition", {}).get("name") == "natural"
        name = self.table_fitted.client if natural else None
        shared = np.full(len(next(iter(columns.values())).values), SHARED)
        if name is None or name not in columns:
            if self.by == "shared":
                return shared, []
            what = f"the table has no column {name}, which says" if name else "no column says"
            raise UserError(f"{what} whose model each row is for; name it with --client, or take --shared, that of all")
        column = columns[name]
        if column.missing.any():
            if self.by == "shared":
                return shared, []
            raise UserError(f"{column.where(int(column.missing.argmax()))} is missing; fill it in, or take --shared")
        ranks, values = column.codes()
        known = {called(self.names, number, "{}"): number for number in range(self.clients)}
        found = np.array([known.get(str(value), SHARED) for value in values])[ranks]
        some = listed(self.names, range(self.clients), 12)
        if self.by == "shared":
            others = sorted({str(value) for value in values} - known.keys())
            told = f"{name} {', '.join(others[:8])} took no part in the training: what is said of its rows is untested"
            return shared, [told] if others else []
        if (found == SHARED).any():
            why = f"which took no part in the training; it knows {some}; --shared takes the model of all"
            raise column.fault(found == SHARED, why)
        return found, []

    def predict(
        self, columns: Mapping[str, Column], whose: int | Sequence[int] | IntArray | None = None
    ) -> Predictions:
        """Say what the models make of each row: of the client that it is of, or of those given, or SHARED."""
        fitted = self.table_fitted
        inputs = torch.from_numpy(fitted.inputs(columns))
        models = self.whose(columns)[0] if whose is None else np.broadcast_to(np.asarray(whose, np.int64), len(inputs))
        outputs: NDArray[Any] | None = None
        with torch.no_grad():
            for client in np.unique(models).tolist():
                model = self.model(client)
                for rows in np.array_split(np.flatnonzero(models == client), -(-len(inputs) // _CHUNK)):
                    if not len(rows):
                        continue
                    found = self.task.outputs(model, inputs[torch.from_numpy(rows)]).double().numpy()
                    outputs = np.empty((len(inputs), *found.shape[1:])) if outputs is None else outputs
                    outputs[rows] = found
        assert outputs is not None
        return self._said(outputs, models, fitted.target)

    def _said(self, outputs: FloatArray, models: IntArray, target: Mapping[str, Any]) -> Predictions:
        """Turn outputs into labels and probabilities, or into values in the target's own units."""
        if target["task"] == "regression":
            values = np.asarray(target["offset"]) + np.asarray(target["scale"]) * outputs.reshape(len(outputs), -1)
            return Predictions(values, np.zeros((len(outputs), 0)), models)
        if self.says_probabilities:
            outputs = np.exp(outputs - outputs.max(1, keepdims=True))
            outputs /= outputs.sum(1, keepdims=True)
        return Predictions([target["classes"][i] for i in outputs.argmax(1)], outputs, models)
