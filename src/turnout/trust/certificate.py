"""The certificate of a request: what was forgotten, the promise, what it rests on. JSON, and a page to read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from turnout.trust.assumptions import Assumption, heuristic

Certificate = dict[str, Any]


def statement(certificate: Mapping[str, Any], found: Sequence[Assumption]) -> str:
    """The certificate in words."""
    promise, budget = certificate["guarantee"], certificate["budget"]
    clients = ", ".join(map(str, promise["clients"]))
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
