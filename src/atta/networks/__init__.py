"""Networks: any image classifier as a module from pixels in [0, 1] (n c h w) to logits (n k).

A network comes from a user (torch, Hugging Face, ONNX, a function on arrays) or is one of our own.
This package knows nothing about views and calibration.

adapters     any model as logits: `as_logits`, `Normalized`, `FromProbabilities`, `NumpyModel`, ...
borrowing    use a user's model and leave it unchanged; its device, precision and statistics
description  a network as JSON, built again without running code from a file; weights in a file
dense        networks for segmentation
resnet       our own architectures: `MODELS`
"""
