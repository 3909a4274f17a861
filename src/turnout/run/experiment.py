"""A run: an experiment carried out, in memory or in a folder that can be resumed and read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from turnout.algorithms._algorithm import Algorithm
from turnout.clients.population import Population
from turnout.core.errors import RecordedError, UserError
from turnout.core.files import as_json_text, write_durably, write_tensors, write_text
from turnout.core.spelling import Spelt, spelt
from turnout.data.preprocess import canonical
from turnout.engine.plan import Plan
from turnout.record.accounting import accountants
from turnout.record.audit import Audit, Findings
from turnout.record.efficiency import Efficiency, Energy
from turnout.record.history import History
from turnout.record.log import Log, PlanFile
from turnout.record.run_folder import PERSONAL, RunFolder, examine, locked
from turnout.record.sensitivity import Sensitivity, check_forgettable
from turnout.record.signed import check_resumable, record_end
from turnout.record.unlearning import Unlearning
from turnout.record.views import Columns, Views
from turnout.record.watch import Screening, Watch
from turnout.server.checkpoint import Checkpoints
from turnout.server.observer import Observer
from turnout.server.privacy import Privacy
from turnout.server.server import Server
from turnout.server.serving import served_models, serves_own
from turnout.server.simulation import Simulation
from turnout.server.stopping import Evaluation, Stopping
from turnout.task.task import Task

MOST_KEPT = 1 << 30  # bytes of models of clients that a run leaves behind
_RESUMED = ("config.toml", "plan.json")  # what a run needs to go on; a checkpoint knows what else it needs


@dataclass
class Experiment(Spelt):
    """Everything that decides a run's result."""

    task: Task
    population: Population
    algorithm: Algorithm
    seed: int = 0
    stopping: Stopping = field(default_factory=Stopping)
    evaluation: Evaluation = field(default_factory=Evaluation)
    plan: Plan = field(default_factory=Plan)
    fingerprint: str = ""  # of the configuration; a checkpoint of another is refused
    unlearning: Unlearning | None = None  # track what forgetting a client will need
    screening: Screening | None = None  # detectors that look at updates before they count
    privacy: Privacy | None = None  # noise that hides what a client has contributed
    former: str = ""  # the fingerprint that version 0.1 gave to the same configuration

    def __post_init__(self) -> None:
        self.task, self.population = self.task.seeded(self.seed), self.population.seeded(self.seed)


@dataclass(repr=False)
class Result(Views):
    """What a finished run leaves behind."""

    server: Server
    history: History
    audit: Findings
    efficiency: dict[str, float]  # how well clients' work was used: eur, sync_ratio, futility, ...
    sensitivity: Sensitivity | None = None  # how far each client moved the model, where that was tracked
    watch: Watch | None = None  # what detectors have seen, where some looked
    privacy: dict[str, Any] = field(default_factory=dict)  # what noise hides, central or local, where there is any

    @property
    def measures(self) -> dict[str, float]:
        """Give the last evaluation."""
        return self.server.measures

    @property
    def population(self) -> Population:
        """Give the clients as this run had them: dealt by its seed, unless they had their own."""
        return self.server.whole_population

    @property
    def model(self) -> torch.Tensor:
        """Give the final global model, flat, `[P]`."""
        return self.server.output

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Give the final model for the user's own module: `module.load_state_dict(result.state_dict())`."""
        return {name: value.cpu() for name, value in self.server.task.state_dict(self.server.output).items()}

    def rounds(self) -> Columns:
        """Give a row a round, as arrays by column; `frame()` is the same as a pandas data frame."""
        return self.history.rounds.read()

    def clients(self) -> Columns:
        """Give a row a client: how it is served by what the run has left behind, as arrays by column."""
        return self.server.clients()

    def jobs(self) -> Columns:
        """Give a row a job, as arrays by column."""
        return {} if self.history.jobs is None else self.history.jobs.read()

    def outcome(self) -> dict[str, Any]:
        return self.summary()

    @property
    def nobody_heard(self) -> bool:
        """Tell whether clients were to change the model, and none ever did."""
        asked = self.server.algorithm.sends_updates and self.server.stopping.rounds != 0
        return asked and not self.audit.contributions.any()

    def summary(self) -> dict[str, Any]:
        """Sum up, for scripts, where the run ended and what the audit found."""
        server = self.server
        found: dict[str, Any] = {
            "rounds": server.version,
            "virtual_seconds": server.now,
            "stopped": server.stopped,
            "measures": server.measures,
            "efficiency": self.efficiency,
            "audit": self.audit.as_dict(),
            "nobody_heard": self.nobody_heard,
        }
        chosen = getattr(server.algorithm, "chosen_deadline", None)
        found |= {} if chosen is None else {"deadline": chosen}
        return found | ({"privacy": self.privacy} if self.privacy else {})


@spelt
def simulate(
    task: Task,
    population: Population,
    algorithm: Algorithm,
    rounds: int | None = 100,
    *,
    seed: int = 0,
    seconds: float | None = None,
    target: float | None = None,
    measure: str = "test_accuracy",
    evaluation: Evaluation | None = None,
    plan: Plan | None = None,
    unlearning: Unlearning | None = None,
    screening: Screening | None = None,
    privacy: Privacy | None = None,
    observers: Sequence[Observer] = (),
) -> Result:
    """Train in virtual time, in memory. The seed governs all that is drawn: the first model, who has which samples,
    what happens to the clients, their batches. `Task(seed=...)` and `Population.of(seed=...)` fix their own part of it;
    `result.population` is what the run had.

    >>> result = turnout.simulate(task, population, turnout.FedAvg(turnout.LocalSGD(lr=0.1)), rounds=50)
    >>> result.measures["test_accuracy"], result.audit.never_heard

    `rounds`, virtual `seconds` and the `target` of a `measure` are the `Stopping` rule; the rest is of `Experiment`.
    """
    experiment = Experiment(
        task,
        population,
        algorithm,
        seed,
        Stopping(rounds, seconds, target, measure),
        evaluation or Evaluation(),
        plan or Plan(),
        unlearning=unlearning,
        screening=screening,
        privacy=privacy,
    )
    return execute(experiment, observers=observers)


@spelt
def execute(
    experiment: Experiment,
    folder: Path | None = None,
    *,
    checkpoint_every: int = 10,
    resume: bool = False,
    overwrite: bool = False,
    configuration: str | None = None,
    observers: Sequence[Observer] = (),
    kind: Callable[..., Server] = Simulation,
) -> Result:
    """Carry out an experiment. With a folder, the record, checkpoints and the model are written there; `resume` goes on
    from the newest whole checkpoint and ends with the same bits as a run that was never interrupted. An earlier run in
    the folder is only replaced with `overwrite`. `configuration` is kept as `config.toml`. `kind` makes the
    server that carries it out."""
    if folder is None:
        if resume:
            raise UserError("resume: only a run in a folder can be resumed")
        return _execute(experiment, None, checkpoint_every, False, observers, kind)
    run = RunFolder(folder)
    with locked(folder):
        if not resume:
            run.make(overwrite)
        try:
            return _execute(experiment, run, checkpoint_every, resume, observers, kind, configuration)
        except Exception as error:
            if isinstance(error, RecordedError):
                run.settle()
            elif not run.has_checkpoint:
                run.undo()
            raise


def _execute(
    experiment: Experiment,
    run: RunFolder | None,
    checkpoint_every: int,
    resume: bool,
    observers: Sequence[Observer],
    kind: Callable[..., Server],
    configuration: str | None = None,
) -> Result:
    folder = None if run is None else run.path
    remarks = [] if run is None or not resume else examine("resume", run.path, _RESUMED)
    history, audit, efficiency = History(folder), Audit(), Efficiency()
    checkpoints = log = plan_file = None
    if run is not None and folder is not None:
        plan_file = PlanFile(run, resume)
        names = experiment.fingerprint, run, experiment.former
        checkpoints = Checkpoints(folder / "checkpoints", checkpoint_every, *names)
        log = Log(folder / "log.txt")
    server = kind(
        experiment.task,
        experiment.population,
        experiment.algorithm,
        seed=experiment.seed,
        plan=experiment.plan if plan_file is None else plan_file.plan(experiment.plan),
        stopping=experiment.stopping,
        evaluation=experiment.evaluation,
        observers=[efficiency, history, audit, *([log, plan_file] if log and plan_file else []), *observers],
        checkpoints=checkpoints,
        privacy=experiment.privacy,
    )
    accounts, open_noise = accountants(server, experiment.privacy)
    server.observers[:0] = accounts.values()  # before the history, which writes their columns down
    energy = None if server.population.power is None else Energy(server.population.power)
    if energy is not None:
        server.observers.insert(0, energy)
    sensitivity = _sensitivity(experiment, folder, resume)
    if sensitivity is not None:
        server.observers.append(sensitivity)
    watch = None
    if experiment.screening is not None:
        if server.privacy is not None and experiment.screening.response != "report":
            raise UserError(
                "detectors.response: with privacy.noise nobody's weight may follow from updates; use report"
            )
        watch = Watch(experiment.screening, None if folder is None else folder / "detectors")
        server.observers.append(watch)
    if checkpoints is not None and resume:
        lost = _restore(server, history, checkpoints, remarks)
        for account in accounts.values():
            account.lose(lost)
    if run is not None and plan_file is not None:
        run.seal(without=_RESUMED)
        (run.path / "result.json").unlink(missing_ok=True)  # a run that goes on has none yet
        if configuration is not None:
            write_text(run.path / "config.toml", configuration)
        _write_origin(experiment.population, run.path)
        plan_file.write(server)
        run.seal()
    try:
        server.run()
    except UserError as error:
        if run is not None and server.version == 0 and not isinstance(error, RecordedError):
            run.undo()
        raise
    spent = {} if energy is None else energy.findings
    privacy = open_noise | {kind: account.findings for kind, account in accounts.items()}
    result = Result(server, history, audit.findings, efficiency.findings | spent, sensitivity, watch, privacy)
    if run is not None:
        _write_result(result, run.path)
        if sensitivity is not None:
            record_end(run.path, sensitivity)
        run.seal(finished=True)
        run.settle()
    return result


def _sensitivity(experiment: Experiment, folder: Path | None, resume: bool) -> Sensitivity | None:
    if resume and folder is not None and (folder / "unlearning").exists():
        raise UserError(f"resume: clients of {folder} were forgotten; going on would train with them again")
    if experiment.unlearning is None or not experiment.unlearning.track:
        return None
    check_forgettable(experiment.algorithm, experiment.task, experiment.population)
    if resume and folder is not None:
        check_resumable(folder)
    return Sensitivity(experiment.unlearning, None if folder is None else folder / "sensitivity")


def _restore(server: Server, history: History, checkpoints: Checkpoints, remarks: Sequence[str]) -> int:
    """Go on from a checkpoint; return how many rounds may have been computed and lost. `remarks` name files that are
    written again."""
    if not checkpoints.any():
        history.clear()
        server.log("restarted", why="no checkpoint had been written")
        return checkpoints.every
    passed_over = checkpoints.load(server)
    for sentence in passed_over:
        server.log("damaged_checkpoint", what=sentence)
    for sentence in remarks:
        server.log("damaged_file", what=f"{sentence}; what its checkpoint allows is computed again")
    server.log("resumed")
    return checkpoints.every * (1 + len(passed_over))


def _write_origin(people: Population, folder: Path) -> None:
    """Keep what clients are called, and how their table became numbers: whoever uses the run needs no data for that."""
    if people.names is not None:
        write_text(folder / "names.json", as_json_text({"clients": people.names.tolist()}))
    if people.origin is not None and people.origin.table is not None:
        write_text(folder / "preprocess.json", canonical(people.origin.table))


def _write_served(server: Server, folder: Path) -> dict[str, Any]:
    """Keep the model that each client serves, of a table's run: predictions for new rows are theirs."""
    people = server.whole_population
    if people.origin is None or people.origin.table is None:
        return {}
    if not serves_own(server):
        return {"served": "shared"}
    if not isinstance(server, Simulation):
        return {"served": "far away"}
    if people.size * server.task.size * 4 > MOST_KEPT:
        return {"served": "too many"}
    models = served_models(server)
    if models is None:
        return {"served": "own rules"}
    layers = {name: values.cpu().contiguous() for name, values in server.task.layers(models).items()}
    write_tensors(folder / PERSONAL, layers)
    return {"served": "own models"}


def _write_result(result: Result, folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    left_out = result.server.task.frozen
    state = {name: value.contiguous() for name, value in result.state_dict().items() if name not in left_out}
    write_tensors(folder / "model.safetensors", state)
    clients = {name: pa.array(values) for name, values in result.clients().items()}
    write_durably(folder / "clients.parquet", lambda path: pq.write_table(pa.table(clients), path))
    summary = {**result.summary(), "clients": result.audit.by_client(), **_write_served(result.server, folder)}
    write_text(folder / "result.json", as_json_text(summary))
