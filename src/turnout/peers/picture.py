"""An overlay over its underlay as SVG: a map where positions are known, a circle otherwise."""

from __future__ import annotations

from html import escape

import numpy as np

from turnout.core.random import FloatArray
from turnout.peers.design import Design
from turnout.peers.network import BoolArray, Network

WIDTH, MARGIN, TOP, BOTTOM = 1000, 60, 70, 50
GREY, BLUE, RED, INK = "#c8ccd2", "#2a6fdb", "#d1342f", "#22262b"


def draw(network: Network, chosen: Design, title: str) -> str:
    """Underlay links grey, the overlay blue, its critical circuit red; arrows where only one direction is used."""
    overlay = chosen.overlay
    arcs = np.zeros_like(network.connected) if overlay is None else overlay.graph
    critical = np.zeros_like(arcs)
    critical[chosen.circuit, chosen.circuit[1:] + chosen.circuit[:1]] = len(chosen.circuit) > 1
    places, height = _places(network)
    underlay = np.zeros_like(arcs) if network.links is None else network.links
    crowded = arcs.sum() > 4 * len(network)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif">',
            "<defs>" + _arrow("blue", BLUE) + _arrow("red", RED) + "</defs>",
            f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
            f'<text x="{MARGIN}" y="32" font-size="19" fill="{INK}">{escape(title)}</text>',
            f'<text x="{MARGIN}" y="54" font-size="13" fill="{INK}">{escape(chosen.bottleneck)}</text>',
            *_lines(places, underlay, f'stroke="{GREY}" stroke-width="1"'),
            *_lines(
                places, arcs, f'stroke="{BLUE}" stroke-width="2" stroke-opacity="{0.25 if crowded else 0.9}"', "blue"
            ),
            *_lines(places, critical & arcs, f'stroke="{RED}" stroke-width="3"', "red"),
            *_silos(network, places, chosen),
            *_legend(height, network.links is not None),
            "</svg>\n",
        ]
    )


def _arrow(name: str, colour: str) -> str:
    shape = f'<path d="M0,0 L8,4 L0,8 z" fill="{colour}"/>'
    size = 'markerWidth="8" markerHeight="8" refX="13" refY="4" markerUnits="userSpaceOnUse"'
    return f'<marker id="{name}" {size} orient="auto">{shape}</marker>'


def _places(network: Network) -> tuple[FloatArray, int]:
    """`[N, 2]` x and y, and the height of the picture."""
    if network.positions is None:
        angles = 2 * np.pi * np.arange(len(network)) / len(network) - np.pi / 2
        flat, room = np.stack([np.cos(angles), np.sin(angles)], 1), WIDTH - 5 * MARGIN  # for the names around it
    else:  # equirectangular, true to scale at the middle latitude
        middle = np.radians(network.positions[:, 1]).mean()
        flat, room = network.positions * [np.cos(middle), -1], WIDTH - 2 * MARGIN
    low, extent = flat.min(0), np.ptp(flat, 0)
    drawn = extent * room / max(*extent, 1e-9)
    corner = [(WIDTH - drawn[0]) / 2, TOP + MARGIN / 2]
    return (flat - low) * room / max(*extent, 1e-9) + corner, int(TOP + MARGIN + drawn[1] + BOTTOM)


def _lines(places: FloatArray, arcs: BoolArray, style: str, arrow: str | None = None) -> list[str]:
    """One for a pair that uses both directions."""
    lines = []
    for i, j in np.argwhere(arcs & ~np.triu(arcs & arcs.T)):
        (x1, y1), (x2, y2) = places[i], places[j]
        head = f' marker-end="url(#{arrow})"' if arrow and not arcs[j, i] else ""
        lines.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" {style}{head}/>')
    return lines


def _silos(network: Network, places: FloatArray, chosen: Design) -> list[str]:
    size = 12 if len(network) <= 50 else 8
    shapes = []
    for i, (name, (x, y)) in enumerate(zip(network.names, places, strict=True)):
        colour = RED if i in chosen.circuit else INK
        left = x > WIDTH - 2 * MARGIN if network.positions is not None else x < WIDTH / 2 - 1
        place = f'x="{x - 7 if left else x + 7:.1f}" y="{y - 6:.1f}" text-anchor="{"end" if left else "start"}"'
        halo = 'stroke="white" stroke-width="3" paint-order="stroke"'
        label = f'<text {place} font-size="{size}" fill="{INK}" {halo}>{escape(name)}</text>'
        shapes.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{colour}" stroke="white"/>{label}')
    return shapes


def _legend(height: int, underlay: bool) -> list[str]:
    entries = [(GREY, "underlay link")] * underlay + [(BLUE, "overlay"), (RED, "critical circuit")]
    y = height - 20
    return [
        f'<line x1="{x}" y1="{y}" x2="{x + 30}" y2="{y}" stroke="{colour}" stroke-width="3"/>'
        f'<text x="{x + 38}" y="{y + 4}" font-size="13" fill="{INK}">{text}</text>'
        for x, (colour, text) in zip(range(MARGIN, WIDTH, 170), entries, strict=False)
    ]
