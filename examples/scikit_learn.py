"""Calibrate a scikit-learn classifier of features; scikit-learn's scorers and metrics take it.

The features are those of the network in examples/cifar10, the classifier is a logistic regression.
"""

from pathlib import Path

import numpy as np
import torch
from sklearn.calibration import calibration_curve
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import brier_score_loss, get_scorer, log_loss

import atta
from atta.data.folder import folder_of_images
from atta.lab.recipe import load_trained

here = Path("examples/cifar10")  # in a clone of the repository
network, _ = load_trained(here / "resnet20.safetensors")
network.model.fc = torch.nn.Identity()  # 64 features instead of 10 logits


def features(pixels: np.ndarray) -> np.ndarray:
    """The features of images of shape (n, 3, 32, 32), in [0, 1]."""
    with torch.inference_mode():
        return network(torch.from_numpy(pixels)).numpy()


photographs = [folder_of_images(here / part) for part in ("validation", "test")]
pixels = torch.cat([folder.tensors() for folder in photographs]).float().numpy() / 255
labels = torch.cat([folder.labels for folder in photographs]).numpy()
third = len(labels) // 3
parts = np.split(np.random.default_rng(0).permutation(len(labels)), [third, 2 * third])
(x0, y0), (x1, y1), (x, y) = ((pixels[part], labels[part]) for part in parts)

regression = LogisticRegression(C=10, max_iter=1000).fit(features(x0), y0)
# The scores of images and of their views, on photographs that the regression has not seen.
model = atta.NumpyModel(lambda pixels: regression.decision_function(features(pixels)))
how = {"channels": "first", "policy": "flip + 2 crop"}
classifier = atta.calibrate(model, x1, y1, **how, progress=False)
print(classifier.summary)

before, probs = regression.predict_proba(features(x)), classifier.predict_proba(x)
print(f"log loss {log_loss(y, before):.4f} → {log_loss(y, probs, labels=classifier.classes_):.4f}")
cats = [brier_score_loss(y == 3, some[:, 3]) for some in (before, probs)]
print(f"Brier score of 'it is a cat' {cats[0]:.4f} → {cats[1]:.4f}")
for scorer in ("accuracy", "neg_log_loss"):
    print(f"{scorer}: {get_scorer(scorer)(classifier, x, y):.4f}")
assert (classifier.predict(x) == regression.predict(features(x))).all()

# What CalibrationDisplay draws.
hits = classifier.predict(x) == y
accuracy, confidence = calibration_curve(hits, probs.max(axis=1), n_bins=5)
for one, other in zip(confidence, accuracy, strict=True):
    print(f"confidence {one:.2f}: accuracy {other:.2f}")
