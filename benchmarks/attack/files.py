"""Files that were cut short, have a bit flipped, or were forged: refused in a sentence, or read as what was written."""

import hashlib
import io
import json
import pickle
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import atta
from benchmarks.attack import toys
from benchmarks.attack.children import time_limit
from benchmarks.attack.inputs import typed
from benchmarks.attack.tally import Attack, Effort, Tally, refusal

SECONDS = 60.0


def known_by(found: Any) -> str:
    """A hash of all that was read."""
    digest = hashlib.sha256()

    def add(value: Any) -> None:
        match value:
            case torch.Tensor():
                digest.update(f"{value.dtype}{tuple(value.shape)}".encode())
                digest.update(
                    value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
                )
            case dict():
                for key in sorted(value, key=str):
                    digest.update(f"{key}=".encode(errors="replace"))
                    add(value[key])
            case tuple() | list():
                for one in value:
                    add(one)
            case _:
                digest.update(repr(value).encode(errors="replace"))

    add(found)
    return digest.hexdigest()


def read_record(path: Path) -> Any:
    """All that a record holds."""
    found = atta.Record.load(path)
    return [
        found.predictions.logits,
        dict(found.predictions.views),
        found.predictions.kinds,
        found.labels,
        dict(found.origin),
    ]


def read_calibrator(path: Path) -> Any:
    """All that a calibrator is."""
    found = atta.load(path)
    return [
        type(found).__name__,
        found.state_dict(),
        found.options,
        repr(found.method),
        found.classes,
        found.kinds,
    ]


def read_classifier(path: Path) -> Any:
    """All that a classifier is; the file lies in its folder, or is it."""
    found = atta.CalibratedClassifier.load(
        path if path.name == "classifier.safetensors" else path.parent
    )
    return [found.model.state_dict(), found.calibrator.state_dict(), found.about()]


def read_results(path: Path) -> Any:
    """All that results hold."""
    return atta.Results.load(path).to_json()


def read_experiment(path: Path) -> Any:
    """What an experiment is."""
    from atta.lab.experiment import Experiment

    return repr(Experiment.read(path))


SEALED: dict[str, Callable[[Path], Any]] = {
    "record.safetensors": read_record,
    "calibrator.safetensors": read_calibrator,
    "classifier.safetensors": read_classifier,
    "results.json": read_results,
}
"""Single files that carry a checksum, and how they are read."""


def damaged(
    whole: bytes, effort: Effort, name: str, cuts: int, flips: int, begin: int = 600
) -> Iterator[tuple[str, bytes]]:
    """The file cut short at some places, and with one bit flipped; a third of the flips in its beginning."""
    draw = effort.random(name)
    places = {
        0,
        1,
        7,
        8,
        9,
        len(whole) // 2,
        len(whole) - 1,
        *(draw.randrange(len(whole)) for _ in range(effort.times(cuts))),
    }
    for place in sorted(place for place in places if place < len(whole)):
        yield f"cut to {place} of {len(whole)} bytes", whole[:place]
    for i in range(effort.times(flips)):
        place = draw.randrange(min(begin, len(whole)) if i % 3 == 0 else len(whole))
        changed = bytearray(whole)
        changed[place] ^= 1 << (bit := draw.randrange(8))
        yield f"bit {bit} of byte {place} flipped", bytes(changed)
    yield "nothing after it but zeros", whole + bytes(64)
    yield "twice", whole + whole


def try_to_read(
    tally: Tally, what: str, path: Path, read: Callable[[Path], Any], expected: str | None
) -> str:
    """Read a damaged file; `expected` is the hash of what was in it, or None if it carries no checksum. Give the hash."""
    try:
        with time_limit(SECONDS), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = known_by(read(path))
    except Exception as error:
        tally.count(not refusal(error), f"{what}: {refusal(error)}")
        return ""
    tally.count(expected in (None, found), f"{what}: went unnoticed")
    return found


@contextmanager
def shop(*, graphs: bool = False) -> Iterator[Path]:
    """A folder of files to damage."""
    with tempfile.TemporaryDirectory() as folder:
        yield toys.workshop(Path(folder) / "shop", graphs=graphs)


def files_with_a_checksum(tally: Tally, effort: Effort) -> None:
    """Records, calibrators, results, classifiers as a folder and as a file: no damage goes unnoticed."""
    with shop() as folder:
        inside = {
            f"classifier/{path.name}": read_classifier
            for path in sorted((folder / "classifier").iterdir())
        }
        for name, read in {**SEALED, **inside}.items():
            path = folder / name
            whole, expected = path.read_bytes(), known_by(read(path))
            for what, content in damaged(whole, effort, name, 8, 40):
                path.write_bytes(content)
                try_to_read(tally, f"{name}: {what}", path, read, expected)
            path.write_bytes(whole)


def the_check_command(tally: Tally, effort: Effort) -> None:
    """`atta check FILE` says of a whole file that it is whole, and of a damaged one that it is not."""
    with shop() as folder:
        for name in (*SEALED, "classifier"):
            trouble, code = _checked(folder / name)
            tally.count(
                not trouble and code == 0, f"atta check {name}: {trouble or f'exit code {code}'}"
            )
        for name in SEALED:
            path = folder / name
            whole = path.read_bytes()
            for what, content in damaged(whole, effort, "check " + name, 2, 12):
                path.write_bytes(content)
                trouble, code = _checked(path)
                alike = code == 0 and try_to_read(Tally(), "", path, SEALED[name], None)
                path.write_bytes(whole)
                alike = bool(alike) and alike == known_by(SEALED[name](path))
                tally.count(
                    not trouble and (code != 0 or alike),
                    f"atta check {name}, {what}: {trouble or 'said to be whole'}",
                )


def _checked(path: Path) -> tuple[str, int]:
    """What is wrong with the way `atta check` ended, and its exit code."""
    import sys

    from atta.cli import app

    codes: list[Any] = []
    original = app.app

    def kept() -> None:
        try:
            original()
        except SystemExit as end:
            codes.append(end.code or 0)
            raise

    app.app = kept
    try:
        trouble = typed(["check", str(path)])
    finally:
        app.app = original
        sys.stdout.flush()
    return trouble, int(codes[-1]) if codes else 0


def files_without_one(tally: Tally, effort: Effort) -> None:
    """Experiments and images: they are read as something, or refused."""
    from PIL import Image

    unnoticed = 0
    with shop() as folder:
        path = folder / "experiment.toml"
        whole, before = path.read_bytes(), known_by(read_experiment(path))
        for what, content in damaged(whole, effort, path.name, 20, 150):
            path.write_bytes(content)
            unnoticed += try_to_read(
                tally, f"experiment.toml: {what}", path, read_experiment, None
            ) not in ("", before)
        picture = folder / "one"
        picture.mkdir()
        for ending in ("png", "jpg", "bmp", "gif", "tif", "webp"):
            path = picture / f"image.{ending}"
            Image.open(folder / "photos" / "dark" / "000.png").save(path)
            for what, content in damaged(path.read_bytes(), effort, ending, 4, 12):
                path.write_bytes(content)
                output = folder / "out.csv"
                trouble = typed(
                    ["predict", str(folder / "classifier"), str(picture), "-o", str(output)]
                )
                tally.count(not trouble, f"atta predict, image.{ending} {what}: {trouble}")
                output.unlink(missing_ok=True)
            path.unlink()
    tally.note = f"{unnoticed} changed experiments are still experiments: text has no checksum"


def graphs(tally: Tally, effort: Effort) -> None:
    """Exported graphs through `atta predict`: an answer or a sentence; the process stays alive."""
    answered = 0
    with shop(graphs=True) as folder:
        for name, cuts, flips in (("graph.onnx", 8, 60), ("graph.pt2", 4, 24)):
            path, output = folder / name, folder / "out.csv"
            for what, content in damaged(path.read_bytes(), effort, name, cuts, flips):
                path.write_bytes(content)
                trouble = typed(
                    [
                        "predict",
                        str(path),
                        str(folder / "photos" / "dark" / "000.png"),
                        "-o",
                        str(output),
                    ]
                )
                tally.count(not trouble, f"atta predict {name}, {what}: {trouble}")
                answered += output.exists()
                output.unlink(missing_ok=True)
                output.with_name("out.csv.part").unlink(missing_ok=True)
    tally.note = f"{answered} changed graphs still answer: they carry no checksum"


# ---- forged files --------------------------------------------------------------------------------------------------


class Bomb:
    """What a forger puts into a pickle."""

    def __init__(self, sentinel: Path) -> None:
        self.sentinel = sentinel

    def __reduce__(self) -> Any:
        return open, (str(self.sentinel), "w")


def bombs(sentinel: Path) -> dict[str, bytes]:
    """The same, as a bare pickle, and as torch.save writes one, in both of its formats."""
    new, old = io.BytesIO(), io.BytesIO()
    torch.save(Bomb(sentinel), new)
    torch.save(Bomb(sentinel), old, _use_new_zipfile_serialization=False)
    return {
        "a pickle": pickle.dumps(Bomb(sentinel)),
        "a torch.save": new.getvalue(),
        "an old torch.save": old.getvalue(),
    }


def rewritten(
    source: Path,
    target: Path,
    change: Callable[[str, bytes], bytes | None],
    extra: dict[str, bytes] | None = None,
) -> None:
    """Copy a zip with some of its entries changed (None leaves one out), and some more in the folder of the first."""
    with (
        zipfile.ZipFile(source) as before,
        zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as after,
    ):
        names = before.namelist()
        for name in names:
            content = change(name, before.read(name))
            if content is not None:
                after.writestr(name, content)
        for name, content in (extra or {}).items():
            after.writestr(f"{names[0].split('/')[0]}/{name}", content)


def forged_pt2(source: Path, folder: Path, sentinel: Path) -> Iterator[tuple[str, Path]]:
    """Files that end in .pt2 and hold pickles, wherever torch.export looks for them."""
    count = 0

    def place() -> Path:
        nonlocal count
        count += 1
        return folder / f"forged{count}.pt2"

    for kind, bomb in bombs(sentinel).items():
        (path := place()).write_bytes(bomb)
        yield f"{kind} named .pt2", path
        for part in ("weights", "constants"):
            (path := place())
            rewritten(source, path, _pickled(part, bomb))
            yield f"{kind} in the place of {part}", path
        for name in ("opaque_obj_0", "custom_obj_0", "tensor_0"):
            config = {
                "config": {
                    "x": {
                        "path_name": name,
                        "is_param": False,
                        "use_pickle": True,
                        "tensor_meta": None,
                    }
                }
            }
            (path := place())
            text = json.dumps(config).encode()
            inside = {f"data/constants/{name}": bomb}
            rewritten(
                source,
                path,
                lambda n, c, t=text: t if n.endswith("model_constants_config.json") else c,
                inside,
            )
            yield f"{kind} as the constant {name}", path
        (path := place())
        rewritten(
            source,
            path,
            lambda n, c, b=bomb: b if "sample_inputs" in n else c,
            {"data/sample_inputs/other.pt": bomb},
        )
        yield f"{kind} as sample inputs", path
        (path := place())
        with zipfile.ZipFile(path, "w") as file:
            from torch._export.serde.schema import SCHEMA_VERSION

            file.writestr("version", ".".join(map(str, SCHEMA_VERSION)))
            with zipfile.ZipFile(source) as whole:
                model = next(
                    name for name in whole.namelist() if name.endswith("models/model.json")
                )
                file.writestr("serialized_exported_program.json", whole.read(model))
            for name in ("state_dict", "constants", "example_inputs"):
                file.writestr(f"serialized_{name}.pt", bomb)
        yield f"{kind} in the layout of torch 2.7", path
    (path := place())
    rewritten(
        source,
        path,
        lambda n, c: c,
        {"data/aotinductor/model/model.so": b"\x7fELF", "data/aotinductor/model/x.cpp": b""},
    )
    yield "a compiled library inside", path
    (path := place())
    rewritten(
        source, path, lambda n, c: c, {"../../outside.txt": b"x", "extra/../../../outside": b"y"}
    )
    yield "paths that lead outside", path


def _pickled(part: str, bomb: bytes) -> Callable[[str, bytes], bytes]:
    """Replace all tensors of a part by pickles, and say so in its table."""

    def change(name: str, content: bytes) -> bytes:
        if name.endswith(f"model_{part}_config.json"):
            config = json.loads(content)
            for entry in config["config"].values():
                entry["use_pickle"] = True
            return json.dumps(config).encode()
        return bomb if f"/data/{part}/" in name else content

    return change


def forged_classifiers(folder: Path) -> Iterator[tuple[str, Path, bool]]:
    """Classifiers whose digest is right and whose content is not; the last says whether it must be refused."""
    from atta.classifier import archive

    plain = toys.classifier()
    plain.save(folder / "plain.safetensors")
    about, parts = archive.read(folder / "plain.safetensors")
    about = {
        key: value
        for key, value in about.items()
        if key not in ("parts", "digest", "format", "format_version")
    }
    yield "rewritten as it was", archive.write(folder / "same.safetensors", about, parts), False
    yield (
        "no model part",
        archive.write(folder / "less.safetensors", about, {"calibrator": parts["calibrator"]}),
        True,
    )
    yield (
        "no calibrator",
        archive.write(folder / "other.safetensors", about, {"model": parts["model"]}),
        True,
    )
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
        yield what, archive.write(folder / f"{what}.safetensors", {**about, **change}, parts), True


def forged_transformers(folder: Path) -> Iterator[tuple[str, Path]]:
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
        yield what, archive.write(folder / f"{what}.safetensors", forged, parts)


def forged_texts(folder: Path) -> Iterator[tuple[str, Path, Callable[[Path], Any]]]:
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
            yield f"{name}: {what}", path, read
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
        yield f"toml: {what}", path, read_experiment


def forged_headers(folder: Path) -> Iterator[tuple[str, Path, Callable[[Path], Any]]]:
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
        yield f"a calibrator about {about[:40]!r}", path, read_calibrator
    for i, version in enumerate(("-1", "99", "x", "", "9" * 5000)):
        path = folder / f"version{i}.safetensors"
        save_file(
            {"limit": torch.ones(())},
            path,
            {"format": "atta.calibrator", "format_version": version, "about": "{}"},
        )
        yield f"a calibrator of version {version[:20]!r}", path, read_calibrator
    others = {
        "labels": torch.zeros(4, 3),
        "labels of floats": torch.zeros(4),
        "nan": torch.full((4, 3), float("nan")),
    }
    for what, tensor in others.items():
        path = folder / f"record {what}.safetensors"
        save_file({**tensors, "logits" if what == "nan" else "labels": tensor}, path, {})
        yield f"a record with {what}", path, read_record
    for size in (0, 1, 2**31, 2**62):
        path = folder / f"size{size}.safetensors"
        path.write_bytes(size.to_bytes(8, "little") + b"{}")
        yield f"a header of {size} bytes", path, read_record


def forged_files(tally: Tally, effort: Effort) -> None:
    """Nothing in any of them is run, and all are refused in a sentence."""
    with shop(graphs=True) as folder:
        sentinel, forged = folder / "it-ran", toys.fresh(folder / "forged")

        def quiet(what: str, trouble: str) -> None:
            ran = sentinel.exists()
            sentinel.unlink(missing_ok=True)
            tally.count(
                not ran and not trouble,
                f"{what}: {'CODE IN THE FILE WAS RUN; ' if ran else ''}{trouble}",
            )

        for what, path in forged_pt2(folder / "graph.pt2", forged, sentinel):
            quiet(
                f".pt2, {what}",
                typed(
                    ["predict", str(path), str(folder / "photos"), "-o", str(folder / "out.csv")]
                ),
            )
            (folder / "out.csv").unlink(missing_ok=True)
        for kind, bomb in bombs(sentinel).items():
            for name, read in (
                *SEALED.items(),
                ("network.safetensors", read_record),
                ("network.onnx", read_graph),
            ):
                path = forged / f"{kind} {name}"
                path = (
                    path if name != "classifier.safetensors" else toys.fresh(forged / kind) / name
                )
                path.write_bytes(bomb)
                quiet(f"{kind} named {name}", must_refuse(path, read))
        for what, path, wrong in forged_classifiers(forged):
            quiet(
                f"a classifier, {what}", must_refuse(path, read_one) if wrong else must_read(path)
            )
        for what, path, read in (*forged_texts(forged), *forged_headers(forged)):
            quiet(what, must_refuse(path, read))
        called = _watch_kernels()
        for what, path in forged_transformers(forged):
            trouble = must_refuse(path, read_one)
            quiet(
                f"a vit, {what}", trouble or ("the loader of kernels was called" if called else "")
            )
            called.clear()


def read_one(path: Path) -> Any:
    """A classifier in one file, of any name."""
    return atta.CalibratedClassifier.load(path).about()


def read_graph(path: Path) -> Any:
    """An exported graph."""
    from atta.classifier.export import open_graph

    return open_graph(path)


def must_refuse(path: Path, read: Callable[[Path], Any]) -> str:
    """What is wrong with how a forged file was met, or ""."""
    try:
        with time_limit(SECONDS), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            read(path)
    except Exception as error:
        return refusal(error)
    return "expected a refusal, it was read"


def must_read(path: Path) -> str:
    """That forging works at all: what is rewritten as it was is read."""
    try:
        read_one(path)
    except Exception as error:
        return f"expected to be read, got {error}"
    return ""


def _watch_kernels() -> list[str]:
    """Note whenever transformers would load code from a hub."""
    called: list[str] = []
    try:
        from transformers import modeling_utils
        from transformers.integrations import hub_kernels
    except ImportError:
        return called
    for module in (hub_kernels, modeling_utils):
        for name in ("load_and_register_attn_kernel", "get_kernel", "lazy_load_kernel"):
            if hasattr(module, name):
                setattr(module, name, lambda *given, **_: called.append(str(given)))
    return called


ATTACKS = (
    Attack(
        "files: checksums",
        "records, calibrators, results, classifiers: cut short, one bit flipped, something added",
        files_with_a_checksum,
        300,
    ),
    Attack("files: check", "`atta check` on the same", the_check_command),
    Attack("files: other", "experiments and images: cut short, one bit flipped", files_without_one),
    Attack(
        "files: graphs",
        ".onnx and .pt2 through `atta predict`: cut short, one bit flipped",
        graphs,
        400,
    ),
    Attack(
        "files: forged",
        "pickles, names of code, missing parts, odd values, deep JSON and TOML: refused, and nothing is run",
        forged_files,
        400,
    ),
)
