"""Make the photographs and the network of this folder.

    atta train cifar10 --model resnet20 --steps 20000 -o runs/resnet20
    python examples/cifar10/make.py runs/resnet20/model.safetensors

The network is trained on the 50,000 training images of CIFAR-10. The photographs are the first
2000 of its test images: 1000 to calibrate on (validation) and 1000 to look at (test).
"""

import json
import sys
from pathlib import Path

from PIL import Image

from atta.lab.datasets import load
from atta.lab.recipe import load_trained
from atta.lab.training import accuracy_on
from atta.networks.description import save_weights

HERE = Path(__file__).parent


def main() -> None:
    images = load("cifar10", "test").decoded()
    pixels, labels = images.tensors(), images.labels.tolist()
    for number in range(2000):
        part = "validation" if number < 1000 else "test"
        folder = HERE / part / images.classes[labels[number]]
        folder.mkdir(parents=True, exist_ok=True)
        picture = Image.fromarray(pixels[number].permute(1, 2, 0).numpy())
        picture.save(folder / f"{number:04d}.png", optimize=True)

    model, about = load_trained(sys.argv[1])
    path = HERE / "resnet20.safetensors"
    model.half()  # half the size; the accuracy changes by 0.01 %
    save_weights(model.model, path, {"atta": json.dumps(about)})
    about |= {"accuracy": accuracy_on(load_trained(path)[0], images)}
    save_weights(model.model, path, {"atta": json.dumps(about)})
    print(f"{path}: accuracy {about['accuracy']:.2%} on all {len(images):,} test images")


if __name__ == "__main__":
    main()
