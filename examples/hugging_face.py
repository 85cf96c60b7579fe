"""Calibrate a Hugging Face classifier on photographs; save it, and load it without its code.

The checkpoint and the photographs are those of examples/cifar10. Replace the checkpoint with a name
on the hub or your own folder, and `preprocess` with its `AutoImageProcessor`.
"""

from pathlib import Path
from tempfile import mkdtemp

from transformers import AutoModelForImageClassification

import atta

here = Path("examples/cifar10")  # in a clone of the repository
checkpoint = here / "hugging_face"
model = AutoModelForImageClassification.from_pretrained(checkpoint)

# `preprocess` says how photographs are resized and normalised: here to 128 pixels. The folder of a
# checkpoint holds that; an image processor does, too. The class names are those of the model.
classifier = atta.calibrate(
    model, here / "validation", preprocess=checkpoint, policy="flip", progress=False
)
print(classifier.preprocess)
print(classifier.summary)

files = sorted((here / "test").glob("*/*.png"))
before, after = classifier.evaluate(here / "test", progress=False).values()
assert before["accuracy"] == after["accuracy"]
print(f"NLL on other photographs: {before['nll']:.4f} → {after['nll']:.4f}")

path = classifier.save(Path(mkdtemp()) / "classifier")  # a folder of safetensors and JSON
loaded = atta.CalibratedClassifier.load(path)  # it contains the configuration: no model needed
probs = loaded.predict_proba(files[::40])
assert (probs == classifier.predict_proba(files[::40])).all()
names = loaded.class_names
for file, row in zip(files[::200], probs[::5], strict=True):
    print(f"{file.parent.name}/{file.name}: {names[row.argmax()]}, confidence {row.max():.0%}")
print(f"saved and loaded: {path.name}")
# classifier.push_to_hub("user/name") shares it, with a model card;
# atta.CalibratedClassifier.from_pretrained("user/name") loads it.
