"""From a schema to a model over four sites whose data never meet: the same messages as over a network."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file
from study_of_four import (
    CONFIGURATION,
    HEADER,
    PERSON,
    PLANTED,
    SCHEMA,
    SITES,
    WORD,
    Tapped,
    World,
    table,
    turnout,
    write_csv,
)

from turnout import Population, Ragged, Simulation
from turnout.config import config
from turnout.data.preprocess import Preprocess
from turnout.deploy.site import Site
from turnout.use.served import Served


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[World, Tapped, dict[str, Any]]:
    world = World(tmp_path_factory.mktemp("study"))
    world.join_all()
    grid = world.grid()
    return world, grid, world.serve(grid)


Finished = tuple[World, Tapped, dict[str, Any]]


def test_no_value_of_any_row_reaches_the_server(finished: Finished) -> None:
    world, grid, _ = finished
    files = [path for place in (world.server, world.run) for path in place.rglob("*") if path.is_file()]
    assert len(files) > 10
    seen = [path.read_bytes() for path in files] + grid.heard
    packed = [pq.read_table(path).to_pydict() for path in files if path.suffix == ".parquet"]
    seen += [str(each).encode() for each in packed]
    hidden: list[bytes] = [word.encode() for word in (*PLANTED, WORD, PERSON)]
    hidden += [np.array(float(word), kind).tobytes() for word in PLANTED for kind in ("<f8", "<f4")]
    assert any(b"surgery" in each for each in grid.heard)  # a word that many share is agreed on
    there = b"".join(path.read_bytes() for path in world.tables.glob("*.csv")) + str(table(1)).encode()
    assert not [word for word in (*PLANTED, WORD, PERSON) if word.encode() not in there]
    assert not [word for word in hidden for each in seen if word in each]
    for path in files:
        if path.suffix == ".safetensors" and path.parent == world.server:
            assert not load_file(path)


def test_the_model_is_that_of_a_simulation_over_the_same_rows(finished: Finished) -> None:
    world, _, summary = finished
    fitted = Preprocess.load(json.loads((world.run / "preprocess.json").read_text()))
    sites = [Site(world.site(name)) for name in SITES]
    parts = [site.rows.population(site.schema, fitted)[1] for site in sites]
    starts = np.cumsum([0, *(len(part.inputs) for part in parts)])
    rows: dict[str, Any] = {
        split: Ragged.from_rows([getattr(p, split).row(0) + s for p, s in zip(parts, starts, strict=False)])
        for split in ("train", "test")
    }
    pooled = Population(torch.cat([p.inputs for p in parts]), torch.cat([p.targets for p in parts]), **rows)
    dataset, _ = sites[0].rows.population(sites[0].schema, fitted)
    built, _, _ = config.build(config.read(str(world.server / "config.toml")), known=(dataset, pooled))
    simulated = Simulation(
        built.task, pooled, built.algorithm, seed=built.seed, plan=built.plan, stopping=built.stopping
    ).run()
    found = load_file(world.run / "model.safetensors")
    own = built.task.state_dict(simulated.output)
    assert max(float((found[name] - own[name]).abs().max()) for name in own) < 1e-6
    assert summary["measures"]["test_accuracy"] == pytest.approx(simulated.measures["test_accuracy"], abs=1e-6)


def test_sums_give_what_the_pooled_rows_have(finished: Finished) -> None:
    world, _, summary = finished
    fitted = {one.name: one for one in Preprocess.load(json.loads((world.run / "preprocess.json").read_text())).columns}
    ages, units = [], []
    for name in SITES:
        columns = Site(world.site(name)).rows.training
        ages += columns["age"].numbers().tolist()
        units += columns["unit"].values.tolist()
    assert fitted["age"].offset[0] == pytest.approx(np.mean(ages), abs=1e-9)
    assert fitted["age"].scale[0] == pytest.approx(np.std(ages), rel=1e-9)
    assert {"surgery", "medicine"} <= {*fitted["unit"].values} <= {*units} - {WORD}
    assert 0.5 < summary["measures"]["test_auc"] <= 1
    assert 0 <= summary["measures"]["test_auc_error"] < 0.05
    assert 0 < summary["measures"]["test_f1"] <= 1


def test_a_finished_study_predicts_new_rows_and_names_its_sites(finished: Finished) -> None:
    world, _, _ = finished
    path = write_csv(world.tables / "new.csv", [row[:-1] for row in table(3)[:4]], HEADER[:-1])
    served = Served.open(world.run)
    assert {*served.predict(served.table(path)).labels} <= {"no", "yes"}
    assert json.loads((world.run / "names.json").read_text())["clients"] == [*SITES]
    told = turnout("deploy", "status", world.server)
    assert told.exit_code == 0
    assert [line.split(":")[0] for line in told.stdout.splitlines()] == [*SITES]


@pytest.mark.parametrize(
    ("column", "word", "sentence"),
    [
        ("age", "sixty", "line 4: column age is 'sixty', not a finite number"),
        ("age", "", None),
        ("sex", "", "column sex is missing; the schema has missing = 'refuse'"),
        ("died", "maybe", "column died is 'maybe', which is none of no, yes"),
        ("seen", "31/12/2021", "not a date"),
    ],
)
def test_a_table_that_does_not_fit_is_told_in_one_sentence_and_leaves_nothing(
    column: str, word: str, sentence: str | None, tmp_path: Path
) -> None:
    world, rows = World(tmp_path), table(0)
    rows[2][HEADER.index(column)] = word
    before = sorted(path.name for path in world.site("berlin").iterdir())
    path = write_csv(world.tables / "berlin.csv", rows)
    told = turnout("deploy", "enrol", world.site("berlin"), "--data", path)
    if sentence is None:
        assert told.exit_code == 0
        return
    assert told.exit_code == 2
    assert sentence in " ".join(told.stderr.split())
    assert sorted(path.name for path in world.site("berlin").iterdir()) == before


def test_columns_of_another_name_are_told_with_the_one_that_was_meant(tmp_path: Path) -> None:
    world = World(tmp_path)
    header = ["sodum" if name == "sodium" else name for name in HEADER]
    told = turnout("deploy", "enrol", world.site("oslo"), "--data", write_csv(world.tables / "o.csv", table(3), header))
    assert told.exit_code == 2
    assert "o.csv has a column sodum, which the schema does not; did you mean sodium?" in " ".join(told.stderr.split())


def test_check_tries_a_step_and_shows_what_would_be_sent(finished: Finished) -> None:
    world, _, _ = finished
    told = turnout("deploy", "check", world.site("lyon"), "--json")
    assert told.exit_code == 0, told.output
    found = json.loads(told.stdout)
    assert found["agreed"]
    assert found["would_refuse"] is None
    assert found["update_bytes"] > 0
    assert np.isfinite(found["loss_after_a_step"])
    assert found["statistics"]["sums"]["unit"]["words"].keys() == {"surgery", "medicine", "ward 1"}
    assert found["measures"] == ["loss", "accuracy", "confusion", "scores"]
    assert turnout("deploy", "check", world.site("lyon")).exit_code == 0


def test_check_says_what_a_policy_would_refuse_and_digests_pin_a_study(finished: Finished, tmp_path: Path) -> None:
    world = finished[0].at(tmp_path)
    digests = json.loads(turnout("deploy", "check", world.site("lyon"), "--json").stdout)["digests"]
    for option, digest in digests.items():
        limit(world, "lyon", (f'{option} = ["*"]', f'{option} = ["{digest}"]'))
    limit(world, "lyon", ('measures = ["*"]', 'measures = ["loss"]'))
    told = turnout("deploy", "check", world.site("lyon"), "--json")
    assert (told.exit_code, json.loads(told.stdout)["measures"]) == (0, [])
    config = world.site("lyon") / "config.toml"
    config.write_text(config.read_text().replace("hidden = [6]", "hidden = [7]"))
    told = turnout("deploy", "check", world.site("lyon"), "--json")
    assert told.exit_code == 1
    assert json.loads(told.stdout)["would_refuse"]["code"] == "model"


def test_a_study_of_a_number_is_told_in_its_own_units(tmp_path: Path) -> None:
    """With rows left out, a median, and rows held back to choose by."""
    schema = SCHEMA.replace('target = "died"', 'target = "age"\ntask = "regression"\nvalidation_fraction = 0.2')
    schema = schema.replace('high = 120\nmissing = "mean"', 'high = 120\nmissing = "drop"')
    schema = schema.replace('missing = "flag"\noutside = "missing"', 'missing = "median"\noutside = "clip"')
    world = World(tmp_path, CONFIGURATION.replace('"scores"', '"none"'), schema)
    world.join_all()
    summary = world.serve(world.grid())
    fitted = json.loads((world.run / "preprocess.json").read_text())
    assert 50 < float(fitted["target"]["offset"][0]) < 65
    assert summary["measures"]["validation_loss"] > 0
    served = Served.open(world.run)
    path = write_csv(world.tables / "new.csv", [[r[0], *r[2:]] for r in table(2)[:3]], [HEADER[0], *HEADER[2:]])
    labels = np.asarray(served.predict(served.table(path)).labels, float)
    assert ((labels > 0) & (labels < 120)).all()


@pytest.mark.parametrize("offered", [1, 0])
def test_a_run_that_all_or_nearly_all_refuse_goes_on_when_they_do_no_more(offered: int, tmp_path: Path) -> None:
    world = World(tmp_path, CONFIGURATION.replace("rounds = 3", "rounds = 2"))
    world.join_all()
    for site in SITES[offered:]:
        limit(world, site, *POLICIES["too_much"])
    grid, slept, sleep = world.grid(), 0.0, world.clock.sleep

    def mended(seconds: float) -> None:
        nonlocal slept
        slept += seconds
        if slept > 30:
            for site in SITES[offered:]:
                path = world.site(site) / "policy.toml"
                path.write_text(path.read_text().replace("max_epochs = 1\n", "max_epochs = 50\n"))
        sleep(seconds)

    world.clock.sleep = mended  # type: ignore[method-assign]
    summary = world.serve(grid)
    assert summary["rounds"] == 2
    assert "refused" in (world.run / "log.txt").read_text()


def test_of_few_rows_nothing_is_measured(tmp_path: Path) -> None:
    world = World(tmp_path, CONFIGURATION.replace("rounds = 3", "rounds = 1"))
    world.join_all()
    limit(world, "berlin", ("min_cell = 5", "min_cell = 12"))
    summary = world.serve(world.grid())
    clients = pq.read_table(world.run / "clients.parquet").to_pydict()
    told = dict(zip(clients["name"], clients["test_samples"], strict=True))
    assert told["berlin"] == 0
    assert min(told[site] for site in SITES[1:]) > 4
    assert summary["measures"]["test_auc"] > 0


def limit(world: World, site: str, *changes: tuple[str, str]) -> None:
    path = world.site(site) / "policy.toml"
    text = path.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)


POLICIES = {
    "algorithm": [('algorithms = ["*"]', 'algorithms = ["fedprox"]')],
    "model": [('models = ["*"]', 'models = ["linear"]')],
    "too_much": [("max_epochs = 50", "max_epochs = 1")],
    "spent": [("max_rounds = 1000", "max_rounds = 0")],
    "cohort": [("min_cohort = 3", "min_cohort = 5")],
    "expired": [("# expires = 2027-01-01", "expires = 2020-01-01")],
    "hours": [('hours = ["00:00-24:00"]', 'hours = ["00:00-00:01"]')],
    "policy": [("max_steps", "max_stops")],
    "measures": [('measures = ["*"]', 'measures = ["loss", "accuracy"]')],
    "statistics": [("statistics = true", "statistics = false")],
}


@pytest.mark.parametrize("code", POLICIES)
def test_a_request_beyond_a_policy_is_refused_and_shown_with_the_sites_reason(code: str, tmp_path: Path) -> None:
    world = World(tmp_path, CONFIGURATION.replace("rounds = 3", "rounds = 1"))
    world.join_all()
    limit(world, "lyon", *POLICIES[code])
    grid = world.grid()
    if code == "hours":
        noon = datetime.datetime(2026, 5, 1, 12, tzinfo=datetime.UTC)
        for site in grid.workers:
            site.now = lambda: noon  # type: ignore[attr-defined]
    summary = world.serve(grid)
    assert summary["rounds"] == 1
    told = turnout("deploy", "status", world.server).stdout
    line = next(line for line in told.splitlines() if line.startswith("lyon"))
    assert code in line
    assert all("refused" not in other for other in told.splitlines() if other != line)
    log = (world.run / "log.txt").read_text() + (world.server / "agreement.json").read_text()
    assert code in log
    lines = [json.loads(line) for line in (world.site("lyon") / "ledger.jsonl").read_text().splitlines()]
    assert code in {line["refused"] for line in lines}
