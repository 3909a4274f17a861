"""The certificate of a request: what was forgotten, the promise, what it rests on. JSON, and a page to read.

The promise rests on assumptions: whether a run granted what the proof of the bound needs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from turnout.core.names import Names, listed
from turnout.record.unlearning import Unlearning

Certificate = dict[str, Any]
HOLDS, FAILS, ASSUMED, UNKNOWN = "holds", "fails", "assumed", "unknown"


@dataclass(frozen=True)
class Assumption:
    """What the promise rests on: whether a run granted it."""

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

    def largest(name: str) -> float:
        return max(float(fact[name]) for fact in facts)

    def ever(name: str) -> bool:
        return any(fact[name] for fact in facts)

    def none(name: str, words: str) -> tuple[str, str]:
        count = sum(fact[name] for fact in facts)
        return FAILS if count else HOLDS, f"{count} {words}"

    smooth, lr, pull = settings.smoothness, largest("largest_lr"), largest("largest_pull")
    curved = None if smooth is None else smooth + pull  # weight decay and FedProx's mu bend the loss too
    bent = "unlearning.smoothness not stated" if smooth is None else f"L = {smooth:g} + {pull:g} (mu, decay)"
    apart = UNKNOWN if curved is None else HOLDS if lr * curved <= 2 else FAILS
    convex = UNKNOWN, "not stated: the bound is heuristic"
    if settings.convex:
        convex = HOLDS, "stated in unlearning.convex"
    odd = ", ".join(name.replace("_", " ") for name in _NOT_PLAIN if ever(name))
    blind = HOLDS, "neither algorithm nor sampler looks at data or updates"
    if prying := sorted({name for fact in facts for name in fact["prying"]}):
        blind = FAILS, f"may look: {', '.join(prying)}"
    step = largest("largest_step")
    batches = ASSUMED, "batches are drawn by chance, and the proof couples them"
    if all(fact["full_batches"] for fact in facts):
        batches = HOLDS, "all samples in every step"
    invited = ASSUMED, "clients are drawn, and the proof couples the draws"
    if all(fact["everybody"] for fact in facts):
        invited = HOLDS, "everybody took part in every round"
    chosen = ASSUMED, "it is chosen by looking at their updates; the promise takes the choice as given"
    found = {
        "The loss of every client is convex.": convex,
        "Local steps do not drive models apart: learning rate times smoothness is at most 2.":
            (apart, f"learning rate up to {lr:g}, {bent}"),
        "Local work is plain SGD or FedProx's: no momentum, clipping or transform, nothing kept by the clients.":
            (FAILS if odd else HOLDS, odd or "none"),
        "Who takes part, and how much others count, does not follow from the clients' data.": blind,
        "The server moves the model by the weighted sum of the updates.":
            none("unexplained_rounds", "rounds were not that sum"),
        "All updates are computed from the current global model.":
            none("stale_rounds", "rounds used updates of older or other models"),
        "The server's step is at most 1.": (FAILS if step > 1 + 1e-9 else HOLDS, f"the largest is {step:.6g}"),
        "With and without the clients, the others use the same batches.": batches,
        "With and without the clients, the others are invited to the same rounds.": invited,
        "The round rolled back to tells nothing about the clients.": chosen,
    }  # fmt: skip
    if settings.bound == "contracted":
        words = f"unlearning.strong_convexity is {settings.strong_convexity:g}"
        words += "; it needs a learning rate of at most 1 / L"
        words += ", and FedProx draws models back to where they began" if ever("proximal") else ""
        small = curved is not None and lr * curved <= 1
        state = FAILS if ever("proximal") else UNKNOWN if curved is None else HOLDS if small else FAILS
        found["Losses are as strongly convex as stated (contracted bound)."] = state, words
    if settings.weights == "population":
        found["Weights are those realised in each round."] = FAILS, "unlearning.weights is population"
    return [Assumption(sentence, *state) for sentence, state in found.items()]


def rests_on(
    settings: Unlearning, recorded: Sequence[Mapping[str, Any]], absent: bool, ended: bool
) -> list[Assumption]:
    """List all that a promise rests on: `recorded` are the facts of the branches the model came through, none if it was
    retrained from the initial one; `ended`: all these were hashed when their runs ended."""
    prepared = Assumption(
        "The initial model, and how data were prepared, follow from nobody's data.",
        ASSUMED,
        "scales or vocabularies made from everybody's data would keep a trace",
    )
    if absent:
        why = "no update of theirs counted, and nothing that chose looked at data"
        return [Assumption("None of the clients ever had a part in the model.", HOLDS, why), prepared]
    if not recorded:
        return [prepared]
    words = "hashed when the runs ended" if ended else "a run has not ended: nothing was hashed before the request"
    unchanged = "Tables and models are those that the runs left."
    kept = Assumption(unchanged, HOLDS if ended else UNKNOWN, words)
    return [*assumptions(settings, recorded), kept, prepared]


def heuristic(found: Sequence[Assumption]) -> bool:
    """Whether the bound is more a measure than a promise."""
    return any(one.state in (FAILS, UNKNOWN) for one in found)


# -- words and pages ----------------------------------------------------------------------------------------------


def statement(certificate: Mapping[str, Any], found: Sequence[Assumption], names: Names = None) -> str:
    """The certificate in words."""
    promise, budget = certificate["guarantee"], certificate["budget"]
    clients = listed(names, promise["clients"], len(promise["clients"]))
    whom = f"client {clients}" if len(promise["clients"]) == 1 else f"clients {clients}"
    together = "" if len(promise["clients"]) == 1 else ", each alone" if promise["rule"] == "max" else ", together"
    epsilon = _number(promise["epsilon"])
    words = [
        f"The model was made as if {whom} had never taken part{together}, up to epsilon = {epsilon} at "
        f"delta = {budget['delta']:g} (asked for: {budget['epsilon']:g})."
    ]
    if certificate["rollback"] is None:
        words.append("Who is forgotten never took part: the model stays as it is.")
    elif certificate["rollback"] == [0, 0] and certificate["noise"]["source"].startswith("none"):
        words.append("It was retrained from the initial model, which has seen no data: the promise is exact.")
    if promise["epsilon"] is None or promise["epsilon"] > budget["epsilon"] * (1 + 1e-9):
        words.append("This is more than was asked for: cuts add up, or the classic calibration says too little.")
    if not certificate["noise"]["private"]:
        words.append("NOT PRIVATE: the noise came from a seed, and whoever knows it can take the noise off.")
    if heuristic(found):
        words.append("The bound is heuristic, since not all it needs is known to hold: read it beside the audit.")
    return " ".join(words)


def _number(value: float | None) -> str:
    return "infinity" if value is None or math.isinf(value) else f"{value:.4g}"


def page(certificate: Certificate) -> str:
    """A self-contained page."""
    rows: dict[str, list[tuple[str, Any]]] = {
        "Request": [
            ("number", certificate["request"]),
            ("clients", ", ".join(map(str, certificate["guarantee"]["clients"]))),
            ("forgotten so far", ", ".join(map(str, certificate["forgotten"]))),
            ("received", certificate["received"]),
        ],
        "Promise": [
            ("sensitivity at every cut", ", ".join(map(_number, certificate["guarantee"]["psi"]))),
            ("Gaussian parameter mu", _number(certificate["guarantee"]["mu"])),
            (f"epsilon at delta {certificate['budget']['delta']:g}", _number(certificate["guarantee"]["epsilon"])),
            (f"delta at epsilon {certificate['budget']['epsilon']:g}", _number(certificate["guarantee"]["delta"])),
            ("everybody forgotten so far, together: epsilon", _number(certificate["together"]["epsilon"])),
        ],
        "What was done": [
            ("rolled back to", _cut(certificate["rollback"])),
            ("lineage", "; ".join(map(_cut, certificate["lineage"]))),
            ("noise", f"sigma {certificate['noise']['sigma']:g}, {certificate['noise']['source']}"),
            ("retraining", f"{certificate['retraining']['rounds']} rounds ({certificate['retraining']['stopped']})"),
            ("files destroyed", certificate["destroyed"]),
        ],
        "Budget and method": list(certificate["budget"].items()),
        "Models (SHA-256 of the files)": list(certificate["models"].items()),
        "Audit": list(certificate["audit"].items()),
        "Log": [("entry", certificate["log"]["entry"]), ("hash", certificate["log"]["hash"])],
    }
    tables = "".join(
        f"<h2>{escape(title)}</h2><table>{''.join(_row(name, value) for name, value in values)}</table>"
        for title, values in rows.items()
    )
    found = "".join(
        f'<tr class="{one["state"]}"><td>{one["state"]}</td><td>{escape(one["sentence"])}</td>'
        f"<td>{escape(one['why'])}</td></tr>"
        for one in certificate["assumptions"]
    )
    title = f"Unlearning certificate, request {certificate['request']}"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
        f"<h1>{title}</h1><p>{escape(certificate['statement'])}</p>{tables}<h2>Assumptions</h2><table>{found}</table>"
        f"<p>Turnout {escape(certificate['version'])}</p></html>\n"
    )


def _cut(cut: Sequence[int] | None) -> str:
    return "nothing: the model stays as it is" if cut is None else f"branch {cut[0]}, round {cut[1]}"


def _row(name: str, value: Any) -> str:
    return f"<tr><th>{escape(str(name))}</th><td>{escape(str(value))}</td></tr>"


_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:56rem;margin:2rem auto;padding:0 1rem}"
    "th{text-align:left;padding-right:1rem;vertical-align:top}td{overflow-wrap:anywhere;padding-right:1rem}"
    ".fails td:first-child{color:#b00020;font-weight:bold}.holds td:first-child{color:#1b5e20}"
)


def served(folder: Path, clients: Sequence[int]) -> dict[str, float]:
    """Average loss and metrics of these clients under the model of a finished run."""
    import pyarrow.parquet as pq

    if not (path := folder / "clients.parquet").exists():
        return {}
    table = pq.read_table(path).to_pydict()
    rows = [row for row, client in enumerate(table["client"]) if client in clients]
    names = [name for name in table if name.endswith(("_loss", "_accuracy")) and rows]
    return {name: sum(table[name][row] for row in rows) / len(rows) for name in names}
