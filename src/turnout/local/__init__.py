"""What one client computes, written for one client; the engine does it for many."""

from turnout.core.lazy import lazily

__all__, __getattr__, __dir__ = lazily(__name__, __file__)
