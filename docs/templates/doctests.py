"""For the reference: an example in a docstring (lines after `>>>`) becomes a block of code."""

from __future__ import annotations

import re
from typing import Any

import griffe


class Doctests(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = re.sub(
                r"(?:^>>>.*\n?(?:^(?!>>>)\S.*\n?)*)+",
                lambda found: f"```pycon\n{found[0].rstrip()}\n```\n",
                obj.docstring.value,
                flags=re.M,
            )
