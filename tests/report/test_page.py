from __future__ import annotations

import gzip
import json
import re
import shutil
from base64 import b64decode
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from turnout import UserError
from turnout.record.run_folder import reseal
from turnout.report import page
from turnout.report.audit import lorenz
from turnout.report.blocks import number
from turnout.report.read import Recorded, recorded


def cells(text: str) -> dict[str, str]:
    """The value beside every name in the tables of one setting."""
    found = re.findall(r'<tr><th scope="row">(.*?)</th><td>(.*?)</td></tr>', text)
    return {unescape(name): unescape(value) for name, value in found}


def embedded(text: str, what: str = "charts") -> list[Any]:
    packed = re.search(f'id="{what}-data">(.*?)</script>', text)
    assert packed is not None
    found: list[Any] = json.loads(gzip.decompress(b64decode(packed[1])))
    return found


def array(typed: dict[str, str]) -> np.ndarray[Any, Any]:
    return np.frombuffer(b64decode(typed["bdata"]), {"f4": np.float32, "i4": np.int32, "u1": np.uint8}[typed["dtype"]])


def other(run: Recorded, title: str, **algorithm: Any) -> Recorded:
    """The same run under another name, with other options."""
    config = {**run.config, "run": {**run.config["run"], "name": title}}
    return replace(run, config={**config, "algorithm": {**run.config["algorithm"], **algorithm}})


def test_the_audit_on_the_page_is_the_audit_of_the_result(digits: Path) -> None:
    run = recorded(digits)
    shown, audit = cells(page.page([run])), run.summary["audit"]
    assert shown["updates used"] == number(audit["contributions"])
    assert shown["clients never heard"] == number(audit["never_heard"])
    assert shown["jobs that brought nothing"] == number(sum(audit["failures"].values()))
    assert shown["bias: chi-square of the shares"] == number(audit["chi_square"])
    assert shown["smallest realised / intended share"] == number(audit["ratio_min"])
    assert shown["largest realised / intended share"] == number(audit["ratio_max"])
    assert shown["mean sum of weights"] == number(audit["mean_weight"])
    assert shown["variance of weights"] == number(audit["weight_variance"])
    for reason, count in audit["failures"].items():
        assert shown[f"jobs lost: {reason}"] == number(count)


def test_the_charts_hold_the_record(digits: Path) -> None:
    run = recorded(digits)
    charts = embedded(page.page([run]))
    over_time, over_rounds = charts[0]["figure"]["data"][0], charts[0]["byRounds"]["data"][0]
    np.testing.assert_allclose(array(over_time["x"]), run.rounds()["time"], rtol=1e-6)
    np.testing.assert_allclose(array(over_time["y"]), run.rounds()["test_loss"], rtol=1e-6)
    assert array(over_rounds["x"]).tolist() == list(range(7))
    axes = [
        chart["figure"]["layout"][axis].get("title", {}).get("text") for chart in charts for axis in ("xaxis", "yaxis")
    ]
    assert {"loss", "accuracy", "worst 10th percentile of accuracy", "standard deviation of accuracy"} <= set(axes)


def test_clients_served_least_come_first_in_the_fairness_curve(digits: Path) -> None:
    clients = {"intended": [0.5, 0.25, 0.25], "realised": [0.5, 0.0, 0.3]}
    x, y = lorenz(replace(recorded(digits), summary={"clients": clients}))
    np.testing.assert_allclose(x, [0, 0.25, 0.75, 1])
    np.testing.assert_allclose(y, [0, 0, 0.5 / 0.8, 1])


EVIL = '<script>alert("1")</script>'


def test_everything_is_escaped(digits: Path, tmp_path: Path) -> None:
    shutil.copytree(digits, tmp_path / "evil")
    config = (digits / "config.toml").read_text(encoding="utf-8")
    config = config.replace('name = "digits"', f"name = '{EVIL}'").replace('name = "fedavg"', f"name = '{EVIL}'")
    (tmp_path / "evil" / "config.toml").write_text(f"# {EVIL}\n{config}", encoding="utf-8")
    (tmp_path / "evil" / "log.txt").write_text(EVIL, encoding="utf-8")
    result = json.loads((digits / "result.json").read_text(encoding="utf-8"))
    result["stopped"] = EVIL
    result["audit"]["failures"][EVIL] = 1
    result["audit"]["events"][EVIL] = 1
    (tmp_path / "evil" / "result.json").write_text(json.dumps(result), encoding="utf-8")
    reseal(tmp_path / "evil")
    run = recorded(tmp_path / "evil")
    for text in (page.page([run]), page.page([run, other(run, EVIL, name=f"{EVIL}2"), recorded(digits)])):
        assert EVIL not in text
        assert text.count("<script") == 4
        names = json.dumps([chart["figure"]["data"] for chart in embedded(text)])
        assert "<script" not in names


def test_nothing_is_loaded_from_elsewhere(digits: Path) -> None:
    text = page.page([recorded(digits)])
    assert not re.findall(r'(?:src|href)\s*=\s*"(?!#|data:)', text)
    assert not re.findall(r"https?://(?!www\.w3\.org/)", text)
    assert not re.findall(r"@import|url\(", text)


def test_the_same_runs_give_the_same_page_at_any_time(digits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = page.page([recorded(digits)])
    monkeypatch.setattr("time.time", lambda: 1e9)
    assert page.page([recorded(digits)]) == first


def test_seeds_are_bands(seeds: list[Path]) -> None:
    text = page.page([recorded(folder) for folder in seeds])
    assert "Lines are means over seeds; bands reach from the smallest to the largest." in text
    assert "3 seeds" in text
    bands = [trace for trace in embedded(text)[0]["figure"]["data"] if trace.get("fill") == "toself"]
    assert len(bands) == 3  # test, train, central
    assert [lane["label"] for lane in embedded(text, "timelines")] == [
        "digits, seed 0",
        "digits, seed 1",
        "digits, seed 2",
    ]


def test_ten_runs_are_compared(digits: Path, buffered: Path) -> None:
    run = recorded(digits)
    runs = [other(run, f"run {i}", server_lr=i) for i in range(9)]
    text = page.page([*runs, recorded(buffered)])
    assert "10 runs compared" in text
    assert '<th scope="row">algorithm.name</th>' in text
    assert "Options that only some have" in text
    assert len(embedded(text, "timelines")) == 10


def test_an_unfinished_run_has_a_page(digits: Path, tmp_path: Path) -> None:
    shutil.copytree(digits, tmp_path / "half")
    for name in ("result.json", "clients.parquet"):
        (tmp_path / "half" / name).unlink()
    reseal(tmp_path / "half")
    text = page.page([recorded(tmp_path / "half")])
    assert "unfinished: turnout resume" in text
    assert "the audit is added up when a run ends" in text
    assert len(embedded(text, "timelines")) == 1
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "plan.json").write_text("{}")
    assert "Nothing has been evaluated yet." in page.page([recorded(tmp_path / "empty")])


def test_energy_and_waste_are_there_where_they_were_measured(digits: Path, buffered: Path) -> None:
    run = recorded(buffered)
    shown = cells(page.page([run]))
    assert shown["energy (Wh)"] == number(run.summary["efficiency"]["energy_wh"])
    assert shown["energy wasted (Wh)"] == number(run.summary["efficiency"]["wasted_wh"])
    assert shown["work lost (jobs)"] == number(run.summary["efficiency"]["work_lost"])
    assert "energy (Wh)" not in cells(page.page([recorded(digits)]))


def test_what_is_written_is_whole_and_never_over_something_else(digits: Path, tmp_path: Path) -> None:
    path = page.write([recorded(digits)], tmp_path / "report.html")
    text = path.read_text(encoding="utf-8")
    packed = re.search(r'id="plotly">(.*?)</script>', text)
    assert packed is not None
    assert b"window.Plotly" in gzip.decompress(b64decode(packed[1]))
    assert page.write([recorded(digits)], path) == path
    (tmp_path / "mine.html").write_text("<h1>mine</h1>", encoding="utf-8")
    for place, why in (("mine.html", "is not a report"), (".", "is a folder")):
        with pytest.raises(UserError, match=why):
            page.write([recorded(digits)], tmp_path / place)
    with pytest.raises(UserError, match="11 runs; a page shows from 1 to 10"):
        page.write([recorded(digits)] * 11, tmp_path / "many.html")
    assert (tmp_path / "mine.html").read_text(encoding="utf-8") == "<h1>mine</h1>"
