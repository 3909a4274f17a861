"""Where clients come from: what the data call them, how their table became numbers, what a person should know of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnout.core.errors import UserError
from turnout.core.names import listed, names_of
from turnout.core.spelling import Spelt
from turnout.data.dataset import Dataset


@dataclass(frozen=True)
class Origin(Spelt):
    """What is known of clients beside their samples. Nothing of it changes a result."""

    names: NDArray[np.str_] | None = None  # [N] what the data call them; None: they have numbers
    table: dict[str, Any] | None = None  # how a table became inputs, as preprocess.json has it
    said: Sequence[str] = ()  # what was guessed or left out, a sentence each

    def __post_init__(self) -> None:
        if self.names is not None:
            object.__setattr__(self, "names", np.asarray(self.names, np.str_))
            if len(set(self.names)) < len(self.names):
                raise UserError("population.names: two clients have the same name; give each its own")

    @classmethod
    def of(cls, dataset: Dataset, natural: bool, clients: int) -> Origin:
        """Say it of so many clients that are dealt a dataset: by its own groups, or not."""
        known: Any = dataset.facts.get("clients")
        table: Any = dataset.facts.get("preprocess")
        said = [*(table or {}).get("said", ())]
        if not natural:
            if table and table["client"]:
                whose = f"column {table['client']} says whose each row is"
                said.append(f"{whose}, and the partition deals them anew: partition.name=natural keeps them together")
            return cls(None, table, tuple(said))
        if known is not None and len(known) > clients:
            left = listed([str(name) for name in known], range(clients, len(known)), 8)
            said.append(f"clients.count={clients} of the {len(known)} in the data: left out are {left}")
        return cls(names_of(known, clients), table, tuple(said))
