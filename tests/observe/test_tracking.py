"""Trackers: every number of every round, once, also after a crash."""

from __future__ import annotations

import math
import sys
from itertools import count
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from support import experiment
from turnout import Observer, Result, UserError, execute
from turnout.record.tracking import TIME, MLflow, TensorBoard, Tracker
from turnout.server.observer import Event, Round
from turnout.server.server import Server

SETTINGS: dict[str, dict[str, Any]] = {
    "algorithm": {"name": "windowed", "window": 0.5, "deadline": None},
    "model": {"hidden": [32]},
}
Rows = dict[str, dict[int, float]]  # by name, then by round


class Crash(Observer):
    """Dies in a round, after all others have heard of it."""

    def __init__(self, number: int) -> None:
        self.number = number

    def on_round(self, server: Server, record: Round) -> None:
        if record.number == self.number:
            raise KeyboardInterrupt


def expected(result: Result) -> Rows:
    """What the history has, without what is not finite."""
    rounds = result.rounds()
    rows = {TIME if name == "time" else name: values for name, values in rounds.items() if name != "round"}
    numbers = rounds["round"].tolist()
    return {
        name: {n: v for n, v in zip(numbers, values.tolist(), strict=True) if math.isfinite(v)}
        for name, values in rows.items()
    }


def agree(found: Rows, result: Result) -> None:
    """Round 0 has measures only."""
    for name, values in expected(result).items():
        wanted = {n: v for n, v in values.items() if n > 0 or n in found[name]}
        assert found[name] == pytest.approx(wanted, rel=1e-6), name
    assert {name for name in found if 0 in found[name]} == {TIME, *result.measures}


def crash_and_resume(make: Any, folder: Path, die: int, every: int) -> Result:
    """The same run, by two processes."""
    run, first = dict[str, Any](folder=folder, checkpoint_every=every), make()
    with pytest.raises(KeyboardInterrupt):
        execute(experiment("windowed", 7), **run, observers=[first, Crash(die)])
    if isinstance(first, TensorBoard):
        first._writer.flush()  # the rounds after the checkpoint may have reached the disk
    return execute(experiment("windowed", 7), **run, resume=True, observers=[make()])


def test_what_is_not_finite_is_left_out() -> None:
    class Kept(Tracker):
        def track(self, number: int, row: dict[str, float]) -> None:
            assert row == {TIME: 1.0, "a": 2.0}

    Kept().on_round(None, Round(3, 1.0, {"a": 2, "b": math.inf}, measures={"c": math.nan}))  # type: ignore[arg-type]


# -- TensorBoard ----------------------------------------------------------------------------------------------


def board(folder: Path) -> tuple[Any, Rows]:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), {"scalars": 0}).Reload()
    scalars = {name: events.Scalars(name) for name in events.Tags()["scalars"]}
    for name, points in scalars.items():
        assert len({point.step for point in points}) == len(points), name
    return events, {name: {point.step: point.value for point in points} for name, points in scalars.items()}


@pytest.fixture
def with_tensorboard() -> None:
    pytest.importorskip("tensorboard")


@pytest.mark.usefixtures("with_tensorboard")
def test_tensorboard_has_every_round(tmp_path: Path) -> None:
    result = execute(experiment("windowed"), observers=[TensorBoard(tmp_path, SETTINGS)])
    events, rows = board(tmp_path)
    agree(rows, result)
    from tensorboard.plugins.hparams import metadata
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    data = HParamsPluginData.FromString(events.SummaryMetadata(metadata.SESSION_START_INFO_TAG).plugin_data.content)
    options = data.session_start_info.hparams
    assert options["algorithm.name"].string_value == "windowed"
    assert options["algorithm.window"].number_value == 0.5
    assert options["model.hidden"].string_value == "[32]"
    assert "algorithm.deadline" not in options


@pytest.mark.usefixtures("with_tensorboard")
@pytest.mark.parametrize(("die", "every"), [(5, 2), (2, 10)])
def test_tensorboard_goes_on_without_doubles(tmp_path: Path, die: int, every: int) -> None:
    result = crash_and_resume(lambda: TensorBoard(tmp_path / "board"), tmp_path / "run", die, every)
    events, rows = board(tmp_path / "board")
    agree(rows, result)
    assert [point.step for point in events.Scalars(TIME)] == list(range(8))


def test_tensorboard_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(
        UserError, match=r'--tensorboard: tensorboard is not installed; pip install -e "\.\[tracking\]"'
    ):
        TensorBoard("somewhere")


# -- MLflow: a stand-in here; `make test-tracking` has the real one ------------------------------------------


class Trouble(Exception):  # noqa: N818
    pass


class Service:
    """What MLflow's client does, as far as it is used."""

    def __init__(self) -> None:
        self.runs: list[SimpleNamespace] = []
        self.down = False
        self.requests: list[int] = []

    def get_experiment_by_name(self, name: str) -> SimpleNamespace | None:
        return None

    def create_experiment(self, name: str) -> str:
        return "7"

    def create_run(self, number: str, run_name: str) -> SimpleNamespace:
        run = SimpleNamespace(name=run_name, metrics=[], params={}, status="RUNNING", experiment=number)
        self.runs.append(run)
        return SimpleNamespace(info=SimpleNamespace(run_id=str(len(self.runs) - 1)))

    def log_batch(self, run_id: str, metrics: Any = (), params: Any = ()) -> None:
        if self.down:
            raise Trouble("gone\nfor long")
        assert len(metrics) <= 1000
        assert len(params) <= 100
        self.requests += [len(metrics)] if metrics else []
        self.runs[int(run_id)].metrics += metrics
        self.runs[int(run_id)].params |= {param.key: param.value for param in params}

    def get_metric_history(self, run_id: str, name: str) -> list[Any]:
        return [metric for metric in self.runs[int(run_id)].metrics if metric.key == name]

    def update_run(self, run_id: str, status: str) -> None:
        self.runs[int(run_id)].status = status

    set_terminated = update_run

    @property
    def rows(self) -> Rows:
        """Of the only run; nothing twice."""
        (run,) = self.runs
        found: Rows = {}
        for metric in run.metrics:
            assert metric.step not in found.setdefault(metric.key, {}), metric
            found[metric.key][metric.step] = metric.value
        return found


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Service:
    service, module = Service(), ModuleType("mlflow")
    entities = SimpleNamespace(
        Metric=lambda key, value, _, step: SimpleNamespace(key=key, value=value, step=step),
        Param=lambda key, value: SimpleNamespace(key=key, value=value),
    )
    vars(module).update(MlflowClient=lambda _: service, MlflowException=Trouble, entities=entities)
    monkeypatch.setitem(sys.modules, "mlflow", module)
    return service


def test_mlflow_has_every_round(service: Service) -> None:
    tracker = MLflow("sqlite:///a.db", SETTINGS, run_name="mine")
    result = execute(experiment("windowed"), observers=[tracker])
    agree(service.rows, result)
    (run,) = service.runs
    assert (run.name, run.experiment, run.status) == ("mine", "7", "FINISHED")
    assert run.params == {"algorithm.name": "windowed", "algorithm.window": "0.5", "model.hidden": "[32]"}


@pytest.mark.parametrize(("die", "every"), [(5, 2), (2, 10)])
def test_mlflow_goes_on_without_doubles(service: Service, tmp_path: Path, die: int, every: int) -> None:
    """Also of what was sent after the checkpoint: every round is, by a clock that runs fast."""
    clock = count(0, 1000).__next__
    result = crash_and_resume(lambda: MLflow("sqlite:///a.db", clock=clock), tmp_path, die, every)
    agree(service.rows, result)
    assert service.runs[0].status == "FINISHED"


def test_rounds_are_sent_together(service: Service) -> None:
    now = [0.0]
    tracker = MLflow("sqlite:///a.db", clock=lambda: now[0])
    tracker.most = 100
    result = execute(experiment("windowed", 12), observers=[tracker])
    agree(service.rows, result)
    assert 2 < len(service.requests) < 12  # the first round at once, the others at the end, in parts
    assert max(service.requests) <= 100


def test_a_service_that_is_gone_does_not_stop_the_run(service: Service) -> None:
    """What could not be sent waits; it is an event, but none of the training."""

    class Outage(Observer):
        said: list[str] = []

        def on_round(self, server: Server, record: Round) -> None:
            service.down = 2 <= record.number < 6

        def on_event(self, server: Server, event: Event) -> None:
            self.said.append(f"{event.kind}: {event.facts['why']}")

    outage, tracker = Outage(), MLflow("sqlite:///a.db", clock=count(0, 1000).__next__)
    result = execute(experiment("windowed", 8), observers=[outage, tracker])
    agree(service.rows, result)
    assert outage.said == ["untracked: gone"] * 4
    assert "untracked" not in result.audit.events


@pytest.mark.usefixtures("service")
def test_nobody_listens() -> None:
    with pytest.raises(UserError, match=r"--mlflow: http://127.0.0.1:1 cannot be used \(.*refused"):
        MLflow("http://127.0.0.1:1")


def test_mlflow_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(UserError, match=r'--mlflow: mlflow is not installed; pip install -e "\.\[tracking\]"'):
        MLflow("sqlite:///a.db")
