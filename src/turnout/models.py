"""The models of the papers, each made by one function: `turnout.models.mlp(784, [50], 10)`."""

from turnout.core.lazy import lazily

__all__, __getattr__, __dir__ = lazily(__name__, __file__)
