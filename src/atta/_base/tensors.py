"""Read and write safetensors files with text metadata and a digest of everything in the file."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from atta._base.errors import InputError
from atta._base.files import check_digest, digest, named, whole_file

HASH, DIGEST = "atta.hash", "atta.digest"
"""Metadata keys: the hash function of the digest, and the digest."""
GPU_NUMBERS = 1 << 25  # numbers in a piece on a GPU that does not tell its memory


def piece_rows(numbers: int, width: int, device: torch.device) -> int:
    """Return how many rows of `width` numbers to compute at a time.

    On a CPU these are `numbers` in all, which fit its caches. On a GPU they are far more, because
    launching a kernel takes longer than it computes: 1/128 of its memory, as float32.
    """
    if device.type == "cuda":
        numbers = torch.cuda.get_device_properties(device).total_memory >> 9
    elif device.type != "cpu":
        numbers = GPU_NUMBERS
    return max(1, numbers // width)


def read_tensors(
    path: str | os.PathLike[str], *, sealed: bool = True
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and the text metadata of a safetensors file; check its digest.

    The tensors are mapped into memory. `sealed=False` skips the check and leaves pages unread.
    """
    with _opened(path) as file:
        metadata = dict(file.metadata() or {})
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    expected = metadata.pop(DIGEST, None)
    if expected is not None or HASH in metadata:  # one without the other is damage
        if sealed:
            check_digest(path, expected, digest(metadata, buffers(tensors)))
        metadata.pop(HASH, None)
    return tensors, metadata


def read_header(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return the text metadata of a safetensors file, without reading its tensors."""
    with _opened(path) as file:
        return dict(file.metadata() or {})


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[Any]:
    path = named(path)
    if path.is_dir():
        raise InputError(
            f"expected a file, got the folder {path}; "
            "CalibratedClassifier.load reads a saved classifier"
        )
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except FileNotFoundError:
        raise InputError(f"there is no file {path}") from None
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} is not a whole safetensors file ({error})") from None


def write_tensors(
    path: str | os.PathLike[str],
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str],
    *,
    sealed: bool = True,
) -> Path:
    """Write a safetensors file completely or not at all; `sealed` adds a digest of its content."""
    separate = _separate(tensors)
    text = dict(metadata)
    if sealed:
        text[HASH] = "sha256"
        text[DIGEST] = digest(text, buffers(separate))
    try:
        with whole_file(path) as part:
            save_file(separate, part, text)
            _sort_metadata(part)
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} could not be written ({error})") from None
    return Path(path)


def buffers(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, memoryview]]:
    """Yield what a digest covers, by name: a line of name, dtype and shape, and the bytes."""
    for name, tensor in sorted(tensors.items()):
        yield f"{name} {tensor.dtype} {tuple(tensor.shape)}", tensor_bytes(tensor).data


def _separate(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors on the CPU, copied if they share memory, which safetensors refuses."""
    separate, taken = dict[str, Tensor](), set[int]()
    for name, tensor in tensors.items():
        plain = tensor.detach().cpu().contiguous()
        memory = plain.untyped_storage().data_ptr()
        separate[name] = plain.clone() if memory in taken else plain
        taken.add(memory)
    return separate


def _sort_metadata(path: Path) -> None:
    """Sort the metadata, which safetensors writes in random order: equal records, equal files."""
    with path.open("r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        header["__metadata__"] = dict(sorted(header.get("__metadata__", {}).items()))
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        if len(text) <= size:  # the tensors stay in place; the format pads with spaces
            file.seek(8)
            file.write(text.ljust(size))


def plain(values: Any) -> Any:
    """Return a column of pandas or polars as an array, and an array of texts as a list."""
    if hasattr(values, "to_numpy"):
        values = values.to_numpy()
    texts = isinstance(values, np.ndarray) and values.dtype.kind in "OUT"
    return values.tolist() if texts else values


def as_tensor(values: Any, name: str, expected: str, *, lists_as_numpy: bool = False) -> Tensor:
    """Return numbers in memory as a tensor; `lists_as_numpy` reads Python floats as float64.

    Raises:
        InputError: The values are not numbers; the message names them and what was expected.
    """
    given, values = type(values).__name__, plain(values)
    found = values
    try:
        if isinstance(values, np.ndarray) or (lists_as_numpy and not isinstance(values, Tensor)):
            # torch shares the memory of contiguous and writeable arrays only
            found = np.require(values, requirements=["C", "W"])
            found = found.astype(found.dtype.newbyteorder("="), copy=False)
        found = torch.as_tensor(found)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise InputError(f"{name}: expected {expected}, got {given} ({error})") from None
    if found.is_meta or found.layout != torch.strided:
        layout = f"layout {found.layout}; see Tensor.to_dense"
        got = "the meta device, which holds none" if found.is_meta else layout
        raise InputError(f"{name}: expected numbers in memory, got a tensor of {got}")
    return found


def tensor_bytes(tensor: Tensor) -> Any:
    """Return the bytes of a tensor of any dtype, without a copy if it is contiguous on the CPU."""
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
