"""Forgetting clients, certificates, attacks on a trained model."""

from turnout.core.lazy import lazily

__all__, __getattr__, __dir__ = lazily(__name__, __file__)
