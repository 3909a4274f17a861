"""From an unclean table of six hospitals to predictions for new patients, and the wrong turns on the way."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from wards import CONFIGURATION

import turnout
from cli.terminal import Terminal
from turnout.config import config
from turnout.core.errors import UserError
from turnout.trust import verify
from turnout.use import Served
from unclean import SITES, write_hospitals

pytestmark = pytest.mark.usefixtures("at")


NAMED = ["algorithm.name=fedavg", "run.name=fedavg"]


def read(path: str) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return [*csv.DictReader(file)]


def test_four_commands_lead_from_an_unclean_table_to_predictions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_hospitals(tmp_path / "wards.csv")
    write_hospitals(tmp_path / "new.csv", rows=30, seed=1, target=False)
    (tmp_path / "wards.toml").write_text(CONFIGURATION)
    terminal = Terminal(tmp_path)
    told = terminal.done("run", "wards.toml", "run.rounds=30")
    assert "data: column patient_id was left out" in told.err
    assert "data: target died is taken for one of 2 classes, no, yes" in told.err
    assert "Berlin (" in told.out
    assert "never heard" not in terminal.done("inspect", "runs/wards").out
    assert "died of 30 rows: " in terminal.done("predict", "runs/wards", "new.csv").out
    assert "model.safetensors" in terminal.done("export", "runs/wards", "--to", "safetensors").out
    rows = read("predictions.csv")
    assert [row["patient_id"] for row in rows] == [f"P{10_000 + i:06}" for i in range(30)]
    assert {row["died"] for row in rows} <= {"yes", "no"}
    assert all(abs(float(row["probability no"]) + float(row["probability yes"]) - 1) < 2e-6 for row in rows)


def test_predictions_are_those_of_the_training_rows(run: Any) -> None:
    """The rows of the training, read again as a new table, are given the model's own outputs."""
    served = Served.open(run("fedavg"))
    columns = served.table("wards.csv")
    found = served.predict(columns)
    data: Any = turnout.datasets.load(
        "csv_table", path="wards.csv", target="died", client="hospital", missing="flag", separator=";", decimal=","
    )
    inputs = served.table_fitted.inputs(columns)
    for part in (data.inputs, data.test_inputs):
        assert {tuple(row) for row in part.numpy().tolist()} <= {tuple(row) for row in inputs.tolist()}
    module = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(inputs.shape[1], 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)
    )
    module.load_state_dict(load_file(run("fedavg") / "model.safetensors"))
    expected = module(torch.from_numpy(inputs)).double().softmax(1).detach().numpy()
    np.testing.assert_allclose(found.scores, expected, atol=1e-6)
    assert found.labels == [["no", "yes"][i] for i in expected.argmax(1)]


def test_each_row_is_predicted_by_its_own_hospitals_model(at: Terminal, run: Any) -> None:
    folder = run("fedper")
    assert json.loads((folder / "result.json").read_text())["served"] == "own models"
    served = Served.open(folder)
    columns = served.table("new.csv")
    own = served.predict(columns)
    hospital = [row["hospital"] for row in csv.DictReader(open("new.csv", encoding="utf-8"), delimiter=";")]  # noqa: SIM115
    assert [SITES[i] for i in own.models] == hospital
    shared = served.predict(columns, -1)
    assert not np.allclose(own.scores, shared.scores)
    for number, site in enumerate(SITES):
        of_site = np.array(hospital) == site
        alone = served.predict(columns, number).scores
        np.testing.assert_allclose(alone[of_site], own.scores[of_site], atol=1e-6)
    told = at.done("predict", str(folder), "new.csv", "--client", "Oslo", "--json").json()
    assert {row["model"] for row in told["rows"]} == {"Oslo"}
    again = at.done("predict", str(folder), "new.csv", "--shared", "--json").json()
    assert {row["model"] for row in again["rows"]} == {"shared"}


@pytest.mark.parametrize("algorithm", ["ditto", "apfl", "local", "fedavg_plus", "ifca"])
def test_the_models_kept_are_those_that_were_measured(run: Any, algorithm: str) -> None:
    """Each client's accuracy on its own training rows, by the model kept, is what the run has recorded."""
    folder = run(algorithm, "clients.test=none")
    recorded = turnout.read(folder).clients()
    served = Served.open(folder)
    data: Any = turnout.datasets.load(
        "csv_table", path="wards.csv", target="died", client="hospital", missing="flag", separator=";", decimal=","
    )
    for client in range(6):
        rows = data.groups == client
        outputs = served.task.outputs(served.model(client), data.inputs[rows])
        accuracy = float((outputs.argmax(1) == data.targets[rows]).double().mean())
        assert accuracy == pytest.approx(recorded["train_accuracy"][client], abs=1e-9)


def test_wrong_turns_are_one_sentence(at: Terminal, run: Any, home: Path, tmp_path: Path) -> None:
    shared, own, mixture = str(run("fedavg")), str(run("fedper")), str(run("fedem"))
    text = (home / "new.csv").read_text(encoding="utf-8")
    lines = text.splitlines()

    def table(*rows: str) -> str:
        (tmp_path / "odd.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
        return str(tmp_path / "odd.csv")

    def row(**cells: str) -> str:
        found = dict(zip(lines[0].split(";"), lines[1].split(";"), strict=True)) | cells
        return ";".join(found.values())

    def sentence(folder: str, *words: str) -> str:
        before = sorted(path.name for path in home.iterdir())
        told = at.refused("predict", folder, *words)
        assert sorted(path.name for path in home.iterdir()) == before
        return told

    strange = sentence(own, table(lines[0], row(hospital="Paris")))
    assert "line 2: column hospital is 'Paris', which took no part in the training; it knows Berlin, Lyon" in strange
    assert "--shared takes the model of all" in strange
    assert "did you mean Oslo?" in sentence(own, "new.csv", "--client", "Olso")
    assert "--client: Oslo with --shared" in sentence(own, "new.csv", "--client", "Oslo", "--shared")
    nobody = table(*(line.partition(";")[0] + ";" + line.split(";", 2)[2] for line in lines))
    assert "no column hospital, which says whose model" in sentence(own, nobody)
    assert at.done("predict", shared, nobody, "--out", str(tmp_path / "p.csv")).err == ""
    odd = "line 2: column ward is 'Z', a word that training never saw; it knows A, B, C"
    assert odd in sentence(shared, table(lines[0], row(ward="Z")))
    without = table(*(";".join(line.split(";")[:-1]) for line in lines))
    assert "the table has no column ward, which training used" in sentence(shared, without)
    assert "column age is 'old', not a finite number" in sentence(shared, table(lines[0], row(age="old")))
    assert "column admitted is 'today', not a date" in sentence(shared, table(lines[0], row(admitted="today")))
    gap = sentence(shared, table(lines[0], row(ward="")))
    assert "column ward is missing, and training saw no row without it; fill it in" in gap
    assert "one column, 'a,b'" not in sentence(shared, table("a,b", "1,2"))
    assert "No such file" in sentence(shared, "nowhere.csv")
    assert "is not the folder of a run" in sentence(str(tmp_path), "new.csv")
    assert "fedem trains several models" in sentence(mixture, "new.csv", "--shared")
    assert "rules of their own" in sentence(mixture, "new.csv")
    told = at.done("predict", shared, table(lines[0], row(hospital="Paris")), "--out", str(tmp_path / "p.csv"))
    assert "hospital Paris took no part in the training" in told.err


def test_a_run_that_was_not_of_a_table_or_is_damaged(at: Terminal, run: Any, tmp_path: Path) -> None:
    digits = at.run("digits", "run.rounds=1")
    assert "keeps no preprocessing of a table: its dataset is digits" in at.refused("predict", str(digits), "new.csv")
    copy = tmp_path / "copy"
    shutil.copytree(run("fedavg"), copy)
    (copy / "preprocess.json").write_text((copy / "preprocess.json").read_text().replace("yes", "yea"))
    assert "preprocess.json is damaged" in at.refused("predict", str(copy), "new.csv")
    (copy / "result.json").unlink()
    with pytest.raises(UserError, match=r"result\.json"):
        Served.open(copy)


def test_numbers_are_predicted_in_their_own_units(at: Terminal, home: Path) -> None:
    draws = np.random.default_rng(0)
    x = draws.normal(size=60)
    rows = [f"{a:.4f},{1000 + 500 * a:.4f}" for a in x]
    (home / "line.csv").write_text("\n".join(["x,cost", *rows]) + "\n")
    own = (
        "data.target=cost",
        "data.path=line.csv",
        "data.separator=,",
        "data.decimal=.",
        "data.client=",
        "run.name=line",
    )
    text = (home / "wards.toml").read_text().replace('client = "hospital"\n', "").replace('"natural"', '"iid"')
    (home / "line.toml").write_text(text)
    at.done("run", "line.toml", *(part for part in own if not part.startswith("data.client")), "run.rounds=60")
    told = at.done("predict", "runs/line", "line.csv", "--json").json()["rows"]
    np.testing.assert_allclose([row["cost"] for row in told], 1000 + 500 * x, atol=100)


def test_tables_of_runs_before_are_read_as_they_were(at: Terminal, run: Any, home: Path) -> None:
    """What a run of the version before has written has no word of dates and identifiers, and keeps its fingerprint."""
    settings = config.read_run(run("fedavg"))
    assert settings["data"]["dates"] == "days"
    assert config.build(settings)[0].fingerprint == config.build(config.read("wards.toml", NAMED))[0].fingerprint
    later = ("missing", "missing_words", "dates", "identifiers", "separator", "decimal")
    (home / "plain.csv").write_text(
        "x,seen,who,died\n" + "".join(f"{i},2026-01-0{i % 7 + 1},{i % 2},{i % 3}\n" for i in range(40))
    )
    plain = ("data.path=plain.csv", "data.client=who", "data.separator=,", "data.decimal=.", "data.missing=refuse")
    at.done("run", "wards.toml", *plain, "clients.count=2", "run.name=older")
    path = home / "runs/older/config.toml"
    lines = [line for line in path.read_text().splitlines() if line.partition(" =")[0] not in later]
    path.write_text("\n".join(lines) + "\n")
    older = config.read_run(home / "runs/older")
    assert (older["data"]["dates"], older["data"]["identifiers"]) == ("words", "keep")
    built, _, complete = config.build(older)
    assert built.population.inputs.shape[1] == 8  # x, and an indicator for each of seven days
    without = {name: value for name, value in complete["data"].items() if name not in later}
    assert config.fingerprint(complete) == config.fingerprint(complete | {"data": without})


def test_models_of_clients_are_forgotten_too(at: Terminal, run: Any, home: Path) -> None:
    shutil.copytree(run("ditto", "clients.test=none"), home / "runs/forgetful")
    before = (home / "runs/forgetful/personal.safetensors").read_bytes()
    at.done("unlearn", "runs/forgetful", "--client", "Oslo", "--from-scratch", "--rounds", "2")
    assert not (home / "runs/forgetful/personal.safetensors").exists()
    assert verify.problems(home / "runs/forgetful") == []
    served = Served.open(home / "runs/forgetful")
    kept = load_file(home / "runs/forgetful/unlearning/branch1/personal.safetensors")
    assert torch.equal(served.model(1), served.task.from_state_dict({name: rows[1] for name, rows in kept.items()}))
    others = [path.read_bytes() for path in home.glob("runs/forgetful/**/personal.safetensors")]
    assert before not in others
