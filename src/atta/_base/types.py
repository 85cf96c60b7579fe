"""Shapes of tensors as types.

| axis | meaning                        |
|------|--------------------------------|
| n    | images                         |
| k    | classes                        |
| m    | kinds of view                  |
| r    | repeats of one kind            |
| c h w| channels, height, width        |

`logits` and `probs` are different names and types: no function guesses which of them it was given.
"""

from typing import TypeAlias

from jaxtyping import Float, Int
from torch import Tensor

Images: TypeAlias = Float[Tensor, "n c h w"]
"""Pixels in [0, 1], before any normalisation."""
Logits: TypeAlias = Float[Tensor, "n k"]
Probs: TypeAlias = Float[Tensor, "n k"]
Labels: TypeAlias = Int[Tensor, "n"]
RepeatLogits: TypeAlias = Float[Tensor, "n r k"]
"""Logits of every repeat of one kind of view."""
ViewLogits: TypeAlias = Float[Tensor, "n m k"]
"""One row per kind of view: the mean of the logits of its repeats."""
ViewWeights: TypeAlias = Float[Tensor, "m #k"]
"""(m, k) is M-ATTA, (m, 1) is V-ATTA."""
PerImage: TypeAlias = Float[Tensor, "n"]
"""A number for each image."""
Shares: TypeAlias = Float[Tensor, "n"]
"""The share of the views in each answer."""
Scalar: TypeAlias = Float[Tensor, ""]
