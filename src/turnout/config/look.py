"""A look at somebody's data, before there is a configuration for it: what is there, and what it seems to be."""

from __future__ import annotations

import ast
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from turnout.core.errors import UserError
from turnout.core.imports import extra, optional
from turnout.data.images import KINDS as IMAGES
from turnout.data.readers import MISSING, is_number, path_of, read_table, read_text, require

TARGETS = {
    "target", "label", "class", "outcome", "diagnosis", "disease", "y", "num", "result", "response", "survived", "died",
    "death", "churn", "default", "readmitted", "event", "price", "score",
}  # fmt: skip
CLIENTS = {
    "client", "hospital", "site", "centre", "center", "clinic", "silo", "institution", "user", "writer", "speaker",
    "person", "subject", "device", "phone", "sensor", "station", "school", "bank", "branch", "shop", "store", "region",
    "country", "city", "town", "group",
}  # fmt: skip
IDS = {"id", "uuid", "key", "nr", "index", "number", ""}
MOST_CLASSES = 50  # of a target of words; more are names or texts
FEW_NUMBERS = 10  # a target of so many different numbers is taken for classes
MOST_ROWS = 100_000  # of a Parquet file that are looked at


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    name: str
    rows: int
    missing: int
    distinct: int  # of what is there
    numeric: bool  # all that is there are numbers
    counted: bool  # whole numbers from 0 or 1 on, without a gap
    wide: bool = False  # each cell is a list

    @classmethod
    def of(cls, name: str, cells: Sequence[str]) -> Column:
        there = [cell for cell in cells if cell.lower() not in MISSING]
        numeric = all(map(is_number, there))
        different: set[str] | set[float] = set(map(float, there)) if numeric else set(there)
        numbers = [float(value) for value in different] if numeric else []
        whole = bool(numbers) and all(number.is_integer() for number in numbers)
        counted = whole and min(numbers) in (0, 1) and max(numbers) - min(numbers) + 1 == len(numbers)
        return cls(name, len(cells), len(cells) - len(there), len(different), numeric, counted)

    @property
    def kind(self) -> str:
        return "lists" if self.wide else "numbers" if self.numeric else "words"

    @property
    def is_id(self) -> bool:
        """Whether it seems to name the rows, or holds a text for each: nearly all of it is different."""
        if self.wide or self.rows < 10 or self.distinct < 0.9 * (self.rows - self.missing):
            return False
        return not self.numeric or self.counted or _plain(self.name) in IDS or self.name.lower().endswith("id")

    @property
    def is_class(self) -> bool:
        """Whether a target of its kind is a class, not a number."""
        return not self.numeric or self.distinct <= FEW_NUMBERS


@dataclass(frozen=True)
class Look:
    """What was found at a place: a table, a table for each centre, images, or Python code."""

    dataset: str  # the name of what loads it
    path: str
    columns: tuple[Column, ...] = ()
    per_file: bool = False  # the files say whose rows are whose
    files: int = 1
    layout: str = ""  # of folders of images
    classes: tuple[str, ...] = ()
    clients: tuple[str, ...] = ()
    grey: bool = False
    functions: tuple[str, ...] = ()  # of Python code, that seem to give data, the likeliest first
    models: tuple[str, ...] = field(default=())
    separator: str = ","  # of the cells of a table
    decimal: str = "."  # before the decimals of its numbers

    def column(self, option: str, name: str) -> Column:
        """Find a column by its name."""
        for column in self.columns:
            if column.name == name:
                return column
        raise UserError(
            f"{option}: {self.path} has no column {name!r}; it has {', '.join(c.name for c in self.columns)}"
        )

    def target(self, client: str | None = None) -> Column:
        """The column that is likely to be predicted, beside that of the clients: by its name, else the last one."""
        possible = [column for column in self.columns if not column.is_id and column.distinct > 1 and not column.wide]
        possible = [column for column in possible if column.name != client]
        if not possible:
            raise UserError(f"--target: no column of {self.path} can be predicted: they name rows, or never change")
        named = [column for column in possible if _plain(column.name) in TARGETS]
        others = [column for column in possible if column != self.client]
        return (named or others or possible)[-1]

    @property
    def client(self) -> Column | None:
        """The column that is likely to say whose a row is, if one has such a name and few values."""
        for column in self.columns:
            if _plain(column.name) in CLIENTS and 1 < column.distinct <= column.rows / 2 and not column.missing:
                return column
        return None


def _plain(name: str) -> str:
    """A column's name without case and what is often put behind it: `Hospital_ID` is hospital."""
    word = name.strip().lower().replace(" ", "_").replace("-", "_")
    for ending in ("_id", "_name", "_code", "_nr"):
        word = word.removesuffix(ending)
    return word


def look(source: str) -> Look:
    """Look at a file or a folder; nothing of it is run."""
    path = path_of(source)
    if os.path.isdir(path):
        return _folder(source, path)
    if not os.path.isfile(path):
        raise UserError(f"init: there is no file or folder {source}")
    name = path.name.lower()
    if name.endswith((".csv", ".csv.gz")):
        columns, separator, decimal = _csv(path)
        return Look("csv_table", source, columns, separator=separator, decimal=decimal)
    if name.endswith(".parquet"):
        return Look("parquet", source, _parquet(path))
    if name.endswith(".py"):
        return _python(source, path)
    raise UserError(f"init: {source} is none of: a .csv or .parquet table, a folder of them or of images, a .py file")


def _csv(path: Path) -> tuple[tuple[Column, ...], str, str]:
    """Look at a table's columns, at what stands between its cells, and before its decimals."""
    first = read_text("csv_table", path).partition("\n")[0]
    separator = "," if "," in first else next(filter(first.__contains__, ";\t|"), ",")
    table = read_table("csv_table", path, separator=separator)
    cells = {name: table.cells(name) for name in table.header}
    decimal = "," if separator != "," and any(map(_has_decimal_commas, cells.values())) else "."
    if decimal == ",":
        cells = {name: [cell.replace(",", ".") for cell in of] for name, of in cells.items()}
    return tuple(Column.of(name, of) for name, of in cells.items()), separator, decimal


def _has_decimal_commas(cells: Sequence[str]) -> bool:
    """Whether these are numbers, some of them with a comma before their decimals."""
    there = [cell for cell in cells if cell.lower() not in MISSING]
    return any("," in cell for cell in there) and all(is_number(cell.replace(",", ".", 1)) for cell in there)


def _parquet(path: Path) -> tuple[Column, ...]:
    parquet = require("parquet", "pyarrow.parquet", "pyarrow")
    try:
        batch = next(parquet.ParquetFile(path).iter_batches(MOST_ROWS))
        cells = batch.to_pydict()
    except Exception as error:  # which one depends on which byte is wrong
        raise UserError(f"init: {path} is not a Parquet file with rows that can be read") from error
    return tuple(_stored(name, values) for name, values in cells.items())


def _stored(name: str, values: list[Any]) -> Column:
    if any(isinstance(value, list) for value in values):
        return Column(name, len(values), sum(value is None for value in values), len(values), True, False, wide=True)
    return Column.of(name, ["" if value is None else str(value) for value in values])


# -- folders ----------------------------------------------------------------------------------------------------


def _folder(source: str, path: Path) -> Look:
    files = [file for file in sorted(path.rglob("*")) if file.is_file() and not file.name.startswith(".")]
    kinds = Counter(file.suffix.lower() for file in files)
    if any(kind in kinds for kind in IMAGES):
        return _images(source, path, [file for file in files if file.suffix.lower() in IMAGES])
    if kinds[".parquet"]:
        tables = [file for file in files if file.suffix == ".parquet"]
        return Look("parquet", source, _parquet(tables[0]), per_file=True, files=len(tables))
    if kinds[".csv"]:
        tables = [file for file in files if file.suffix == ".csv"]
        centres = {file.relative_to(path).parts[0].removesuffix(".csv") for file in tables}
        columns, separator, decimal = _csv(tables[0])
        names, files_of = tuple(sorted(centres)), len(tables)
        return Look("centres", source, columns, True, files_of, clients=names, separator=separator, decimal=decimal)
    raise UserError(f"init: {source} has neither images nor .csv or .parquet files")


def _images(source: str, path: Path, files: list[Path]) -> Look:
    depths = {len(file.relative_to(path).parts) for file in files}
    if depths not in ({2}, {3}):
        raise UserError(
            f"init: images of {source} must be in folders of classes, or of clients and in these of classes"
        )
    layout = "class" if depths == {2} else "client/class"
    clients = () if layout == "class" else tuple(sorted({file.relative_to(path).parts[0] for file in files}))
    classes = tuple(sorted({file.parent.name for file in files}))
    grey = set(_modes(files[:: max(1, len(files) // 50)])) <= {"1", "L"}
    return Look("images", source, layout=layout, classes=classes, clients=clients, grey=grey, files=len(files))


def _modes(files: Iterable[Path]) -> Iterator[str]:
    image = optional("init", "PIL.Image", extra("images"))
    for file in files:
        try:
            with image.open(file) as picture:
                yield str(picture.mode)
        except Exception as error:  # which one depends on which byte is wrong
            raise UserError(f"init: {file} is not a picture that Pillow can read") from error


# -- Python -----------------------------------------------------------------------------------------------------


def _python(source: str, path: Path) -> Look:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        place = path.resolve().relative_to(Path.cwd())
    except SyntaxError as error:
        raise UserError(f"init: {source} line {error.lineno} is not Python ({error.msg})") from error
    except UnicodeDecodeError as error:
        raise UserError(f"init: {source} is not UTF-8 text") from error
    except ValueError as error:
        raise UserError(
            f"init: {source} must be below the folder that you are in, where modules are looked up"
        ) from error
    module = ".".join(place.with_suffix("").parts)
    made = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    models = [node.name for node in made if _is_model(node)]
    functions = [node for node in made if isinstance(node, ast.FunctionDef) and _is_data(node)]
    functions = sorted((node for node in functions if node.name not in models), key=lambda node: not _says_data(node))
    if not functions:
        raise UserError(f"init: {source} has no function without arguments that could give the data")
    names = tuple(f"{module}:{node.name}" for node in functions)
    return Look("function", source, functions=names, models=tuple(f"{module}:{name}" for name in models))


def _is_model(node: ast.FunctionDef | ast.ClassDef) -> bool:
    """Whether it says that it is a module, or returns one."""
    if isinstance(node, ast.ClassDef):
        return any("Module" in ast.unparse(base) for base in node.bases)
    return node.returns is not None and "Module" in ast.unparse(node.returns)


def _is_data(node: ast.FunctionDef) -> bool:
    """Whether it can be called without arguments."""
    if node.name.startswith("_"):
        return False
    return len(node.args.args) == len(node.args.defaults) and None not in node.args.kw_defaults


def _says_data(node: ast.FunctionDef) -> bool:
    said = "" if node.returns is None else ast.unparse(node.returns)
    return "data" in node.name or "Dataset" in said or "dict" in said.lower()
