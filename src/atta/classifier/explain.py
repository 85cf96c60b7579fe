"""Images that come one by one, as the bytes of a file: each is answered with plain values, ready to be sent as JSON.

| key               | what it is                                                                                    |
|-------------------|-----------------------------------------------------------------------------------------------|
| class … set       | as the columns of `atta predict`; `set` is a list, the likeliest first                          |
| passes            | how often the network ran; null for a graph, which does not tell                                |
| views             | with `views`: what the network was shown, and what it said of it                              |

A view is {"view", "repeat", "picture", "class", "confidence"}: `picture` is a data URI, `class` and `confidence` are null where
the image was not shown in it. The image itself is the first. A graph has none to show.

Of the images nothing is kept but one number each, how sure the network was of the last `REMEMBERED`: `drift` is made of them.
"""

from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from atta.calibrators import shift
from atta.classifier.adapt import Drift
from atta.classifier.predict import Answers, Predictor, described
from atta.data.image_set import data_uri, mode_of, thumbnail
from atta.run.runner import IMAGE

REMEMBERED = 500
PICTURE = 192  # pixels of a side; what is larger is made so small


class Explainer:
    """Answers the bytes of images: `Explainer(open_predictor("classifier.onnx"), coverage=0.95)(data)["class"]`.

    `coverage` adds the set of classes that holds the true one so often, `views` pictures of what the network was shown.
    """

    def __init__(
        self, predictor: Predictor, *, coverage: float | None = None, views: bool = False
    ) -> None:
        mode_of(predictor.shape[0])  # Pillow is there, and has such images
        self.predictor, self.coverage, self.views = predictor, coverage, views
        self._sets = predictor.conformal(coverage)
        self._seen = deque[tuple[float, float]](maxlen=REMEMBERED)

    def __call__(self, data: bytes) -> dict[str, Any]:
        """Answer one image, or say in an `InputError` why it is none that can be answered."""
        images = self.predictor.read(data)[None]
        answers = self.predictor.answer(images)
        (said,) = described(self.predictor, answers, self._sets)
        if (score := said.pop("score")) is not None:
            self._seen.append((score, said["confidence"]))
        return said | ({"views": list(self._views(images, answers))} if self.views else {})

    def drift(self) -> Drift | None:
        """How far the last images are from the validation images; None where these are unknown, or the images too few."""
        reference, seen = (
            self.predictor.reference,
            torch.tensor(list(self._seen), dtype=torch.float64),
        )
        if reference is None or len(seen) < shift.LEAST:
            return None
        scores, confidence = seen.unbind(dim=1)
        return Drift.of(
            reference,
            shift.estimated(reference, scores),
            float(confidence.mean()),
            shift.histogram(confidence),
        )

    def _views(self, images: Tensor, answers: Answers) -> Iterator[dict[str, Any]]:
        if self.predictor.show is None:
            return
        for kind, repeat, shown in self.predictor.show(images):
            probs = answers.base[0] if kind == IMAGE else answers.views[kind][0, repeat]
            confidence, winner = probs.max(dim=0)
            known = bool(torch.isfinite(confidence))
            yield {
                "view": kind,
                "repeat": repeat,
                "picture": data_uri(shown[0])
                if max(shown.shape[2:]) <= PICTURE
                else thumbnail(shown[0], PICTURE),
                "class": self.predictor.named(int(winner)) if known else None,
                "confidence": float(confidence) if known else None,
            }
