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

import torch
from jaxtyping import Float, Int
from torch import Tensor

from atta._base.errors import InputError

__all__ = [
    "Images",
    "Labels",
    "Logits",
    "Probs",
    "RepeatLogits",
    "Scalar",
    "Shares",
    "ViewLogits",
    "ViewWeights",
    "dense",
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


def dense(tensor: Tensor, name: str) -> Tensor:
    """Return the tensor, if its numbers lie in memory one beside the other; `name` is what a refusal calls them."""
    if tensor.layout != torch.strided or tensor.is_meta:
        kind = (
            "a tensor of the meta device, which holds none"
            if tensor.is_meta
            else f"a tensor of layout {tensor.layout}"
        )
        raise InputError(
            f"{name}: expected numbers in memory, got {kind}{'' if tensor.is_meta else '; see Tensor.to_dense'}"
        )
    return tensor
