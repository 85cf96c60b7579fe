"""A `.pt2` file (`torch.export`) made harmless before torch sees it.

`torch.export.load` unpickles, evaluates expressions, looks up operators by any name and writes Python from the names in a
file: whoever makes the file runs what they like. So it is read here, as a zip, and torch is given another one, in memory,
that holds nothing but

    data/weights/weight_N, data/constants/tensor_N     numbers, as bytes
    their configurations                                where each tensor lies; none is pickled
    models/model.json                                   the graph, rebuilt word by word from what is known to be harmless
    extra/atta.json                                     what the graph is of, in words: read as JSON, and never run

Names are identifiers, operators are those of torch that compute tensors, sizes are arithmetic. What only serves people who
debug (traces, module stacks, sample inputs) is left out; anything else is refused, and so are layouts of older torch.
"""

import ast
import io
import json
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from atta._base.errors import InputError

TENSORS = {"weights": "weight", "constants": "tensor"}  # folder → what its files are called
PLAIN = re.compile(
    r"archive_format|archive_version|byteorder|\.data/(version|serialization_id)|models/model\.json"
    r"|extra/atta\.json|data/weights/(weight_\d+|model_weights_config\.json)|data/constants/(tensor_\d+|model_constants_config\.json)"
)
ABOUT = "extra/atta.json"
SAMPLES = "data/sample_inputs/model.pt"  # a pickle, which is never opened and not needed
SIGNATURE = {  # one tensor in, two out, as every graph of ours: torch would build other containers from what a file names
    "fqn": "",
    "signature": {
        "inputs": [],
        "outputs": [],
        "in_spec": '[1, {"type": "builtins.tuple", "context": "null", "children_spec": [{"type": "builtins.tuple", "context": '
        '"null", "children_spec": [{"type": null, "context": null, "children_spec": []}]}, {"type": "builtins.dict", '
        '"context": "[]", "children_spec": []}]}]',
        "out_spec": '[1, {"type": "builtins.tuple", "context": "null", "children_spec": [{"type": null, "context": null, '
        '"children_spec": []}, {"type": null, "context": null, "children_spec": []}]}]',
        "forward_arg_names": None,
    },
}
REPLACED: dict[str, Any] = {
    "metadata": {},
    "guards_code": [],
    "treespec_namedtuple_fields": {},
    "module_call_graph": [SIGNATURE],
}
REFUSED = {"as_custom_obj", "as_operator", "as_string_to_argument", "custom_obj", "token"}
DIALECTS = {"ATEN", "TRAINING"}


def harmless(path: Path) -> io.BytesIO:
    """Read a `.pt2` file and give one to hand to torch; say what was refused otherwise."""
    try:
        from torch.export.pt2_archive import PT2ArchiveWriter
    except ImportError:  # older ones pickle their tensors
        raise InputError(
            f"a .pt2 file needs torch 2.9 or later, this is {torch.__version__}: export to .onnx"
        ) from None

    entries = _entries(path)
    wanted = {
        "models/model.json",
        *(f"data/{folder}/model_{folder}_config.json" for folder in TENSORS),
    }
    if missing := wanted - entries.keys():
        raise InputError(
            f"{path} lacks {', '.join(sorted(missing))}: expected the layout of torch 2.9 or later; export it again"
        )
    if entries.get("byteorder", b"little") != b"little":
        raise InputError(f"expected numbers in little-endian order in {path}, got another")
    try:
        found = io.BytesIO()
        with PT2ArchiveWriter(found) as archive:
            for name, content in entries.items():
                if name.startswith("data/") and not name.endswith(".json"):
                    archive.write_bytes(name, content)
            for folder in TENSORS:
                name = f"data/{folder}/model_{folder}_config.json"
                archive.write_string(
                    name,
                    json.dumps({"config": dict(_payloads(folder, entries, _json(entries[name])))}),
                )
            archive.write_string(
                "models/model.json", json.dumps(_program(_json(entries["models/model.json"])))
            )
            archive.write_bytes(SAMPLES, b"")
            if ABOUT in entries:
                archive.write_string(ABOUT, json.dumps(_json(entries[ABOUT])))
    except _Suspicious as error:
        raise InputError(f"{path} was refused before any of it could run: {error}") from None
    found.seek(0)
    return found


class _Suspicious(Exception):
    """Something that a graph of ours does not have."""


def _entries(path: Path) -> dict[str, bytes]:
    """What is in the file, by name without the folder that holds all; samples are left out."""
    try:
        with zipfile.ZipFile(path) as file:
            infos = file.infolist()
            root = infos[0].filename.partition("/")[0] if infos else ""
            names = [info.filename.removeprefix(f"{root}/") for info in infos]
            for name in names:
                if not PLAIN.fullmatch(name) and name != SAMPLES:
                    raise InputError(
                        f"{path} holds {name!r}, which can run code when torch reads it: expected tensors and a graph as "
                        "torch.export of 2.9 and later saves them"
                    )
            if len(set(names)) != len(names):
                raise InputError(f"expected each entry of {path} once, found some of them twice")
            # Stored as they are, entries cannot be larger than the file: nothing unfolds to more than was downloaded.
            if any(info.compress_type != zipfile.ZIP_STORED for info in infos):
                raise InputError(
                    f"expected entries that are not compressed in {path}, as torch writes them"
                )
            if sum(info.file_size for info in infos) > path.stat().st_size:
                raise InputError(
                    f"expected the entries of {path} to be no larger than the file, found that they overlap"
                )
            return {
                name: file.read(info)
                for name, info in zip(names, infos, strict=True)
                if name != SAMPLES
            }
    except (
        zipfile.BadZipFile,
        EOFError,
        NotImplementedError,
        OSError,
        RuntimeError,
        ValueError,
    ) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} is not a whole .pt2 file: {error}") from None


def _json(content: bytes) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise _Suspicious(f"a description in it is no JSON ({error})") from None
    if not isinstance(found, dict):
        raise _Suspicious("a description in it is no JSON object")
    return found


# ---- tensors -------------------------------------------------------------------------------------------------------


def _payloads(
    folder: str, entries: Mapping[str, bytes], config: Mapping[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Where each tensor lies: in bytes that are there."""
    tensors = config.get("config")
    if not isinstance(tensors, dict):
        raise _Suspicious(f"expected a table of its {folder}")
    for name, payload in tensors.items():
        if not isinstance(payload, dict) or payload.get("use_pickle") is not False:
            raise _Suspicious(
                f"expected numbers as plain bytes, and {name!r} is a pickle, which can run code"
            )
        place, meta = payload.get("path_name"), payload.get("tensor_meta")
        if not isinstance(place, str) or not re.fullmatch(rf"{TENSORS[folder]}_\d+", place):
            raise _Suspicious(
                f"expected tensors only among its {folder}, and {name!r} lies in {place!r}"
            )
        content = entries.get(f"data/{folder}/{place}")
        if content is None or not isinstance(meta, dict):
            raise _Suspicious(f"the numbers of {name!r} are not there")
        meta = _known(meta)
        sizes = [size.get("as_int") for size in meta["sizes"]]
        if not content and 0 not in sizes:  # which torch would fill with zeros, however many
            raise _Suspicious(f"the numbers of {name!r} are not there")
        yield (
            _checked("parameter_name", name),
            {
                "path_name": place,
                "is_param": payload.get("is_param") is True,
                "use_pickle": False,
                "tensor_meta": meta,
            },
        )


# ---- the graph -----------------------------------------------------------------------------------------------------


def _program(program: dict[str, Any]) -> dict[str, Any]:
    verifiers = program.pop("verifiers", [])
    if not isinstance(verifiers, list) or not DIALECTS.issuperset(map(str, verifiers)):
        raise _Suspicious(f"expected a graph in torch's own dialects, got {verifiers!r}")
    program.pop("torch_version", None)
    kept: dict[str, Any] = _known(program)
    return {**kept, "verifiers": verifiers, "guards_code": []}


def _known(value: Any, key: str = "") -> Any:
    """Rebuild JSON from what is known to be harmless; `key` is the name of the field that holds it."""
    if isinstance(value, dict):
        if suspicious := REFUSED & value.keys():
            raise _Suspicious(
                f"it holds objects that are not tensors ({', '.join(sorted(suspicious))})"
            )
        return {
            _checked("parameter_name", name): REPLACED[name]
            if name in REPLACED
            else _known(inner, name)
            for name, inner in value.items()
        }
    if isinstance(value, list):
        return [_known(inner, key) for inner in value]
    return _checked(key, value) if isinstance(value, str) else value


def _checked(key: str, text: str) -> str:
    if key not in CHECKS or not CHECKS[key](text):
        raise _Suspicious(
            f"expected a graph of tensors and known operators, and its {key} says {text[:80]!r}"
        )
    return text


def _matches(pattern: str) -> Callable[[str], bool]:
    compiled = re.compile(pattern, re.ASCII)
    return lambda text: compiled.fullmatch(text) is not None


# Tensors out of tensors and numbers. What begins with an underscore is an inner part whose checks lie elsewhere, and so are
# the packed formats; `from_file` and `save` touch the disk.
INNER = {
    "_log_softmax",
    "_native_batch_norm_legit_no_training",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_softmax",
}
INNER |= {
    "_to_copy",
    "_unsafe_view",
    "_upsample_bicubic2d_aa",
    "_upsample_bilinear2d_aa",
    "_adaptive_avg_pool2d",
}
# What gives numbers, or nothing.
NUMBERS = {
    "dim",
    "is_floating_point",
    "item",
    "numel",
    "promote_types",
    "result_type",
    "size",
    "storage_offset",
    "stride",
}
OTHER_WORLDS = re.compile(
    "fbgemm|quantized|mkldnn|miopen|cudnn|sparse|nested|foreach|fused|from_file|record_stream"
)
SIZES = {
    "add",
    "and_",
    "eq",
    "floordiv",
    "ge",
    "getitem",
    "gt",
    "le",
    "lt",
    "mod",
    "mul",
    "ne",
    "neg",
    "or_",
    "sub",
    "truediv",
}
WRAPPERS = {"wrap_with_set_grad_enabled", "wrap_with_autocast"}


def _operator(target: str) -> bool:
    match target.split("."):
        case ["_operator", name]:
            return name in SIZES
        case ["math", name]:
            return name in ("ceil", "floor", "trunc")
        case ["torch", name]:
            return name in ("sym_float", "sym_int", "sym_ite", "sym_max", "sym_min", "sym_not")
        case ["torch", "ops", "higher_order", name]:
            return name in WRAPPERS
        case ["torch", "ops", "aten", name, overload]:
            number = name in NUMBERS or name.startswith(("sym_", "_assert"))
            if OTHER_WORLDS.search(name) or (
                name.startswith("_") and name not in INNER and not number
            ):
                return False
            found = getattr(getattr(torch.ops.aten, name, None), overload, None)
            if not isinstance(found, torch._ops.OpOverload):
                return False
            gives = [str(one.type) for one in found._schema.returns]
            return number or (bool(gives) and all("Tensor" in one for one in gives))
    return False


FUNCTIONS = {
    *(
        "Add",
        "And",
        "CeilDiv",
        "CeilToInt",
        "CleanDiv",
        "Equality",
        "Eq",
        "FloatTrueDiv",
        "Float",
        "FloorDiv",
        "FloorToInt",
    ),
    *(
        "Ge",
        "GreaterThan",
        "Gt",
        "IntTrueDiv",
        "Integer",
        "Le",
        "LessThan",
        "Lt",
        "Max",
        "Min",
        "Mod",
        "Mul",
        "Ne",
        "Not",
        "Or",
    ),
    *(
        "PythonMod",
        "Rational",
        "StrictGreaterThan",
        "StrictLessThan",
        "Symbol",
        "ToFloat",
        "TruncToInt",
        "Unequality",
    ),
}
ARITHMETIC = (
    *(ast.Expression, ast.BinOp, ast.UnaryOp, ast.Compare, ast.Load),
    *(ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.USub, ast.UAdd),
    *(ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE),
)
SYMBOL = re.compile(r"[a-z]+\d+", re.ASCII)
LONGEST = 2000  # characters of an expression


def _arithmetic(text: str) -> bool:
    """Whether this is arithmetic with symbols; torch has it evaluated, as Python."""
    bare = re.sub(
        r"\bSymbol\('([a-z]+[0-9]+)'", r"Symbol(\1", text
    )  # the only text that is in there
    try:
        tree = ast.parse(bare, mode="eval") if len(text) <= LONGEST else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return tree is not None and all(map(_part_of_arithmetic, ast.walk(tree)))


def _part_of_arithmetic(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Name(id=name)):
            return name in FUNCTIONS
        case ast.Constant(value=value):
            return type(value) in (int, float, bool)
        case ast.Name(id=name):
            return name in FUNCTIONS or SYMBOL.fullmatch(name) is not None
        case ast.keyword(arg=name, value=ast.Constant()):
            return name in ("integer", "positive", "nonnegative", "real")
    return isinstance(node, ARITHMETIC)


_dotted = _matches(r"\w+(\.\w+)*")
CHECKS: dict[str, Callable[[str], bool]] = {
    "name": _matches(r"[A-Za-z_]\w*|"),
    "as_name": _matches(r"[A-Za-z_]\w*"),
    "buffer_name": _dotted,
    "parameter_name": _dotted,
    "tensor_constant_name": _dotted,
    "user_input_name": _dotted,
    "target": _operator,
    "expr_str": _arithmetic,
    "type": _matches(r"cpu"),
    "as_string": _matches(r"[\w ,.>-]{0,200}"),  # how to pad, to round, to sum
    "as_float": _matches(r"-?(Infinity|NaN|inf|nan)"),
}
