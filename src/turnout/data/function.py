"""Your own Python function, by its dotted name."""

from __future__ import annotations

from collections.abc import Mapping

from turnout.core.errors import UserError
from turnout.core.imports import dotted
from turnout.core.spelling import spelt
from turnout.data.dataset import Dataset
from turnout.data.prepare import from_arrays


@spelt
def load(
    *,
    function: str,  # package.module:function that returns the data
    arguments: Mapping[str, object] | None = None,  # that it is called with; none: without
) -> Dataset:
    """Call `package.module:function` with `arguments`; modules in the working folder are found too.

    It returns a `Dataset`, or a dict of arrays named as in `numpy_files`, with `num_classes` if that must be told.
    """
    called = dotted("data.function", function)
    try:
        result = called(**(arguments or {}))
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"data.function: {function} raised {type(error).__name__}: {error}") from error
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
