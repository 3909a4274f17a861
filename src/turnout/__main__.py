"""`python -m turnout`: the command line."""

from turnout.cli.app import app

app()
