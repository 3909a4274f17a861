"""Clients are called what the data call them, wherever a person reads or writes of one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from terminal import Terminal

import turnout
from turnout.clients.origin import Origin
from turnout.core.errors import UserError
from turnout.core.names import called, listed, names_of, number_of
from turnout.server.observer import Event

HOSPITALS = ("Lyon", "<b>Bern</b>", "Oslo", "Turin")
CONFIGURATION = """
[data]
name = "csv_table"
path = "wards.csv"
target = "died"
client = "ward"

[partition]
name = "natural"

[clients]
count = 4


[model]
name = "mlp"
hidden = []

[local]
lr = 0.1

[algorithm]
name = "fedavg"

[sampler]
name = "full"

[crashes]
probability = [0.0, 0.0, 0.0, 1.0]

[unlearning]
sigma = 0.5

[detectors]
names = ["norm"]

[run]
name = "named"
rounds = 2
"""


def write_wards(path: Path) -> None:
    draws = np.random.default_rng(0)
    rows = [f"{HOSPITALS[i % 4]},{age:.3f},{'yes' if age > 0 else 'no'}" for i, age in enumerate(draws.normal(size=80))]
    path.write_text("\n".join(["ward,age,died", *rows]) + "\n")


def test_a_run_tells_of_clients_by_name(terminal: Terminal) -> None:
    write_wards(terminal.here / "wards.csv")
    (terminal.here / "named.toml").write_text(CONFIGURATION)
    told = terminal.done("run", "named.toml").out
    assert "3 of 4, never: Turin" in told
    assert "<b>Bern</b> (" in told
    assert "Turin (0.0000 for" in terminal.done("inspect", "runs/named").out
    names = ["<b>Bern</b>", "Lyon", "Oslo", "Turin"]
    assert terminal.done("inspect", "runs/named", "--json").json()["clients"]["name"] == names
    run = turnout.read("runs/named")
    assert run.clients()["name"].tolist() == names
    page = Path("runs/named/report.html").read_text()
    assert "were meant to count: Turin." in page
    assert "<b>Bern</b>" not in page  # a name is no markup
    plan = terminal.done("unlearn", "runs/named", "--client", "Oslo", "--dry-run", "--json").json()
    assert plan["clients"] == [2]
    assert "--client: there is no client Olso; give a name (did you mean Oslo?), or a number from 0 to 3" in (
        terminal.refused("unlearn", "runs/named", "--client", "Olso", "--dry-run")
    )
    statement = terminal.done("unlearn", "runs/named", "--client", "Oslo").out
    assert "as if client Oslo had never taken part" in statement.replace("\n", " ")
    assert json.loads(Path("runs/named/manifest.json").read_text())["files"]["names.json"]


def test_names_and_numbers() -> None:
    names = names_of(["Lyon", 7, "Oslo"], 2)
    assert names is not None
    assert names.tolist() == ["Lyon", "7"]
    assert names_of([0, 1, 2], 3) is None  # they say no more than the numbers do
    assert names_of(["a", "a"], 2) is None
    assert names_of(["a"], 2) is None
    assert (called(names, 0), called(None, 0)) == ("Lyon", "client 0")
    assert listed(names, [1, 0], most=1) == "7, …"
    assert number_of("x", names, 2, "7") == 1  # a name goes before a number
    assert number_of("x", names, 2, "0") == 0
    with pytest.raises(UserError, match=r"x: there is no client 5; give a number from 0 to 1"):
        number_of("x", None, 2, "5")


def test_what_is_logged_names_clients() -> None:
    event = Event("silent", 1, 2.0, {"client": 1, "clients": [0, 2]})
    assert event.told(HOSPITALS) == "round 1, 2 s: silent (client <b>Bern</b>, clients Lyon, Oslo)"
    assert event.told(None) == str(event)


def test_only_natural_clients_have_the_names_of_the_data(tmp_path: Path) -> None:
    write_wards(tmp_path / "wards.csv")
    data = turnout.datasets.load("csv_table", path=tmp_path / "wards.csv", target="died", client="ward")
    assert turnout.Population.of(data, 4).names is None
    people = turnout.Population.of(data, 3, "natural")
    assert people.names is not None
    assert people.names.tolist() == ["<b>Bern</b>", "Lyon", "Oslo"]
    people.save(tmp_path / "people")
    again = turnout.Population.open(tmp_path / "people")
    assert again.names is not None
    assert again.names.tolist() == people.names.tolist()
    assert people.pooled().names is None
    with pytest.raises(UserError, match=r"population.names: two clients have the same name"):
        Origin(np.array(["a", "a", "b"]))
    with pytest.raises(UserError, match=r"population.names: 2 values for 3 clients"):
        turnout.Population(people.inputs, people.targets, people.train, origin=Origin(np.array(["a", "b"])))
