"""Drawings of one run for a paper: who did what when, and who talks to whom."""

from __future__ import annotations

from typing import Any

import numpy as np

from turnout.algorithms.dpasgd import DPASGD
from turnout.config import config
from turnout.core.errors import UserError
from turnout.core.random import FloatArray
from turnout.peers.design import Design, evaluate
from turnout.peers.network import Exchange, Network
from turnout.peers.peers import message_bytes, over_own_links, ring
from turnout.record.views import COLOURS, time_unit
from turnout.report.heard import clients_of, names_of
from turnout.report.read import Recorded
from turnout.report.timeline import ENDS, PHASES, timeline
from turnout.run.experiment import Experiment

_LANES = 28  # clients that can be told apart on a page
_LANE = 0.155  # inches
_JOBS = 900  # bars that can be told apart
_CLOSES = 80  # closes of rounds that do not make a wall
_NAMED = 40  # nodes of a map that have room for names
INK, PALE = "#22262b", "#c9ced5"
_COLOURS = dict(zip(ENDS, ("#0072b2", "#8a8f98", "#d55e00", "#cc79a7", "#e69f00", "#e69f00", "#111111"), strict=True))
_HATCHES = {"crashed": "////", "cancelled": "....", "offline": "xxxx", "silenced": "++++", "left": "\\\\\\\\"}


# -- who did what when ----------------------------------------------------------------------------------------


def draw_timeline(drawing: Any, run: Recorded) -> str:
    """A lane a client: its jobs, coloured by how they ended, thin while they are sent; lines where rounds close."""
    found = timeline(run, run.name)
    if found is None:
        raise UserError(f"figure: {run.folder} has no record of its jobs")
    rows = np.unique(np.linspace(0, len(found["rows"]) - 1, min(_LANES, len(found["rows"]))).round().astype(np.int64))
    jobs = [np.arange(found["first"][row], found["first"][row + 1]) for row in rows]
    starts = np.sort(np.concatenate([found["start"][one] for one in jobs]))
    until = float(found["end"]) if len(starts) <= _JOBS else float(starts[_JOBS])
    size, title = time_unit(until)
    drawing.set_figheight(max(1.8, _LANE * len(rows) + 0.9))
    axes = drawing.subplots()
    seen = set()
    for lane, (row, mine) in enumerate(zip(rows, jobs, strict=True)):
        mine = mine[found["start"][mine] < until]
        _away(axes, found, row, lane, size)
        for job in mine:
            end = ENDS[found["outcome"][job]]
            seen.add(end)
            down, work, up = (float(found[name][job]) / size for name in PHASES)
            begin = float(found["start"][job]) / size
            axes.broken_barh([(begin, down), (begin + down + work, up)], (lane - 0.1, 0.2), color=_COLOURS[end], lw=0)
            wide = work > 0.01 * until / size  # narrower ones have no edge that would cover them
            look = {"edgecolor": "white", "linewidth": 0.35, "hatch": _HATCHES.get(end)} if wide else {"linewidth": 0}
            bar = (begin + down, max(work, 0.002 * until / size))
            axes.broken_barh([bar], (lane - 0.36, 0.72), facecolor=_COLOURS[end], **look)
    closes = found["closes"][(found["closes"] > 0) & (found["closes"] <= until)] / size
    if len(closes) <= _CLOSES:
        axes.vlines(closes, -0.6, len(rows) - 0.4, color=INK, linewidth=0.35, alpha=0.55)
    names = names_of(run) if run.finished else None
    shown = [names[i] if names else str(i) for i in found["rows"][rows]]
    axes.set_yticks(range(len(rows)), shown)
    axes.set(xlabel=title, ylabel="" if names else "client", ylim=(len(rows) - 0.4, -0.6), xlim=(0, until / size))
    axes.grid(visible=False)
    _key(drawing, [end for end in ENDS if end in seen])
    whose = f"{len(rows)} of {len(found['rows']):,} clients, evenly chosen" if len(rows) < len(found["rows"]) else ""
    cut = f"; the first {until / found['end']:.0%} of the run" if until < found["end"] else ""
    lines = "; vertical lines are closes of rounds" if len(closes) <= _CLOSES else ""
    return f"Jobs of {whose or f'{len(rows)} clients'}, by how they ended, thin while models are sent{lines}{cut}."


def _away(axes: Any, found: dict[str, Any], row: int, lane: int, size: float) -> None:
    """Spells offline, grey behind the jobs."""
    mine = found["away_row"] == row
    spells = zip(found["away"][mine] / size, (found["back"] - found["away"])[mine] / size, strict=True)
    axes.broken_barh(list(spells), (lane - 0.5, 1.0), color="#eceef1", lw=0, zorder=0)


def _key(drawing: Any, ends: list[str]) -> None:
    from matplotlib.patches import Patch

    patches = [
        Patch(facecolor=_COLOURS[end], edgecolor="white", linewidth=0.3, hatch=_HATCHES.get(end), label=end)
        for end in ends
    ]
    drawing.legend(handles=patches, loc="outside lower center", ncols=min(4, len(patches)))


# -- who talks to whom ----------------------------------------------------------------------------------------


def design_of(experiment: Experiment) -> tuple[Network, Design] | None:
    """The overlay that silos train over, and what its rounds take; None where there is a server."""
    algorithm, people = experiment.algorithm, experiment.population
    if not isinstance(algorithm, DPASGD):
        return None
    network = algorithm.network or over_own_links(people)
    task = algorithm.trained_task(experiment.task)
    bits = 8 * message_bytes(people, task, experiment.plan.dtype)
    computing = people.devices.mean_seconds(people.seed, people.ids, *algorithm.local.busy(people.train.counts))
    return network, evaluate(algorithm.overlay or ring(people.size), network, Exchange(bits, computing))


def draw_topology(drawing: Any, run: Recorded) -> str:
    """The overlay of silos without a server; else the server among its clients."""
    if not run.config:
        raise UserError(f"figure: {run.folder} was started from Python; what connects its clients is not recorded")
    if run.config.get("clients", {}).get("regions") is not None:
        raise UserError("figure: topology draws silos without a server, or clients around one; this run has regions")
    if run.algorithm not in ("dpasgd", "d_fedem"):
        return _star(drawing, run)
    experiment, _, _ = config.build(run.config)
    found = design_of(experiment)
    assert found is not None
    network, design = found
    arcs = np.zeros_like(network.connected) if design.overlay is None else design.overlay.graph
    places = _circle(len(network)) if network.positions is None else _map(network.positions)
    axes = _stage(drawing)
    for i, j in np.argwhere(arcs):
        both = arcs[j, i]
        if both and i > j:
            continue
        style = "-" if both else "-|>"
        line = {"arrowstyle": style, "color": COLOURS[0], "lw": 1.0, "shrinkA": 3, "shrinkB": 3, "mutation_scale": 7}
        axes.annotate("", places[j], places[i], arrowprops=line)
    axes.scatter(*places.T, 22, color=INK, zorder=3)
    _name(axes, places, list(network.names))
    return f"{design.name}: a round takes {1e3 * design.cycle_time:.1f} ms."


def _star(drawing: Any, run: Recorded) -> str:
    if not run.finished:
        raise UserError(f"figure: {run.folder} is unfinished; how often clients were heard is added up when it ends")
    people = clients_of(run)
    places, axes = _circle(len(people.used)), _stage(drawing)
    most = max(1, int(people.used.max()))
    for place, used in zip(places, people.used, strict=True):
        heard = {"color": COLOURS[0], "linewidth": 0.3 + 2.2 * used / most}
        style = heard if used else {"color": PALE, "linestyle": ":"}
        axes.plot(*np.stack([np.zeros(2), place]).T, zorder=1, **style)
    area = 14 + 120 * people.meant / people.meant.max()
    silent = people.used == 0
    axes.scatter(*places[~silent].T, area[~silent], color=COLOURS[0], zorder=3, linewidth=0)
    axes.scatter(*places[silent].T, area[silent], facecolor="white", edgecolor=COLOURS[1], zorder=3, linewidth=1.1)
    axes.scatter(0, 0, 90, color=INK, marker="s", zorder=4)
    _name(axes, places, people.names or [str(i) for i in range(len(places))])
    return (
        "The server and its clients: areas by what each was meant to count, lines by how often it did; hollow and "
        "dotted: never heard."
    )


def _stage(drawing: Any) -> Any:
    axes = drawing.subplots()
    axes.set_aspect("equal")
    axes.axis("off")
    axes.margins(0.14)
    return axes


def _circle(count: int) -> FloatArray:
    angles = np.pi / 2 - 2 * np.pi * np.arange(count) / max(1, count)
    return np.stack([np.cos(angles), np.sin(angles)], 1)


def _map(positions: FloatArray) -> FloatArray:
    """True to scale at the middle latitude."""
    return np.asarray(positions * [np.cos(np.radians(positions[:, 1]).mean()), 1])


def _name(axes: Any, places: FloatArray, names: list[str]) -> None:
    """Beside each node, away from the middle, where there is room."""
    if len(names) > _NAMED:
        return
    middle = (places.min(0) + places.max(0)) / 2
    for place, name in zip(places, names, strict=True):
        side = np.sign(np.round(place - middle, 6))
        across, up = int(side[0]) + 1, int(side[1]) + 1
        align = {"ha": ("right", "center", "left")[across], "va": ("top", "center", "bottom")[up]}
        axes.annotate(name, place, xytext=6 * side, textcoords="offset points", fontsize=6.5, color=INK, **align)
