"""Calibrate a Hugging Face classifier, save it with its configuration, load it without a model.

The model here is tiny and the images are noise in three tints. Replace it with
`ViTForImageClassification.from_pretrained(...)`, and with the mean and standard deviation of its
image processor.
"""

from pathlib import Path
from tempfile import mkdtemp

import torch
from transformers import ViTConfig, ViTForImageClassification

import atta

torch.manual_seed(0)
config = ViTConfig(
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=16,
    image_size=16,
    patch_size=8,
    num_labels=3,
)
model = atta.Normalized(
    ViTForImageClassification(config), mean=[0.5, 0.5, 0.5], std=[0.5, 0.5, 0.5]
)
labels = torch.randint(0, 3, (360,))
images = (torch.rand(360, 3, 16, 16) + 0.06 * torch.eye(3)[labels][:, :, None, None]).clamp(0, 1)

optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for _ in range(60):  # on the first 60 images
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(images[:60]).logits, labels[:60]).backward()
    optimizer.step()

held_out = {"images": images[60:], "labels": labels[60:], "class_names": ["red", "green", "blue"]}
classifier = atta.calibrate(model, **held_out, policy="flip", progress=False)
print(classifier.summary)

path = classifier.save(Path(mkdtemp()) / "classifier")  # a folder of safetensors and JSON
loaded = atta.CalibratedClassifier.load(path)  # it contains the configuration: no model needed
probs = loaded(images[:5])
assert torch.equal(probs, classifier(images[:5]))
print([loaded.class_names[i] for i in loaded.predict(images[:5])], probs.max(dim=1).values)
# classifier.push_to_hub("user/name") shares it, with a model card;
# atta.CalibratedClassifier.from_pretrained("user/name") loads it.
