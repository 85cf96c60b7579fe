"""Trustworthy confidence for image classifiers."""

__version__ = "0.1.0.dev0"
