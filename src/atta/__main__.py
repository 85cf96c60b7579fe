"""`python -m atta` is the command line too."""

from atta.cli.app import app

app()
