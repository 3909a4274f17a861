from turnout.cli.commands import app

__all__ = ["app"]
