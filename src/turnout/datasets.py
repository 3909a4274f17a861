"""Datasets by name: `turnout.datasets.load("digits")`; `partition` deals them to clients."""

from turnout.core.lazy import lazily

__all__, __getattr__, __dir__ = lazily(__name__, __file__)
