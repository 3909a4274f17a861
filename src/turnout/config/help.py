"""One line of help for each option: the comment that ends the line on which the option is written.

    deadline: float | None = None  # seconds after the models are out; none: no limit

It is read from the source of a class, along its bases, or of a function whose parameters stand one on a line.
"""

from __future__ import annotations

import ast
import inspect
import io
import textwrap
import tokenize
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any, get_args, get_type_hints


def help_of(made: Callable[..., Any]) -> dict[str, str]:
    """Each option of a class or function that has a line of help, and that line."""
    if inspect.isclass(made):
        return {name: line for kind in reversed(made.__mro__) for name, line in _comments(kind).items()}
    function = inspect.unwrap(made)
    found = dict(_comments(function))
    for hint in get_type_hints(function).values() if "Unpack" in str(inspect.signature(function)) else ():
        for typed in get_args(hint):  # **options: Unpack[TypedDict]
            found |= _comments(typed)
    return found


@cache
def _comments(made: Any) -> dict[str, str]:
    """The comments behind the fields of one class body (and of its `__init__`), or behind a function's parameters."""
    try:
        source = textwrap.dedent(inspect.getsource(made))
    except (TypeError, OSError):  # built in, or typed in where nothing is kept
        return {}
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = {token.start[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}
    options = _options(ast.parse(source).body[0])
    alone = [line for line, count in Counter(line for _, line in options).items() if count == 1]
    return {name: comments[line] for name, line in options if line in comments and line in alone}


def _options(node: ast.stmt) -> list[tuple[str, int]]:
    """The name of each option, and the line on which it ends."""
    if isinstance(node, ast.FunctionDef):
        return [(each.arg, each.end_lineno or 0) for each in (*node.args.args, *node.args.kwonlyargs)]
    found = []
    for part in node.body if isinstance(node, ast.ClassDef) else ():
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
            found.append((part.target.id, part.end_lineno or 0))
        elif isinstance(part, ast.FunctionDef) and part.name == "__init__":
            found += _options(part)
    return found
