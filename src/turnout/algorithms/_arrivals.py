"""The loop of every asynchronous method: wait as the policy says, aggregate, send whoever delivered the new model."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from turnout.aggregation.rules import Rule
from turnout.aggregation.staleness import Discount, Rate, discount
from turnout.aggregation.weights import Weigh
from turnout.algorithms._algorithm import Algorithm
from turnout.core.allowed import Count, NotNegative, Seconds, WholeNumber
from turnout.core.errors import UserError, renamed
from turnout.core.random import FloatArray, IntArray
from turnout.local.sgd import LocalSGD
from turnout.server.closing import Arriving, EachArrival, Window
from turnout.server.durations import Durations
from turnout.server.policy import Policy
from turnout.server.server import Server
from turnout.server.updates import Updates


@dataclass
class Arrivals(Algorithm):
    """Old updates are used as they are, unless `max_staleness` drops them or `staleness_discount` (polynomial
    (s + 1)^-rate, or hinge 1 / (rate (s - from) + 1) beyond `discount_from`) shrinks them: both skew whose data counts,
    and the audit shows how. Clients found offline are asked again at every close; a round that finds nobody at all
    takes `retry` seconds. With `concurrency` only so many work at once: at every close others join them, drawn from
    those who are online then."""

    restarts_crashed = True
    waits = Arriving

    local: LocalSGD
    max_staleness: WholeNumber | None = None  # versions: older updates are dropped; none: none is
    staleness_discount: Discount = "none"  # how weights shrink with staleness
    discount_rate: Rate = 0.5  # how fast they shrink: polynomial (s + 1)^-rate
    discount_from: NotNegative = 0.0  # versions: the staleness from which hinge shrinks
    retry: Seconds = 1.0  # seconds that a round takes which finds nobody online
    concurrency: Count | None = field(default=None, kw_only=True)  # clients at work at once; none: all

    def __post_init__(self) -> None:
        super().__post_init__()
        for part in (self.rule, self.weigh):
            if isinstance(self.closing, EachArrival) and isinstance(part, Rule | Weigh) and not part.moves_one:
                name = "rule" if isinstance(part, Rule) else "weigh"
                raise UserError(
                    f"{name}: {type(self).__name__} has one update a round, of which {type(part).__name__} makes the "
                    "same; leave it out, or wait with a buffer"
                )
        with renamed(self.given_as if self.wait is None else {}):
            self.closing.check(self.concurrency)

    @cached_property
    def closing(self) -> Arriving:
        """When a round closes."""
        return self.wait if isinstance(self.wait, Arriving) else self.own_wait()

    def own_wait(self) -> Arriving:
        return EachArrival()

    def unused(self) -> dict[str, str]:
        rest = {"retry": "where every window takes its time"} if isinstance(self.closing, Window) else {}
        return super().unused() | rest

    def policy(self, durations: Durations, version: int = 0) -> Policy:
        with renamed(self.given_as if self.wait is None else {}):
            return self.closing.policy(durations, version, self.concurrency)

    def aggregate(self, server: Server, updates: Updates, policy: Policy, durations: Durations) -> None:
        """Use what has arrived and is not too old."""
        raise NotImplementedError

    def work(self, clients: IntArray, policy: Policy, durations: Durations, importance: FloatArray) -> LocalSGD:
        """What these clients do."""
        return self.modified(self.local)

    def begin(self, server: Server) -> None:
        durations = server.durations(self.local)
        first = server.population.ids if self.concurrency is None else self._drawn(server, self.concurrency)
        self._invite(server, first, self.policy(durations), durations)

    def run(self, server: Server) -> None:
        durations = server.durations(self.local)
        for version in server.rounds():
            policy = self.policy(durations, version)
            if self._foreseen(server, policy, durations):
                continue
            arrived = server.wait(policy.count, seconds=policy.window)
            if not len(arrived) and policy.window is None:
                arrived += server.wait(seconds=self.retry)
            self.aggregate(server, self._fresh(server, arrived), policy, durations)
            self._invite(server, self._idle(server, arrived), policy, durations)

    def _foreseen(self, server: Server, policy: Policy, durations: Durations) -> bool:
        """Pass rounds in one go, where what each update counts is known before it arrives."""
        return False

    def discounted(self, weights: FloatArray, staleness: IntArray) -> FloatArray:
        """The weights after the staleness discount."""
        if self.staleness_discount == "none":
            return weights
        return weights * discount(self.staleness_discount, staleness, self.discount_rate, self.discount_from)

    def _fresh(self, server: Server, arrived: Updates) -> Updates:
        if self.max_staleness is None or not len(arrived):
            return arrived
        old = arrived.staleness > self.max_staleness
        for client, staleness in zip(arrived.clients[old].tolist(), arrived.staleness[old].tolist(), strict=True):
            server.log("stale_update", client=client, staleness=staleness)
        return arrived.select(~old)

    def _idle(self, server: Server, ended: Updates) -> IntArray:
        """Who begins a job: whoever can, or with `concurrency` whoever is drawn for the places that are free."""
        if self.concurrency is None:
            return server.idle_after(ended)
        return self._drawn(server, self.concurrency - server.in_flight)

    @staticmethod
    def _drawn(server: Server, size: int) -> IntArray:
        return server.online().sample(size, server.seed, "concurrency", server.version)

    def _invite(self, server: Server, clients: IntArray, policy: Policy, durations: Durations) -> None:
        work = self.work(clients, policy, durations, server.importance)
        server.invite(clients, work, again=policy.restart)
