"""Make the Hugging Face checkpoint of this folder from the ResNet-20.

    python examples/cifar10/make_hugging_face.py

The network is a ResNetForImageClassification with the stages and the head of the ResNet-20. Its
stem is another: a 7x7 convolution and a pooling layer, for images of 128 pixels. The stem learns
to return what the stem of the ResNet-20 returns, on the training images of CIFAR-10.
"""

import json
import re
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import ResNetConfig, ResNetForImageClassification, ViTImageProcessor

from atta.lab.datasets import load
from atta.lab.recipe import load_trained

HERE = Path(__file__).parent
SIZE, BATCH, STEPS = 128, 64, 500


def renamed(name: str) -> str:
    """The name that Hugging Face gives to a parameter of our ResNet."""
    name = name.replace("fc.", "classifier.1.")
    name = re.sub(
        r"layer(\d)\.(\d)\.(conv|bn)(\d)",
        lambda found: (
            f"resnet.encoder.stages.{int(found[1]) - 1}.layers.{found[2]}.layer."
            f"{int(found[4]) - 1}.{'convolution' if found[3] == 'conv' else 'normalization'}"
        ),
        name,
    )
    name = re.sub(
        r"layer(\d)\.(\d)\.downsample\.(\d)",
        lambda found: (
            f"resnet.encoder.stages.{int(found[1]) - 1}.layers.{found[2]}.shortcut."
            f"{'normalization' if found[3] == '1' else 'convolution'}"
        ),
        name,
    )
    return name


def batch(pixels: Tensor, number: int) -> Tensor:
    """A batch of images in [0, 1], mirrored at random."""
    draw = torch.Generator().manual_seed(number)
    chosen = torch.randint(len(pixels), (BATCH,), generator=draw)
    images = pixels[chosen].float() / 255
    mirrored = torch.rand(BATCH, generator=draw) < 0.5
    return torch.where(mirrored[:, None, None, None], images.flip(3), images)


def main() -> None:
    torch.manual_seed(0)
    trained, about = load_trained(HERE / "resnet20.safetensors")
    teacher = trained.model.float()
    mean, std = (torch.tensor(about[name])[:, None, None] for name in ("mean", "std"))
    training, test = (load("cifar10", part).decoded() for part in ("train", "test"))
    pixels = training.tensors()

    config = ResNetConfig(
        embedding_size=16,
        hidden_sizes=[16, 32, 64],
        depths=[3, 3, 3],
        layer_type="basic",
        id2label=dict(enumerate(training.classes)),
        label2id={name: number for number, name in enumerate(training.classes)},
    )
    network = ResNetForImageClassification(config)
    stem = network.resnet.embedder
    weights = {renamed(name): value for name, value in teacher.state_dict().items()}
    own = {name: value for name, value in network.state_dict().items() if "embedder" in name}
    network.load_state_dict(
        {name: weights.get(name, own.get(name)) for name in network.state_dict()}
    )

    def large(images: Tensor) -> Tensor:
        return (F.interpolate(images, size=SIZE, mode="bilinear") - mean) / std

    network.train()
    optimizer = torch.optim.Adam(stem.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=STEPS)
    for step in range(STEPS):
        images = batch(pixels, step)
        with torch.no_grad():
            wanted = torch.relu(teacher.bn1(teacher.conv1((images - mean) / std)))
        loss = F.mse_loss(stem(large(images)), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 50 == 0:
            print(f"step {step}: {loss.item():.4f}", flush=True)

    folder = HERE / "hugging_face"
    network.eval().half().save_pretrained(folder)  # half the size
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["dtype"] = "float32"  # the type in which it is loaded
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    size = {"height": SIZE, "width": SIZE}
    processor = ViTImageProcessor(size=size, image_mean=about["mean"], image_std=about["std"])
    processor.save_pretrained(folder)

    network.float()
    with torch.inference_mode():
        parts = test.tensors().split(200)
        answers = [network(large(part.float() / 255)).logits.argmax(dim=1) for part in parts]
    right = (torch.cat(answers) == test.labels).float().mean()
    print(f"right on {right:.2%} of all {len(test):,} test images")


if __name__ == "__main__":
    main()
