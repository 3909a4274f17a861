"""Who is invited, one scheme a class: `turnout.samplers.CAFed`."""

from turnout.core.lazy import lazily

__all__, __getattr__, __dir__ = lazily(__name__, __file__)
