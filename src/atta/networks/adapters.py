"""Models in: any classifier becomes a module from pixels in [0, 1], shaped n c h w, to logits, shaped n k.

| what you have                                         | what you write                        |
|-------------------------------------------------------|---------------------------------------|
| a module that returns a tensor, or has `.logits`      | `as_logits(model)`                    |
| an ONNX file                                          | `as_logits("model.onnx")`             |
| a function on NumPy arrays (Keras, JAX, scikit-learn) | `NumpyModel(fn)`                      |
| one of these that ends in a softmax or a sigmoid      | `FromProbabilities(...)` around it    |
| one of these that expects normalised pixels           | `Normalized(..., mean, std)` around it|

A model is recognised by its type, never by what it returns: logits that look like probabilities stay logits. A model of two
classes may return one logit z an image, that of class 1: it stands for (0, z), and class 1 is predicted where z > 0.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from atta._base.errors import InputError, first_line, require
from atta._base.types import Images, Logits
from atta.data.preprocess import Preprocess


class Normalized(nn.Module):
    """A model that sees `(pixels - mean) / std`, channel by channel, so that its users need not know about it.

    With `channels="BGR"` it sees the channels the other way round; mean and std are in the order R, G, B all the same.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self, model: nn.Module, mean: Sequence[float], std: Sequence[float], channels: str = "RGB"
    ) -> None:
        super().__init__()
        if len(mean) != len(std):
            raise InputError(
                f"expected one mean and one std a channel, got {len(mean)} means and {len(std)} stds"
            )
        if not all(s > 0 for s in std):
            raise InputError(f"expected a positive std for every channel, got {tuple(std)}")
        if channels not in ("RGB", "BGR"):
            raise InputError(f"channels: expected 'RGB' or 'BGR', got {channels!r}")
        self.model, self.channels = model, channels
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32))
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32))

    def forward(self, images: Tensor) -> Any:
        """Give what the model gives."""
        if not images.is_floating_point():
            raise InputError(
                f"expected pixels as floats in [0, 1], got {images.dtype}; divide by 255 first"
            )
        if images.ndim != 4 or images.shape[1] != self.mean.shape[0]:
            raise InputError(
                f"expected images of shape (n, {self.mean.shape[0]}, h, w), as many channels as this model's mean has, "
                f"got {tuple(images.shape)}"
            )
        seen = (images - self.mean[:, None, None]) / self.std[:, None, None]
        return self.model(seen.flip(1) if self.channels == "BGR" else seen)


class _Answering(nn.Module, ABC):
    """A model of any kind: its own answer, and the logits that are made of it."""

    @abstractmethod
    def answer(self, images: Images) -> Tensor:
        """Give what the model says, n k, on the device of the images; k is 1 where it says one number of two classes."""

    def forward(self, images: Images) -> Logits:
        """Give the logits; one logit z becomes (0, z), whose softmax is the sigmoid of z and whose larger one is its sign."""
        found = self.answer(images)
        return F.pad(found, (1, 0)) if found.shape[1] == 1 else found


class TorchModel(_Answering):
    """A module whose answer is a tensor of logits, or holds one under `logits` as Hugging Face's do."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def answer(self, images: Images) -> Tensor:
        """Give what the module gives."""
        answer = self.model(images)
        if isinstance(answer, Mapping) and "logits" in answer:
            answer = answer["logits"]
        return _checked(getattr(answer, "logits", answer), images)


def check_external_data(path: Path, *, beside: bool) -> None:
    """Refuse an ONNX file that has its numbers read from elsewhere: outside of its folder or, not `beside`, at all."""
    with require("onnx", "an ONNX model"):
        import onnx
    try:
        model = onnx.load(str(path), load_external_data=False)
    except Exception as error:  # protobuf's own kinds
        raise InputError(f"expected {path} to be an ONNX model: {first_line(error)}") from error
    homes = {
        path.absolute().parent.resolve(),
        path.resolve().parent,
    }  # a hub's cache links to files that lie together
    for tensor in _stored(model):
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        place = next((entry.value for entry in tensor.external_data if entry.key == "location"), "")
        if not beside:
            raise InputError(
                f"expected {path} to hold its numbers itself, and {tensor.name!r} lies in {place!r}"
            )
        if ".." in Path(place).parts or not any(
            (path.parent / place).resolve().is_relative_to(home) for home in homes
        ):
            raise InputError(
                f"expected numbers in the folder of {path}, and {tensor.name!r} lies in {place!r}: refused"
            )


def _stored(message: Any) -> Iterator[Any]:
    """Every tensor inside an ONNX model, wherever it is: in graphs, in graphs of nodes, in functions."""
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
"""What stands for an ONNX network in a graph that torch traces."""


class OnnxModel(_Answering):
    """An ONNX file that ONNX Runtime runs; several outputs need the `output` to be named.

    A graph with a fixed batch size is fed that many images at a time and the last batch is padded.
    """

    def __init__(
        self, path: str | Path, providers: Sequence[str] | None = None, output: str | None = None
    ) -> None:
        super().__init__()
        self.path, self.providers = Path(path), providers
        if not self.path.is_file():
            raise InputError(f"expected an ONNX file, found none at {self.path}")
        with require("onnx", "an ONNX model"):
            import onnxruntime
        check_external_data(self.path, beside=True)
        here = onnxruntime.get_available_providers()
        gpu = {"device_id": torch.cuda.current_device() if torch.cuda.is_available() else 0}
        known: dict[str, dict[str, int]] = {
            "CUDAExecutionProvider": gpu,
            "CPUExecutionProvider": {},
        }
        fastest = [(name, how) for name, how in known.items() if name in here]
        try:
            self.session = onnxruntime.InferenceSession(
                str(self.path), providers=list(providers or fastest)
            )
        except (
            Exception
        ) as error:  # Each fault has its own class there, and none of them a public parent.
            raise InputError(
                f"expected {self.path} to be an ONNX model; ONNX Runtime says: {error}"
            ) from error
        inputs, outputs = (
            self.session.get_inputs(),
            [node.name for node in self.session.get_outputs()],
        )
        if len(inputs) != 1 or len(inputs[0].shape) != 4:
            found = ", ".join(f"{node.name} {node.shape}" for node in inputs)
            raise InputError(f"expected {self.path} to take one input (n, c, h, w), found {found}")
        if output is None and len(outputs) > 1:
            raise InputError(
                f"expected {self.path} to have one output, found {', '.join(outputs)}: name the logits"
            )
        if output is not None and output not in outputs:
            raise InputError(
                f"expected {self.path} to have an output {output!r}, found {', '.join(outputs)}"
            )
        self.output = output or outputs[0]
        self.input, self.shape = inputs[0].name, inputs[0].shape
        dtypes = {
            "tensor(float)": np.float32,
            "tensor(float16)": np.float16,
            "tensor(double)": np.float64,
        }
        if inputs[0].type not in dtypes:
            raise InputError(
                f"expected {self.path} to take floating point pixels, found {inputs[0].type}"
            )
        self.dtype = np.dtype(dtypes[inputs[0].type])
        self.width: int | None = None  # of its answers, once it has given one

    def answer(self, images: Images) -> Tensor:
        """Give what it gives, on the device of the images."""
        if torch.compiler.is_compiling():  # for a graph in ONNX, into which the file is put
            stands_for: Any = {
                "dtype": images.dtype,
                "shape": (images.shape[0], self.width),
                "version": 1,
            }
            return torch.onnx.ops.symbolic(STAND_IN, (images,), **stands_for)
        for got, expected in zip(images.shape[1:], self.shape[1:], strict=True):
            if isinstance(expected, int) and got != expected:
                raise InputError(
                    f"expected images of shape {tuple(self.shape)} as {self.path.name} does, got {tuple(images.shape)}"
                )
        pixels = images.detach().cpu().numpy().astype(self.dtype)
        n = pixels.shape[0]
        size = self.shape[0] if isinstance(self.shape[0], int) else max(n, 1)
        parts = []
        for start in range(0, max(n, 1), size):
            part = pixels[start : start + size]
            padding = np.zeros((size - part.shape[0], *part.shape[1:]), part.dtype)
            (answer,) = self.session.run(
                [self.output], {self.input: np.concatenate([part, padding])}
            )
            parts.append(answer[: part.shape[0]])
        self.width = parts[0].shape[-1]
        return _checked(_as_tensor(np.concatenate(parts)), images)

    def __reduce__(self) -> tuple[type["OnnxModel"], tuple[Path, Sequence[str] | None, str]]:
        return OnnxModel, (
            self.path,
            self.providers,
            self.output,
        )  # A session cannot be copied; another can be opened.


class NumpyModel(_Answering):
    """A function from a float array of pixels to an array of logits; `channels_last` passes n h w c."""

    def __init__(self, fn: Callable[[Any], Any], *, channels_last: bool = False) -> None:
        super().__init__()
        self.fn, self.channels_last = fn, channels_last

    def answer(self, images: Images) -> Tensor:
        """Give what it gives, on the device of the images."""
        pixels = images.detach().cpu()
        answer = self.fn(
            np.ascontiguousarray(
                (pixels.permute(0, 2, 3, 1) if self.channels_last else pixels).numpy()
            )
        )
        return _checked(_as_tensor(answer), images)


class FromProbabilities(nn.Module):
    """A model that ends in a softmax: the logarithm of its probabilities are logits, up to a constant an image.

    One probability an image, of a model that ends in a sigmoid, is that of class 1 of two.
    """

    def __init__(self, model: object) -> None:
        super().__init__()
        self.model = as_logits(model)

    def forward(self, images: Images) -> Logits:
        """Give the log-probabilities; a probability of zero counts as the smallest float, so that all stay finite."""
        probs: Tensor = (
            self.model.answer(images) if isinstance(self.model, _Answering) else self.model(images)
        )
        probs = torch.cat([1 - probs, probs], dim=1) if probs.shape[1] == 1 else probs
        probs = probs if probs.dtype == torch.float64 else probs.float()
        if not torch.compiler.is_compiling():  # A graph cannot look at values.
            sums = probs.sum(dim=1)
            if not ((probs >= 0).all() and torch.allclose(sums, torch.ones_like(sums), atol=0.01)):
                raise InputError(
                    f"expected probabilities that sum to 1 for every image, got values from {probs.min():.3g} to "
                    f"{probs.max():.3g} and sums from {sums.min():.3g} to {sums.max():.3g}; a model of logits needs no "
                    "FromProbabilities"
                )
        return probs.clamp(min=torch.finfo(torch.float32).tiny).log()


def as_logits(model: object) -> nn.Module:
    """Return a module from pixels to logits for a `torch` or Hugging Face module or for the path of an ONNX file."""
    if isinstance(model, _Answering | FromProbabilities):
        return model
    if isinstance(model, nn.Module):
        return TorchModel(model)
    if isinstance(model, str | Path):
        if Path(model).suffix != ".onnx":
            raise InputError(
                f"expected a module or the path of an .onnx file, got the path {model}"
            )
        return OnnxModel(model)
    raise InputError(
        f"expected a torch module or the path of an .onnx file, got {type(model).__name__}; "
        "wrap a function on NumPy arrays in NumpyModel(fn)"
    )


def normalised(model: object, preprocess: Preprocess | None) -> object:
    """Put the last step of preprocessing around a model: the views before it are of pixels in [0, 1].

    A model that normalises in the same way already is left as it is; one that does so in another way is refused.
    """
    if preprocess is None or (preprocess.mean is None and preprocess.channels != "BGR"):
        return model
    channels, count = (
        "BGR" if preprocess.channels == "BGR" else "RGB",
        len(preprocess.channels or "RGB"),
    )
    mean, std = preprocess.mean or (0.0,) * count, preprocess.std or (1.0,) * count
    inner = model
    while isinstance(inner, TorchModel | FromProbabilities):
        inner = inner.model
    if not isinstance(inner, Normalized):
        whole = as_logits(model) if isinstance(model, str | Path) else model
        return Normalized(whole, mean, std, channels) if isinstance(whole, nn.Module) else model
    there = (inner.mean.tolist(), inner.std.tolist())
    same = (
        inner.channels == channels
        and len(there[0]) == len(mean)
        and np.allclose(there, (mean, std), atol=1e-6)
    )
    if not same:
        raise InputError(
            f"preprocess: the model normalises already, by mean {_short(there[0])} and std {_short(there[1])}, and not as "
            f"'{preprocess}' does: give the network without its Normalized, or a preprocess without mean and std"
        )
    return model


def left_unnormalised(model: object) -> Preprocess | None:
    """What a network of timm's says that it wants, where that is normalised pixels and nothing around it normalises."""
    inner = model
    while isinstance(inner, TorchModel | FromProbabilities):
        inner = inner.model
    if not isinstance(getattr(inner, "pretrained_cfg", None), Mapping):
        return None
    wanted = Preprocess.of(inner)
    plain = set(wanted.mean or ()) <= {0.0} and set(wanted.std or ()) <= {1.0}
    return None if plain else wanted


@contextmanager
def watched_spread(network: nn.Module) -> Iterator[Callable[[], float | None]]:
    """Watch the first batch normalisation while the network runs, and say how much of its training's variance it is given.

    It remembers the variance of each channel in training: pixels that are normalised otherwise show there, whatever the
    network answers. The median of all channels is 0.5 to 1.2 on images like those of training. None: nothing remembers.
    """
    norms = (
        m for m in network.modules() if isinstance(m, nn.BatchNorm2d) and m.running_var is not None
    )
    seen, norm = list[Tensor](), next(norms, None)
    if (
        norm is None or norm.running_var is None or (norm.running_var == 1).all()
    ):  # as it was made, before any training
        yield lambda: None
        return
    trained = norm.running_var.detach().double().cpu()
    hook = norm.register_forward_pre_hook(
        lambda _, given: seen.append(given[0].detach().double().cpu())
    )
    try:
        yield (
            lambda: (
                float((torch.cat(seen).var(dim=(0, 2, 3)) / trained).nanmedian()) if seen else None
            )
        )
    finally:
        hook.remove()


def class_names_of(model: object) -> tuple[str, ...]:
    """The names of the classes that a network itself knows: Hugging Face's `config.id2label`, timm's `label_names`."""
    inner: Any = model
    while isinstance(inner, TorchModel | FromProbabilities | Normalized):
        inner = inner.model
    table = getattr(getattr(inner, "config", None), "id2label", None)
    if isinstance(table, Mapping) and sorted(map(int, table)) == list(range(len(table))):
        names = [str(table[key]) for key in sorted(table, key=int)]
        # What a configuration has for want of names; the one output of a network of two classes is not one of them.
        made_up = len(names) == 1 or all(name == f"LABEL_{i}" for i, name in enumerate(names))
        return () if made_up else tuple(names)
    config = getattr(inner, "pretrained_cfg", None)
    own = config.get("label_names") if isinstance(config, Mapping) else None
    return tuple(map(str, own)) if own else ()


def _short(values: Sequence[float]) -> str:
    return " ".join(f"{value:.4g}" for value in values)


def _as_tensor(answer: Any) -> Any:
    """A copy as a tensor: float64 stays, half precision becomes float32, and whole numbers stay for `_checked`."""
    if isinstance(answer, tuple | list | Mapping):
        return answer
    array = np.asarray(answer)
    if array.dtype.kind in "iub" or array.dtype == np.float64:
        return torch.from_numpy(array.copy())
    return torch.from_numpy(array.astype(np.float32))


def _checked(answer: Any, images: Tensor) -> Tensor:
    expected = f"expected the model to return logits of shape ({images.shape[0]}, k)"
    if not isinstance(answer, Tensor):
        size = f" of {len(answer)}" if isinstance(answer, tuple | list) else ""
        hint = "; return the logits alone" if isinstance(answer, tuple) else ""
        raise InputError(f"{expected}, got a {type(answer).__name__}{size}{hint}")
    squeezed = (
        answer.is_floating_point() and answer.shape == images.shape[:1]
    )  # one number an image
    found: Tensor = answer[:, None] if squeezed else answer
    if found.ndim != 2 or found.shape[0] != images.shape[0]:
        raise InputError(f"{expected}, got shape {tuple(found.shape)}")
    if not found.is_floating_point():
        raise InputError(
            f"{expected} as floating point numbers, got {found.dtype}: are these classes?"
        )
    return found.to(images.device)
