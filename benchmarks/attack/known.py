"""Failures that stay, each with its reason: attack → part of what it says → why it stays."""

KNOWN: dict[str, dict[str, str]] = {}


def reason(attack: str, failure: str) -> str:
    """Why this failure stays, or "" if it should not."""
    return next((why for part, why in KNOWN.get(attack, {}).items() if part in failure), "")
