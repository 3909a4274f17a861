"""The version of Turnout: the only place that says it."""

VERSION = "0.2.0"
