"""What an attack is, and how its outcome is counted."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from atta._base.errors import InputError

LONGEST, LINES = (
    1500,
    12,
)  # of a sentence and the names it may list; paths and what a library said are part of it
SHOWN = 400  # characters of a reason that are kept


@dataclass
class Tally:
    """How often something was tried and went well, and what went wrong; `note` is what else is worth a column."""

    tried: int = 0
    passed: int = 0
    failures: list[str] = field(default_factory=list)
    note: str = ""

    def count(self, good: bool, reason: str) -> None:
        """Count one try; the reason is kept if it went wrong."""
        self.count_many(1, int(not good), reason)

    def count_many(self, tried: int, bad: int, reason: str) -> None:
        """Count many tries at once, of which some went wrong for one reason."""
        self.tried += tried
        self.passed += tried - bad
        if bad:
            self.failures.append(
                " ".join(reason.split())[:SHOWN] + (f" ({bad} of {tried})" if tried > 1 else "")
            )


@dataclass(frozen=True)
class Effort:
    """How much is tried: `scale` 1 takes minutes in all, 10 is the long version. All that is random comes from the seed."""

    scale: float = 1.0
    seed: int = 0

    def times(self, usual: float) -> int:
        """So many, or more, or fewer."""
        return max(1, round(usual * self.scale))

    def random(self, name: str) -> random.Random:
        """A source of random numbers for this purpose."""
        return random.Random(f"{self.seed} {name}")

    def generator(self, name: str) -> torch.Generator:
        """The same, of torch."""
        return torch.Generator().manual_seed(self.random(name).getrandbits(62))


@dataclass(frozen=True)
class Attack:
    """Something that is tried many times; `limit` is how long all of it may take, in seconds, at a scale of 1."""

    name: str
    what: str
    run: Callable[[Tally, Effort], None]
    limit: int = 180


def refusal(error: BaseException) -> str:
    """Why an error is no answer to a mistake, or "" if it is: one sentence, of the one kind that users are meant to read."""
    text = str(error)
    if not isinstance(error, InputError):
        return f"{type(error).__module__}.{type(error).__qualname__}: {text}"
    if not text.strip() or len(text.splitlines()) > LINES or len(text) > LONGEST:
        return f"expected one sentence, got {len(text)} characters in {len(text.splitlines())} lines: {text}"
    return ""
