"""Calibrate a timm network with a folder of photographs, one subfolder per class; predict files.

The network is a small ResNet in timm's code, with the weights of examples/cifar10. Replace it with
`timm.create_model("convnext_tiny", pretrained=True)`, and the folders with your own.
"""

from pathlib import Path
from tempfile import mkdtemp

import timm
from safetensors.torch import load_file
from torch import nn

import atta

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
here = Path("examples/cifar10")  # in a clone of the repository
classes = sorted(folder.name for folder in (here / "validation").iterdir())
# What timm's configurations say of the photographs that a network expects.
expects = {"input_size": (3, 32, 32), "crop_pct": 1.0, "mean": MEAN, "std": STD}


def small_resnet() -> nn.Module:
    """A ResNet-20: timm's ResNet-18 with narrow layers, three stages and a stem for 32 pixels."""
    model = timm.create_model(
        "resnet18",
        num_classes=len(classes),
        layers=(3, 3, 3),
        channels=(16, 32, 64),
        stem_type="deep",
        stem_width=8,
        pretrained_cfg_overlay=expects,
    )
    model.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
    model.maxpool = model.layer4 = nn.Identity()
    return model


model = small_resnet()
model.load_state_dict(load_file(here / "resnet20.safetensors"))

# preprocess=model reads timm's configuration: how photographs are resized, cropped, normalised.
# Without `policy`, cross-validation chooses the views.
how = {"preprocess": model, "class_names": classes, "policy": "flip + 2 crop"}
classifier = atta.calibrate(model, here / "validation", **how, progress=False)
print(classifier.preprocess)
print(classifier.summary)

files = sorted((here / "test").glob("*/*.png"))
probs = classifier.predict_proba(files[::50])
for file, row in zip(files[::250], probs[::5], strict=True):
    print(f"{file.parent.name}/{file.name}: {classes[row.argmax()]}, confidence {row.max():.0%}")
before, after = classifier.evaluate(here / "test", progress=False).values()
print(f"NLL on 1000 other photographs: {before['nll']:.4f} → {after['nll']:.4f}")

path = classifier.save(Path(mkdtemp()) / "classifier")
loaded = atta.CalibratedClassifier.load(path, model=small_resnet())
assert (loaded.predict_proba(files[::50]) == probs).all()
