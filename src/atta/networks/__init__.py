"""Networks: any image classifier as a module from pixels in [0, 1] (n c h w) to logits (n k).

A network comes from a user (torch, Hugging Face, ONNX, a function on arrays) or is one of our own.
This package knows nothing about views and calibration.

adapters     any model as logits: `as_logits`, `Normalized`, `FromProbabilities`, `NumpyModel`, ...
borrowing    run a user's model and leave it unchanged; its device and precision
description  a network as JSON, built again without running code from a file
weights      `load_weights`, `save_weights`, `check_weights`, `fingerprint`
resnet       our own architectures: `MODELS`
"""
