"""Published methods, one a file: `turnout.algorithms.FedBuff`."""

from turnout.core.lazy import lazily

__all__, __getattr__, __dir__ = lazily(__name__, __file__)
