"""Networks: whatever answers images, as one kind of module from pixels in [0, 1] (n c h w) to logits (n k).

A network comes from outside (torch, Hugging Face, ONNX, a function on arrays), or is one of our own, trained by one recipe.
Nothing here knows of views or calibration.

adapters     anything → logits: `as_logits`, `Normalized`, `FromProbabilities`, `NumpyModel`, `OnnxModel`
borrowing    running someone else's model, and giving it back as it came
description  a network as JSON, to be built again without running anything from a file
weights      `load_weights`, `save_weights`, `check_weights`
resnet       our own architectures: `MODELS`
recipe       what decides the weights of a training: `Recipe`
augment      what training does to pixels
training     `train`, which can be stopped and continued
trained      what it wrote, on disk: `load_trained`
"""
