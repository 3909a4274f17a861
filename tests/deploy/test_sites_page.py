"""docs/sites.md takes three sites from nothing to a model: followed word for word, but for the network."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fake_network import Clock
from study_of_four import HEADER, Tapped, table, turnout, write_csv

from turnout.deploy import server

PAGE = Path(__file__).parents[2] / "docs/sites.md"
BLOCK = re.compile(r'^```(\w*)(?: title="([^"\n]+)")?\n(.*?)^```$', re.S | re.M)
COLUMNS = [HEADER.index(name) for name in ("pid", "age", "sex", "unit", "seen", "died")]


def write_tables() -> None:
    header = [HEADER[i] for i in COLUMNS]
    berlin, lyon, porto = ([[row[i] for i in COLUMNS] for row in table(site)] for site in range(3))
    write_csv(Path("berlin.csv"), berlin, header)
    write_csv(Path("lyon.csv"), [[row[0], row[1].replace(".", ","), *row[2:]] for row in lyon], header, ";")
    columns: dict[str, Any] = dict(zip(header, map(list, zip(*porto, strict=True)), strict=True))
    pq.write_table(pa.table(columns | {"age": [float(word) for word in columns["age"]]}), "porto.parquet")
    write_csv(Path("new.csv"), [row[:-1] for row in porto[:3]], header[:-1])


def test_the_page_takes_three_sites_to_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_tables()
    said = ""
    for language, title, code in BLOCK.findall(PAGE.read_text("utf-8")):
        if language == "toml":
            Path(title).write_text(code)
            continue
        for words in (shlex.split(line, comments=True) for line in code.splitlines()):
            if words[0] != "turnout" or words[1:3] == ["deploy", "client"]:
                continue
            if words[1:3] == ["deploy", "server"]:
                clock = Clock()
                grid = Tapped(Path("wards"), ("berlin", "lyon", "porto"), clock)
                server.serve(grid, Path(words[3]), Path("runs/wards"), clock=clock.read, sleep=clock.sleep)
                continue
            answer = turnout(*words[1:])
            assert answer.exit_code == 0, (words, answer.output)
            said += answer.output
    assert "porto: admitted, " in said
    assert "refused to" not in said
    assert len(Path("predictions.csv").read_text().splitlines()) == 4
