"""`turnout init`: a configuration that trains without edits, for whatever somebody has."""

from __future__ import annotations

import csv
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from terminal import Terminal, table
from typer.testing import CliRunner

import unclean
from turnout import data as datasets
from turnout.cli import init
from turnout.cli.commands import app
from turnout.config import config
from turnout.config.draft import Answers, draft
from turnout.config.look import Column, look

QUICK = ("run.rounds=2", "run.report=false", "engine.threads=1")
CENTRES = ("cleveland", "hungarian", "switzerland", "va")


def patients(rows: int = 120) -> list[dict[str, Any]]:
    """A table like that of heart disease: four hospitals by name, values that are missing, a number for each row."""
    draws = np.random.default_rng(0)
    found = []
    for row in range(rows):
        age, chol = draws.normal([55, 240], [9, 40]).round(1)
        ill = int(age + 0.1 * chol + draws.normal(0, 5) > 80)
        said = {"patient_id": 1000 + row, "centre": CENTRES[row % 7 % 4], "age": age, "sex": row % 2, "chol": chol}
        found.append(said | {"ca": "" if row % 3 else 1, "pain": ("never", "at rest")[row % 5 > 2], "num": ill})
    return found


def write(name: str, rows: list[dict[str, Any]]) -> str:
    with open(name, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return name


def written(name: str) -> config.Settings:
    return tomllib.loads(Path(name).read_text("utf-8"))


def test_a_table_of_hospitals_trains_without_edits(terminal: Terminal) -> None:
    answer = terminal.done("init", write("heart.csv", patients()))
    assert answer.out.splitlines()[-1] == "heart.toml is written; next: turnout run heart.toml"
    made = written("heart.toml")
    assert made["data"] | {"missing": ""} == {
        "name": "csv_table", "path": "heart.csv", "target": "num", "client": "centre", "task": "classification",
        "drop": ["patient_id", "ca"], "missing": "",
    }  # fmt: skip
    assert made["partition"] == {"name": "natural"}
    assert made["clients"]["count"] == 4
    text = Path("heart.toml").read_text("utf-8")
    assert re.search('^target = "num" +# a guess: what is predicted$', text, re.M)
    assert re.search('^client = "centre" +# a guess: whose row it is$', text, re.M)
    assert "patient_id (names the rows)" in text
    assert text.startswith("# heart.csv: 120 rows, 8 columns. Written by `turnout init`; try: turnout run heart.toml\n")
    result = terminal.done("run", "heart.toml", *QUICK, "--json").json()
    assert result["audit"]["clients"] == 4
    data = {name: value for name, value in made["data"].items() if name != "name"}
    assert datasets.load("csv_table", **data).facts["clients"] == list(CENTRES)


def test_an_unclean_table_trains_without_edits(terminal: Terminal) -> None:
    """Semicolons, decimal commas, dates, ids, missing values: seen, said and written."""
    unclean.write_hospitals(Path("patients.csv"))
    terminal.done("init", "patients.csv", "--yes")
    data = written("patients.toml")["data"]
    assert (data["separator"], data["decimal"], data["target"], data["client"]) == (";", ",", "died", "hospital")
    text = Path("patients.toml").read_text("utf-8")
    assert re.search(r'^separator = ";" +# seen: what stands between cells$', text, re.M)
    assert re.search(r'^decimal = "," +# seen: what stands before the decimals$', text, re.M)
    terminal.done("run", "patients.toml", "run.rounds=2", "engine.threads=1")
    unclean.write_hospitals(Path("new.csv"), 10, 1, target=False)
    assert "died of 10 rows" in terminal.done("predict", "runs/patients", "new.csv").out
    assert "| Oslo |" in Path("runs/patients/model_card.md").read_text("utf-8")


def test_of_many_classes_a_client_may_lack_one(terminal: Terminal) -> None:
    rows = [row | {"num": (place // 7) % 5} for place, row in enumerate(patients())]
    terminal.done("init", write("many.csv", rows), "--yes")
    assert written("many.toml")["task"] == {"metrics": ["auc"], "auc": {"lacking": "left_out"}}


def test_what_is_said_is_not_guessed(terminal: Terminal) -> None:
    write("heart.csv", patients())
    terminal.done("init", "heart.csv", "--target", "chol", "--clients", "5", "--to", "mine.toml", "--yes")
    made = written("mine.toml")
    assert (made["data"]["target"], made["data"]["task"]) == ("chol", "regression")
    assert "client" not in made["data"]
    assert (made["partition"]["name"], made["clients"]["count"]) == ("iid", 5)
    terminal.done("run", "mine.toml", *QUICK)
    document = terminal.done("init", "heart.csv", "--clients", "sex", "--measure", "top_k", "--json").json()
    assert document["config"] == "heart.toml"
    assert document["settings"]["clients"]["count"] == 2
    assert document["settings"]["task"] == {"metrics": ["top_k"]}


def test_nothing_is_replaced_without_saying(terminal: Terminal) -> None:
    write("heart.csv", patients())
    terminal.write("heart.toml", "mine")
    sentence = terminal("init", "heart.csv").err
    assert sentence == "turnout: --to: heart.toml exists; give another file, or --overwrite\n"
    assert Path("heart.toml").read_text() == "mine"
    terminal.done("init", "heart.csv", "--overwrite")
    assert Path("heart.toml").read_text() != "mine"


@pytest.mark.usefixtures("terminal")
def test_questions_are_asked_on_a_terminal_and_again_where_an_answer_does_not_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(init, "on_terminal", lambda: True)
    write("heart.csv", patients())
    asked = CliRunner().invoke(app, ["init", "heart.csv", "--measure", "accuracy"], input="nmu\nnum\n\n")
    assert asked.exit_code == 0, asked.output
    assert "What is predicted [num]" in asked.output
    assert "--target: heart.csv has no column 'nmu'" in asked.output
    assert "[centre]" in asked.output
    assert written("heart.toml")["data"]["client"] == "centre"
    Path("heart.toml").write_text("mine")
    asked = CliRunner().invoke(app, ["init", "heart.csv", "--measure", "accuracy"], input="\n\nn\n")
    assert "heart.toml exists; replace it?" in asked.output
    assert asked.exit_code == 2
    assert Path("heart.toml").read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nowhere.csv",), "init: there is no file or folder nowhere.csv"),
        (("heart.csv", "--target", "nmu"), "--target: heart.csv has no column 'nmu'; it has patient_id, centre"),
        (("heart.csv", "--clients", "nmu"), "--clients: heart.csv has no column 'nmu'"),
        (("heart.csv", "--clients", "num", "--target", "num"), "--clients: num is what is predicted"),
        (("heart.csv", "--clients", "ca"), "--clients: ca is missing in 80 rows"),
        (("heart.csv", "--to", "no/where.toml"), "--to: there is no folder no to write where.toml into"),
        (("pictures", "--target", "cat"), "--target: cat, but the folders of pictures say the classes"),
        (("pictures", "--clients", "cat"), "--clients: cat must be a number"),
        (("heart.csv", "--measure", "acuracy"), "--measure: unknown name 'acuracy'; did you mean accuracy?"),
        (("heart.csv", "--clients", "1000"), "nothing is written, since this would not train"),
        (
            ("names.csv", "--target", "name"),
            "--target: name has 60 different words in 120 rows; classes are at most 50",
        ),
        (("same.csv", "--target", "a"), "--target: a has 1 different values; there is nothing to learn"),
        (("notes.txt",), "init: notes.txt is none of: a .csv or .parquet table"),
        (("empty",), "init: empty has neither images nor .csv or .parquet files"),
        (("broken.py",), "init: broken.py line 1 is not Python"),
        (("none.py",), "init: none.py has no function without arguments"),
    ],
)
def test_what_cannot_be_is_one_sentence_and_nothing_is_written(
    terminal: Terminal, words: tuple[str, ...], said: str
) -> None:
    write("heart.csv", patients())
    write("names.csv", [{"name": f"n{row % 60}", "x": row % 9, "y": row % 2} for row in range(120)])
    write("same.csv", [{"a": 1, "x": row % 9, "y": row % 2} for row in range(120)])
    terminal.write("notes.txt", "")
    terminal.write("broken.py", "def")
    terminal.write("none.py", "def data(n):\n    return n\n")
    Path("empty").mkdir()
    images("class", "L")
    answer = terminal("init", *words)
    assert answer.code == 2
    assert said in answer.err
    assert len(answer.err.splitlines()) == 1
    assert not list(Path().glob("*.toml"))


# -- what else there is -----------------------------------------------------------------------------------------


def a_parquet_file(_: Terminal) -> str:
    rows = patients()
    columns = {name: [row[name] for row in rows] for name in ("centre", "age", "pain", "num")}
    pq.write_table(pa.table(columns), "heart.parquet")
    return "heart.parquet"


def files_of_centres(_: Terminal) -> str:
    Path("centres").mkdir()
    for centre in CENTRES[:3]:
        rows = [{"age": row["age"], "num": row["num"]} for row in patients(40)]
        write(f"centres/{centre}.csv", rows)
    return "centres"


def images_of_classes(_: Terminal) -> str:
    return images("class", "RGB")


def images_of_clients(_: Terminal) -> str:
    return images("client/class", "L")


def images(layout: str, mode: str) -> str:
    for client in ("ann", "bob") if layout == "client/class" else ("",):
        for kind in ("cat", "dog"):
            folder = Path("pictures") / client / kind
            folder.mkdir(parents=True)
            for number in range(12):
                Image.new(mode, (9, 9 + number % 2), 20 * number).save(folder / f"{number}.png")
    return "pictures"


def python(terminal: Terminal) -> str:
    code = """import numpy as np
from torch import nn

def helper(): return 3

def patients() -> dict[str, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32)
    return {"inputs": x, "targets": (x.sum(1) > 0).astype(np.int64), "groups": np.arange(60) % 3}

def network(inputs: int, outputs: int) -> nn.Module:
    return nn.Linear(inputs, outputs)
"""
    return terminal.write("mydata.py", code)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (a_parquet_file, {"data.inputs": ["age"], "data.client": "centre", "clients.count": 4}),
        (files_of_centres, {"data.name": "centres", "clients.count": 3, "partition.name": "natural"}),
        (images_of_classes, {"data.layout": "class", "data.size": 32, "model.name": "cnn_cifar", "clients.count": 10}),
        (images_of_clients, {"data.layout": "client/class", "model.name": "cnn_mnist", "clients.count": 2}),
        (python, {"data.function": "mydata:patients", "model.name": "mydata:network", "clients.count": 3}),
    ],
)
def test_whatever_somebody_has(terminal: Terminal, make: Callable[[Terminal], str], expected: dict[str, Any]) -> None:
    source = make(terminal)
    document = terminal.done("init", source, "--json").json()
    found = {name: document["settings"][name.split(".")[0]][name.split(".")[1]] for name in expected}
    assert found == expected
    terminal.done("run", document["config"], *QUICK)


# -- the guesses ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("terminal")
def test_the_target_is_looked_for_beside_the_clients() -> None:
    write("heart.csv", patients())
    found = look("heart.csv")
    assert (found.target().name, found.target("num").name) == ("num", "pain")
    assert draft(found, Answers(clients="num")).settings["data"]["target"] == "pain"


@pytest.mark.parametrize(
    ("name", "cells", "is_id", "is_class"),
    [
        ("patient_id", [str(1000 + 7 * row) for row in range(40)], True, False),
        ("row", [str(row) for row in range(40)], True, False),
        ("income", [str(1000 + 7 * row) for row in range(40)], False, False),
        ("age", [str(row / 3) for row in range(40)], False, False),
        ("age", [str(40 + row) for row in range(40)], False, False),
        ("note", [f"text {row}" for row in range(40)], True, True),
        ("sex", ["1", "1.0", "0", "0.0"] * 10, False, True),
    ],
)
def test_what_a_column_seems_to_be(name: str, cells: list[str], is_id: bool, is_class: bool) -> None:
    column = Column.of(name, cells)
    assert (column.is_id, column.is_class) == (is_id, is_class)


@pytest.mark.usefixtures("terminal")
def test_names_that_could_spoil_the_file_do_not() -> None:
    header = 'a"b\\,"line\nbreak","x # y",target\n'
    Path("odd.csv").write_text(header + table().partition("\n")[2], encoding="utf-8")
    made = draft(look("odd.csv"), Answers(clients="3"))
    assert tomllib.loads(made.text()) == made.settings


@pytest.mark.usefixtures("terminal")
def test_a_loader_that_fills_what_is_missing_is_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then only columns that lack most values are left out."""
    rows = patients()
    for row in rows[::10]:
        row["chol"] = ""
    write("heart.csv", rows)
    takes = dict.fromkeys(("drop", "missing"), (str, ""))
    monkeypatch.setattr("turnout.config.draft.options_of", lambda _: takes)
    data = draft(look("heart.csv"), Answers()).settings["data"]
    assert (data["missing"], data["drop"]) == ("median", ["patient_id", "ca"])
