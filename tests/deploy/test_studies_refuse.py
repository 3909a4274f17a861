"""Nobody is believed: what sites send is checked at the server, what the server sends is checked at each site."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from study_of_four import CONFIGURATION, HEADER, SITES, World, table, turnout, write_csv

from turnout.core.errors import FailedError
from turnout.data.schema import Schema
from turnout.deploy.rows import Place, Rows
from turnout.deploy.site import Site
from turnout.deploy.wire import ANSWER, ASK, MODEL

ONE_ROUND = CONFIGURATION.replace("rounds = 3", "rounds = 1")
SECRET = "QUAGGA-4711"


@pytest.fixture(scope="module")
def joined(tmp_path_factory: pytest.TempPathFactory) -> World:
    world = World(tmp_path_factory.mktemp("joined"), ONE_ROUND)
    world.join_all()
    return world


@pytest.fixture
def world(joined: World, tmp_path: Path) -> World:
    """A copy of four sites that have enrolled."""
    return joined.at(tmp_path)


# -- at the server ----------------------------------------------------------------------------------------------


def changed(said: Any, change: Callable[[dict[str, Any]], Any]) -> str:
    document = json.loads(said)
    change(document)
    return json.dumps(document)


STATISTICS: dict[str, Callable[[Any], Any]] = {
    "rows": lambda said: changed(said, lambda d: d.update(rows=10**9)),
    "sum": lambda said: changed(said, lambda d: d["sums"]["age"].update(s=1 << 70)),
    "nan": lambda said: said.replace('"q": ', '"q": NaN, "x": ', 1),
    "word": lambda said: changed(said, lambda d: d["sums"]["unit"]["words"].update({"a\nb": 0})),
    "words": lambda said: changed(said, lambda d: d["sums"]["unit"].update(words=[])),
    "column": lambda said: changed(said, lambda d: d["sums"].pop("age")),
    "text": lambda _: "{" * 100_000,
    "number": lambda _: 3,
}


@pytest.mark.parametrize("lie", STATISTICS)
def test_sums_that_cannot_be_are_left_out_and_their_site_is_named(lie: str, world: World) -> None:
    grid = world.grid()

    def tamper(client: int, asked: Message, reply: Message) -> list[Message]:
        if client == 1 and asked.metadata.message_type == "query":
            said = reply.content.config_records[ANSWER]
            said["statistics"] = STATISTICS[lie](said["statistics"])
        return [reply, reply]

    grid.tamper, grid.tampers_with_measures = tamper, True
    assert world.serve(grid)["rounds"] == 1
    record = json.loads((world.server / "agreement.json").read_text())
    assert record["missing"].keys() == {"lyon"}
    assert record["answered"].keys() == {*SITES} - {"lyon"}
    fitted = json.loads((world.run / "preprocess.json").read_text())
    assert [name for name, _ in fitted["fitted_on"]["clients"]] == [site for site in SITES if site != "lyon"]
    assert any("lyon is not in the preprocessing: rejected" in line for line in fitted["said"])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("test_accuracy", 1 << 60),
        ("test_accuracy", -1),
        ("test_accuracy", 0.5),
        ("test_loss", 1 << 62),
        ("test_samples", 10_000),
        ("test_confusion", [1, 2, 3]),
        ("test_confusion", [-1, 1, 0, 0]),
        ("test_scores", [0] * 2000),
        ("test_ghost", 1),
    ],
)
def test_measures_that_cannot_be_are_rejected(name: str, value: Any, world: World) -> None:
    grid = world.grid()

    def tamper(client: int, asked: Message, reply: Message) -> list[Message]:
        if client == 2 and asked.metadata.message_type == "evaluate":
            reply.content.config_records[ANSWER][name] = value
        return [reply]

    grid.tamper, grid.tampers_with_measures = tamper, True
    summary = world.serve(grid)
    assert 0 < summary["measures"]["test_f1"] <= 1
    log = (world.run / "log.txt").read_text()
    assert "rejected reply" in log
    assert "client porto" in log


@pytest.mark.parametrize(
    "said", [{"refused": "os.system"}, {"why": "x" * 201}, {"why": "a\nb"}, {"until": 0.5}, {"more": 1}]
)
def test_a_refusal_of_another_form_is_rejected(said: dict[str, Any], world: World) -> None:
    grid = world.grid()

    def tamper(client: int, asked: Message, reply: Message) -> list[Message]:
        if client == 0 and asked.metadata.message_type == "train":
            honest: dict[str, Any] = {"refused": "hours", "why": "later", "until": 10}
            reply.content.config_records[ANSWER] = ConfigRecord(honest | said)
            reply.content.array_records["payload"] = ArrayRecord()
        return [reply]

    grid.tamper = tamper
    world.serve(grid)
    assert "rejected reply" in (world.run / "log.txt").read_text()
    assert not (world.server / "refusals.json").exists()


def test_a_site_that_comes_later_takes_what_was_agreed_on(world: World) -> None:
    grid = world.grid()
    grid.connected[3] = False
    world.serve(grid)
    fitted = (world.run / "preprocess.json").read_text()
    assert "oslo is not in the preprocessing: it was not there" in fitted
    shutil.rmtree(world.run)
    grid.connected[3] = True
    summary = world.serve(grid, overwrite=True)
    assert (world.run / "preprocess.json").read_text() == fitted == (world.site("oslo") / "preprocess.json").read_text()
    assert summary["audit"]["clients"] == 4


def test_a_run_nobody_tells_sums_for_ends_with_the_reasons(world: World) -> None:
    for site in SITES:
        path = world.site(site) / "policy.toml"
        path.write_text(path.read_text().replace("statistics = true", "statistics = false"))
    with pytest.raises(FailedError, match="porto: refused, statistics: statistics is false"):
        world.serve(world.grid())
    assert not (world.server / "preprocess.json").exists()


FORGED: dict[str, tuple[dict[str, Any], str]] = {
    "stranger": ({"site": "bern"}, "did you mean berlin?"),
    "samples": ({"samples": 0}, "samples must be 1"),
    "text": ({"samples": "12"}, "samples = '12'"),
    "key": ({"key": "MHYw"}, "no public key"),
    "toml": ({"key": 'a"\nmember = true'}, "no public key"),
    "schema": ({"schema": "0" * 64}, "another schema.toml"),
    "more": ({"rows": [1]}, "is no enrolment"),
}


@pytest.mark.parametrize("forged", FORGED)
def test_a_forged_enrolment_is_one_sentence(forged: str, world: World, tmp_path: Path) -> None:
    document = json.loads((world.site("berlin") / "enrolment-berlin.json").read_text())
    path, before = tmp_path / "enrolment.json", (world.server / "clients.toml").read_text()
    path.write_text(json.dumps(document | FORGED[forged][0]))
    told = turnout("deploy", "admit", world.server, path, "--yes")
    assert told.exit_code == 2
    assert FORGED[forged][1] in " ".join(told.stderr.split())
    assert (world.server / "clients.toml").read_text() == before


def test_two_sites_have_two_keys_and_a_site_keeps_its_own(world: World, tmp_path: Path) -> None:
    berlin, lyon = (json.loads((world.site(s) / f"enrolment-{s}.json").read_text()) for s in SITES[:2])
    path = tmp_path / "enrolment.json"
    told = []
    for document in ({**lyon, "key": berlin["key"]}, {**lyon, "site": "porto"}, {**lyon, "samples": 7}):
        path.write_text(json.dumps(document))
        told.append(turnout("deploy", "admit", world.server, path, "--yes"))
    assert [each.exit_code for each in told] == [2, 2, 0]
    assert "lyon has the key of berlin; two sites need two keys" in " ".join(told[0].stderr.split())
    assert "porto has the key of lyon" in " ".join(told[1].stderr.split())


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--schema", "schema.toml"], "--site: name each site once"),
        (["--schema", "schema.toml", "--site", "Berlin!"], "--site: 'Berlin!'"),
        (["--schema", "schema.toml", "--site", "a", "data.name=digits"], "data: sites have tables of their own"),
        (["--schema", "schema.toml", "--site", "a", "deploy.evaluate=server"], "deploy.evaluate: server"),
        (["--schema", "schema.toml", "--site", "a", "task.metrics=auc"], "task.metrics: auc is of a whole set"),
        (["--schema", "nothing.toml", "--site", "a"], "nothing.toml: cannot be read"),
        (["--site", "a"], "--site: a: sites have tables"),
    ],
)
def test_what_no_study_has_is_refused(
    arguments: list[str], word: str, joined: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(joined.server / "schema.toml", tmp_path / "schema.toml")
    (tmp_path / "study.toml").write_text(CONFIGURATION)
    monkeypatch.chdir(tmp_path)
    told = turnout("deploy", "init", "new", "study.toml", *arguments)
    assert told.exit_code == 2
    assert word in " ".join(told.stderr.split())
    assert not (tmp_path / "new").exists()


# -- at a site --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def asked(joined: World, tmp_path_factory: pytest.TempPathFactory) -> dict[str, RecordDict]:
    """The messages of an honest run, by their kind."""
    folder = tmp_path_factory.mktemp("asked")
    world = joined.at(folder)
    grid, found = world.grid(), dict[str, RecordDict]()

    def tamper(client: int, message: Message, reply: Message) -> list[Message]:
        if client == 0:
            found.setdefault(message.metadata.message_type, message.content)
        return [reply]

    grid.tamper, grid.tampers_with_measures = tamper, True
    world.serve(grid)
    return found


def copied(content: RecordDict) -> RecordDict:
    return RecordDict({name: record.copy() for name, record in content.items()})


def put(record: str, name: str, value: Any) -> Callable[[RecordDict], None]:
    return lambda content: content.config_records[record].__setitem__(name, value)


def without(record: str) -> Callable[[RecordDict], None]:
    return lambda content: content.__delitem__(record)


def model(values: Any) -> Callable[[RecordDict], None]:
    return put(ASK, f"{MODEL}/model", Array(np.asarray(values)).data)  # a small array is with the facts


def apart(values: Any) -> Callable[[RecordDict], None]:
    """The same in a message whose arrays have a record of their own, as large ones have."""

    def change(content: RecordDict) -> None:
        del content.config_records[ASK][f"{MODEL}/model"]
        content[MODEL] = ArrayRecord({"model": Array(np.asarray(values))})

    return change


HOSTILE: dict[str, tuple[str, Callable[[RecordDict], None], set[str]]] = {
    "no terms": ("train", without("study"), {"malformed"}),
    "terms of numbers": ("train", put("study", "members", 0.5), {"malformed"}),
    "another schema": ("train", put("study", "schema", "0" * 64), {"study"}),
    "few members": ("train", put("study", "members", 1), {"cohort"}),
    "another preprocessing": ("train", put("study", "preprocess", "{}"), {"preprocess"}),
    "deep preprocessing": ("train", put("study", "preprocess", "[" * 100_000), {"preprocess"}),
    "work of words": ("train", put(ASK, "work", "{"), {"malformed"}),
    "work of code": ("train", put(ASK, "work", '{"format": 3, "kind": "os:system", "values": {}}'), {"malformed"}),
    "no question": ("train", without(ASK), {"malformed"}),
    "a path for a state": ("train", put(ASK, "state", "../../node"), set()),
    "another model": ("train", model(np.zeros(3, np.float32)), {"malformed"}),
    "a model of NaN": ("train", model(np.full(79, np.nan, np.float32)), {"malformed"}),
    "a model of NaN by itself": ("train", apart(np.full(79, np.nan, np.float32)), {"malformed"}),
    "a pickled model": ("train", model(np.array(["x"])), {"malformed"}),
    "unknown summaries": ("evaluate", put("study", "summaries", ["rows"]), {"malformed"}),
    "a version of words": ("evaluate", put(ASK, "version", "rows"), {"malformed"}),
}


@pytest.mark.parametrize("attack", HOSTILE)
def test_a_hostile_server_is_refused_and_told_nothing(attack: str, asked: dict[str, RecordDict], world: World) -> None:
    kind, change, codes = HOSTILE[attack]
    site, content = Site(world.site("berlin")), copied(asked[kind])
    change(content)
    answer = getattr(site, kind)(content)
    said = answer.config_records[ANSWER]
    if codes:
        assert said["refused"] in codes
        assert not any(len(record) for record in answer.array_records.values())
    else:
        assert said.get("needs") == "state" or "refused" in said or any(name.startswith("payload/") for name in said)


def test_an_honest_server_is_answered(asked: dict[str, RecordDict], world: World) -> None:
    site = Site(world.site("berlin"))
    for kind, content in asked.items():
        assert "refused" not in getattr(site, kind)(copied(content)).config_records[ANSWER]
    lines = [json.loads(line) for line in (world.site("berlin") / "ledger.jsonl").read_text().splitlines()]
    assert {line["asked"] for line in lines} == {"statistics", "evaluate", "train"}
    assert all(line["bytes_up"] > 0 for line in lines)


@pytest.mark.parametrize(("column", "code"), [("age", "data"), ("note", "data"), ("sodium", "data_changed")])
def test_a_table_that_changes_is_refused_without_a_word_of_it(
    column: str, code: str, asked: dict[str, RecordDict], world: World, tmp_path: Path
) -> None:
    rows = table(0)
    rows[4][HEADER.index(column)] = "141.5" if column == "sodium" else SECRET
    header = [name for name in HEADER if name != "note"] if column == "note" else HEADER
    kept = [HEADER.index(name) for name in header]
    path = write_csv(tmp_path / "changed.csv", [[row[i] for i in kept] for row in rows], header)
    place = world.site("berlin") / "table.toml"
    place.write_text(place.read_text().replace(str(world.tables / "berlin.csv"), str(path)))
    answer = Site(world.site("berlin")).query(copied(asked["query"])).config_records[ANSWER]
    assert answer["refused"] == code
    assert SECRET not in str(answer["why"])


def test_code_that_a_policy_does_not_name_is_not_imported(asked: dict[str, RecordDict], world: World) -> None:
    config = world.site("berlin") / "config.toml"
    config.write_text(config.read_text().replace('name = "mlp"', 'name = "os:system"'))
    answer = Site(world.site("berlin")).train(copied(asked["train"])).config_records[ANSWER]
    assert answer["refused"] == "code"
    assert "os:system" in str(answer["why"])


def test_rows_that_are_added_move_no_other_and_the_salt_tells_who_is_held_out(joined: World, tmp_path: Path) -> None:
    schema, rows = Schema.read(joined.server / "schema.toml"), [row for i in range(4) for row in table(i)]
    some, all_ = (
        Rows.read(schema, Place(str(write_csv(tmp_path / f"{n}.csv", rows[:n]))), b"salt") for n in (100, len(rows))
    )
    assert some.test.tolist() == [row for row in all_.test.tolist() if row < 100]
    other = Rows.read(schema, Place(str(tmp_path / f"{len(rows)}.csv")), b"another")
    moved = {*all_.test.tolist()} ^ {*other.test.tolist()}
    assert 0.2 < len(moved) / len(rows) < 0.55  # 2 f (1 - f) of them, with f = 0.25
    assert some.fingerprint != all_.fingerprint != other.fingerprint


def test_a_study_begins_with_sites_that_have_enrolled(joined: World, tmp_path: Path) -> None:
    shutil.copytree(joined.server, tmp_path / "server")
    (tmp_path / "server/clients.toml").write_text("# nobody\n")
    shutil.copytree(joined.site("oslo"), tmp_path / "oslo")
    (tmp_path / "oslo/node.key").unlink()
    commands: list[tuple[list[str | Path], str]] = [
        (["server", tmp_path / "server"], "no site is admitted yet; turnout deploy admit"),
        (["client", tmp_path / "oslo", "--superlink", "127.0.0.1:1"], "is not enrolled; turnout deploy enrol"),
    ]
    for command, word in commands:
        told = turnout("deploy", *command)
        assert told.exit_code == 2
        assert word in " ".join(told.stderr.split())


def test_a_table_that_changes_meanwhile_is_noticed(asked: dict[str, RecordDict], world: World, tmp_path: Path) -> None:
    path, rows = tmp_path / "berlin.csv", table(0)
    write_csv(path, rows)
    world.join("berlin", path)
    site = Site(world.site("berlin"))
    assert "refused" not in site.query(copied(asked["query"])).config_records[ANSWER]
    write_csv(path, rows[:-1])
    assert site.query(copied(asked["query"])).config_records[ANSWER]["refused"] == "data_changed"
    policy = world.site("berlin") / "policy.toml"
    policy.write_text(policy.read_text().replace("may_change = false", "may_change = true"))
    assert "refused" not in site.query(copied(asked["query"])).config_records[ANSWER]


def test_a_folder_that_is_no_site_s_says_so(tmp_path: Path) -> None:
    commands: list[list[str | Path]]
    commands = [["enrol", tmp_path, "--data", tmp_path / "a.csv"], ["check", tmp_path], ["status", tmp_path]]
    for command in commands:
        told = turnout("deploy", *command)
        assert told.exit_code == 2, told.output
        assert told.stderr.count("\n") <= 2
