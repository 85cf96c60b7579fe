"""Adapters: any classifier as a module from pixels in [0, 1] (n c h w) to logits (n k).

| your model                                            | write                                  |
|-------------------------------------------------------|----------------------------------------|
| a module that returns a tensor, or has `.logits`      | `as_logits(model)`                     |
| an ONNX file                                          | `as_logits("model.onnx")`              |
| a function on NumPy arrays (Keras, JAX, scikit-learn) | `NumpyModel(fn)`                       |
| one of these that ends in a softmax or a sigmoid      | `FromProbabilities(...)` around it     |
| one of these that expects normalised pixels           | `Normalized(..., mean, std)` around it |
| a network for segmentation                            | `as_dense(model)`                      |

The type of a model decides how it is adapted, never its output: logits that look like probabilities
stay logits. A model of two classes may return one logit z per image, that of class 1. It stands for
(0, z), and class 1 is predicted where z > 0.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from atta._base.errors import InputError, first_line, require
from atta._base.types import Images, Logits
from atta.data.preprocess import Preprocess
from atta.data.segmentation import LogitMaps, resize

MULTIPLES = (1, 2, 4, 8, 16, 32)
"""What height and width may have to be multiples of, for a network for segmentation."""


class Normalized(nn.Module):
    """A model that sees `(pixels - mean) / std`, channel by channel.

    Use it for a network that was trained on normalised pixels: atta gives every network pixels in
    [0, 1], because views are made of those.

    Args:
        model: The network, which expects normalised pixels.
        mean: Mean of each channel, of pixels in [0, 1], in the order R, G, B.
        std: Standard deviation of each channel, in the same order.
        channels: "RGB", or "BGR" for a network that expects its channels in that order.

    Raises:
        InputError: `mean` and `std` differ in length, a `std` is not positive, or `channels` is
            another word.

    >>> import atta
    >>> model = atta.Normalized(nn.Identity(), mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
    >>> model(torch.ones(1, 3, 1, 1)).flatten()
    tensor([2., 2., 2.])
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self, model: nn.Module, mean: Sequence[float], std: Sequence[float], channels: str = "RGB"
    ) -> None:
        super().__init__()
        if len(mean) != len(std):
            raise InputError(
                "expected one mean and one std per channel, "
                f"got {len(mean)} means and {len(std)} stds"
            )
        if not all(s > 0 for s in std):
            raise InputError(f"expected a positive std for every channel, got {tuple(std)}")
        if channels not in ("RGB", "BGR"):
            raise InputError(f"channels: expected 'RGB' or 'BGR', got {channels!r}")
        self.model, self.channels = model, channels
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32))
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32))

    def forward(self, images: Tensor) -> Any:
        """Normalise the pixels and return the output of the model."""
        if not images.is_floating_point():
            raise InputError(
                f"expected pixels as floats in [0, 1], got {images.dtype}; divide by 255 first"
            )
        if images.ndim != 4 or images.shape[1] != self.mean.shape[0]:
            raise InputError(
                f"expected images of shape (n, {self.mean.shape[0]}, h, w), with as many channels "
                f"as the mean of this model, got {tuple(images.shape)}"
            )
        seen = (images - self.mean[:, None, None]) / self.std[:, None, None]
        return self.model(seen.flip(1) if self.channels == "BGR" else seen)


class Adapter(nn.Module, ABC):
    """A model of any kind: its raw output, and the logits made from it."""

    dims: ClassVar[int] = 2
    returns: ClassVar[str] = "({}, k)"
    """The shape that is expected of so many images, for messages."""

    @abstractmethod
    def raw(self, images: Images) -> Any:
        """Return the output of the model: logits on any device, or something to refuse."""

    def forward(self, images: Images, *, pad: bool = True) -> Logits | LogitMaps:
        """Return logits on the device of the images, or say why the output is not logits.

        One logit z becomes (0, z), whose softmax is the sigmoid of z, unless `pad` is False.
        """
        found, n = self.raw(images), images.shape[0]
        expected = f"expected the model to return logits of shape {self.returns.format(n)}"
        if not isinstance(found, Tensor):
            size = f" of {len(found)}" if isinstance(found, tuple | list) else ""
            got = f"{type(found).__name__}{size}"
            dense = isinstance(found, Mapping) and "out" in found and self.dims == 2
            hint = "give masks as labels to a segmentation network, or " if dense else ""
            raise InputError(f"{expected}, got a {got}; {hint}return the logits alone")
        if found.is_floating_point() and found.shape == images.shape[:1]:  # one logit, squeezed
            found = found[:, None]
        if found.ndim != self.dims or found.shape[0] != n:
            hint = "; a segmentation network needs masks as labels" if found.ndim == 4 else ""
            raise InputError(f"{expected}, got shape {tuple(found.shape)}{hint}")
        if not found.is_floating_point():
            raise InputError(
                f"{expected} as floating point numbers, got {found.dtype}: are these classes?"
            )
        found = found.to(images.device)
        sides = (0, 0) * (self.dims - 2)
        return F.pad(found, (*sides, 1, 0)) if pad and found.shape[1] == 1 else found


class TorchModel(Adapter):
    """A module that returns a tensor of logits, or holds one under `logits` (Hugging Face)."""

    names: ClassVar[tuple[str, ...]] = ("logits",)
    """Where logits are in a mapping."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def raw(self, images: Images) -> Any:
        """Return the logits of the module."""
        found = self.model.raw(images) if isinstance(self.model, Adapter) else self.model(images)
        if isinstance(found, Mapping):
            found = next((found[name] for name in self.names if name in found), found)
        return getattr(found, "logits", found)


def check_external_data(path: Path, *, same_folder: bool) -> None:
    """Refuse an ONNX file with weights outside its folder, or in any other file at all."""
    with require("onnx", "an ONNX model"):
        import onnx
    try:
        model = onnx.load(str(path), load_external_data=False)
    except Exception as error:  # protobuf has its own exceptions
        raise InputError(f"expected {path} to be an ONNX model: {first_line(error)}") from error
    # A cache of the Hugging Face hub links to files in another folder.
    folders = {path.absolute().parent.resolve(), path.resolve().parent}
    for tensor in _tensors(model):
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        place = {entry.key: entry.value for entry in tensor.external_data}.get("location", "")
        if not same_folder:
            raise InputError(
                f"expected {path} to contain its weights, but {tensor.name!r} lies in {place!r}"
            )
        file = (path.parent / place).resolve()
        if ".." in Path(place).parts or not any(map(file.is_relative_to, folders)):
            raise InputError(
                f"expected weights in the folder of {path}, but {tensor.name!r} lies in {place!r}: "
                "refused"
            )


def _tensors(message: Any) -> Iterator[Any]:
    """Every tensor inside an ONNX model: in graphs, in subgraphs of nodes, in functions."""
    waiting = [message]
    while waiting:
        found = waiting.pop()
        if type(found).__name__ == "TensorProto":
            yield found
            continue
        for field, value in found.ListFields():
            if field.message_type is not None:
                waiting.extend([value] if hasattr(value, "ListFields") else value)


STAND_IN = "atta::Network"
"""The operator that stands for an ONNX network in a graph that torch traces."""
_DTYPES = {
    "tensor(float)": torch.float32,
    "tensor(float16)": torch.float16,
    "tensor(double)": torch.float64,
}


class OnnxModel(Adapter):
    '''A network in an ONNX file, run by ONNX Runtime.

    Use it to name the output or the execution providers; otherwise the path of the file does
    wherever atta takes a model. A graph with a fixed batch size gets that many images at a time,
    and the last batch is padded. Weights in other files must lie in the folder of the file.

    Args:
        path: The ONNX file, with one input of shape (n, c, h, w).
        providers: Execution providers of ONNX Runtime; by default CUDA where available, then CPU.
        output: Name of the output that holds the logits; needed if the graph has several.

    Raises:
        InputError: The file is missing, is not an ONNX model, or has other inputs or outputs.

    >>> import atta, onnx, tempfile
    >>> text = """<ir_version: 8, opset_import: ["": 17]>
    ... mean (float[n,3,8,8] x) => (float[n,3] y) {y = ReduceMean <axes=[2,3], keepdims=0> (x)}"""
    >>> model = onnx.parser.parse_model(text)
    >>> path = tempfile.mkdtemp() + "/mean.onnx"
    >>> onnx.save(model, path)
    >>> atta.OnnxModel(path)(torch.ones(1, 3, 8, 8))
    tensor([[1., 1., 1.]])
    '''

    def __init__(
        self, path: str | Path, providers: Sequence[str] | None = None, output: str | None = None
    ) -> None:
        super().__init__()
        self.path, self.providers = Path(path), providers
        self.session = _session(self.path, providers)
        inputs = self.session.get_inputs()
        outputs = [node.name for node in self.session.get_outputs()]
        if len(inputs) != 1 or len(inputs[0].shape) != 4:
            found = ", ".join(f"{node.name} {node.shape}" for node in inputs)
            raise InputError(f"expected {path} to take one input (n, c, h, w), found {found}")
        chosen = [name for name in outputs if output in (None, name)]
        if len(chosen) != 1:
            raise InputError(
                f"expected {path} to have one output, or output= to name that of the logits, "
                f"found {', '.join(outputs)} and output={output!r}"
            )
        self.output = chosen[0]
        self.input, self.shape = inputs[0].name, inputs[0].shape
        if inputs[0].type not in _DTYPES:
            raise InputError(
                f"expected {path} to take floating point pixels, found {inputs[0].type}"
            )
        self.dtype = _DTYPES[inputs[0].type]
        self.width: int | None = None  # number of outputs per image, known after the first batch

    def raw(self, images: Images) -> Any:
        """Return the output of the graph."""
        if torch.compiler.is_compiling():  # `export` replaces this operator by the file
            shape = (images.shape[0], self.width or 0)
            return torch.onnx.ops.symbolic(
                STAND_IN, (images,), dtype=images.dtype, shape=shape, version=1
            )
        for got, expected in zip(images.shape[1:], self.shape[1:], strict=True):
            if isinstance(expected, int) and got != expected:
                raise InputError(
                    f"expected images of shape {tuple(self.shape)} as {self.path.name} does, "
                    f"got {tuple(images.shape)}"
                )
        n = images.shape[0]
        size = self.shape[0] if isinstance(self.shape[0], int) else max(n, 1)
        more = max(-n % size, size - n)  # whole batches, and at least one
        pixels = F.pad(images.detach().cpu().to(self.dtype), (0,) * 7 + (more,))
        try:
            outputs = [
                self.session.run([self.output], {self.input: batch.numpy()})[0]
                for batch in torch.split(pixels, size)
            ]
            output = np.concatenate(outputs)[:n]
        except Exception as error:  # its exceptions have no public base class
            raise InputError(
                f"{self.path} fails on images of shape {tuple(images.shape)}: expected a network "
                f"for such images, and enough memory; ONNX Runtime says {first_line(error)}"
            ) from error
        self.width = output.shape[-1]
        return _as_tensor(output)

    def __reduce__(self) -> tuple[Any, ...]:
        # A session cannot be copied, so that a copy opens its own.
        return OnnxModel, (self.path, self.providers, self.output)


def _session(path: Path, providers: Sequence[str] | None) -> Any:
    """Open an ONNX file, on the GPU where ONNX Runtime has one."""
    if not path.is_file():
        raise InputError(f"expected an ONNX file, found none at {path}")
    with require("onnx", "an ONNX model"):
        import onnxruntime
    check_external_data(path, same_folder=True)
    here = onnxruntime.get_available_providers()
    known = ("CUDAExecutionProvider", "CPUExecutionProvider")
    used = list(providers or (name for name in known if name in here))
    try:
        return onnxruntime.InferenceSession(str(path), providers=used)
    except Exception as error:  # its exceptions have no public base class
        raise InputError(
            f"expected {path} to be an ONNX model; ONNX Runtime says: {error}"
        ) from error


class NumpyModel(Adapter):
    """A function from a NumPy array of pixels to an array of logits.

    Use it for a classifier of Keras, JAX, scikit-learn or any other library.

    Args:
        fn: Takes floats in [0, 1], shaped (n, c, h, w), and returns logits, shaped (n, k).
        channels_last: Whether `fn` takes (n, h, w, c) instead.

    >>> import atta
    >>> model = atta.NumpyModel(lambda pixels: pixels.mean(axis=(1, 2)), channels_last=True)
    >>> model(torch.ones(1, 3, 8, 8))
    tensor([[1., 1., 1.]])
    """

    def __init__(self, fn: Callable[[Any], Any], *, channels_last: bool = False) -> None:
        super().__init__()
        self.fn, self.channels_last = fn, channels_last

    def raw(self, images: Images) -> Any:
        """Return the output of the function."""
        pixels = images.detach().cpu()
        if self.channels_last:
            pixels = pixels.permute(0, 2, 3, 1)
        return _as_tensor(self.fn(pixels.contiguous().numpy()))


class FromProbabilities(Adapter):
    """A model that returns probabilities, as a model that returns their logarithms as logits.

    Use it for a model that ends in a softmax. One probability per image, from a model that ends in
    a sigmoid, is that of class 1 of two.

    Args:
        model: A module, the path of an ONNX file, a `NumpyModel` or an `OnnxModel`.

    Raises:
        InputError: When called, if the outputs for an image are negative or do not sum to 1.

    >>> import atta
    >>> model = atta.FromProbabilities(nn.Sequential(nn.Flatten(), nn.Softmax(dim=1)))
    >>> model(torch.ones(1, 2, 1, 1)).exp()
    tensor([[0.5000, 0.5000]])
    """

    def __init__(self, model: object) -> None:
        super().__init__()
        self.model = as_logits(model)

    def raw(self, images: Images) -> Any:
        """Return log-probabilities; a zero counts as the smallest float, so that all are finite."""
        probs: Tensor = self.model(images, pad=False)
        probs = torch.cat([1 - probs, probs], dim=1) if probs.shape[1] == 1 else probs
        probs = probs if probs.dtype == torch.float64 else probs.float()
        if not torch.compiler.is_compiling():  # a graph cannot look at values
            sums = probs.sum(dim=1)
            if not ((probs >= 0).all() and torch.allclose(sums, torch.ones_like(sums), atol=0.01)):
                raise InputError(
                    "expected probabilities that sum to 1 for every image, got values from "
                    f"{probs.min():.3g} to {probs.max():.3g} and sums from {sums.min():.3g} to "
                    f"{sums.max():.3g}; a model that returns logits needs no FromProbabilities"
                )
        return probs.clamp(min=torch.finfo(torch.float32).tiny).log()


WRAPPERS = TorchModel | FromProbabilities
"""Adapters that leave pixels as they are."""


def network_in(model: nn.Module, wrappers: Any = WRAPPERS) -> nn.Module:
    """Return the network in a model: its first module that is none of the wrappers."""
    return next(part for part in model.modules() if not isinstance(part, wrappers))


def as_logits(model: object, preprocess: Preprocess | None = None) -> Adapter:
    """Return a module from pixels to logits for a module or for the path of an ONNX file.

    The normalisation of `preprocess` is added, because views are made of pixels in [0, 1]. A model
    that already normalises in the same way stays as it is; another way is refused.
    """
    if isinstance(model, str | Path) and Path(model).suffix == ".onnx":
        model = OnnxModel(model)
    if not isinstance(model, nn.Module):
        got = f"the path {model}" if isinstance(model, str | Path) else type(model).__name__
        raise InputError(
            f"expected a torch module or the path of an .onnx file, got {got}; "
            "wrap a function on NumPy arrays in NumpyModel(fn)"
        )
    if preprocess is not None and (preprocess.mean is not None or preprocess.channels == "BGR"):
        model = _normalised(model, preprocess)
    return model if isinstance(model, Adapter) else TorchModel(model)


def _normalised(model: nn.Module, preprocess: Preprocess) -> nn.Module:
    """Add the normalisation of `preprocess`, or check that the model has the same."""
    channels = "BGR" if preprocess.channels == "BGR" else "RGB"
    count = len(preprocess.channels or "RGB")
    mean, std = preprocess.mean or (0.0,) * count, preprocess.std or (1.0,) * count
    inner = network_in(model)
    if not isinstance(inner, Normalized):
        return Normalized(model, mean, std, channels)
    own = (inner.mean.tolist(), inner.std.tolist())
    alike = inner.channels == channels and len(own[0]) == len(mean)
    if not (alike and np.allclose(own, (mean, std), atol=1e-6)):
        said = " and std ".join(" ".join(f"{value:.4g}" for value in values) for values in own)
        raise InputError(
            f"preprocess: the model normalises already, by mean {said}, and not as '{preprocess}' "
            "does: pass the network without its Normalized, or a preprocess without mean and std"
        )
    return model


def _as_tensor(output: Any) -> Any:
    """Copy an array into a tensor: half precision becomes float32, integers stay to be refused."""
    if isinstance(output, tuple | list | Mapping):
        return output
    array = np.asarray(output)
    wide = array.dtype.kind in "iub" or array.dtype == np.float64
    return torch.from_numpy(array.astype(array.dtype if wide else np.float32))


# ---- segmentation --------------------------------------------------------------------------------


class Dense(TorchModel):
    """A segmentation network as a module that returns logits (n k h w) at the size of the images.

    | the network returns                      | as                            | is                |
    |------------------------------------------|-------------------------------|-------------------|
    | a tensor (segmentation-models-pytorch)   | (n, k, h, w)                  | taken as it is    |
    | a dict (torchvision)                     | {"out": ...}, {"logits": ...} | its first of them |
    | an object (Hugging Face)                 | .logits                       | taken             |
    | any of these at another size (SegFormer) | (n, k, h / 4, w / 4)          | resized, bilinear |
    | one logit for each pixel                 | (n, 1, h, w)                  | that of class 1   |

    Args:
        model: The network, with its normalisation.
        multiple: What height and width have to be a multiple of: images are padded by repeating
            their border, and the padding is cut off again.
    """

    names, dims, returns = ("out", "logits"), 4, "({}, k, h, w), for masks are given"

    def __init__(self, model: nn.Module, multiple: int = 1) -> None:
        super().__init__(model)
        self.multiple = int(multiple)

    def raw(self, images: Images) -> Any:
        """Return the output of the network for padded images, at the size of the images."""
        *_, h, w = images.shape
        down, right = (-side % self.multiple for side in (h, w))
        padded = F.pad(images, (0, right, 0, down), mode="replicate") if down or right else images
        found = super().raw(padded)
        if not isinstance(found, Tensor) or found.ndim != 4 or not found.is_floating_point():
            return found  # to be refused
        if tuple(found.shape[1:3]) == tuple(padded.shape[2:]) != tuple(found.shape[2:]):
            raise InputError(
                "expected the model to return logits of shape (n, k, h, w), got "
                f"{tuple(found.shape)}, which is (n, h, w, k): move the classes to dimension 1"
            )
        return resize(found.to(images.device), tuple(padded.shape[-2:]))[..., :h, :w]


def as_dense(model: object, preprocess: Preprocess | None = None) -> Dense:
    """Return a segmentation network as a module of logits at the size of the images."""
    if isinstance(model, Dense):
        return model
    adapted = as_logits(model, preprocess)
    if isinstance(adapted, FromProbabilities):
        raise InputError(
            "FromProbabilities takes classifiers of images only: let a segmentation network return "
            "the logarithm of its probabilities"
        )
    return Dense(adapted.model if isinstance(adapted, TorchModel) else adapted)


def fitted(network: Dense, image: Tensor) -> Dense:
    """Return the network with the least padding that it needs for such an image (1, c, h, w).

    An image that the network takes is then never padded: padding would change labels.

    Raises:
        InputError: The network fails on it, whatever the padding.
    """
    faults = list[Exception]()
    for multiple in dict.fromkeys((network.multiple, *MULTIPLES)):
        tried = Dense(network.model, multiple)
        try:
            with torch.no_grad():
                tried(image)
                tried(image[..., 1:, 1:])  # views and other images have other sizes
                if 1 < multiple < MULTIPLES[-1] and min(image.shape[2:]) > multiple:
                    tried(image[..., multiple:, multiple:])  # one of the two is an odd multiple
            return tried
        except InputError:
            raise
        except Exception as error:  # whatever a network says of images it cannot take
            faults.append(error)
    raise InputError(
        f"the model failed on an image of {tuple(image.shape[1:])} (channels, height, width), also "
        f"padded to multiples of {MULTIPLES[-1]}: {faults[0]}"
    ) from faults[0]
