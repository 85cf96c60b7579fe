"""Calibrate a timm network with a folder of photographs, one subfolder per class; predict files.

The network here is tiny and the photographs are noise in three tints. Replace them with
`timm.create_model("convnext_tiny", pretrained=True)` and your own folder.
"""

from pathlib import Path
from tempfile import mkdtemp

import timm
import torch
from PIL import Image

import atta

CLASSES = ["blue", "green", "red"]

torch.manual_seed(0)
labels = torch.arange(100) % 3
pixels = torch.rand(100, 3, 40, 48) + 0.03 * torch.eye(3)[labels].flip(1)[:, :, None, None]
photos = (pixels.clamp(0, 1) * 255).byte()

model = timm.create_model("test_resnet", num_classes=3)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for _ in range(30):  # on the first 60
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(photos[:60] / 127.5 - 1), labels[:60]).backward()
    optimizer.step()

folder = Path(mkdtemp())
for number in range(60, 100):  # the others are held out, in files
    (folder / CLASSES[labels[number]]).mkdir(exist_ok=True)
    picture = Image.fromarray(photos[number].permute(1, 2, 0).numpy())
    picture.save(folder / CLASSES[labels[number]] / f"{number}.png")

# preprocess=model reads timm's configuration: how photographs are resized, cropped, normalised.
# Without `policy`, cross-validation chooses the views.
classifier = atta.calibrate(
    model, folder, preprocess=model, class_names=CLASSES, policy="flip", progress=False
)
print(classifier.preprocess)
print(classifier.summary)

files = sorted(folder.glob("*/*.png"))[:4]
probs = classifier.predict_proba(files)  # resized, cropped, shown in its views, calibrated
for file, row in zip(files, probs, strict=True):
    print(f"{file.parent.name}/{file.name}: {CLASSES[row.argmax()]}, confidence {row.max():.0%}")

path = classifier.save(Path(mkdtemp()) / "classifier")
loaded = atta.CalibratedClassifier.load(path, model=timm.create_model("test_resnet", num_classes=3))
assert (loaded.predict_proba(files) == probs).all()
