"""What sites agree on before the first round: every member is asked once for sums, and what follows from them is
written down. Who does not answer, refuses, or says what cannot be is named, and left out of the sums, not of the study.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.serverapp import Grid

from turnout.config.deployment import Deploy
from turnout.core.errors import FailedError
from turnout.core.files import as_json_text, write_text
from turnout.data.preprocess import Preprocess, canonical
from turnout.data.schema import Schema
from turnout.data.sums import Sums, agreed, check_sums
from turnout.deploy import screen
from turnout.deploy.folder import Enrolled
from turnout.deploy.keys import as_text
from turnout.deploy.screen import Failed, Inbox, Refused, RejectedError, Rejection, refusal, require
from turnout.deploy.terms import STATISTICS, STUDY, Terms
from turnout.deploy.wire import ANSWER, ASK, MEASURES, apart

RECORD = "agreement.json"  # in the server's folder: who answered what
_SILENT = "it did not answer in time"
_FIRST_PAUSE = 0.01  # seconds
_LIFETIME = 30 * 86400.0


class Said(NamedTuple):
    """The sums of a site."""

    rows: int
    sums: dict[str, Sums]


@dataclass(frozen=True)
class Statistics:
    """What a site may say of its training rows."""

    schema: Schema
    rows: int  # that it enrolled with
    most: int = 0  # bytes of arrays

    def read(self, content: RecordDict) -> Said | Refused:
        said, record = apart(content, ANSWER, MEASURES)
        if (refused := refusal(said, record)) is not None:
            return refused
        require(set(said) == {STATISTICS} and not len(record), Rejection.UNDECODABLE)
        document = json.loads(str(said[STATISTICS]))
        require(isinstance(document, dict) and document.keys() == {"rows", "sums"}, Rejection.UNDECODABLE)
        require(document["rows"] == self.rows, Rejection.BAD_COUNTS)
        try:
            return Said(self.rows, check_sums(self.schema, document["sums"], self.rows))
        except ValueError as error:
            raise RejectedError(Rejection.BAD_MEASURES) from error


@dataclass
class Agreement:
    """One question to every member, and what came of it."""

    grid: Grid
    schema: Schema
    clients: Mapping[str, Enrolled]  # members by name
    settings: Deploy
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _asked: dict[str, tuple[str, int]] = field(default_factory=dict)  # by message: a site and its node
    _said: dict[str, Said] = field(default_factory=dict)
    _missing: dict[str, str] = field(default_factory=dict)  # by site: why it is not in the sums

    def reach(self) -> Preprocess:
        """Ask all who are there or come in time, and fit the preprocessing to what they say."""
        self._missing = dict.fromkeys(self.clients, "it was not there")
        inbox, begun, pause = Inbox(self.grid), self.clock(), _FIRST_PAUSE
        joining, limit = begun + self.settings.join_seconds, begun + self.settings.agree_seconds
        while True:
            if self.clock() < joining or not self._asked:
                self._ask_new()
            for reply in inbox.pull(dict.fromkeys(self._asked, 0)):
                self._hear(reply)
            waiting = [name for name, (site, _) in self._asked.items() if self._missing.get(site) == _SILENT]
            all_there = len({site for site, _ in self._asked.values()}) == len(self.clients)
            if (not waiting and (all_there or self.clock() >= joining)) or self.clock() >= limit:
                break
            self.sleep(pause)
            pause = min(2 * pause, self.settings.poll_seconds)
        if not self._said:
            whys = "; ".join(f"{site}: {why}" for site, why in self._missing.items())
            raise FailedError(f"no site has told its sums, so nothing could be agreed on: {whys}")
        said = [f"{site} is not in the preprocessing: {why}" for site, why in self._missing.items()]
        in_order = {site: tuple(self._said[site]) for site in self.clients if site in self._said}
        return agreed(self.schema, in_order, said)  # type: ignore[arg-type]

    def _ask_new(self) -> None:
        known = {enrolled.key: site for site, enrolled in self.clients.items()}
        asked = {site for site, _ in self._asked.values()}
        messages, sites = [], []
        for node in self.grid.get_nodes():
            site = known.get(as_text(node.public_key))
            if site is not None and site not in asked:
                terms = Terms(self.schema.digest, len(self.clients)).record()
                content = RecordDict({ASK: ConfigRecord({"version": 0}), STUDY: terms})
                messages.append(Message(content, node.node_id, "query", ttl=_LIFETIME))
                sites.append((site, node.node_id))
        names = [*self.grid.push_messages(messages)] if messages else []
        for name, one in zip(names, sites, strict=False):
            if name:
                self._asked[name] = one
                self._missing[one[0]] = _SILENT

    def _hear(self, reply: screen.Reply) -> None:
        site, node = self._asked.get(reply.to, (None, 0))
        if site is None or self._missing.get(site) != _SILENT:
            return  # an answer to no question, or a second one
        if reply.node not in (node, SUPERLINK_NODE_ID):
            return  # somebody else's: the site's own may still come
        try:
            answer = screen.read(reply, Statistics(self.schema, self.clients[site].samples))
        except RejectedError as rejected:
            self._missing[site] = f"rejected: {rejected.why}"
            return
        if isinstance(answer, Refused):
            self._missing[site] = f"refused, {answer.code}: {answer.why}"
        elif isinstance(answer, Failed):
            self._missing[site] = f"failed: {answer.why}"
        else:
            del self._missing[site]
            self._said[site] = answer

    def record(self) -> dict[str, Any]:
        """Say who told what."""
        return {"answered": {site: said._asdict() for site, said in self._said.items()}, "missing": self._missing}


def reached(agreement: Agreement, folder: Path) -> Preprocess:
    """Agree once: what is written in the server's folder is what holds."""
    fitted = agreement.reach()
    write_text(folder / RECORD, as_json_text(agreement.record()))
    write_text(folder / "preprocess.json", canonical(fitted.document()))
    return fitted
