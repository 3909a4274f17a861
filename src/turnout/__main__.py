"""`python -m turnout`: the command line."""

from turnout.cli.commands import app

app(prog_name="turnout")
