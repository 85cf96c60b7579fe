"""A new camera: detect the shift without labels, and adapt the confidence to it.

Digits stand for your photographs, noise for the new camera.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

import atta

digits = load_digits()
images = torch.from_numpy(digits.images).float()[:, None] / 16  # pixels in [0, 1]
labels = torch.from_numpy(digits.target)
train, validation, rest = slice(0, 700), slice(700, 1100), slice(1100, None)

torch.manual_seed(0)
network = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
for _ in range(100):
    optimizer.zero_grad()
    nn.functional.cross_entropy(network(images[train]), labels[train]).backward()
    optimizer.step()

classifier = atta.calibrate(
    network, images[validation], labels[validation], policy="2 shift", progress=False
)
print(classifier.summary)

old, truth = images[rest], labels[rest]
new = (old + 0.35 * torch.randn(old.shape)).clamp(0, 1)  # what the new camera sees

for name, seen in (("old camera", old), ("new camera", new)):
    drift = classifier.drift(seen)  # no labels
    right = (classifier(seen).argmax(dim=1) == truth).float().mean()
    estimate = f"{drift.low:.0%} to {drift.high:.0%}"
    print(f"{name}: drifted {drift.drifted}; estimated accuracy {estimate}, true {right:.0%}")

adapted = classifier.adapt(new)  # no labels here either
before, after = (atta.evaluate(one(new), truth) for one in (classifier, adapted))
for metric in ("accuracy", "brier", "ece", "nll"):
    print(f"{metric:10} {before[metric]:.4f} → {after[metric]:.4f}")
# Lower confidence, the same classes.
assert torch.equal(adapted(new).argmax(dim=1), classifier(new).argmax(dim=1))
