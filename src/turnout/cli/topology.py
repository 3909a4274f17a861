"""`turnout topology list | design`: who should talk to whom between silos, and how long a round then takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, cast

import typer
from rich.markup import escape

from turnout.cli._command import Commands, Json, listed, print_json
from turnout.cli._display import out, say, show_table
from turnout.core.errors import UserError, unknown
from turnout.core.files import write_text
from turnout.peers import quantities, underlays
from turnout.peers.design import NAMES, PAPER, Design, design, write_overlay
from turnout.peers.network import Exchange
from turnout.peers.picture import draw

topology_app = Commands(
    help="Overlays for silos without a server, and the time a round takes over them.\n\n"
    "Example: turnout topology design geant --model-size 11.2Mparams --access 1Gbps"
)


@topology_app.command("list")
def list_underlays(as_json: Json = False) -> None:
    """List the bundled underlays.

    Example: turnout topology list
    """
    found = [underlays.read(name) for name in underlays.names()]
    if as_json:
        print_json({u.name: {"silos": len(u.silos), "links": len(u.links), "about": u.description} for u in found})
        return
    rows = [(f"[bold]{u.name}[/bold]", str(len(u.silos)), str(len(u.links)), escape(u.description)) for u in found]
    show_table(rows, ("underlay", "silos", "links", ""))


@topology_app.command("design")
def design_overlays(
    source: Annotated[
        str, typer.Argument(metavar="UNDERLAY", help="A bundled underlay, or a .json, .gml or .graphml file.")
    ],
    model_size: Annotated[
        str | None, typer.Option(help="Of a message: 44.96Mbit, 45MB, or 11.2Mparams of 32 bits each.")
    ] = None,
    access: Annotated[
        str | None, typer.Option(help="Every silo's up- and downlink, as 10Gbps; default: what the file says.")
    ] = None,
    core: Annotated[
        str | None, typer.Option(help="Every link of the underlay; default: what the file says, else 1Gbps.")
    ] = None,
    compute: Annotated[
        str | None, typer.Option(help="A local step, as 25.4ms; default: what the file says, else 0ms.")
    ] = None,
    local_steps: Annotated[int, typer.Option(help="Between two exchanges.")] = 1,
    preset: Annotated[
        str | None, typer.Option(help=f"Size and compute of a published experiment: {', '.join(PAPER)}.")
    ] = None,
    overlays: Annotated[str, typer.Option(help="Which to compare.")] = ",".join(NAMES),
    center: Annotated[str, typer.Option(help="Of the star: best, first, load, or a silo's name.")] = "best",
    max_degree: Annotated[int | None, typer.Option(help="Of delta_mbst: at least 2.")] = None,
    budget: Annotated[float, typer.Option(help="Of MATCHA: the share of matchings that is active.")] = 0.5,
    latency_mode: Annotated[
        str, typer.Option(help="4 ms per_path or per_hop, where only distances are known.")
    ] = "per_path",
    seed: Annotated[int, typer.Option(help="Of MATCHA's draws.")] = 0,
    choose: Annotated[str | None, typer.Option(metavar="NAME", help="For --out; default: the fastest.")] = None,
    folder: Annotated[
        Path | None, typer.Option("--out", metavar="FOLDER", help="Gets overlay.json and overlay.svg.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare overlays: cycle time, throughput, bottleneck; write the chosen one and a picture of it.

    Example: turnout topology design geant --model-size 11.2Mparams --access 1Gbps --compute 25.4ms --out geant
    """
    underlay = underlays.read(source)
    network = underlay.network(
        None if access is None else quantities.rate("--access", access),
        None if core is None else quantities.rate("--core", core),
        cast(underlays.LatencyMode, latency_mode),
    )
    exchange = _exchange(underlay, model_size, compute, local_steps, preset)
    names = listed(overlays)
    if not names:
        raise UserError(f"--overlays: {overlays!r} names none; allowed: {', '.join(NAMES)}")
    rows = design(network, exchange, names, center=center, budget=budget, max_degree=max_degree, seed=seed)
    chosen = _choose(rows, choose)
    files = []
    if folder is not None:
        files = [folder / "overlay.json", folder / "overlay.svg"]
        title = f"{chosen.name} on {underlay.name}: {1e3 * chosen.cycle_time:.1f} ms a round"
        write_overlay(files[0], chosen, network.names)
        write_text(files[1], draw(network, chosen, title))
    if as_json:
        print_json(
            {
                "underlay": underlay.name,
                "silos": list(network.names),
                "model_bits": exchange.model_bits,
                "local_steps": exchange.local_steps,
                "overlays": [row.as_dict(network.names) for row in rows],
                "chosen": chosen.name,
                "files": [str(path) for path in files],
            }
        )
        return
    _show(rows, chosen, f"{underlay.name}, {len(network)} silos")
    if files:
        say(f"Written: {files[0]}, {files[1]}")


def _exchange(
    underlay: underlays.Underlay, model_size: str | None, compute: str | None, local_steps: int, preset: str | None
) -> Exchange:
    if preset is not None and preset not in PAPER:
        raise unknown("--preset", preset, PAPER)
    stated = underlay.compute_time()
    exchange = None if preset is None else PAPER[preset]
    if model_size is not None:
        seconds = exchange.compute_time if exchange else 0.0 if stated is None else stated
        exchange = Exchange(quantities.bits("--model-size", model_size), seconds)
    if exchange is None:
        raise UserError("--model-size: missing; write a size, such as 45MB or 11.2Mparams, or give a --preset")
    if compute is not None:
        exchange = replace(exchange, compute_time=quantities.seconds("--compute", compute))
    return replace(exchange, local_steps=local_steps)


def _choose(rows: list[Design], name: str | None) -> Design:
    if name is None:
        return min(rows, key=lambda row: row.cycle_time)
    found = {row.name: row for row in rows}
    if name not in found:
        raise unknown("--choose", name, found)
    return found[name]


def _show(rows: list[Design], chosen: Design, title: str) -> None:
    table, reasons = [], []
    for row in rows:
        name = f"[bold]{row.name}[/bold]" if row is chosen else row.name
        if row.overlay is None:
            table.append((name, *4 * "-"))
            reasons.append((name, escape(row.remark)))
            continue
        error = f" ± {1e3 * row.standard_error:.1f}" if row.standard_error else ""
        speed = f"{1e3 * row.cycle_time:.1f}{error} ms", f"{row.throughput:.3g}"
        table.append((name, *speed, str(row.degree), f"{row.spectral_gap:.3g}"))
        reasons.append((name, escape(row.bottleneck + (f" ({row.remark})" if row.remark else ""))))
    show_table(table, ("overlay", "cycle time", "rounds/s", "degree", "spectral gap"), title, numbers=True)
    out.print()
    show_table(reasons, title="What the time is spent on")
    out.print(f"\nChosen: [bold]{chosen.name}[/bold]", highlight=False)
