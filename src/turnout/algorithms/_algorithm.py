"""What every algorithm is: its options, its state, and a loop that reads as the paper writes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from numpy.typing import NDArray
from torch import Tensor

from turnout.aggregation.optimisers import OPTIMISERS, Step
from turnout.aggregation.remember import REMEMBER, LastUpdate
from turnout.aggregation.rules import RULES, Rule
from turnout.aggregation.weights import WEIGHTS, Weigh
from turnout.core.errors import UserError, renamed, unknown
from turnout.core.random import FloatArray, IntArray
from turnout.core.spelling import Spelt
from turnout.local.modifiers import Modifier
from turnout.local.serving import SERVES, Serve
from turnout.local.sgd import LocalSGD
from turnout.sampling._sampler import Sampler
from turnout.server.closing import WAITS, Wait

if TYPE_CHECKING:
    from turnout.clients.population import Population
    from turnout.server.durations import Durations
    from turnout.server.policy import Policy
    from turnout.server.server import Server
    from turnout.task.task import Task


_PART: dict[str, bool] = {"part": True}  # a value with options of its own, from a section of its own
PARTS: dict[str, tuple[type[Any], Mapping[str, type[Any]]]] = {  # their kinds, and those known by name
    "wait": (Wait, WAITS),
    "weigh": (Weigh, WEIGHTS),
    "remember": (LastUpdate, REMEMBER),
    "rule": (Rule, RULES),
    "optimiser": (Step, OPTIMISERS),
    "serve": (Serve, SERVES),
}
LAW = ("weigh", "remember", "rule", "optimiser")  # the parts of `turnout.server.law`
_SERVING = ("predict", "serves", "prepare")  # what a local work says of what its clients serve
_OWN = {"optimiser.lr": "algorithm.server_lr"}  # options of its own parts, as they are given
_OWN |= {f"{part}.": "algorithm." for part in (*PARTS, "sampler", "local.proximal")}


@dataclass
class Algorithm(Spelt):
    """A dataclass. Fields given to the constructor are options; fields with `init=False` are state and are saved in
    every checkpoint (numbers, strings, tensors). Between two rounds there is no other state.

    Every method takes parts, each in the place of what it has of its own (`own_wait`, `own_weigh`, ...): `wait` closes
    rounds, `weigh` makes other weights of its weights, `remember` lets silent clients count with their last update,
    `rule` takes the place of the weighted sum, `optimiser` of the server's step, `serve` of what clients serve. One
    without a use is refused.
    """

    section: ClassVar[str] = "algorithm"
    waits: ClassVar[type[Wait] | None] = None  # the kind of `wait` it takes; None: rounds close by a rule of its own
    # Parts it has no use for, and why: "it ..."; `held` is what the server holds for modifiers of the local work.
    cannot: ClassVar[dict[str, str]] = {}
    of_part: ClassVar[dict[str, tuple[str, ...]]] = {}  # options that go with its own part: no use beside another
    given_as: ClassVar[dict[str, str]] = {}  # its options, by those of its own parts, where they are called otherwise

    # What clients may go on from (`KEEP`): nothing, work that was interrupted, or also the models they ended with.
    clients_keep: ClassVar[Literal["nothing", "unfinished", "models"]] = "nothing"
    # Whether it takes more from updates than the sum of a step: every class that does not declares False itself.
    reads_updates: ClassVar[bool] = True
    restarts_crashed: ClassVar[bool] = False  # whether a standing invitation outlives a crash
    sends_updates: ClassVar[bool] = True  # False: clients keep what they learn to themselves
    trains: ClassVar[type[LocalSGD] | None] = None  # what it makes of the settings of its local work; None: that work
    no_use_for: ClassVar[tuple[str, ...]] = ()  # options it inherits that would change nothing

    wait: Wait | None = field(default=None, kw_only=True, metadata=_PART)
    weigh: Weigh | None = field(default=None, kw_only=True, metadata=_PART)
    remember: LastUpdate | None = field(default=None, kw_only=True, metadata=_PART)
    rule: Rule | str | None = field(default=None, kw_only=True, metadata=_PART)
    optimiser: Step | None = field(default=None, kw_only=True, metadata=_PART)
    serve: Serve | None = field(default=None, kw_only=True, metadata=_PART)

    def __post_init__(self) -> None:
        """Raise where a part or an option has no use or is out of range, or something of the local work is dropped."""
        self._check_parts(type(self).__name__)
        local = getattr(self, "local", None)
        if self.trains is not None and isinstance(local, LocalSGD) and type(local) is not LocalSGD:
            raise local.lost_to(f"the {self.trains.__name__} of {type(self).__name__}")
        with renamed(_OWN), renamed(self.given_as):
            self.check_own()
        for name, why in self.unused().items():
            part = next(part for part in fields(self) if part.name == name)
            given = getattr(self, name)
            if given != (part.default if part.default_factory is MISSING else part.default_factory()):
                shown = given if isinstance(given, int | float) else repr(given)[:60]
                raise UserError(f"algorithm.{name}: {shown}, which would change nothing {why}; leave it out")
        if not isinstance(local, LocalSGD):
            return
        if (weigh := self.own_weigh() if self.weigh is None else self.weigh) is not None:
            weigh.check(local)
        served = any(getattr(type(local), part) is not getattr(LocalSGD, part) for part in _SERVING)
        if served and all(part.__module__.startswith("turnout.") for part in (self.predictor, self.adaptation)):
            raise UserError(
                f"local: {type(self).__name__} would never ask {type(local).__name__} to predict; take an algorithm of "
                "your own whose `predictor` returns it"
            )

    def _check_parts(self, kind: str) -> None:
        """Make parts of names; raise where one is of another kind, has no use, or two of them exclude each other."""
        for name, wanted, like in (("local", LocalSGD, "LocalSGD(0.1)"), ("sampler", Sampler, "turnout.Uniform(10)")):
            if not isinstance(given := getattr(self, name, None), wanted | None):
                raise UserError(f"{name}: {given!r} is no {wanted.__name__}; write for example {like}")
        for name, (wanted, known) in PARTS.items():
            own = next(part for part in fields(self) if part.name == name)
            given, part = getattr(self, name), own.metadata.get("part")
            if part and isinstance(given, str):
                given = _made(name, given, known)
                setattr(self, name, given)
            if given is None or not (part or isinstance(given, wanted)):  # an option of its own that is called so
                continue
            if not isinstance(given, wanted):
                raise UserError(f"{name}: {type(given).__name__} is no {wanted.__module__}.{wanted.__name__}")
            if name in self.cannot:
                raise UserError(f"{name}: {kind} {self.cannot[name]}; leave it out")
        if self.wait is not None and (self.waits is None or not isinstance(self.wait, self.waits)):
            given, rule = type(self.wait), "closes its rounds by a rule of its own"
            why = rule if self.waits is None else self.waits.of
            kept = f"{given.__name__} is for a method that {given.of} ({given.like})"
            raise UserError(f"wait: {kept}, and {kind} {why}; leave it out")
        if self.weigh is not None and self.remember is not None:
            raise UserError("weigh: with `remember` every client counts its importance; leave one of the two out")

    def unused(self) -> dict[str, str]:
        """Options that would change nothing, and where."""
        found: dict[str, str] = {}
        for name, options in self.of_part.items():
            if getattr(self, name) is not None:
                found |= dict.fromkeys(options, f"beside the {name} given, which has its own options")
        return found | dict.fromkeys(self.no_use_for, f"in {type(self).__name__}")

    def check_own(self) -> None:
        """Raise where the options of its own parts are out of range: each is made once."""
        for part in (self.own_weigh, self.own_optimiser, self.own_serve, self.own_work, self.own_modifiers):
            part()
        if self.wait is None:
            self.own_wait()
        if not isinstance(self.rule, Rule):
            self.own_rule()

    @property
    def time_limit(self) -> float | None:
        """Seconds that a round waits for clients once the models are out: `deadline`, where there is such an option, or
        what a method has chosen in its place."""
        given = getattr(self if self.wait is None else self.wait, "deadline", None)
        return getattr(self, "chosen_deadline", None) if given is None else given

    def begin(self, server: Server) -> None:
        """Once, before the first round; never again on resume."""

    def run(self, server: Server) -> None:
        """The loop over `server.rounds()`."""
        raise NotImplementedError

    # -- what a method has of its own -------------------------------------------------------------------------

    def own_wait(self) -> Wait | None:
        """When a round closes, unless `wait` is given; None: by a rule of its own."""
        return None

    def own_optimiser(self) -> Step:
        """What the server does with the aggregated difference, unless an `optimiser` is given."""
        return Step()

    def own_rule(self) -> Rule | None:
        """What takes the place of the weighted sum, unless a `rule` is given."""
        return None

    def own_weigh(self) -> Weigh | None:
        """What other weights are made of the method's, unless `weigh` is given."""
        return None

    def own_serve(self) -> Serve | None:
        """What clients serve, unless `serve` is given; None: see `predictor` and `adaptation`."""
        return None

    def own_modifiers(self) -> tuple[Modifier, ...]:
        """What is added to the local work, after the modifiers that it has."""
        return ()

    def own_work(self) -> LocalSGD | None:
        """What clients train, and serve by its `predict`, where that is another work made of the local one."""
        return None

    def modified(self, work: LocalSGD) -> LocalSGD:
        """A local work with the method's own modifiers."""
        own = self.own_modifiers()
        return work.modified(*own) if own else work

    def stepping(self, server: Server) -> LocalSGD:
        """The local work whose steps are counted: that which clients are asked for now."""
        work: LocalSGD = self.local  # type: ignore[attr-defined]
        return work

    def served(self, unseen: bool) -> tuple[LocalSGD | None, LocalSGD | None]:
        """What a client adapts the global model with before it serves, and the work whose `predict` serves it."""
        serve = self.own_serve() if self.serve is None else self.serve
        if serve is None:
            adaptation, predictor = self.adaptation(unseen), self.predictor()
        else:
            adaptation, predictor = serve.adaptation(self.local), None  # type: ignore[attr-defined]
        return None if adaptation is None else adaptation.alone(), predictor

    def policy(self, durations: Durations, version: int = 0) -> Policy | None:
        """The waiting policy that round `version` follows, where the algorithm is one."""
        return None

    def training_population(self, population: Population) -> Population:
        """Who trains; evaluation always looks at the population as given."""
        return population

    def trained_task(self, task: Task) -> Task:
        """What the server trains, where that is more than one model of the task (a mixture of several)."""
        return task

    def output(self, model: Tensor) -> Tensor:
        """What is evaluated and returned, where that is not the current model (an average of many)."""
        return model

    def about(self, server: Server, clients: IntArray) -> dict[str, NDArray[Any]]:
        """Columns of the table of clients: what a simulation knows of these and nobody sends."""
        return {}

    def predictor(self) -> LocalSGD | None:
        """The local work whose `predict` serves the clients, where they do not all serve the global model."""
        return self.own_work()

    def adaptation(self, unseen: bool) -> LocalSGD | None:
        """What a client does with the global model and its own training samples before it serves, where that is more
        than to look up what it kept: it trains this work, `prepare`s and `predict`s with it, and keeps nothing of it.
        `unseen` clients have never trained. It takes no time and nothing is sent: evaluation alone asks for it."""
        return None


def expected_deadline(server: Server, local: LocalSGD, of: Callable[[FloatArray], float]) -> float:
    """Seconds to wait where no deadline is given: a function of those that each client is expected to need; logged."""
    seconds = of(server.durations(local).mean[server.population.base_importance > 0])
    server.log("default_deadline", seconds=float(f"{seconds:.6g}"), why="no algorithm.deadline")
    return seconds


def tell_unused(server: Server, local: LocalSGD, *names: str) -> None:
    """Say which of these options of the local work are given, though the algorithm has no use for them."""
    for name in names:
        if getattr(local, name) != getattr(LocalSGD, name):
            server.log("unused_option", option=f"local.{name}", value=getattr(local, name))


def _made(option: str, name: str, known: Mapping[str, type[Any]]) -> Any:
    """Make a part that is known by that name, with the options that it has unless others are given."""
    if name not in known:
        raise unknown(option, name, known)
    required = [part.name for part in fields(known[name]) if part.init and part.default is part.default_factory]
    if required:
        kind = known[name].__name__
        raise UserError(f"{option}: {name} needs {', '.join(required)}; write {kind}({required[0]}=...)")
    return known[name]()
