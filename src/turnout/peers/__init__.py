"""Training without a server: networks, overlays, the topology designer."""

from turnout.core.lazy import lazily

__all__, __getattr__, __dir__ = lazily(__name__, __file__)
