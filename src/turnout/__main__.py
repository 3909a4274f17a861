"""`python -m turnout`: the command line."""

from turnout.cli import app

app()
