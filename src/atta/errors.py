"""The one exception that a user is meant to read."""


class InputError(ValueError):
    """Input that cannot be used. The message says what was expected and what came."""
