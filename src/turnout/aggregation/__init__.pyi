"""How updates are combined, and where each name is."""

from turnout.aggregation import optimisers, rules, staleness

__all__ = [
    "optimisers", "rules", "staleness",
]  # fmt: skip
