"""The server over a network: the same jobs, in wall time, answered by real clients through Flower's Grid.

Decisions follow from a clock of this machine alone, which never looks at another's: it is read when the server begins
to wait and when answers are found, and `Timeline` keeps what it showed. Between two readings it stands still. So a
deployed run is a simulation whose arrivals were real, and `turnout.deploy.replay` carries it out again.

`app` is the same as a Flower `ServerApp`: it builds the experiment from the server's folder and carries it out over the
Grid. A run that was interrupted goes on from its checkpoint.
"""

from __future__ import annotations

import math
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, MessageType
from flwr.serverapp import Grid, ServerApp
from numpy.typing import ArrayLike
from torch import Tensor

from turnout.clients.online import OnlineSet
from turnout.config.deployment import Deploy
from turnout.core.errors import FailedError, UserError
from turnout.core.files import write_text
from turnout.deploy import presence, study
from turnout.deploy.app import why
from turnout.deploy.correspondence import Asked, Correspondence
from turnout.deploy.folder import Enrolment, read_outline
from turnout.deploy.keys import as_text
from turnout.deploy.measures import Counts, Summed, Told, of_sets
from turnout.deploy.presence import Live, Timeline
from turnout.deploy.screen import Evaluation, Measures, Refused, by_client
from turnout.deploy.terms import STUDY
from turnout.deploy.wire import Question, encode, pack_question
from turnout.local.sgd import LocalSGD, Named
from turnout.run.experiment import execute
from turnout.server.dispatch import Dispatch
from turnout.server.durations import Durations
from turnout.server.jobs import LEFT, NOT_KNOWN
from turnout.server.measurement import ByClient
from turnout.server.server import Server
from turnout.server.state import Facts
from turnout.server.updates import Updates

FOLDER, RUN, OVERWRITE = "folder", "run", "overwrite"  # of the run's configuration
MISTAKE = "mistake.txt"  # in the server's folder: what the user must change
FAILURE = "failure.txt"  # in the server's folder: why the server could not go on
_FIRST_PAUSE = 0.01  # seconds
_AGAIN = 60.0  # seconds until a client is asked again that has refused and names no time
_GROWTH = 1.1  # of the pause between two looks: an answer does not wait longer than a tenth of what it took

app = ServerApp()


class Deployment(Correspondence):
    """`Server` over a Grid."""

    def __init__(
        self,
        *args: Any,
        enrolment: Enrolment,
        timeline: Timeline | None = None,
        of: study.Study | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self.study = of
        if of is not None:
            study.check_measures(self.task.sets.names)
        self._refuses: dict[int, float] = {}  # by client, until when it is not asked
        self._sets: dict[int, dict[str, dict[str, Counts]]] = {}  # by client, what it said last
        self.enrolment, self.timeline = enrolment, timeline or Timeline()
        self.observers.append(self.timeline)
        self._dispatch = Dispatch(self.population, self.task)
        self._told: tuple[str, dict[str, ByClient]] | None = None  # what clients said last, and of which model
        self._strangers: set[bytes] = set()

    # -- the clock --------------------------------------------------------------------------------------------

    def _due(self, close: int | None) -> bool:
        pause, events = _FIRST_PAUSE, self._flight.queue
        while not events.due(close):
            if close is not None and self._tick > close:
                self._poll(close)  # whatever is there when the server looks at the close counts
                return events.due(close)
            self._poll()
            if not events.due(close):
                self._sleep(pause if close is None else min(pause, max(0, close - self._tick + 1) / self._ticks))
                pause = min(_GROWTH * pause, self.settings.poll_seconds)
        return True

    def wait(self, count: int | None = None, of: ArrayLike | None = None, seconds: float | None = None) -> Updates:
        self._poll()
        self._clock = max(self._clock + 1, self._tick)
        self.timeline.note(self.now, presence.WAIT)
        updates = super().wait(count, of, seconds)
        self._look()
        return updates

    # -- who is there -----------------------------------------------------------------------------------------

    def run(self) -> Server:
        self._gather()
        self.importance = self.population.importance_at(self.now)
        self._send([job for job in self._in_flight.values() if job.ends_at == NOT_KNOWN])
        try:
            return super().run()
        except UserError:
            raise
        except Exception as error:
            raise self._died(error) from error

    def _died(self, error: Exception) -> FailedError:
        """Whose answer came last is where to look first."""
        asked, last = self._heard_last, "before anybody had answered"
        if asked is not None:
            about = "a question" if asked.job is None else f"job {asked.job.number}"
            last = f"after the answer of client {asked.client} to {about}"
        with suppress(OSError):  # of a disk that is full, as the error may be
            self.log("died", why=why(error), last=last)
        return FailedError(f"the server failed in round {self.version} {last}: {why(error)}")

    def _gather(self) -> None:
        """Wait until all members are there, if that does not take too long."""
        limit, members = self._read() + self.settings.join_seconds, sum(each.member for each in self.enrolment.clients)
        self._look()
        while len(self._nodes) < members and self._read() < limit:
            self._sleep(self.settings.poll_seconds)
            self._look()
        self._zero = self._read() - self._clock / self._ticks

    def _look(self) -> None:
        """Who is connected, and who has joined or left."""
        try:
            self.enrolment.read_again()
        except (UserError, OSError) as error:
            self.log("unread_enrolment", why=str(error))
        members = self.population.members(self.population.ids, self.now)
        for client, enrolled in enumerate(self.enrolment.clients):
            if enrolled.member != members[client]:
                self._change(presence.JOINED if enrolled.member else presence.LEFT, client)
        known = {enrolled.key: client for client, enrolled in enumerate(self.enrolment.clients) if enrolled.member}
        nodes: dict[int, int] = {}
        for node in self.grid.get_nodes():
            key = as_text(node.public_key)
            if key in known and self._read() < self._refuses.get(known[key], -math.inf):
                continue
            if key in known:
                nodes[known[key]] = node.node_id
            elif node.public_key not in self._strangers:
                self._strangers.add(node.public_key)
                self.log("refused_node", node=node.node_id, why="its key is not enrolled")
        here, self._nodes = self.population.availability.online(0, self.population.ids, self.now), nodes
        for client in range(self.population.size):
            if here[client] != (client in nodes):
                self._change(presence.ONLINE if client in nodes else presence.OFFLINE, client)

    def _change(self, what: str, client: int) -> None:
        presence.change(self.population, what, client, self.now)
        self.timeline.note(self.now, what, client)
        if self.begun:
            self.log(what, client=client)
        job = self._in_flight.get(client)
        if what == presence.LEFT and job is not None and job.ends_at == NOT_KNOWN:
            self._over_with(job, LEFT)

    def online(self) -> OnlineSet:
        return Live(self.population, self.version, self.now, self._flight.busy)

    def durations(self, work: LocalSGD) -> Durations:
        return self._dispatch.demand(work).durations

    def push_seconds(self, copies: int, work: LocalSGD) -> float:
        return 0.0

    def backhaul_seconds(self, edges: int, work: LocalSGD) -> float:
        return 0.0

    # -- what sites are told, and refuse ------------------------------------------------------------------------

    def _message(self, content: Any, node: int, kind: str) -> Message:
        if self.study is not None:
            members = sum(each.member for each in self.enrolment.clients)
            content[STUDY] = self.study.terms(members).record()
        return super()._message(content, node, kind)

    def _hear_refusal(self, asked: Asked, refused: Refused) -> None:
        super()._hear_refusal(asked, refused)
        if asked.job is not None:  # who does not train is left alone for a while; who does not measure may still train
            self._refuses[asked.client] = self._read() + (refused.until if refused.until >= 0 else _AGAIN)
        if self.study is not None:
            name = str(self.enrolment.clients[asked.client].name)
            self.study.refused(name, "evaluate" if asked.job is None else "train", refused)

    # -- evaluation -------------------------------------------------------------------------------------------

    def client_measures(self, model: Tensor) -> dict[str, ByClient]:
        """Asked of the clients that are there; who does not answer in time has no samples this time."""
        if self.settings.evaluate == "server":
            return {}
        name = self._named(model)
        if self._told is None or self._told[0] != name:
            self._told = name, self._ask_measures(model)
        return self._told[1]

    def _ask_measures(self, model: Tensor) -> dict[str, ByClient]:
        panel = next(iter(self._measurement.evaluators.values())).clients
        asked = [client for client in panel.tolist() if client in self._nodes]
        array, names, messages = encode(model), self.task.measured, []
        for client in asked:
            content = pack_question(Question(self.version, self._states[client]), array)
            messages.append(self._message(content, self._nodes[client], MessageType.EVALUATE))
        self._measured, self._sets = {}, {}
        for client, message, name in zip(asked, messages, self._push(messages), strict=True):
            if name is not None:
                self._waited[name] = Asked(client, message.metadata.dst_node_id, self._telling(client, names))
        limit, pause = self._read() + self.settings.evaluation_seconds, _FIRST_PAUSE
        self._poll()
        while (late := [name for name, each in self._waited.items() if each.job is None]) and self._read() < limit:
            self._sleep(pause)
            pause = min(_GROWTH * pause, self.settings.poll_seconds)
            self._poll()
        for name in late:
            self.log("not_evaluated", client=self._waited.pop(name).client, why="no answer in time")
            self._over.add(name)
        splits = dict.fromkeys(split for answer in self._measured.values() for split in answer)
        said = {split: {i: each[split] for i, each in self._measured.items() if split in each} for split in splits}
        return {split: by_client(panel, names, rows) for split, rows in said.items()}

    def _telling(self, client: int, names: tuple[str, ...]) -> Evaluation | Summed:
        splits = self.enrolment.clients[client].splits
        if self.study is None:
            return Evaluation(frozenset(names), splits, self.task.sets.names)
        return Summed(frozenset(names), splits, self.study.schema.classes, self.study.summaries)

    def _hear_measures(self, client: int, answer: Measures | Told) -> None:
        super()._hear_measures(client, answer)
        if isinstance(answer, Told):
            self._sets[client] = answer.sets

    def measure(self, model: Tensor) -> dict[str, float]:
        return super().measure(model) | of_sets([*self._sets.values()])

    # -- state ------------------------------------------------------------------------------------------------

    def save(self) -> tuple[Facts, Named]:
        facts, tensors = super().save()
        return facts | {"states": self._states}, tensors

    def load(self, facts: Facts, tensors: Named) -> None:
        super().load(facts, tensors)
        self._states = facts["states"]
        for at, what, client in self.timeline.rows():
            presence.change(self.population, what, client, at)


def serve(grid: Grid, folder: Path, run: Path, overwrite: bool = False, **options: Any) -> None:
    """Carry out the experiment of a server's folder; the record goes to `run`, where an earlier one goes on, or is
    replaced. `options` are those of `Deployment`."""
    from turnout.config import config

    enrolment = Enrolment(folder / "clients.toml")
    settings = config.read_run(folder)
    deploy = Deploy(**settings.get("deploy", {}))
    sizes = [client.samples for client in enrolment.clients]
    importance = settings.get("clients", {}).get("importance", "samples")
    seed = config.RunSettings(**settings.get("run", {})).seed
    columns = {"importance": importance, "seed": seed, **enrolment.columns()}
    if study.is_study(folder):
        clocks = {name: options[name] for name in ("clock", "sleep") if name in options}
        options["of"], known = study.begin(grid, folder, enrolment, deploy, columns, **clocks)
    else:
        known = read_outline(folder / "outline.safetensors", sizes, **columns)
    experiment, running, complete = config.build(settings, known=known)
    if deploy.evaluate == "server" and experiment.population.central is None:
        raise UserError("deploy.evaluate: server, but it has no central test set; let the clients evaluate")
    options |= {"grid": grid, "enrolment": enrolment, "settings": deploy, "timeline": Timeline(run / "arrivals")}
    execute(
        experiment,
        run,
        checkpoint_every=running.checkpoint_every,
        resume=(run / "plan.json").exists() and not overwrite,
        overwrite=overwrite,
        configuration=config.as_toml(complete),
        kind=partial(Deployment, **options),
    )


@app.main()
def main(grid: Grid, context: Context) -> None:
    folder, run = Path(str(context.run_config[FOLDER])), Path(str(context.run_config[RUN]))
    try:
        serve(grid, folder, run, bool(context.run_config.get(OVERWRITE)))
    except Exception as error:
        sentence = str(error) if isinstance(error, UserError | FailedError) else f"the server failed: {why(error)}"
        with suppress(UserError):  # of a disk that is full, as the error may be
            write_text(folder / (MISTAKE if isinstance(error, UserError) else FAILURE), sentence)
        raise
