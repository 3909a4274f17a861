"""Who takes part: columns over N clients. What the server may know, and what only the simulation knows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cached_property
from inspect import signature
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from turnout.clients import saved as folder
from turnout.clients.adversary import Adversary
from turnout.clients.arriving import Arrivals, periods
from turnout.clients.availability import Always, Availability, Crashes, Detection
from turnout.clients.behaviour import Behaviour
from turnout.clients.devices import Devices, fixed
from turnout.clients.links import Links
from turnout.clients.memories import Memory
from turnout.clients.origin import Origin
from turnout.clients.power import Power
from turnout.clients.streams import Stored, Stream, chosen, in_order
from turnout.core import random, trees
from turnout.core.allowed import OneOf, Range, Seconds, Share
from turnout.core.errors import UserError, renamed, unknown
from turnout.core.names import listed
from turnout.core.ragged import Ragged
from turnout.core.spelling import Spelt, spelt
from turnout.core.trees import Tree
from turnout.data.dataset import Dataset, as_tree
from turnout.data.partition import PARTITIONS, split

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
MICROSECONDS = 1_000_000
TESTS = OneOf(("split", "matched", "none"))
Tested = Annotated[str, TESTS]  # where clients test
UNSEEN = Range(least=0, below=1)  # share of the clients
Fresh = Annotated[float | Sequence[int], Range(least=0, words="from 0 to 1, or the ids of clients")]


def _never_join(joined_at: FloatArray | None, fraction: float, clients: int, seed: int) -> FloatArray:
    """`[N]` when clients join, where that share of them never does."""
    UNSEEN.check("clients.unseen_fraction", fraction)
    joined = np.zeros(clients) if joined_at is None else np.array(joined_at, np.float64)
    if joined.shape != (clients,):
        raise UserError(f"population.joined_at: {joined.size} values for {clients} clients")
    never = min(clients - 1, math.floor(fraction * clients + 0.5))
    joined[random.subset(random.key(seed, "unseen"), never, clients)] = np.inf
    return joined


def _edges(rows: NDArray[np.integer]) -> tuple[int, ...]:
    """The lowest and the highest of some rows, if there are any."""
    return (int(rows.min()), int(rows.max())) if len(rows) else ()


@dataclass(frozen=True)
class Dealt:
    """How a population was dealt by a seed that nobody gave: `again` deals it by another."""

    again: Callable[[int], Population]
    first: Population


_SAMPLES = ("inputs", "targets", "train", "test", "central", "validation", "stream")


@dataclass(frozen=True)
class Population(Spelt):
    """N clients: their data, importance, hardware, links, presence and reliability.

    Client `i` trains on rows `train.row(i)` of the shared pool `inputs, targets` and is tested on `test.row(i)`.
    `importance` is `samples` (n_i / n), `equal`, or N numbers that sum to 1.

    >>> population = Population.of(turnout.datasets.load("digits"), clients=100, partition="iid")
    """

    inputs: Tree
    targets: Tree
    train: Ragged
    test: Ragged | None = None
    central: tuple[Tree, Tree] | None = None  # test data that belongs to nobody
    validation: Ragged | None = None  # held back from training, to choose by
    importance: str | ArrayLike = "samples"
    devices: Devices = field(default_factory=lambda: fixed(1.0))
    links: Links = field(default_factory=Links)
    availability: Availability = field(default_factory=Always)
    crashes: Crashes = field(default_factory=Crashes)
    detection: Detection = field(default_factory=Detection)
    adversary: Adversary | None = None  # who decides that some of those invited never answer
    behaviour: Behaviour | None = None  # who does not send what it computed
    joined_at: FloatArray | None = None  # [N] seconds; None: everybody from the start
    left_at: FloatArray | None = None  # [N] seconds; None: nobody ever leaves
    regions: IntArray | None = None  # [N] the edge each belongs to; None: one for all
    stream: Stream | None = None  # when their samples arrive; None: all were there before
    power: Power | None = None  # what devices draw; None: nobody asks
    model_bytes: int | None = None  # size of a model on the wire, when it is not 4 or 8 bytes a parameter
    seed: int = 0  # of devices, links, availability and crashes: one world for every algorithm
    origin: Origin | None = None  # what the data call them, and how a table became numbers
    dealt: Dealt | None = field(default=None, repr=False, compare=False)  # where a run's seed is to deal it

    def __post_init__(self) -> None:
        for part in fields(self):
            if part.default_factory is not MISSING and getattr(self, part.name) is None:
                object.__setattr__(self, part.name, part.default_factory())
        for name in ("inputs", "targets"):
            object.__setattr__(self, name, as_tree(f"population: {name}", getattr(self, name)))
        empty = np.flatnonzero(self.train.counts == 0)
        if len(self.train) == 0:
            raise UserError("population: it has no clients")
        if len(empty):
            whose = f"client {listed(self.names, empty, 5)}"
            raise UserError(f"population: {whose} has no training sample; choose another partition")
        samples, given = trees.rows(self.inputs), trees.rows(self.targets)
        if samples != given:
            raise UserError(f"population: {samples} inputs but {given} targets")
        for name, dealt in (("train", self.train), ("test", self.test), ("validation", self.validation)):
            for row in () if dealt is None else _edges(dealt.values):
                if not 0 <= row < samples:
                    raise UserError(f"population.{name}: row {row} is not in the pool; allowed: 0 to {samples - 1}")
        for name, values in (("inputs", self.inputs), ("targets", self.targets)):
            if not trees.finite(values):
                raise UserError(f"population: {name} contain NaN or infinity; clean the data first")
        for name in ("joined_at", "left_at", "regions", "names"):
            column = getattr(self, name)
            if column is not None and len(column) != self.size:
                raise UserError(f"population.{name}: {len(column)} values for {self.size} clients")
        object.__setattr__(self, "base_importance", self._importance())
        object.__setattr__(self, "_stored", self.stream and Stored(self.stream, self.train, self.seed))

    base_importance: FloatArray = field(init=False, repr=False)
    _stored: Stored | None = field(init=False, repr=False)

    def _importance(self) -> FloatArray:
        if isinstance(self.importance, str):
            if self.importance == "samples":
                counts = self.declared.astype(np.float64)
                return np.asarray(counts / counts.sum())
            if self.importance == "equal":
                return np.full(self.size, 1 / self.size)
            raise UserError(f"population.importance: {self.importance!r} is not samples, equal or a list of numbers")
        given = np.asarray(self.importance, np.float64)
        if given.shape != (self.size,):
            raise UserError(f"population.importance: {given.size} values for {self.size} clients")
        if not np.isfinite(given).all() or (given < 0).any():
            raise UserError("population.importance: every value must be a number of at least 0")
        if abs(given.sum() - 1) > 1e-6:
            raise UserError(f"population.importance: the values sum to {given.sum():.6g}, they must sum to 1")
        return given

    @classmethod
    @spelt
    def of(
        cls,
        dataset: Dataset,
        clients: int,
        partition: str | Callable[..., Ragged] = "iid",
        *,
        seed: int | None = None,
        test: str = "split",
        test_fraction: float = 0.2,
        validation_fraction: float = 0.0,
        unseen_fraction: float = 0.0,
        partition_options: Mapping[str, Any] | None = None,
        importance: str | ArrayLike = "samples",
        devices: Devices | None = None,
        links: Links | None = None,
        availability: Availability | None = None,
        crashes: Crashes | None = None,
        detection: Detection | None = None,
        adversary: Adversary | None = None,
        behaviour: Behaviour | None = None,
        joined_at: FloatArray | None = None,
        left_at: FloatArray | None = None,
        regions: IntArray | None = None,
        power: Power | None = None,
        model_bytes: int | None = None,
    ) -> Population:
        """Deal a dataset to clients: `partition` is a name in `PARTITIONS` or a function of (dataset, clients, seed).

        Where clients test: `split` keeps `test_fraction` of each client's samples for that, `matched` deals the
        dataset's test set by the same rule, `none` leaves them the central test set only. `validation_fraction` of what
        is left to train on is held back too. `unseen_fraction` of the clients never join: they are only evaluated.
        The rest are fields of a population. Without a `seed` the run's seed deals, and draws what happens: what is
        returned is what a run of seed 0 has.
        """
        if seed is None:
            given = {name: value for name, value in locals().items() if name not in ("cls", "seed")}

            def again(seed: int) -> Population:
                return cls.of(**given, seed=seed)

            return again(0)._dealt_by(again)
        if isinstance(partition, str):
            if partition not in PARTITIONS:
                raise unknown("partition", partition, PARTITIONS)
            partition = PARTITIONS[partition]
        TESTS.check("clients.test", test)
        options = dict(partition_options or {})
        with renamed({f"{getattr(partition, '__name__', '')}.": "partition."}):
            rows = spelt(partition)(dataset, clients, seed, **options)
        inputs, targets, tests = dataset.inputs, dataset.targets, None
        central = None
        if dataset.test_inputs is not None and dataset.test_targets is not None:
            central = (dataset.test_inputs, dataset.test_targets)
        if test == "split":
            rows, tests = split(rows, test_fraction, seed)
        elif test == "matched":
            if central is None or "part" not in signature(partition).parameters:
                raise UserError(
                    "clients.test: matched needs a dataset with a test set and a partition that can deal it "
                    "(dirichlet_equal, one_class or natural)"
                )
            dealt = partition(dataset, clients, seed, **options, part="test")
            tests = Ragged(dealt.offsets, dealt.values + len(dataset))
            trees.check_copy("clients.test: matched", inputs, targets, central)
            inputs, targets = (trees.join([*both]) for both in zip((inputs, targets), central, strict=True))
        validation = None
        if validation_fraction:
            rows, validation = split(rows, validation_fraction, seed)
        if unseen_fraction:
            joined_at = _never_join(joined_at, unseen_fraction, len(rows), seed)
        return cls(
            inputs,
            targets,
            rows,
            tests,
            central,
            validation,
            importance,
            devices or fixed(1.0),
            links or Links(),
            availability or Always(),
            crashes or Crashes(),
            detection or Detection(),
            adversary,
            behaviour,
            joined_at,
            left_at,
            regions,
            power=power,
            model_bytes=model_bytes,
            seed=seed,
            origin=Origin.of(dataset, partition is PARTITIONS["natural"], len(rows)),
        )

    def _dealt_by(self, again: Callable[[int], Population]) -> Population:
        object.__setattr__(self, "dealt", Dealt(again, self))
        return self

    def seeded(self, seed: int) -> Population:
        """The same clients, dealt and drawn by the seed of a run, unless they have their own. What was replaced since
        they were dealt stays."""
        if self.dealt is None or seed == self.seed:
            return self
        own = [part.name for part in fields(self) if part.init and part.name not in ("dealt", "seed")]
        changed = [name for name in own if getattr(self, name) is not getattr(self.dealt.first, name)]
        for name in _SAMPLES:
            if name in changed:
                raise UserError(
                    f"population.{name}: changed after it was dealt by seed {self.seed}, and the run's seed is {seed}; "
                    "give Population.of the seed it is to have"
                )
        return replace(self.dealt.again(seed), **{name: getattr(self, name) for name in changed})

    def save(self, path: str | Path) -> None:
        """Write it as a folder: a .npy file for each column, and what else there is as JSON."""
        folder.write(self, Path(path))

    @staticmethod
    def open(path: str | Path) -> Population:
        """What `save` has written: the same clients. Large columns stay in their files until they are looked at."""
        found = folder.read(Path(path))
        if not isinstance(found, Population):
            raise UserError(f"population: {path} holds {type(found).__name__}, which is no population")
        return found

    @spelt
    def streaming(
        self,
        arrivals: Arrivals,
        memory: Memory,
        *,
        fresh: Fresh = 1.0,  # whose samples arrive: a share of the clients, or ids
        drift: Share = 0.0,  # order of arrival: 0 at random, 1 by target
        seconds: Seconds = 1.0,  # of a period
    ) -> Population:
        """The same clients, of whom a share (or these ids) are `fresh`: their samples arrive period after period, a
        period lasting `seconds`, and they train on what their memory holds when they begin.

        `drift` orders what arrives: at random for 0, by target for 1 (class after class), ever more so between.
        """
        rows = in_order(self.train, self.targets, drift, self.seed)
        when = np.zeros(trees.rows(self.targets), np.int64)
        when[rows.values] = periods(arrivals, rows.counts, self.seed)
        stream = Stream(when, chosen(fresh, self.size, self.seed), memory, seconds)
        streaming = replace(self, train=rows, stream=stream, dealt=None)
        if self.dealt is None:
            return streaming

        def again(seed: int) -> Population:
            return self.seeded(seed).streaming(arrivals, memory, fresh=fresh, drift=drift, seconds=seconds)

        return streaming._dealt_by(again)

    @cached_property
    def size(self) -> int:
        """N."""
        return len(self.train)

    @property
    def names(self) -> NDArray[np.str_] | None:
        """`[N]` what the data call them; None: they have numbers."""
        return None if self.origin is None else self.origin.names

    @cached_property
    def declared(self) -> IntArray:
        """`[N]` the training samples that clients say they have: what they have, unless they lie."""
        counts = self.train.counts
        return counts if self.behaviour is None else self.behaviour.declared(counts, self.seed)

    @cached_property
    def ids(self) -> IntArray:
        return np.arange(self.size)

    @cached_property
    def ticks_per_second(self) -> int:
        """The clock's resolution: microseconds, made finer where the devices' own times need it to be exact."""
        return math.lcm(MICROSECONDS, self.devices.ticks_per_second() or 1)

    def samples(self, ids: IntArray, at: FloatArray) -> Ragged:
        """Rows of the pool each client trains on at its time: a pure function of client and time."""
        return self.train.pick(ids) if self._stored is None else self._stored.rows(ids, at)

    def counts(self, ids: IntArray, at: FloatArray) -> IntArray:
        if self._stored is not None:
            return self._stored.counts(ids, at)
        return self.train.offsets[ids + 1] - self.train.offsets[ids]

    @cached_property
    def changes(self) -> bool:
        """Whether clients join or leave during a run."""
        return self.joined_at is not None or self.left_at is not None

    @cached_property
    def mattering(self) -> int:
        """How many clients have any importance."""
        return int(np.count_nonzero(self.base_importance))

    @cached_property
    def always_there(self) -> bool:
        """Whether everybody can be invited at any time."""
        return isinstance(self.availability, Always) and not self.changes and self.stream is None

    @cached_property
    def reliable(self) -> bool:
        """Whether every job ends with an update, and nothing but its own duration delays it."""
        calm = self.always_there and bool(np.isinf(self.links.server))
        return calm and self.adversary is None and not np.any(np.asarray(self.crashes.probability))

    def has_samples(self, ids: IntArray, at: float) -> NDArray[np.bool_]:
        """Who has something to train on at that time."""
        return np.ones(len(ids), bool) if self.stream is None else self.counts(ids, np.full(len(ids), at)) > 0

    def members(self, ids: IntArray, at: float) -> NDArray[np.bool_]:
        """Who belongs to the population at that time."""
        here = np.ones(len(ids), bool)
        if self.joined_at is not None:
            here &= self.joined_at[ids] <= at
        if self.left_at is not None:
            here &= self.left_at[ids] > at
        return here

    def joined(self, ids: IntArray, at: float) -> NDArray[np.bool_]:
        """Who has taken part by that time, or could have; the others are unseen."""
        return np.ones(len(ids), bool) if self.joined_at is None else self.joined_at[ids] <= at

    def importance_at(self, at: float) -> FloatArray:
        """`[N]` importance renormalised over the members."""
        if not self.changes:
            return self.base_importance
        present = np.where(self.members(self.ids, at), self.base_importance, 0.0)
        total = present.sum()
        return present / total if total > 0 else present

    def without(self, clients: ArrayLike) -> Population:
        """The same population after these clients have left: ids stay what they are, importance goes to the others."""
        left = np.full(self.size, np.inf) if self.left_at is None else self.left_at.copy()
        left[np.asarray(clients, np.int64)] = 0.0
        return replace(self, left_at=left)

    def pooled(self) -> Population:
        """One client that holds everybody's training data: the centralised reference."""
        rows = Ragged(np.array([0, len(self.train.values)]), self.train.values)
        return Population(self.inputs, self.targets, rows, central=self.central, seed=self.seed)
