from turnout.cli.app import app

__all__ = ["app"]
