"""Who takes part: populations, devices, links, presence, streams, adversaries, clients that lie."""

from turnout.core.lazy import lazily

__all__, __getattr__, __dir__ = lazily(__name__, __file__)
