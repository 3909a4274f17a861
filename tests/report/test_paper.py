"""What a paper takes: tables that LaTeX sets, figures that are the record, a row a run, and what to cite."""

from __future__ import annotations

import csv
import inspect
import io
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from recordings import record
from test_sentences import A, B, ended, quorum, several

import turnout
from turnout import UserError
from turnout.config.kinds import KINDS
from turnout.report import cite, drawings, figures, frame, paper, read, tables
from turnout.report.compare import Target, compare
from turnout.report.read import Recorded, recorded

ENGINES = [engine for engine in ("pdflatex", "lualatex", "xelatex", "tectonic") if shutil.which(engine)]
_TOKEN = re.compile(r"\\[a-zA-Z]+\*?|\\.|[{}$&#_^~%]|[^\\{}$&#_^~%]+")


def check_latex(text: str) -> dict[str, Any]:
    """A strict reader of what tables use: groups, mathematics and environments end where they must, nothing special
    stands unescaped, every row of a tabular has its columns. What it found: commands and rows."""
    stack: list[str] = []
    commands, rows, cells, columns = set(), list[int](), 0, 0
    lines = [re.sub(r"(?<!\\)%.*", "", line) for line in text.splitlines()]
    tokens = iter(_TOKEN.findall("\n".join(lines)))
    for token in tokens:
        maths = bool(stack) and stack[-1] == "$"
        if token in (r"\begin", r"\end"):
            assert next(tokens) == "{"
            name = next(tokens)
            assert next(tokens) == "}"
            if token == r"\begin":
                stack.append(name)
                if name == "tabular":
                    assert next(tokens) == "{"
                    columns, cells = len(next(tokens)), 1
                    assert next(tokens) == "}"
            else:
                assert stack.pop() == name
        elif token == "{":
            stack.append(token)
        elif token == "}":
            assert stack.pop() == "{"
        elif token == "$":
            stack.pop() if maths else stack.append("$")
        elif token == "&":
            assert stack[-1] == "tabular"
            cells += 1
        elif token == r"\\":
            rows.append(cells)
            assert cells == columns
            cells = 1
        elif token in "_^":
            assert maths
        elif token.startswith("\\"):
            commands.add(token)
        else:
            assert token not in "#~%"
            assert token.isascii(), token
    assert not stack
    return {"commands": commands, "rows": rows}


@pytest.fixture(scope="module")
def awkward() -> list[Recorded]:
    """Names that LaTeX, Markdown and CSV would trip over; three settings of five seeds."""
    return several(**{"a_b&c|d": A, "100% #1 ~^\\ {x}": B, "plain, <b>": tuple(value - 0.2 for value in B)})


def test_latex_is_read_strictly(awkward: list[Recorded]) -> None:
    text = tables.written(compare(awkward), None, "latex")
    found = check_latex(text)
    assert len(found["rows"]) == 4
    assert found["commands"] >= {r"\toprule", r"\midrule", r"\bottomrule", r"\caption", r"\label", r"\textbf"}
    assert r"a\_b\&c|d,seed=0" not in text and r"a\_b\&c|d & \textbf{0.920 $\pm$ 0.020}" in text
    assert r"test accuracy $\uparrow$" in text
    unclosed = text[::-1].replace("}", "", 1)[::-1]
    for broken in (unclosed, text.replace(" & ", " ", 1), text.replace(r"\&", "&"), text + "$"):
        with pytest.raises((AssertionError, IndexError, StopIteration)):
            check_latex(broken)


@pytest.mark.skipif(not ENGINES, reason="no LaTeX engine is installed")
def test_an_engine_compiles_it(awkward: list[Recorded], tmp_path: Path) -> None:
    table = tables.written(compare(awkward), None, "latex")
    text = f"\\documentclass{{article}}\\usepackage{{booktabs}}\\begin{{document}}\n{table}\\end{{document}}\n"
    (tmp_path / "paper.tex").write_text(text, encoding="utf-8")
    flags = [] if ENGINES[0] == "tectonic" else ["-halt-on-error", "-interaction=nonstopmode"]
    subprocess.run([ENGINES[0], *flags, "paper.tex"], cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / "paper.pdf").read_bytes()[:4] == b"%PDF"


def test_markdown_has_a_cell_a_column(awkward: list[Recorded]) -> None:
    lines = tables.written(compare(awkward), None, "markdown").splitlines()
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines if line.startswith("|")]
    assert len({len(row) for row in rows}) == 1
    assert r"a_b&c\|d" in rows[2][0] and "**0.920 ± 0.020**" in rows[2][1]
    assert "Bold: the best mean." in lines[-1]


def test_csv_is_the_numbers_in_full(awkward: list[Recorded]) -> None:
    first, *_ = csv.DictReader(io.StringIO(tables.written(compare(awkward), None, "csv")))
    assert first["setting"] == "a_b&c|d" and first["seeds"] == "0 1 2 3 4"
    assert float(first["test_accuracy"]) == np.mean(A)
    assert first["test_accuracy_runs"] == "5"


def test_what_chance_does_not_tell_from_the_best_is_marked() -> None:
    close = tuple(value + gap for value, gap in zip(A, (-0.01, 0.008, 0.0, -0.006, 0.004), strict=True))
    rows = compare(several(far=B, close=close, top=A))
    (column, *_) = tables.measured(rows)
    assert (column.best, column.level) == ({2}, {1})
    assert "†" in tables.about(rows, [column])
    single = compare([ended("a", 0.9), ended("b", 0.8)])
    (column, *_) = tables.measured(single)
    assert (column.best, column.level) == ({0}, set())
    assert tables.about(single, [column]).startswith("One seed each, which proves nothing.")


# -- a row a run ----------------------------------------------------------------------------------------------


def test_a_tidy_frame_of_a_sweep(seeds: list[Path], buffered: Path, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    sweep = tmp_path / "sweep"
    sweep.mkdir()
    for folder in (*seeds, buffered):
        shutil.copytree(folder, sweep / folder.name)
    found = turnout.frame(sweep)
    assert isinstance(found, pandas.DataFrame) and len(found) == 4
    assert set(found["algorithm.name"]) == {"fedavg", "fedbuff"}
    ours = found[found["algorithm.name"] == "fedavg"].sort_values("seed")
    results = [recorded(folder).summary["measures"]["test_accuracy"] for folder in seeds]
    assert ours.test_accuracy.tolist() == results
    clients = turnout.frame([sweep / "digits", sweep / "buffered"], "clients")
    assert clients.groupby("run").size().tolist() == [12, 12]
    with pytest.raises(UserError, match=r"frame.table: unknown name 'round'; did you mean rounds"):
        turnout.frame(sweep, "round")  # type: ignore[arg-type]
    lines = list(csv.DictReader(io.StringIO(frame.as_csv(frame.tidy([recorded(p) for p in read.below([sweep])])))))
    assert [float(line["test_accuracy"]) for line in lines] == found.test_accuracy.tolist()


def test_folders_of_runs_are_in_order(tmp_path: Path) -> None:
    for name in ("seed=10", "seed=9", "notes"):
        (tmp_path / name).mkdir()
    for name in ("seed=10", "seed=9"):
        (tmp_path / name / "plan.json").write_text("{}")
    assert [path.name for path in read.below([tmp_path])] == ["seed=9", "seed=10"]
    assert read.below([tmp_path / "seed=9", tmp_path / "seed=10"]) == [tmp_path / "seed=9", tmp_path / "seed=10"]
    assert read.below([tmp_path / "nowhere"]) == [tmp_path / "nowhere"]  # whose reader says what is wrong


# -- figures --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def drawn() -> list[Recorded]:
    return several(fedavg=B, fedbuff=A, fedfix=tuple(value + 0.02 for value in A))


@pytest.mark.parametrize("kind", ["curves", "bars", "fairness"])
@pytest.mark.parametrize("suffix", figures.SUFFIXES)
def test_figures_of_many_are_the_same_bytes(kind: str, suffix: str, drawn: list[Recorded], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    files = [tmp_path / f"{name}{suffix}" for name in ("one", "two")]
    for path in files:
        about = figures.write(drawn, path, kind, width="page" if suffix == ".svg" else "column")
    assert about.endswith(".")
    first, second = (path.read_bytes() for path in files)
    assert first == second
    assert first[:4] == {".pdf": b"%PDF", ".svg": b"<?xm", ".png": b"\x89PNG"}[suffix]


class Axes:
    """What was drawn, by the name of the call."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any, Any]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *given, **named: self.calls.append((name, given, named))

    def of(self, name: str) -> list[Any]:
        return [given for call, given, _ in self.calls if call == name]


def drawing() -> tuple[Any, Axes]:
    axes = Axes()
    axes.figure = SimpleNamespace(legend=lambda **_: None, get_figwidth=lambda: 7.0)  # type: ignore[attr-defined]
    stage = SimpleNamespace(
        subplots=lambda *_: axes, legend=lambda **_: None, set_figheight=lambda _: None, get_figwidth=lambda: 7.0
    )
    return stage, axes


def test_figures_hold_the_record(drawn: list[Recorded]) -> None:
    groups = read.settings(drawn)
    stage, axes = drawing()
    about = figures.curves(stage, figures.Asked(groups, ["a", "b", "c"], None, "rounds"))
    ends = np.array([line[1][-1] for line in axes.of("plot")])
    np.testing.assert_allclose(ends, np.array([np.mean(B), np.mean(A), np.mean(A) + 0.02], float))
    assert "bands reach from the smallest to the largest" in about
    stage, axes = drawing()
    figures.bars(stage, figures.Asked(groups, ["a", "b", "c"], None, "time"))
    assert not axes.of("bar")  # far from zero: bars that are cut would lie
    np.testing.assert_allclose(axes.of("scatter")[0][1], B)
    np.testing.assert_allclose(axes.of("errorbar")[1][1:], [float(np.mean(A)), 0.0196], rtol=0.01)


def test_a_timeline_and_a_star(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    run = quorum()
    run.tables["jobs"] |= {"sent_at": run.tables["jobs"]["version"] * 80.0}
    run.tables["jobs"]["ended_at"] = run.tables["jobs"]["sent_at"] + 70.0
    run.tables["jobs"] |= {name: run.tables["jobs"][name].astype(float) for name in ("compute_seconds",)}
    about = figures.write([run], tmp_path / "timeline.svg", "timeline")
    assert about.startswith("Jobs of 7 clients, by how they ended")
    stage, axes = drawing()
    drawings.draw_topology(stage, run)
    dotted = [named for call, _, named in axes.calls if call == "plot" and named.get("linestyle") == ":"]
    assert len(dotted) == 2  # never heard
    assert [given[0] for given in axes.of("annotate")][4] == "Linde"


def test_a_ring_of_silos(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    folder = record(tmp_path / "ring", "algorithm.name=dpasgd", "clients.count=5", "run.rounds=1")
    about = figures.write([recorded(folder)], tmp_path / "ring.png", "topology")
    assert about.startswith("ring: a round takes ")


def test_mistakes(drawn: list[Recorded], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "x.pdf"
    for options, sentence in (
        ({"kind": "bar"}, "--kind: unknown name 'bar'; did you mean bars"),
        ({"measure": "test_accurcy"}, "--measure: unknown name 'test_accurcy'; did you mean test_accuracy"),
        ({"over": "seconds"}, "--over: unknown name 'seconds'"),
        ({"width": "wide"}, "--width: unknown name 'wide'; allowed: column, page"),
        ({"kind": "timeline"}, "--kind: timeline is of one run; 15 are given"),
    ):
        with pytest.raises(UserError, match=re.escape(sentence)):
            figures.write(drawn, path, **options)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"--out: .*x.gif ends with none of .pdf, .svg, .png"):
        figures.write(drawn, tmp_path / "x.gif")
    with pytest.raises(UserError, match="has no record of its jobs"):
        figures.write(drawn[:1], path, "timeline")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UserError, match=r'figure: matplotlib is not installed; pip install -e ".\[paper\]"'):
        figures.write(drawn, path)
    assert not list(tmp_path.iterdir())  # nothing half-written


# -- what to cite ---------------------------------------------------------------------------------------------

THINGS = {f"{kind.section}.{name}": made for kind in KINDS.values() for name, made in kind.things().items()}
OWN_FILES = [name for name in THINGS if name.startswith(("algorithm.", "sampler."))]


def known(name: str) -> bool:
    section, _, thing = name.partition(".")
    return any(kind.section.partition(".")[0] == section and thing in kind.things() for kind in KINDS.values())


@pytest.mark.parametrize("entry", cite.entries(), ids=lambda entry: entry.key)
def test_an_entry_is_whole_and_what_it_is_for_exists(entry: cite.Entry) -> None:
    fields = dict(re.findall(r"^  (\w+) = \{(.*)\},$", entry.text, re.M))
    assert {"author", "title", "year"} <= fields.keys() and "turnout" not in fields
    assert fields.keys() & {"booktitle", "journal", "howpublished"}
    assert entry.text.count("{") == entry.text.count("}") and entry.text.isascii()
    assert all(", " in author for author in fields["author"].split(" and "))
    assert entry.used and all(map(known, entry.used))
    first = re.sub(r"\{\\.(.)\}|[{}]", r"\1", fields["author"].split(",")[0])
    for name in entry.used:
        if name in OWN_FILES:  # the file of the method names the paper, too
            told = inspect.getdoc(inspect.getmodule(THINGS[name])) or ""
            assert first.split()[-1] in told, (name, first)


def test_every_method_with_a_paper_has_an_entry() -> None:
    cited = {name for entry in cite.entries() for name in entry.used}
    thesis_only = {"algorithm.fem_omd", "sampler.binomial", "sampler.poisson_binomial"}
    assert {name for name in OWN_FILES if name not in cited and cite._unlisted(name)} == thesis_only
    assert len({entry.key for entry in cite.entries()}) == len(cite.entries())


def test_a_run_cites_its_parts() -> None:
    config: dict[str, dict[str, Any]] = {
        "algorithm": {"name": "fedavg"}, "rule": {"name": "krum"}, "sampler": {"name": "fem.py:Mine"},
        "local": {"modifiers": ["proximal"], "optimiser": "adam", "schedules": "warmup,cosine"},
    }  # fmt: skip
    text = cite.bibtex(cite.used_by(config))
    keys = re.findall(r"^@\w+\{(\w+),", text, re.M)
    assert keys[0] == "turnout"
    for key in ("mcmahan2017communication", "blanchard2017machine", "li2020federated", "kingma2015adam"):
        assert keys.count(key) == 1
    assert "loshchilov2017sgdr" in keys
    assert "% sampler fem.py:Mine: your own; cite where it is from" in text
    with pytest.raises(UserError, match="was started from Python"):
        cite.of_runs([Recorded(Path("x"), {}, {}, {})])
    with pytest.raises(UserError, match="'fedprx' is no folder of a run and no name; did you mean fedprox"):
        cite.of_names(["fedprx"])


# -- all of it ------------------------------------------------------------------------------------------------


def test_a_folder_for_a_paper(awkward: list[Recorded], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = compare(awkward, Target("test_accuracy", 0.5))
    written = paper.write(awkward, rows, Target("test_accuracy", 0.5), tmp_path / "paper")
    assert {path.name for path in written} == {
        "table.tex", "table.md", "table.csv", "runs.csv", "answers.txt", "references.bib", "curves.pdf", "bars.pdf",
        "fairness.pdf", "figures.tex",
    }  # fmt: skip
    assert all(path.stat().st_size for path in written)
    for name in ("table.tex", "figures.tex"):
        check_latex((tmp_path / "paper" / name).read_text(encoding="utf-8"))
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match=r"--paper: .*file is a file; name a folder"):
        paper.check(tmp_path / "file")
