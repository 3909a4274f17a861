"""The configurations that `same_bits.py` runs, as lines: a world, then what is put into it.

`section=name` chooses a thing, `section.option=value` gives it an option (of TOML; a bare word is text). `both` is the
world `calm`, where everybody is there, and `rough`, where clients come and go, crash, join late and leave. Everything
that a configuration can name stands here by name, so that the list is the same whatever version reads it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

Settings = dict[str, dict[str, Any]]
CLIENTS = 8
CALM: Settings = {
    "run": {"rounds": 5, "seed": 3, "checkpoint_every": 1},
    "data": {"name": "synthetic", "clients": CLIENTS, "dims": 5, "classes": 3, "max_samples": 20},
    "partition": {"name": "dirichlet", "alpha": 1.0, "min_samples": 3},
    "clients": {"count": CLIENTS, "regions": 2},
    "devices": {"name": "lognormal", "median": 0.5, "sigma": 0.7},
    "links": {"down": 1e5, "up": 1e5, "latency": 0.01, "backhaul": 1e5},
    "model": {"name": "mlp", "hidden": [6]},
    "local": {"lr": 0.1, "batch_size": 4, "epochs": 2},
    "algorithm": {"name": "fedavg"},
    "sampler": {"name": "md", "clients_per_round": 4},
    "engine": {},
}
ROUGH: Settings = CALM | {
    "clients": {
        "count": CLIENTS,
        "regions": [0, 1, 0, 1, 0, 0, 1, 0],
        "joined_at": [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.5, float("inf")],
        "left_at": [float("inf"), float("inf"), float("inf"), 4.0, *[float("inf")] * 4],
    },
    "links": CALM["links"] | {"server": 1e6},
    "availability": {"name": "markov", "probability": 0.8, "correlation": 0.3},
    "crashes": {"probability": 0.15},
    "power": {"speed": [0.5, 0.7, 0.9, 1.1, 1.3, 1.5, 1.7, 2.0]},
}
STREAM: Settings = ROUGH | {
    "stream": {"name": "poisson", "rate": 0.5, "fresh": [0, 1, 2, 4, 7], "seconds": 0.2},
    "memory": {"name": "fifo", "capacity": 8},
}
CROWD: Settings = CALM | {
    "data": CALM["data"] | {"clients": 40},
    "clients": {"count": 40, "regions": 4},
    "sampler": {"name": "uniform", "clients_per_round": 20},
}
WILD: Settings = CROWD | {
    "run": {"rounds": 15, "seed": 3, "checkpoint_every": 1},
    "availability": {"name": "heterogeneous"},
    "crashes": {"probability": 0.1},
}
SILOS: Settings = CALM | {
    "data": CALM["data"] | {"clients": 11},
    "clients": {"count": 11},
    "algorithm": {"name": "dpasgd"},
    "network": {"underlay": "gaia", "access": "10Gbps"},
}
PICTURES: Settings = CALM | {
    "run": {"rounds": 2, "seed": 3, "checkpoint_every": 1},
    "data": {"name": "function", "function": "same_bits_list:drawn", "arguments": {"shape": [1, 8, 8]}},
    "partition": {"name": "iid"},
    "crashes": {"probability": 0.15},
    "local": {"lr": 0.05, "batch_size": 2},
    "model": {"name": "same_bits_list:small_cnn"},
}
WORLDS = {"calm": [CALM], "rough": [ROUGH], "both": [CALM, ROUGH], "stream": [STREAM], "silos": [SILOS]}
WORLDS |= {"pictures": [PICTURES], "crowd": [CROWD], "wild": [WILD]}

_SIZES = "".join(f"p{i % 8},{i * 7 % 11},{i * 5 % 13},{i * i % 3}\n" for i in range(64))
FILES = {
    "trace.csv": "device,from_s,until_s\na,0,4\nb,1,6\nb,8,9\nc,0,10\nd,2,10\n",
    "offline.csv": "device,unavailable_from_s,duration_s\na,1,2\nb,3,1\nb,6,2\nc,0,1\n",
    "states.csv": "device,variant,t_s,state\na,2st,0,2\na,2st,3,0\na,2st,5,2\nb,2st,1,0\nb,2st,4,2\nb,2st,9,0\n",
    "table.csv": f"who,age,size,wanted\n{_SIZES}",
}


def drawn(shape: list[int]) -> dict[str, Any]:
    """Return four samples a client of that shape: pictures, or rows of letters."""
    inputs = np.random.default_rng(0).normal(size=(4 * CLIENTS, *shape)).astype("float32")
    targets = np.arange(len(inputs)) % 3
    if len(shape) > 1:
        return {"inputs": inputs, "targets": targets}
    return {"inputs": (inputs > 0).astype("int64"), "targets": targets, "num_classes": 20}


def small_cnn() -> nn.Module:
    """Build a convolution with dropout for 1x8x8 pictures of three classes."""
    ends = nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.2), nn.Linear(36, 3)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), *ends)


class Gated(nn.Module):
    """A model that is no chain of layers: two ways from the five inputs, one gating the other."""

    def __init__(self) -> None:
        super().__init__()
        self.way, self.gate, self.norm, self.out = nn.Linear(5, 6), nn.Linear(5, 6), nn.LayerNorm(6), nn.Linear(6, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.out(self.norm(self.way(inputs).tanh() * self.gate(inputs).sigmoid()))
        return out


def gated() -> nn.Module:
    """Build the gated model."""
    return Gated()


def wide() -> nn.Module:
    """Build a model of digits in which threads share the work of one layer."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 300), nn.GELU(), nn.LayerNorm(300), nn.Linear(300, 10))


def configurations() -> dict[str, Settings]:
    """Return every configuration by its line."""
    return dict(pair for line in _lines() for pair in _expanded(line))


def write_files(folder: Path) -> None:
    """Write the files that configurations read from the working folder."""
    for name, text in FILES.items():
        (folder / name).write_text(text)


def _lines() -> Iterator[str]:
    """The lines of the list, without remarks."""
    for line in Path(__file__).with_suffix(".txt").read_text().splitlines():
        stripped = line.partition("#")[0].strip()
        if stripped:
            yield stripped


def _expanded(line: str) -> Iterator[tuple[str, Settings]]:
    """A line in each of its worlds, by the name it has there."""
    world, _, rest = line.partition(":")
    for base in WORLDS[world]:
        name = next(name for name, worlds in WORLDS.items() if worlds == [base])
        settings = {section: dict(options) for section, options in base.items()}
        for part in rest.split():
            _put(settings, part)
        yield f"{name}: {' '.join(rest.split())}".strip(), settings


def _put(settings: Settings, part: str) -> None:
    """Apply one `section=name`, `section.option=value` or `section=-`, which takes a section away."""
    key, _, value = part.partition("=")
    section, dot, option = key.partition(".")
    if value == "-":
        settings.get(section, {}).pop(option, None) if dot else settings.pop(section, None)
    elif dot:
        settings.setdefault(section, {})[option] = _value(value)
    elif settings.get(section, {}).get("name") != value:
        settings[section] = {"name": value}


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
