"""Networks: any image classifier as a module from pixels in [0, 1] (n c h w) to logits (n k).

A network comes from a user (torch, Hugging Face, ONNX, a function on arrays) or is one of our own.
This package knows nothing about views and calibration.

adapters     any model as logits: `as_logits`, `as_dense`, `Normalized`, `FromProbabilities`, ...
borrowing    use a user's model and leave it unchanged; what it states, its statistics
description  a network as JSON, built again without running code from a file; weights in a file
resnet       our own architectures: `MODELS`
"""
