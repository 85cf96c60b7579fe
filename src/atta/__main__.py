"""`python -m atta` is the command line too."""

from atta.cli import app

app()
