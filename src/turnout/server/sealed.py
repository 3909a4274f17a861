"""What the parts of a run say of themselves: whether they look at what single clients have. One that says nothing does.

An algorithm that takes nothing but the sum of a step from updates declares `reads_updates = False`; a sampler, or an
adversary, that chooses clients without a look at their data or updates declares `looks_at_data = False`. Only the class
that says so is believed, not what is derived from it: that may do otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from turnout.clients.population import Population
from turnout.sampling._sampler import Sampler

if TYPE_CHECKING:
    from turnout.algorithms._algorithm import Algorithm


def prying(algorithm: Algorithm, population: Population) -> dict[str, str]:
    """Parts that may look at single clients, such as `sampler Oort`, and the word by which one says otherwise."""
    samplers = [part for part in vars(algorithm).values() if isinstance(part, Sampler)]
    adversaries = [] if population.adversary is None else [population.adversary]
    found: dict[str, tuple[object, str]] = {f"algorithm {type(algorithm).__name__}": (algorithm, "reads_updates")}
    for kind, parts in (("sampler", samplers), ("adversary", adversaries)):
        found |= {f"{kind} {type(part).__name__}": (part, "looks_at_data") for part in parts}
    return {name: word for name, (part, word) in found.items() if vars(type(part)).get(word, True)}


def foreign(algorithm: Algorithm) -> bool:
    """Whether only its author knows what it does."""
    return not type(algorithm).__module__.startswith("turnout.")
