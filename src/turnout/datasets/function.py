"""Your own Python function, by its dotted name."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

from turnout.datasets.dataset import Dataset
from turnout.datasets.prepare import from_arrays
from turnout.errors import UserError


def load(*, function: str, arguments: Mapping[str, object] | None = None) -> Dataset:
    """Call `package.module:function` with `arguments`; modules in the working folder are found too.

    It returns a `Dataset`, or a dict of arrays named as in `numpy_files`, with `num_classes` if that must be told.
    """
    module, _, name = function.partition(":")
    if not module or not name.isidentifier():
        raise UserError(f"dataset function: option function={function!r} should read package.module:function")
    path = sys.path
    sys.path = [*path, str(Path.cwd())]
    try:
        result = getattr(import_module(module), name)(**(arguments or {}))
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"dataset function: {function} raised {type(error).__name__}: {error}") from error
    finally:
        sys.path = path
    if isinstance(result, Dataset):
        return result
    if not isinstance(result, Mapping):
        kind = type(result).__name__
        raise UserError(f"dataset function: {function} should return a Dataset or a dict of arrays, not {kind}")
    arrays = dict(result)
    classes = arrays.pop("num_classes", None)
    if classes is not None and not isinstance(classes, int):
        raise UserError(f"dataset function: num_classes={classes!r} from {function} should be an integer")
    return from_arrays("function", arrays, classes)
