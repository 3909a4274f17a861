"""The sections of a configuration, and what those two take that make nothing by themselves: [run] and [clients]."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from turnout.clients.chains import Groups
from turnout.clients.population import UNSEEN, Tested
from turnout.config.options import Section, shown
from turnout.core.allowed import Count, Finite, NotNegative, WholeNumber
from turnout.core.errors import UserError, check_room
from turnout.core.spelling import Spelt
from turnout.data.prepare import Held

Settings = dict[str, Section]
SECTIONS = (
    "run", "data", "partition", "clients", "stream", "memory", "devices", "links", "power", "availability", "crashes",
    "detection", "adversary", "behaviour", "network", "model", "task", "local", "algorithm", "sampler", "wait", "weigh",
    "remember", "rule", "optimiser", "serve", "evaluation", "engine", "unlearning", "detectors", "privacy", "deploy",
)  # fmt: skip
OF_CLIENTS = SECTIONS[1 : SECTIONS.index("network")]  # who they are and what they have
# Options that may change when a run is resumed: they do not change the bits of the rounds both have.
FREE = {
    "run": (
        "name", "folder", "rounds", "seconds", "target", "measure", "patience", "checkpoint_every", "report", "seeds",
        "start",  # the model itself counts instead
    ),
    "engine": ("address", "workers"),
}  # fmt: skip
# Options that came later, at the values that mean what a configuration without them does: it keeps its fingerprint.
LATER: Settings = {
    "run": {"judge": None},
    "local": {"nesterov": False, "optimiser": "sgd", "optimiser_state": "discarded", "schedules": []},
    "data": {"missing": "refuse", "missing_words": [], "dates": "words", "identifiers": "keep"},
}
LATER["deploy"] = {"agree_seconds": 600.0, "summaries": "none"}
LATER["data"] |= {"separator": ",", "decimal": "."}
_LONGEST_NAME = 200  # bytes of a run's name: file systems know 255


@dataclass(frozen=True)
class RunSettings(Spelt):
    """How long, how often, where."""

    section: ClassVar[str] = "run"

    name: str = "run"  # folder of the run, inside run.folder
    folder: str = "runs"  # where runs are kept
    seed: int = 0  # of everything that is drawn
    rounds: WholeNumber | None = 100  # after which the run stops; none: no limit
    seconds: NotNegative | None = None  # of virtual time after which it stops; none: no limit
    target: float | None = None  # value of run.measure at which it stops; none: no target
    measure: str = "test_accuracy"  # what run.target is a value of: test_accuracy, train_loss and so on
    patience: Count | None = None  # evaluations without a better model after which it stops; none: it goes on
    judge: str | None = None  # validation measure of the best model, which is kept; none: the loss if run.patience
    start: str | None = None  # folder of a run, or .safetensors file, whose model it begins with; none: a new one
    seeds: str | list[int] | None = None  # instead of seed: 0..4, or a list, a run of each; none or []: one run
    checkpoint_every: Count = 10  # rounds from one checkpoint to the next
    report: bool = True  # leave a report.html, where the command line runs it

    def __post_init__(self) -> None:
        if self.name in ("", ".", "..") or Path(self.name).name != self.name or "\0" in self.name:
            raise UserError(f"run.name: {shown(self.name)} must be the name of a folder inside run.folder, not a path")
        if len(self.name.encode()) > _LONGEST_NAME:
            raise UserError(f"run.name: {shown(self.name)} is longer than {_LONGEST_NAME} bytes; shorten it")
        if "\0" in self.folder or max(map(len, self.folder.encode().split(b"/"))) > 255:
            raise UserError(f"run.folder: {shown(self.folder)} cannot be the name of a folder")


@dataclass(frozen=True)
class ClientSettings(Spelt):
    """How many clients, what they are tested on, how much each counts, which edges they belong to."""

    section: ClassVar[str] = "clients"

    count: Count  # clients
    test: Tested = "split"  # split: of each client's samples; matched: dealt from the test set; none: central only
    test_fraction: Held = 0.2  # share of a client's samples for its test, with split
    validation_fraction: Held = 0.0  # share of the rest that is held back, to choose by
    unseen_fraction: Annotated[float, UNSEEN] = 0.0  # share of the clients that never join and are only evaluated
    importance: str | list[float] = "samples"  # samples, equal, or a number for each that sum to 1
    joined_at: list[float] | None = None  # seconds: when each joins; none: from the start
    left_at: list[float] | None = None  # seconds: when each leaves; none: never
    regions: Groups | None = None  # how many, or of each client
    region_sd: Finite = 0.0  # of their sizes, relative to the mean
    model_bytes: WholeNumber | None = None  # bytes of a model on the wire; none: 4 or 8 a parameter

    def __post_init__(self) -> None:
        check_room(f"clients.count: {self.count} clients", 16 * self.count)
