"""The class never changes: a hundred million rows, close calls among them, and not one change.

python -m benchmarks.class_kept [--rows 100000000]
"""

import argparse
import time

import torch
from torch import Tensor

from atta.functional import atta

KINDS = 4


def rows(family: str, n: int, k: int, generator: torch.Generator, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Logits and view logits of one family, all of them hard in their own way."""
    if family == "ties":  # small whole numbers: two classes in front of nearly every row
        draw = lambda *shape: torch.randint(-2, 3, shape, generator=generator).to(dtype)  # noqa: E731
        return draw(n, k), draw(n, KINDS, k)
    logits, views = (torch.randn(n, *shape, generator=generator).to(dtype) for shape in ((k,), (KINDS, k)))
    if family == "close calls":  # the second class a hair behind, and every view for it
        order = logits.topk(2, dim=1)
        hair = 10 ** (-1 - 6 * torch.rand(n, 1, generator=generator)).to(dtype)
        logits = logits.scatter(1, order.indices[:, 1:], order.values[:, :1] - hair)
        views = views.scatter_add(2, order.indices[:, None, 1:].expand(n, KINDS, 1), views.new_full((n, KINDS, 1), 3))
    if family == "extreme":
        logits, views = logits * 1e4, views * 1e4
    return logits, views


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=100_000_000)
    total = parser.parse_args().rows
    generator = torch.Generator().manual_seed(0)
    families = ("random", "close calls", "ties", "extreme")
    settings = [
        (family, k, dtype) for family in families for k, dtype in ((2, torch.float64), (5, torch.float16), (10, torch.float32))
    ]
    done = dict.fromkeys(settings, 0)
    changed = dict.fromkeys(settings, 0)
    moved = dict.fromkeys(settings, 0)
    start = time.perf_counter()
    for setting in settings:
        family, k, dtype = setting
        while done[setting] < total // len(settings) + 1:
            n = min(200_000, total // len(settings) + 1 - done[setting])
            logits, views = rows(family, n, k, generator, dtype)
            width = k if torch.rand((), generator=generator) < 0.5 else 1
            weights = torch.rand(KINDS, width, generator=generator).to(dtype)
            limit = 1.0 if torch.rand((), generator=generator) < 0.5 else float(torch.rand((), generator=generator))
            probs = atta(logits, views, weights, limit)
            base = logits.to(probs.dtype).softmax(dim=-1)
            changed[setting] += int((probs.argmax(dim=-1) != base.argmax(dim=-1)).sum())
            moved[setting] += int((probs != base).any(dim=-1).sum())
            done[setting] += n
    print("| rows | classes | dtype | number | given a share | classes changed |")
    print("|---|---|---|---|---|---|")
    for setting in settings:
        family, k, dtype = setting
        share = moved[setting] / done[setting]
        print(f"| {family} | {k} | {str(dtype)[6:]} | {done[setting]:,} | {share:.1%} | {changed[setting]} |")
    print(f"\n{sum(done.values()):,} rows, {sum(changed.values())} changes of class, {time.perf_counter() - start:.0f} s")
    raise SystemExit(sum(changed.values()) > 0)


if __name__ == "__main__":
    main()
