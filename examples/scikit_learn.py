"""Use a calibrated classifier with scikit-learn: its scorers, metrics and curves take it."""

import torch
from sklearn.calibration import calibration_curve
from sklearn.datasets import load_digits
from sklearn.metrics import brier_score_loss, get_scorer, log_loss
from torch import nn

import atta

digits = load_digits()
images = torch.from_numpy(digits.images).float()[:, None] / 16  # (1797, 1, 8, 8), pixels in [0, 1]
labels = torch.from_numpy(digits.target)
train, validation, test = slice(0, 700), slice(700, 1000), slice(1000, None)

torch.manual_seed(0)
network = nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
for _ in range(200):  # until it is over-confident
    optimizer.zero_grad()
    nn.functional.cross_entropy(network(images[train]), labels[train]).backward()
    optimizer.step()

classifier = atta.calibrate(
    network, images[validation], labels[validation], policy="2 gamma", progress=False
)
print(classifier.summary)

x, y = images[test].numpy(), digits.target[test]
probs = classifier.predict_proba(x)
with torch.no_grad():
    before = network(images[test]).softmax(dim=1).numpy()
print("log loss", log_loss(y, before), "→", log_loss(y, probs, labels=classifier.classes_))
print("accuracy by a scorer:", get_scorer("accuracy")(classifier, x, y))
print("negative log loss by a scorer:", get_scorer("neg_log_loss")(classifier, x, y))
print("Brier score of 'it is an eight':", brier_score_loss(y == 8, probs[:, 8]))
# What CalibrationDisplay draws.
hits = classifier.predict(x) == y
accuracy, confidence = calibration_curve(hits, probs.max(axis=1), n_bins=5)
for one, other in zip(confidence, accuracy, strict=True):
    print(f"confidence {one:.2f}: accuracy {other:.2f}")
