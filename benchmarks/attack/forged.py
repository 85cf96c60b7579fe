"""Forged files: right in form and checksum, wrong in content. Each is refused, and nothing in it is run.

Every file is read in a child with little memory: one that crashes the reader or fills the memory is found, and costs nothing.
"""

import json
import pickle
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn

import atta
from benchmarks.attack import toys
from benchmarks.attack.children import Ended, command, little_memory, run
from benchmarks.attack.files import (
    SEALED,
    bombs,
    read_calibrator,
    read_classifier,
    read_experiment,
    read_record,
    read_results,
)
from benchmarks.attack.tally import Attack, Effort, Tally, refusal

SECONDS = 15.0  # for one file
MEMORY = 3_000_000_000  # bytes that a reader may take
HUGE = 10**12  # of anything: no machine has so much, so that it fails at once
Case: TypeAlias = tuple[str, Callable[[], Any]]
"""What is forged, and the call that has to refuse it."""


def refused(action: Callable[[], Any], log: Path) -> str:
    """What is wrong with how a forged file was met, or "": one sentence refuses it."""

    def act() -> None:
        little_memory(MEMORY)
        warnings.simplefilter("ignore")
        try:
            action()
        except Exception as error:
            print(refusal(error) or error)
            raise SystemExit(2 if refusal(error) else 1) from None

    ended = run(act, log=log, limit=SECONDS)
    if ended.code == 2:
        return ended.text
    return ended.trouble or ("" if ended.code else "expected a refusal, it was read")


def try_all(tally: Tally, cases: Iterator[Case], folder: Path) -> None:
    """Count each case: it is refused, and what it carries is not run."""
    sentinel = folder / "it-ran"
    for what, action in cases:
        trouble = refused(action, folder / "log.txt")
        if sentinel.exists():
            trouble = f"CODE IN THE FILE WAS RUN; {trouble}"
            sentinel.unlink()
        tally.count(not trouble, f"{what}: {trouble}")


@contextmanager
def place() -> Iterator[Path]:
    """A folder for forged files."""
    with tempfile.TemporaryDirectory() as home:
        yield Path(home)


# ---- files of ours -------------------------------------------------------------------------------------------------


def classifiers(folder: Path) -> Iterator[Case]:
    """Classifiers whose digest is right and whose content is not."""
    from atta.classifier import archive

    plain = toys.classifier()
    plain.save(folder / "plain.safetensors")
    about, parts = archive.read(folder / "plain.safetensors")
    about = {
        key: value
        for key, value in about.items()
        if key not in ("parts", "digest", "format", "format_version")
    }
    for name in parts:
        less = {key: part for key, part in parts.items() if key != name}
        path = archive.write(folder / f"no {name}.safetensors", about, less)
        yield f"a classifier without {name}", partial(read_one, path)
    deep: Any = 1
    for _ in range(400):
        deep = {"kind": "TorchModel", "model": deep}
    changes: dict[str, dict[str, Any]] = {
        "dtype load": {"dtype": "load"},
        "dtype nn": {"dtype": "nn"},
        "dtype 5": {"dtype": 5},
        "image_shape abc": {"image_shape": "abc"},
        "image_shape with None": {"image_shape": [3, None, 8]},
        "image_shape huge": {"image_shape": [3, 10**9, 10**9]},
        "class_names 5": {"class_names": 5},
        "policy 5": {"policy": 5},
        "policy huge": {"policy": "99999999 crop"},
        "summary text": {"summary": "x"},
        "summary of another kind": {"summary": {"x": 1}},
        "model None": {"model": None},
        "model of no kind": {"model": {"kind": "os.system"}},
        "model with settings": {"model": {"kind": "atta", "name": "small_cnn", "classes": "x"}},
        "model of many classes": {
            "model": {"kind": "atta", "name": "small_cnn", "classes": 10**12}
        },
        "model of another name": {"model": {"kind": "atta", "name": "__import__"}},
        "deep": {"model": deep},
        "class of another module": {
            "model": {
                "kind": "transformers",
                "class": "pipelineForImageClassification",
                "config": {},
            }
        },
    }
    for what, change in changes.items():
        path = archive.write(folder / f"{what}.safetensors", {**about, **change}, parts)
        yield f"a classifier, {what}", partial(read_one, path)


def transformers_networks(folder: Path) -> Iterator[Case]:
    """Configurations that name code, hubs or paths, in a classifier of the transformers library."""
    import transformers

    from atta.calibrators import Vanilla
    from atta.classifier import archive

    small = {
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 8,
    }
    config = transformers.ViTConfig(image_size=8, patch_size=4, num_labels=toys.CLASSES, **small)
    network = transformers.ViTForImageClassification(config).eval()
    calibrator = Vanilla().fit(*toys.predictions())
    atta.CalibratedClassifier(network, calibrator, image_shape=toys.SHAPE).save(
        folder / "vit.safetensors"
    )
    about, parts = archive.read(folder / "vit.safetensors")
    about = {
        key: value
        for key, value in about.items()
        if key not in ("parts", "digest", "format", "format_version")
    }
    text = json.dumps(about)
    changes: dict[str, dict[str, Any]] = {
        "attn_implementation of a hub": {"attn_implementation": "org/kernel"},
        "attn_implementation with a version": {"attn_implementation": "org/kernel@main:function"},
        "_attn_implementation": {"_attn_implementation": "org/kernel"},
        "_attn_implementation_internal": {"_attn_implementation_internal": "org/kernel"},
        "attn_implementation in a table": {"attn_implementation": {"": "org/kernel"}},
        "experts_implementation": {"experts_implementation": "org/kernel"},
        "auto_map": {
            "auto_map": {"AutoModel": "org/repo--modeling.Model"},
            "trust_remote_code": True,
        },
        "a path as the type": {"model_type": "../../x"},
        "an activation by path": {"hidden_act": "os.system"},
        "a backbone of a hub": {"backbone": "org/repo", "use_pretrained_backbone": True},
    }
    for what, change in changes.items():
        forged = json.loads(text)
        inner = forged["model"]
        while "model" in inner:
            inner = inner["model"]
        inner["config"] = {**inner["config"], **change}
        path = archive.write(folder / f"{what}.safetensors", forged, parts)
        yield f"a vit, {what}", partial(_read_watched, path, folder / "it-ran")


def texts(folder: Path) -> Iterator[Case]:
    """Files of JSON and TOML that are right as such and wrong as ours."""
    deep = 100_000
    for name, read in (
        ("results.json", read_results),
        ("classifier/classifier.json", read_classifier),
    ):
        for what, text in {
            "deep lists": "[" * deep + "]" * deep,
            "deep objects": '{"a":' * deep + "1" + "}" * deep,
            "a huge number": '{"format": "atta.results", "version": ' + "9" * 5000 + "}",
            "parts of numbers": json.dumps(
                {"format": "atta.classifier", "format_version": 1, "parts": [5]}
            ),
            "parts named by paths": json.dumps(
                {"format": "atta.classifier", "format_version": 1, "parts": {"../../x": {}}}
            ),
            "null": "null",
            "text": '"x"',
            "NaN": "NaN",
            "no UTF-8": "\udcff",
            "a mark of the byte order": "\ufeff{}",
        }.items():
            path = folder / what.replace(" ", "-") / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode("utf-8", "surrogateescape"))
            yield f"{name}: {what}", partial(read, path)
    for what, text in {
        "deep lists": "a = " + "[" * 5000 + "]" * 5000,
        "deep tables": "[" + ".".join(["a"] * 20_000) + "]",
        "a huge number": "splits = " + "9" * 5000,
        "methods of numbers": toys.EXPERIMENT.replace("[methods.vanilla]", "") + "\nx = [5]",
        "a method of another kind": toys.EXPERIMENT + "method = 5",
        "a date": "name = 2024-01-01",
    }.items():
        path = folder / f"{what}.toml"
        path.write_text(text)
        yield f"toml: {what}", partial(read_experiment, path)


def headers(folder: Path) -> Iterator[Case]:
    """Files of safetensors whose header is odd."""
    from safetensors.torch import save_file

    tensors = {"logits": torch.zeros(4, 3), "view.flip": torch.zeros(4, 1, 3)}
    abouts = (
        "",
        "null",
        "[]",
        "5",
        '{"calibrator": "os"}',
        "[" * 50_000,
        '{"calibrator": "Steps", "options": {"__class__": 1}}',
    )
    for i, about in enumerate(abouts):
        path = folder / f"calibrator{i}.safetensors"
        save_file(
            {"limit": torch.ones(())},
            path,
            {"format": "atta.calibrator", "format_version": "1", "about": about},
        )
        yield f"a calibrator about {about[:40]!r}", partial(read_calibrator, path)
    for i, version in enumerate(("-1", "99", "x", "", "9" * 5000)):
        path = folder / f"version{i}.safetensors"
        save_file(
            {"limit": torch.ones(())},
            path,
            {"format": "atta.calibrator", "format_version": version, "about": "{}"},
        )
        yield f"a calibrator of version {version[:20]!r}", partial(read_calibrator, path)
    others = {
        "labels": torch.zeros(4, 3),
        "labels of floats": torch.zeros(4),
        "nan": torch.full((4, 3), float("nan")),
    }
    for what, tensor in others.items():
        path = folder / f"record {what}.safetensors"
        save_file({**tensors, "logits" if what == "nan" else "labels": tensor}, path, {})
        yield f"a record with {what}", partial(read_record, path)
    for size in (0, 1, 2**31, 2**62):
        path = folder / f"size{size}.safetensors"
        path.write_bytes(size.to_bytes(8, "little") + b"{}")
        yield f"a header of {size} bytes", partial(read_record, path)


def pickles(folder: Path) -> Iterator[Case]:
    """Pickles in the place of every file."""
    readers = (*SEALED.items(), ("network.onnx", read_graph))
    for kind, bomb in bombs(folder / "it-ran").items():
        for name, read in readers:
            path = toys.fresh(folder / kind / name) / name
            path.write_bytes(bomb)
            yield f"{kind} named {name}", partial(read, path)


def our_files(tally: Tally, effort: Effort) -> None:
    """Pickles, names of code, missing parts, odd values, deep JSON and TOML."""
    with place() as folder:
        for kind in (pickles, classifiers, texts, headers, transformers_networks):
            try_all(tally, kind(folder), folder)


def read_one(path: Path) -> Any:
    """A classifier in one file, of any name."""
    return atta.CalibratedClassifier.load(path).about()


def read_graph(path: Path) -> Any:
    """An exported graph."""
    from atta.classifier.export import open_graph

    return open_graph(path)


def _read_watched(path: Path, sentinel: Path) -> Any:
    """Read a classifier; note whenever transformers would load code from a hub."""
    from transformers import modeling_utils
    from transformers.integrations import hub_kernels

    for module in (hub_kernels, modeling_utils):
        for name in ("load_and_register_attn_kernel", "get_kernel", "lazy_load_kernel"):
            if hasattr(module, name):
                setattr(module, name, lambda *_, **__: sentinel.touch())
    return read_one(path)


# ---- records, networks, images -------------------------------------------------------------------------------------


def forged_indices(tally: Tally, effort: Effort) -> None:
    """The index of a record in a folder, with a new checksum: paths that lead outside, sizes, types and names."""
    with place() as folder:
        try_all(tally, _indices(folder), folder)


def _indices(folder: Path) -> Iterator[Case]:
    import shutil

    from atta._base.files import digest

    plain = folder / "record"
    with atta.RecordWriter(plain) as writer:
        rows, labels = toys.predictions(20)
        writer.append(rows.logits, rows.views, labels)
    whole = json.loads((plain / "record.json").read_text())
    whole.pop("digest")
    (shard,) = (part["file"] for group in whole["groups"] for part in group["parts"])
    shutil.copy(plain / shard, folder / "outside.safetensors")

    def parts(**change: Any) -> dict[str, Any]:
        group = whole["groups"][0]
        return {"groups": [group | {"parts": [group["parts"][0] | change]}]}

    def columns(change: Any) -> dict[str, Any]:
        return {"groups": [whole["groups"][0] | {"columns": change}]}

    known = whole["groups"][0]["columns"]
    changes: dict[str, dict[str, Any]] = {
        "a shard in ..": parts(file="../outside.safetensors"),
        "a shard in its folder and ..": parts(file="x/../../outside.safetensors"),
        "a shard by an absolute path": parts(file=str(folder / "outside.safetensors")),
        "a device as a shard": parts(file="/dev/zero"),
        "a folder as a shard": parts(file="."),
        **{
            f"a shard named {name!r:.20}": parts(file=name)
            for name in ("", 5, None, "\0", "x" * 5000)
        },
        **{f"a shard to {stop!r}": parts(stop=stop) for stop in (HUGE, -1, 0, "20", 20.5, None)},
        **{f"a shard from {start!r}": parts(start=start) for start in (-1, 1, "0", None)},
        **{f"{n!r} images": {"images": n} for n in (HUGE, -1, 0, 10, "20", None, True)},
        **{f"{k!r} classes": {"classes": k} for k in (HUGE, -1, 0, 2, "3", None)},
        **{f"dtype {name!r}": {"dtype": name} for name in ("load", "nn", "int64", "", 5, None)},
        "no groups": {"groups": []},
        "groups of text": {"groups": "x"},
        "no columns": columns({}),
        "a column too far": columns(known | {"flip": [99, 1]}),
        "a column of many": columns(known | {"flip": [1, HUGE]}),
        "a column before the first": columns(known | {"flip": [-1, 1]}),
        "a column of text": columns(known | {"flip": "ab"}),
        "a column with no pass": columns(known | {"flip": [1, 0]}),
        "two columns of one pass": columns(known | {"flip": known["brightness"]}),
        "other labels": {"labelled": "0" * 64},
        "labels of a number": {"labelled": 5},
        "an origin of text": {"origin": "x"},
        "a version of text": {"version": "x"},
        "a version to come": {"version": 99},
    }
    for what, change in changes.items():
        content = json.loads(json.dumps({**whole, **change}))
        place = folder / f"{len(list(folder.iterdir()))}"
        shutil.copytree(plain, place, symlinks=True)
        (place / "record.json").write_text(json.dumps({**content, "digest": digest(content)}))
        yield f"an index with {what}", partial(_read_all, place)


def _read_all(path: Path) -> None:
    """Read a record to its last number."""
    found = atta.Record.load(path)
    rows = found.predictions
    _ = rows.logits.sum(), [view.sum() for view in rows.views.values()], found.labels
    _ = [part.logits for part in rows.chunks(7)]


def forged_networks(tally: Tally, effort: Effort) -> None:
    """What a trained network says of itself: classes, settings, mean and std of every kind."""
    with place() as folder:
        try_all(tally, _networks(folder), folder)


def _networks(folder: Path) -> Iterator[Case]:
    from atta._base.tensors import read_tensors, write_tensors
    from atta.lab.recipe import load_trained

    path = _train(folder / "trained").path
    tensors, header = read_tensors(path)
    about = json.loads(header["atta"])
    settings = about["architecture"]

    def built(**change: Any) -> dict[str, Any]:
        return {"architecture": {**settings, **change}}

    changes: dict[str, Any] = {
        **{f"name {name!r}": built(name=name) for name in ("os", "", None, 5, ["small_cnn"], {})},
        **{f"num_classes {k!r}": built(num_classes=k) for k in (HUGE, -1, 0, 3, "2", None, 2.5)},
        **{f"in_channels {c!r}": built(in_channels=c) for c in (HUGE, -1, 0, "1", None)},
        "a setting that no network has": built(__class__="x"),
        "an architecture of text": {"architecture": "small_cnn"},
        "no architecture": {"architecture": None},
        **{f"{key} {value!r}": {key: value} for key in ("mean", "std") for value in (
            None, 5, "x", [], [0.5] * 7, ["a"], [[0.5]], [float("nan")], [float("inf")], {})},
        "std 0": {"std": [0.0]},
        "std below 0": {"std": [-1.0]},
    }  # fmt: skip
    forged = {what: json.dumps({**about, **change}) for what, change in changes.items()}
    forged |= {name: name for name in ("", "null", "[]", "5", '"x"', "{", "{}")}
    forged["deep lists"] = "[" * 100_000 + "]" * 100_000
    for i, (what, text) in enumerate(forged.items()):
        path = write_tensors(folder / f"{i}.safetensors", tensors, {**header, "atta": text})
        yield f"a trained network, {what[:40]}", partial(load_trained, path)


def forged_image_sets(tally: Tally, effort: Effort) -> None:
    """Saved sets of images with other tensors and other words, and with a right checksum."""
    with place() as folder:
        try_all(tally, _image_sets(folder), folder)


def _image_sets(folder: Path) -> Iterator[Case]:
    from atta._base.tensors import write_tensors
    from atta.data.image_set import ImageSet

    images, labels = toys.images(6), torch.arange(6) % 3
    plain = {"images": images, "labels": labels, "indices": torch.arange(6)}
    words = {"name": "toy", "classes": '["a", "b", "c"]'}
    changes: dict[str, dict[str, Any]] = {
        "images of floats": {"images": images.float()},
        "images without channels": {"images": images[:, 0]},
        "no images": {"images": images[:0], "labels": labels[:0], "indices": labels[:0]},
        "images without pixels": {"images": images[..., :0]},
        "few labels": {"labels": labels[:5]},
        "labels of floats": {"labels": labels + 0.5},
        "labels of NaN": {"labels": torch.full((6,), float("nan"))},
        "labels too high": {"labels": labels + 1},
        "labels too low": {"labels": labels - 1},
        "labels of two columns": {"labels": labels[:, None]},
        "few indices": {"indices": torch.arange(5)},
        "indices of floats": {"indices": torch.arange(6) + 0.5},
        "indices of two columns": {"indices": torch.zeros(6, 2, dtype=torch.int64)},
    }
    texts = (
        "",
        "null",
        "5",
        '"abc"',
        "{}",
        "[1, 2, 3]",
        '["a", "b"]',
        "[[]]",
        "[" * 90_000,
    )
    for i, (what, change) in enumerate(changes.items()):
        path = write_tensors(folder / f"{i}.safetensors", {**plain, **change}, words)
        yield f"an image set, {what}", partial(_decoded, ImageSet, path)
    for i, text in enumerate(texts):
        path = write_tensors(folder / f"t{i}.safetensors", plain, {**words, "classes": text})
        yield f"an image set with classes {text[:20]!r}", partial(_decoded, ImageSet, path)


def _decoded(kind: Any, path: Path) -> None:
    """Read a set of images, and all that is in it."""
    found = kind.load_file(path)
    _ = found.tensors(), found[len(found) - 1], found.subset([0])


# ---- CIFAR's pickles -----------------------------------------------------------------------------------------------


class Made:
    """What becomes, in a pickle, a call: `Made(function, arguments, state)`."""

    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> Any:
        return self.call


def _array(shape: Any, dtype: Any, raw: Any) -> Made:
    """An array as NumPy pickles it, with any shape, dtype and content."""
    rebuild, start, _ = np.zeros(1, np.uint8).__reduce__()
    return Made(rebuild, start, (1, shape, dtype, False, raw))


def _cifar_contents() -> Iterator[tuple[str, dict[bytes, Any]]]:
    """The content of a test batch, each wrong in one way."""
    raw, n = b"A" * 3072 * 4, 4  # as addresses, nothing that a process may read
    pixels, labels = np.frombuffer(raw, np.uint8).reshape(n, 3072), [0, 1, 2, 3]

    def dtype(name: str, *state: Any) -> Made:
        return Made(np.dtype, (name, False, True), (3, "|", None, None, None, *state))

    fields = (3, "|", None, ("a",), {"a": (np.dtype("O"), 0)}, 8, 1, 16)
    hidden = Made(np.dtype, ("V8", False, True), (*fields[:-1], 0))
    loop: list[Any] = []
    loop.append(loop)
    many: Any = [0] * 10
    for _ in range(12):  # 10^13 numbers in a few hundred bytes
        many = [many] * 10
    for what, data in {
        "objects in the bytes": _array((1536,), np.dtype("O"), raw),
        "objects by ndarray": Made(np.ndarray, ((1536,), np.dtype("O"), raw)),
        "objects that the dtype hides": _array((1536,), hidden, raw),
        "objects that the dtype hides, by ndarray": Made(np.ndarray, ((1536,), hidden, raw)),
        "fields of objects": _array((1536,), Made(np.dtype, ("V8", False, True), fields), raw),
        "items of 2^40 bytes": _array((n,), dtype("V8", 2**40, 1, 0), raw),
        "items of -8 bytes": _array((n,), dtype("V8", -8, 1, 0), raw),
        "bytes of 2^40 bytes": _array((n, 3072), dtype("u1", 2**40, 1, 0), raw),
        "a dtype of many": _array((1,), np.dtype(("u1", (2**14, 2**14))), raw),
        "a shape of 2^62": _array((2**31, 2**31), np.dtype("u1"), raw),
        "a shape below 0": _array((-1, 3072), np.dtype("u1"), raw),
        "fewer bytes than the shape": _array((n + 1, 3072), np.dtype("u1"), raw),
        "an array of 10^12 that takes no memory": Made(np.ndarray, ((10**12, 3072), np.dtype("u1"), raw, 0, (0, 0))),
        "an empty array of 10^12": Made(np.ndarray, ((10**12,),)),
        "floats": pixels + 0.5,
        "NaN": np.full((n, 3072), np.nan),
        "numbers over 255": pixels.astype(np.int64) + 300,
        "numbers below 0": pixels.astype(np.int64) - 1,
        "text": np.full((n, 3072), "x"),
        "dates": np.zeros((n, 3072), "datetime64[s]"),
        "images of another size": pixels[:, :-3],
        "more images than labels": np.concatenate([pixels, pixels]),
        "a list in itself": loop,
        "lists of 10^13 numbers": many,
        "a number": 5,
        "nothing": None,
    }.items():  # fmt: skip
        yield f"pixels: {what}", {b"data": data, b"labels": labels}
    for what, wrong in {
        "text": ["a"] * n, "bytes": [b"0"] * n, "floats": [0.5] * n, "huge": [10**30] * n, "below 0": [-1] * n,
        "over 9": [10] * n, "None": None, "a number": 5, "few": [0], "in lists": [[0]] * n, "a list in itself": loop,
        "arrays of objects": _array((n,), np.dtype("O"), bytes(8 * n)), "lists of 10^13 numbers": many,
    }.items():  # fmt: skip
        yield f"labels: {what}", {b"data": pixels, b"labels": wrong}


def forged_cifar(tally: Tally, effort: Effort) -> None:
    """CIFAR's own files, which are pickles, with forged dtypes, shapes, labels and names."""
    with place() as folder:
        try_all(tally, _cifar(folder), folder)


def _cifar(folder: Path) -> Iterator[Case]:
    data = np.full((4, 3072), ord("A"), np.uint8)
    names = [f"class {i}".encode() for i in range(10)]
    batches = [*_cifar_contents(), ("a list", [data])]
    cases = [(what, content, names) for what, content in batches]
    for what, wrong in {
        "numbers": [5] * 10,
        "no text": [b"\xff"] * 10,
        "few": names[:3],
        "None": None,
    }.items():
        cases.append((f"names: {what}", {b"data": data, b"labels": [0, 1, 2, 3]}, wrong))
    bomb = bombs(folder / "it-ran")["a pickle"]
    for i, (what, content, called) in enumerate([*cases, ("code", bomb, names)]):
        inner = toys.fresh(folder / f"{i}" / "cifar10" / "cifar-10-batches-py")
        written = content if isinstance(content, bytes) else pickle.dumps(content)
        (inner / "test_batch").write_bytes(written)
        (inner / "batches.meta").write_bytes(pickle.dumps({b"label_names": called}))
        yield f"CIFAR, {what}", partial(_read_cifar, folder / f"{i}")


def _read_cifar(folder: Path) -> None:
    """Read the test images; those of the honest file are no mistake."""
    from atta.lab.datasets import load

    found = load("cifar10", "test", data=folder)
    labels = None if found.labels is None else found.labels.tolist()
    if labels == [0, 1, 2, 3] and bool((found.tensors() == ord("A")).all()):
        raise atta.InputError("it was read as it should be")


# ---- sizes and graphs ----------------------------------------------------------------------------------------------


def huge_pixels(tally: Tally, effort: Effort) -> None:
    """Preprocessing that makes 10^9 pixels or more of a small photograph."""
    with place() as folder:
        try_all(tally, _huge(folder), folder)


class Average(nn.Module):
    """A network for images of any size."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the mean of each channel."""
        return images.mean(dim=(2, 3))


def _huge(folder: Path) -> Iterator[Case]:
    from PIL import Image

    photos = {"square": (8, 8), "long": (4000, 2)}
    for name, size in photos.items():
        (folder / name).mkdir()
        Image.new("RGB", size).save(folder / name / "photo.png")
    side = 31_623  # squared, 10^9
    settings: dict[str, tuple[str, dict[str, Any]]] = {
        "resize": ("square", {"resize": side}),
        "resize to a pair": ("square", {"resize": (side, side)}),
        "resize to a line": ("square", {"resize": (1, 10**9)}),
        "crop": ("square", {"crop": side}),
        "resize and crop": ("square", {"resize": side, "crop": side}),
        "the short edge of a long photograph": ("long", {"resize": 2000}),
        "the longest edge": ("square", {"resize": side, "fit": "longest"}),
        "to cover": ("square", {"resize": (side, side), "fit": "cover"}),
    }

    def recorded(photo: str, setting: dict[str, Any]) -> None:
        preprocess = atta.Preprocess(**setting)
        atta.collect(
            Average(), folder / photo, policy="flip", preprocess=preprocess, progress=False
        )

    for what, (photo, setting) in settings.items():
        yield f"preprocessing, {what}", partial(recorded, photo, setting)


def failing_graphs(tally: Tally, effort: Effort) -> None:
    """ONNX graphs that load, and fail or answer nonsense when they run: `atta predict` says so."""
    with place() as folder:
        photo = toys.photos(folder / "photos") / "dark" / "000.png"
        toys.classifier().export(folder / "graph.onnx")
        for what, path in _graphs(folder):
            output = folder / "out.csv"

            def act(path: Path = path, output: Path = output) -> None:
                little_memory(MEMORY)
                command("predict", str(path), str(photo), "-o", str(output))()

            ended: Ended = run(act, log=folder / "log.txt", limit=SECONDS)
            right = ended.code in (1, 2) and not ended.trouble
            wrong = ended.trouble or f"exit code {ended.code}, expected a sentence"
            tally.count(right, f"atta predict, a graph {what}: {wrong}")
            output.unlink(missing_ok=True)
            output.with_name("out.csv.part").unlink(missing_ok=True)


def _graphs(folder: Path) -> Iterator[tuple[str, Path]]:
    """Copies of an exported graph, with one more operator before or after it."""
    import onnx
    from onnx import helper, numpy_helper

    def constant(name: str, values: Any, dtype: Any) -> Any:
        return numpy_helper.from_array(np.array(values, dtype), name)

    def changed(op: str, values: Any, dtype: Any, at: str, **settings: Any) -> Path:
        """Insert `op(at, values)` behind the input, or before an output, of this name."""
        model = onnx.load(folder / "graph.onnx")
        graph, inner = model.graph, f"{at} inside"
        first = at == graph.input[0].name
        for node in graph.node:
            names = node.input if first else node.output
            for i, name in enumerate(names):
                if name == at:
                    names[i] = inner
        graph.initializer.append(constant("forged", values, dtype))
        ends = ([at, "forged"], [inner]) if first else ([inner, "forged"], [at])
        if op == "Concat":
            ends = ([ends[0][0]] * 2, ends[1])
        node = helper.make_node(op, *ends, **settings)
        graph.node.insert(0, node) if first else graph.node.append(node)
        path = folder / f"{len(list(folder.iterdir()))}.onnx"
        onnx.save(model, path)
        return path

    yield "that reshapes its images", changed("Reshape", [7, 13, 2], np.int64, "images")
    yield "that gathers what is not there", changed("Gather", [99], np.int64, "images", axis=1)
    yield (
        "that repeats its images 10^12 times",
        changed("Tile", [1, 1, 10**6, 10**6], np.int64, "images"),
    )
    for output in ("probs", "base"):
        yield f"whose {output} are NaN", changed("Mul", np.nan, np.float32, output)
        yield f"whose {output} have other classes", changed("Concat", 0, np.int64, output, axis=1)
        yield f"whose {output} have other rows", changed("Concat", 0, np.int64, output, axis=0)
        yield (
            f"whose {output} are gathered past the end",
            changed("Gather", [99], np.int64, output, axis=1),
        )


def _train(folder: Path) -> Any:
    """A network that is trained in a moment."""
    from atta.data.image_set import ImageSet
    from atta.lab.recipe import Recipe
    from atta.lab.training import train

    images = ImageSet("toy", toys.images(64), torch.arange(64) % 2, ["a", "b"])
    recipe = Recipe(steps=2, batch_size=32)
    return train("small_cnn", images, recipe=recipe, output=folder, device="cpu", progress=False)


ATTACKS = (
    Attack(
        "forged: files",
        "pickles, names of code, missing parts, odd values, deep JSON and TOML",
        our_files,
        300,
    ),
    Attack(
        "forged: records",
        "the index of a record: paths that lead outside, sizes, types, names",
        forged_indices,
    ),
    Attack("forged: networks", "what a trained network says of itself", forged_networks),
    Attack(
        "forged: image sets", "saved sets of images with other tensors and names", forged_image_sets
    ),
    Attack(
        "forged: CIFAR",
        "CIFAR's pickles with forged dtypes, shapes, labels and names",
        forged_cifar,
        300,
    ),
    Attack("huge pixels", "preprocessing that makes 10^9 pixels of a photograph", huge_pixels),
    Attack(
        "failing graphs", "ONNX graphs that fail, or answer nonsense, when they run", failing_graphs
    ),
)
