"""The words of the package: shapes as types.

| axis | meaning                        |
|------|--------------------------------|
| n    | images                         |
| k    | classes                        |
| m    | kinds of view                  |
| r    | repeats of one kind            |
| c h w| channels, height, width        |

`logits` and `probs` are two names and two types. Nothing in the package guesses which of them it was given.
"""

from typing import TypeAlias

from jaxtyping import Float, Int
from torch import Tensor

from atta.errors import InputError

__all__ = [
    "Images",
    "InputError",
    "Labels",
    "Logits",
    "Probs",
    "RepeatLogits",
    "Scalar",
    "Shares",
    "ViewLogits",
    "ViewWeights",
]

Images: TypeAlias = Float[Tensor, "n c h w"]
"""Pixels in [0, 1], before any normalisation."""
Logits: TypeAlias = Float[Tensor, "n k"]
Probs: TypeAlias = Float[Tensor, "n k"]
Labels: TypeAlias = Int[Tensor, "n"]
RepeatLogits: TypeAlias = Float[Tensor, "n r k"]
"""Logits of every repeat of one kind of view."""
ViewLogits: TypeAlias = Float[Tensor, "n m k"]
"""One row a kind of view: the mean of its repeats, taken in logit space."""
ViewWeights: TypeAlias = Float[Tensor, "m #k"]
"""(m, k) is M-ATTA, (m, 1) is V-ATTA."""
Shares: TypeAlias = Float[Tensor, "n"]
"""The part of each answer that the views are given."""
Scalar: TypeAlias = Float[Tensor, ""]
