"""Draws the pictures of the documentation: `python docs/pictures/draw.py` writes each twice, for light and dark pages.

The timelines are no sketches: they are the events that `turnout.schedule` gives for four clients. Nor are the
crossings: they are counted in a run.
"""

from __future__ import annotations

import json
import runpy
from collections import Counter
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

import numpy as np
import torch

import turnout

HERE = Path(__file__).parent
PLAIN = {"none": "none", "orange": "#e69f00"}
LIGHT = {"ink": "#1f2933", "soft": "#5f6b76", "line": "#9aa5b1", "card": "#f3f6f8"}
LIGHT |= {"blue": "#0072b2", "green": "#009e73", "red": "#d55e00", "sky": "#56b4e9"}
DARK = {"ink": "#e6eaee", "soft": "#a7b1bc", "line": "#6b7784", "card": "#2a2f3a"}
DARK |= {"blue": "#2b8fcb", "green": "#1fb88d", "red": "#ff8a3c", "sky": "#8fd0f5"}
THEMES = {"": LIGHT | PLAIN, "-dark": DARK | PLAIN}
FONT = "system-ui, 'Segoe UI', Helvetica, Arial, sans-serif"


@dataclass
class Picture:
    """Shapes, one line of SVG each; colours are names of a theme."""

    width: int
    height: int
    title: str
    parts: list[str] = field(default_factory=list)

    def box(self, x: float, y: float, w: float, h: float, fill: str, line: str = "none", round: float = 6) -> None:
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="{round:g}" fill="{{{fill}}}" '
            f'stroke="{{{line}}}"/>'
        )

    def text(self, x: float, y: float, words: str, colour: str = "ink", size: int = 14, **more: str) -> None:
        extra = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in more.items())
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{{{colour}}}"{extra}>{escape(words)}</text>'
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, colour: str = "line", **more: str) -> None:
        extra = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in more.items())
        self.parts.append(
            f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{{{colour}}}" stroke-width="1.5"{extra}/>'
        )

    def dot(self, x: float, y: float, colour: str) -> None:
        self.parts.append(f'<circle cx="{x:g}" cy="{y:g}" r="3.5" fill="{{{colour}}}"/>')

    def arrow(self, *points: tuple[float, float], colour: str = "line") -> None:
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        (x0, y0), (x, y) = points[-2:]
        length = float(np.hypot(x - x0, y - y0))
        u, v = (x - x0) / length, (y - y0) / length
        tip = " ".join(f"{x - 8 * u + s * 4 * v:g},{y - 8 * v - s * 4 * u:g}" for s in (1, -1))
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="{{{colour}}}" stroke-width="1.5"/>')
        self.parts.append(f'<polygon points="{x:g},{y:g} {tip}" fill="{{{colour}}}"/>')

    def svg(self, theme: dict[str, str]) -> str:
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}" '
            f'height="{self.height}" role="img" font-family="{FONT}">\n<title>{escape(self.title)}</title>\n'
        )
        return head + "\n".join(self.parts).format(**theme) + "\n</svg>\n"


def law() -> Picture:
    """The law, and the four questions as the four moves of a round."""
    p = Picture(760, 330, "One law and four questions: who, what, when, how much")
    p.box(60, 16, 640, 62, "card")
    p.text(380, 54, "model  ←  model  +  Σᵢ  weightᵢ · ( returnedᵢ \u2212 receivedᵢ )", size=20, text_anchor="middle")
    cards = (
        ("WHO", "is invited?", "sampling/", "uniform, MD, clustered,", "CA-Fed, FedProf", "blue"),
        ("WHAT", "does a client do?", "local/", "SGD, proximal, control", "variates, mixtures", "green"),
        (
            "WHEN",
            "does a round close?",
            "the algorithm's loop",
            "all answered, deadline,",
            "each arrival, a window",
            "red",
        ),
        ("HOW MUCH", "does it count?", "weights of the step", "importance, unbiased", "rates, staleness", "orange"),
    )
    for i, (word, question, where, first, second, colour) in enumerate(cards):
        x = 12 + i * 189
        p.box(x, 122, 168, 128, "card")
        p.box(x, 122, 168, 5, colour, round=2)
        p.text(x + 14, 152, word, size=17, font_weight="700")
        p.text(x + 14, 172, question, size=13)
        p.text(x + 14, 196, where, "soft", 12, font_style="italic")
        p.text(x + 14, 219, first, "soft", 12)
        p.text(x + 14, 235, second, "soft", 12)
        if i:
            p.arrow((x - 20, 186), (x - 2, 186))
    p.arrow((663, 252), (663, 290), (96, 290), (96, 252))
    p.text(380, 284, "a new version of the model", "soft", 13, text_anchor="middle")
    p.text(380, 312, "One round. A new method usually changes one of the four.", "soft", 13, text_anchor="middle")
    return p


def timelines() -> Picture:
    """Four clients under three waiting policies, as scheduled."""
    seconds, names = np.array([1.0, 1.5, 2.5, 4.0]), ("fast", "", "", "slow")
    horizon, left, scale, row = 12.0, 64, 54.0, 24
    data = turnout.Dataset("four", torch.zeros(4, 1), torch.zeros(4, 1), None)
    people = turnout.Population.of(data, clients=4, test="none", devices=turnout.devices.table(seconds))
    local = turnout.LocalSGD(lr=0.1)
    policies = (
        ("Synchronous: FedAvg with everybody", turnout.FedAvg(local, turnout.Full())),
        ("Asynchronous: a round at each arrival", turnout.AsyncFedAvg(local)),
        ("FedFix: a round every two seconds", turnout.FedFix(local, window=2.0)),
    )
    p = Picture(760, 520, "Four clients in virtual time: synchronous, asynchronous and FedFix")
    for i, (label, algorithm) in enumerate(policies):
        top = 34 + i * 156
        events = turnout.schedule(algorithm, people, seconds=horizon)
        p.text(left, top - 10, label, size=15, font_weight="600")
        updates = f"{events.rounds} rounds, {len(events)} updates, staleness up to {events.staleness.max()}"
        p.text(left + horizon * scale, top - 10, updates, "soft", 13, text_anchor="end")
        p.box(left, top, horizon * scale, 4 * row, "card", round=0)
        for close in np.unique(events.closed_at):
            p.line(left + close * scale, top - 3, left + close * scale, top + 4 * row + 3, "red")
        for client in range(4):
            begin, y = 0.0, top + client * row + 5
            p.text(left - 8, y + 12, names[client] or "·", "soft", 12, text_anchor="end")
            for end, close in zip(
                *(at[events.client == client] for at in (events.arrived_at, events.closed_at)), strict=True
            ):
                p.box(left + begin * scale + 1, y, (end - begin) * scale - 2, row - 10, "blue", round=3)
                if close > end:
                    p.line(left + end * scale, y + 7, left + close * scale, y + 7, "line", stroke_dasharray="2 3")
                begin = close
            if begin < horizon:
                length = min(seconds[client], horizon - begin) * scale
                p.box(left + begin * scale + 1, y, length - 2, row - 10, "sky", round=3)
    y = 478
    for x, colour, words in ((64, "blue", "training, and used"), (222, "sky", "still under way")):
        p.box(x, y, 18, 12, colour, round=3)
        p.text(x + 25, y + 11, words, "soft", 13)
    p.line(352, y + 6, 370, y + 6, "line", stroke_dasharray="2 3")
    p.text(377, y + 11, "waiting for the close", "soft", 13)
    p.line(540, y - 2, 540, y + 14, "red")
    p.text(548, y + 11, "a round closes: a new version", "soft", 13)
    p.text(left, 512, "0 s", "soft", 12)
    p.text(left + horizon * scale, 512, "12 s of virtual time", "soft", 12, text_anchor="end")
    return p


def job() -> Picture:
    """What becomes of an invitation."""
    p = Picture(760, 330, "What happens to a job: invited, download, train, upload, arrived, counted or not")
    steps = (
        ("invited", "by the sampler"),
        ("download", "one version"),
        ("train", "local work"),
        ("upload", "the change"),
    )
    for i, (word, small) in enumerate(steps):
        x = 12 + i * 132
        p.box(x, 70, 108, 56, "card", "line")
        p.text(x + 54, 95, word, size=15, font_weight="600", text_anchor="middle")
        p.text(x + 54, 114, small, "soft", 12, text_anchor="middle")
        p.arrow((x + 108, 98), (x + 131, 98))
    p.box(540, 60, 208, 76, "card", "green")
    p.text(644, 86, "arrived", size=15, font_weight="600", text_anchor="middle")
    p.text(644, 106, "waits in the server's inbox", "soft", 12, text_anchor="middle")
    p.text(644, 123, "until the round closes", "soft", 12, text_anchor="middle")
    p.text(12, 34, "Every invitation becomes one row of jobs/, with its times, bytes, outcome and weight.", "soft", 14)
    p.arrow((594, 136), (594, 188), colour="green")
    p.arrow((694, 136), (694, 188), colour="red")
    p.box(540, 190, 100, 60, "card", "green")
    p.text(590, 215, "counts", size=14, font_weight="600", text_anchor="middle")
    p.text(590, 234, "once, weighted", "soft", 12, text_anchor="middle")
    p.box(650, 190, 98, 60, "card", "red")
    p.text(699, 215, "does not", size=14, font_weight="600", text_anchor="middle")
    p.text(699, 234, "stale, not finite", "soft", 11, text_anchor="middle")
    p.line(12, 150, 516, 150, "red", stroke_dasharray="4 4")
    p.text(12, 172, "or, at any of these points, it ends without an update:", "red", 13)
    ends = (
        ("offline", "the client is not there, or goes"), ("crashed", "the job dies on the way"),
        ("left", "the client leaves for good"), ("cancelled", "the server does not wait any longer"),
        ("silenced", "an adversary drops the answer"),
    )  # fmt: skip
    for i, (word, why) in enumerate(ends):
        y = 198 + i * 22
        p.text(12, y, word, size=13, font_weight="600")
        p.text(92, y, why, "soft", 13)
    p.text(
        12,
        318,
        "When a server learns of a death is the population's detection: at once, by heartbeat, or never.",
        "soft",
        13,
    )
    return p


def run() -> Picture:
    """The folder a run leaves."""
    p = Picture(760, 468, "A run on disk: the files of its folder and what each answers")
    p.box(12, 12, 736, 444, "card")
    p.text(32, 42, "runs/digits/", size=16, font_weight="700")
    rows = (
        ("config.toml", "what was run: every option, defaults too", "run it again", "blue"),
        ("plan.json", "how it was computed: engine, chunk sizes, precision", "reused on resume", "blue"),
        ("history/", "a row a round: time, losses, accuracies, staleness, bytes", "Parquet", "green"),
        ("jobs/", "a row a job: client, version, outcome, times, weight", "Parquet", "green"),
        ("clients.parquet", "a row a client: how it is served in the end", "Parquet", "green"),
        ("result.json", "the last measures, the audit, what work was lost", "turnout inspect", "orange"),
        ("report.html", "curves, timeline, audit, costs on one page", "a browser", "orange"),
        ("model.safetensors", "a state_dict for your torch.nn.Module", "load_file", "orange"),
        ("log.txt", "events: rejected updates, empty rounds, restarts", "text", "sky"),
        ("checkpoints/", "the newest two, with jobs still under way", "turnout resume", "red"),
        ("manifest.json", "a digest of every file: damage is named", "every command", "red"),
    )
    for i, (name, what, how, colour) in enumerate(rows):
        y = 76 + i * 34
        p.line(40, y - 22 if i else 52, 40, y - 5, "line")
        p.line(40, y - 5, 58, y - 5, "line")
        p.box(62, y - 12, 14, 14, colour, round=3)
        p.text(86, y, name, size=14, font_family="ui-monospace, Menlo, Consolas, monospace")
        p.text(252, y, what, "soft", 13)
        p.text(730, y, how, size=13, text_anchor="end")
    return p


def crossings() -> Picture:
    """Calls between packages in one round, as `benchmarks/crossings.py` counts them: lower levels further down."""
    found = runpy.run_path(str(HERE.parents[1] / "benchmarks" / "crossings.py"))["crossings"]()
    counts = Counter((call.above, call.below) for call in found)
    places = {
        "algorithms": (380, 50), "server": (380, 140), "sampling": (90, 230), "engine": (610, 230),
        "clients": (90, 320), "local": (300, 320), "aggregation": (440, 320), "task": (610, 410), "core": (360, 490),
    }  # fmt: skip
    p = Picture(760, 530, f"The {len(found)} calls between packages in one round of FedAvg")
    p.text(12, 20, f"One round over absent, crashing and late clients: {len(found)} calls between packages", "soft", 13)
    for (above, below), count in sorted(counts.items()):
        (x0, y0), (x1, y1) = places[above], places[below]
        down = 1 if y1 > y0 else 0 if y1 == y0 else -1
        side = 0 if down else 1 if x1 > x0 else -1
        begin, end = (x0 + 62 * side, y0 + 18 * down), (x1 - 62 * side, y1 - 18 * down)
        p.arrow(begin, end)
        x, y = (a + 0.4 * (b - a) for a, b in zip(begin, end, strict=True))
        p.box(x - 11, y - 9, 22, 18, "card", round=9)
        p.text(x, y + 5, str(count), size=13, text_anchor="middle")
    for name, (x, y) in places.items():
        p.box(x - 62, y - 18, 124, 36, "card", "blue")
        p.text(x, y + 5, name, size=15, font_weight="600", text_anchor="middle")
    return p


GROWTH = {  # axes of benchmarks/growth.py, and the titles of their panels
    "clients": "clients in all",
    "cohort": "clients in a round",
    "parameters": "parameters",
    "versions": "versions in a call of 100 jobs",
    "threads": "threads for four clients",
    "events": "clients that come and go",
}


def growth() -> Picture:
    """Cost by size as measured (growth.json), both on logarithmic scales."""
    measured = json.loads((HERE / "growth.json").read_text(encoding="utf-8"))
    width, height, across = 190, 110, 3
    p = Picture(
        760, 440, "How the cost of a round grows: flat with clients and versions, below proportion with the rest"
    )
    for number, (axis, title) in enumerate(GROWTH.items()):
        rows, unit = measured["axes"][axis], measured["units"][axis]
        left, top = 46 + number % across * 250, 52 + number // across * 206
        x, y = (np.log10([row[name] for row in rows]) for name in ("size", "cost"))
        low, high = np.floor(y.min()), np.ceil(max(y.max(), y.min() + 1))
        scale_x, scale_y = width / max(0.3, float(np.ptp(x))), height / (high - low)
        places = [(left + scale_x * (a - x[0]), top + scale_y * (high - b)) for a, b in zip(x, y, strict=True)]
        p.text(left, top - 28, title, size=14, font_weight="600")
        p.text(left, top - 11, unit, "soft", 12)
        p.box(left, top, width, height, "card", round=0)
        for power in np.arange(low, high + 1):
            level = top + scale_y * (high - power)
            p.line(left, level, left + width, level, stroke_opacity="0.35")
            p.text(left - 6, level + 4, _short(10**power), "soft", 11, text_anchor="end")
        reach = min(float(np.ptp(x)), high - y[0])  # inside of the panel
        end = places[0][0] + scale_x * reach, places[0][1] - scale_y * reach
        p.line(*places[0], *end, "soft", stroke_dasharray="4 4")
        for row, place, before in zip(rows, places, [places[0], *places], strict=False):
            p.line(*before, *place, "blue")
            p.dot(*place, "blue")
            p.text(place[0], top + height + 17, _short(row["size"]), "soft", 11, text_anchor="middle")
        for i, side, more in ((0, "start", 6), (-1, "end", 2)):
            p.text(
                places[i][0] + more,
                places[i][1] - 9,
                _short(float(f"{rows[i]['cost']:.3g}")),
                size=12,
                text_anchor=side,
            )
    words = "Processor time, both scales logarithmic. Dashed: in proportion to the first."
    p.text(46, 428, words, "soft", 12)
    return p


def _short(number: float) -> str:
    for unit, word in ((1e6, "M"), (1e3, "k")):
        if number >= unit:
            return f"{number / unit:g}{word}"
    return f"{number:g}"


PICTURES = {"growth": growth, "law": law, "timelines": timelines, "job": job, "run": run, "crossings": crossings}


def drawn() -> dict[str, str]:
    """Every picture by the name of its file."""
    made = {name: make() for name, make in PICTURES.items()}
    return {f"{name}{mode}.svg": p.svg(theme) for name, p in made.items() for mode, theme in THEMES.items()}


if __name__ == "__main__":
    for name, text in drawn().items():
        (HERE / name).write_text(text, encoding="utf-8")
