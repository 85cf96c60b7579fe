"""V-ATTA on a million images × 100 classes × four kinds of view: time beside one plain softmax of the images, and memory.

The limits: a softmax of the logits of the image alone, and one of the image and every view, which any method that looks at them
all has to make.

    python -m benchmarks.predict [--quick]
"""

from functools import partial

import torch

from atta import VATTA, Predictions
from benchmarks.measured import OURS, Asked, Measured, Steps, alone, extra_megabytes, interleaved

CLASSES, KINDS = 100, 4


def measure(images: int, device: str) -> list[Measured]:
    """Fit on a few, answer all of them."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(images, CLASSES, generator=generator) * 3
    views = {
        f"kind{i}": (logits + torch.randn(images, CLASSES, generator=generator))[:, None]
        for i in range(KINDS)
    }
    predictions = Predictions(logits, views).to(device)
    logits = predictions.logits
    labels = logits[:1000].argmax(dim=1)
    labels[::5] = (labels[::5] + 1) % CLASSES
    calibrator = VATTA().fit(predictions[:1000], labels)

    def synchronised(work: object) -> None:
        if device != "cpu":
            torch.cuda.synchronize()

    ways = {
        OURS: lambda: synchronised(calibrator(predictions)),
        "a softmax of the images": lambda: synchronised(logits.softmax(dim=-1)),
        "one of each view, too": lambda: synchronised(
            [one.softmax(dim=-1) for one in (logits, *predictions.views.values())]
        ),
    }
    with torch.no_grad():
        calibrator(predictions[:10_000])
        times = interleaved(ways, 5)
        megabytes = extra_megabytes(lambda: calibrator(predictions)) if device == "cpu" else None
        changed = int(
            (calibrator(predictions).argmax(dim=-1) != logits.softmax(dim=-1).argmax(dim=-1)).sum()
        )
    what = f"V-ATTA, {images:,} × {CLASSES} × {KINDS} kinds"
    answer = {} if megabytes is None else {"mb": images * CLASSES * 4 / 1e6}
    ours = {
        "seconds": times[OURS],
        **({} if megabytes is None else {"mb": megabytes}),
        "changed": changed,
    }
    limits = [Measured(what, who, {"seconds": times[who]}, "limit") for who in ways if who != OURS]
    return [
        Measured(what, OURS, ours),
        *limits,
        *([Measured(what, "the answer itself", answer, "limit")] if answer else []),
    ]


def steps(asked: Asked) -> Steps:
    """One size."""
    return {"V-ATTA": partial(measure, asked.few(1_000_000, 20_000), asked.device)}


if __name__ == "__main__":
    alone(steps, __doc__)
