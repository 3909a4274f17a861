"""What the promise rests on: whether a run granted what the proof of the bound needs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from turnout.record.unlearning import Unlearning

HOLDS, FAILS, ASSUMED, UNKNOWN = "holds", "fails", "assumed", "unknown"


@dataclass(frozen=True)
class Assumption:
    sentence: str
    state: str  # holds, fails, assumed (cannot be checked by anybody), unknown (you may know)
    why: str


# What a run is taken to have done where its facts do not say.
UNRECORDED: dict[str, Any] = {
    "largest_pull": math.inf, "transformed": True, "proximal": True, "other_work": True, "prying": ["not recorded"],
}  # fmt: skip
_NOT_PLAIN = ("momentum", "clipped", "transformed", "client_state", "other_work")


def assumptions(settings: Unlearning, recorded: Sequence[Mapping[str, Any]]) -> list[Assumption]:
    """`recorded` are the facts of every branch the model came through."""
    facts = [UNRECORDED | dict(fact) for fact in recorded]

    def total(name: str) -> Any:
        return sum(fact[name] for fact in facts)

    def largest(name: str) -> float:
        return max(float(fact[name]) for fact in facts)

    def ever(name: str) -> bool:
        return any(fact[name] for fact in facts)

    smooth, lr, pull = settings.smoothness, largest("largest_lr"), largest("largest_pull")
    curved = None if smooth is None else smooth + pull  # weight decay and FedProx's mu bend the loss too
    prying = sorted({name for fact in facts for name in fact["prying"]})
    full, everybody = all(fact["full_batches"] for fact in facts), all(fact["everybody"] for fact in facts)
    found = [
        Assumption(
            "The loss of every client is convex.",
            HOLDS if settings.convex else UNKNOWN,
            "stated in unlearning.convex" if settings.convex else "not stated: the bound is heuristic",
        ),
        Assumption(
            "Local steps do not drive models apart: learning rate times smoothness is at most 2.",
            UNKNOWN if curved is None else HOLDS if lr * curved <= 2 else FAILS,
            f"learning rate up to {lr:g}, "
            + ("unlearning.smoothness not stated" if smooth is None else f"L = {smooth:g} + {pull:g} (mu, decay)"),
        ),
        Assumption(
            "Local work is plain SGD or FedProx's: no momentum, clipping or transform, nothing kept by the clients.",
            FAILS if any(ever(name) for name in _NOT_PLAIN) else HOLDS,
            ", ".join(name.replace("_", " ") for name in _NOT_PLAIN if ever(name)) or "none",
        ),
        Assumption(
            "Who takes part, and how much others count, does not follow from the clients' data.",
            FAILS if prying else HOLDS,
            f"may look: {', '.join(prying)}" if prying else "neither algorithm nor sampler looks at data or updates",
        ),
        Assumption(
            "The server moves the model by the weighted sum of the updates.",
            FAILS if total("unexplained_rounds") else HOLDS,
            f"{total('unexplained_rounds')} rounds were not that sum",
        ),
        Assumption(
            "All updates are computed from the current global model.",
            FAILS if total("stale_rounds") else HOLDS,
            f"{total('stale_rounds')} rounds used updates of older or other models",
        ),
        Assumption(
            "The server's step is at most 1.",
            FAILS if largest("largest_step") > 1 + 1e-9 else HOLDS,
            f"the largest is {largest('largest_step'):.6g}",
        ),
        Assumption(
            "With and without the clients, the others use the same batches.",
            HOLDS if full else ASSUMED,
            "all samples in every step" if full else "batches are drawn by chance, and the proof couples them",
        ),
        Assumption(
            "With and without the clients, the others are invited to the same rounds.",
            HOLDS if everybody else ASSUMED,
            "everybody took part in every round" if everybody else "clients are drawn, and the proof couples the draws",
        ),
        Assumption(
            "The round rolled back to tells nothing about the clients.",
            ASSUMED,
            "it is chosen by looking at their updates; the promise takes the choice as given",
        ),
    ]
    if settings.bound == "contracted":
        words = (
            f"unlearning.strong_convexity is {settings.strong_convexity:g}; it needs a learning rate of at most 1 / L"
        )
        words += ", and FedProx draws models back to where they began" if ever("proximal") else ""
        small = curved is not None and lr * curved <= 1
        state = FAILS if ever("proximal") else UNKNOWN if curved is None else HOLDS if small else FAILS
        found.append(Assumption("Losses are as strongly convex as stated (contracted bound).", state, words))
    if settings.weights == "population":
        found.append(Assumption("Weights are those realised in each round.", FAILS, "unlearning.weights is population"))
    return found


PREPARED = Assumption(
    "The initial model, and how data were prepared, follow from nobody's data.",
    ASSUMED,
    "scales or vocabularies made from everybody's data would keep a trace",
)
ABSENT = Assumption(
    "None of the clients ever had a part in the model.",
    HOLDS,
    "no update of theirs counted, and nothing that chose looked at data",
)


def unchanged(ended: bool) -> Assumption:
    """Of the tables and models that a request rests on."""
    words = "hashed when the runs ended" if ended else "a run has not ended: nothing was hashed before the request"
    return Assumption("Tables and models are those that the runs left.", HOLDS if ended else UNKNOWN, words)


def heuristic(found: Sequence[Assumption]) -> bool:
    """Whether the bound is more a measure than a promise."""
    return any(one.state in (FAILS, UNKNOWN) for one in found)
