"""How much faster fitting is than the per-sample loop of the paper's Algorithm 1, one thread each.

1000 images, 10 classes, four kinds of view, as in the paper. The loop is what a direct transcription gives: for each image it
lowers the share by 0.01 until the class is kept, and one backward pass follows a batch of 500.

    python -m benchmarks.fit
"""

import statistics
import time
from functools import partial

import torch
from torch import Tensor

from atta import MATTA, VATTA, Predictions
from benchmarks.measured import OURS, Asked, Measured, Steps, alone, seconds

IMAGES, CLASSES, KINDS, BATCH, STEPS = 1000, 10, 4, 500, 1000
LOOP = "the paper's loop"


def data(seed: int = 0) -> tuple[Predictions, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (IMAGES,), generator=generator)
    clean = torch.randn(IMAGES, CLASSES, generator=generator) * 2
    clean[torch.arange(IMAGES), labels] += 4
    logits = 1.8 * (clean + torch.randn(IMAGES, CLASSES, generator=generator))
    views = {
        f"kind{i}": 1.8 * (clean + torch.randn(IMAGES, CLASSES, generator=generator))[:, None]
        for i in range(KINDS)
    }
    return Predictions(logits, views), labels


def loop_probs(
    base: Tensor, view_logits: Tensor, weights: Tensor, limit: Tensor, epsilon: float = 0.01
) -> Tensor:
    """Algorithm 1 for one image."""
    fused = torch.softmax((weights * view_logits).sum(dim=0), dim=0)
    original, share = base.argmax(), limit
    while True:
        probs = (1 - share) * base + share * fused
        if probs.argmax() == original or share <= 0:
            return probs
        share = share - epsilon


def loop_step_seconds(predictions: Predictions, labels: Tensor, steps: int) -> float:
    """The median time of one Adam step of M-ATTA with the loop."""
    base, views = predictions.logits.softmax(dim=-1), predictions.view_logits(predictions.kinds)
    weights = torch.full((KINDS, CLASSES), 1 / CLASSES, requires_grad=True)
    limit = torch.ones((), requires_grad=True)
    optimizer = torch.optim.Adam([weights, limit], lr=1e-3, weight_decay=1e-5)
    times = []
    for step in range(steps):
        rows = torch.arange(BATCH) + BATCH * (step % (IMAGES // BATCH))
        start = time.perf_counter()
        probs = torch.stack([loop_probs(base[i], views[i], weights, limit) for i in rows])
        loss = -probs[torch.arange(BATCH), labels[rows]].clamp(min=1e-38).log().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        limit.data.clamp_(0, 1)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def step(steps: int, repeats: int) -> list[Measured]:
    """One Adam step of M-ATTA, on a batch."""
    predictions, labels = data()
    MATTA(epochs=2).fit(predictions, labels)  # warm up
    epochs = 100
    ours = statistics.median(
        seconds(lambda: MATTA(epochs=epochs).fit(predictions, labels)) for _ in range(repeats)
    )
    what = f"one Adam step of M-ATTA, batch of {BATCH}"
    return [
        Measured(what, OURS, {"seconds": ours / (epochs * IMAGES // BATCH)}),
        Measured(what, LOOP, {"seconds": loop_step_seconds(predictions, labels, steps)}, "peer"),
    ]


def default(steps: int, repeats: int) -> list[Measured]:
    """V-ATTA as it is, against all steps of the paper's."""
    predictions, labels = data()
    VATTA().fit(predictions, labels)  # warm up
    ours = statistics.median(
        seconds(lambda: VATTA().fit(predictions, labels)) for _ in range(repeats)
    )
    what = f"V-ATTA by default; the loop, {STEPS} steps"
    return [
        Measured(what, OURS, {"seconds": ours}),
        Measured(
            what, LOOP, {"seconds": STEPS * loop_step_seconds(predictions, labels, steps)}, "peer"
        ),
    ]


def steps(asked: Asked) -> Steps:
    """Both, with as many steps of the loop as tell its time."""
    few = asked.few(12, 2), asked.few(5, 1)
    return {"step": partial(step, *few), "default": partial(default, *few)}


if __name__ == "__main__":
    alone(steps, __doc__)
