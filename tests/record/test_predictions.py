"""What comes through the door, what is turned away with which sentence, and records on disk."""

import json
import os
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from atta import Predictions, Record
from atta._base.errors import InputError
from atta.record.predictions import as_labels
from scenarios import notices_flipped_bits

N, K = 6, 4


def logits(n: int = N, k: int = K, dtype=torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(n, k, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(
        dtype
    )


def view(r: int = 2, n: int = N, k: int = K, dtype=torch.float32) -> Tensor:
    return torch.randn(n, r, k, generator=torch.Generator().manual_seed(r), dtype=torch.float64).to(
        dtype
    )


def sample() -> Predictions:
    return Predictions(logits(), {"flip": view(1), "crop": view(5)})


def spoiled(tensor: Tensor, row: int, value: float) -> Tensor:
    tensor = tensor.clone()
    tensor[row, ..., 1] = value
    return tensor


# --- The door ---------------------------------------------------------------------------------------------------------


REFUSED = {
    "NaN": (lambda: Predictions(spoiled(logits(), 3, float("nan"))), r"logits must be finite, got nan in row 3 \(1 such"),
    "inf": (lambda: Predictions(spoiled(logits(), 2, float("inf"))), r"logits must be finite, got inf in row 2 \(1 such"),
    "NaN in a view": (
        lambda: Predictions(logits(), {"crop": spoiled(view(), 4, float("nan"))}),
        r"view 'crop' must be finite, got nan in row 4",
    ),
    "one image without its axis": (lambda: Predictions(logits()[0]), r"logits must have shape \(images, classes\), got \(4,\)"),
    "logits with too many axes": (lambda: Predictions(view()), r"must have shape \(images, classes\), got \(6, 2, 4\)"),
    "a view without repeats": (
        lambda: Predictions(logits(), {"flip": logits()}),
        r"view 'flip' must have shape \(images, repeats, classes\), got \(6, 4\)",
    ),
    "a view of other images": (
        lambda: Predictions(logits(), {"flip": view(n=5)}),
        r"view 'flip' must have shape \(6, repeats ≥ 1, 4\) like the logits, got \(5, 2, 4\)",
    ),
    "a view of other classes": (
        lambda: Predictions(logits(), {"flip": view(k=3)}),
        r"view 'flip' must have shape \(6, repeats ≥ 1, 4\) like the logits, got \(6, 2, 3\)",
    ),
    "a view without a single repeat": (
        lambda: Predictions(logits(), {"flip": view()[:, :0]}),
        r"view 'flip' must have shape \(6, repeats ≥ 1, 4\)",
    ),
    "a view without a name": (lambda: Predictions(logits(), {"": view()}), r"a kind of view needs a name, got ''"),
    "no image": (lambda: Predictions(torch.zeros(0, 4)), r"logits must hold at least one image and at least two classes, got 0 and 4"),
    "one class": (lambda: Predictions(torch.zeros(3, 1)), r"logits must hold at least one image and at least two classes, got 3 and 1"),
    "integers": (lambda: Predictions(torch.zeros(3, 4, dtype=torch.int64)), r"must be floating-point numbers, got torch.int64"),
    "text": (lambda: Predictions("resnet50"), r"logits: expected an array or a tensor of numbers, got str"),
    "a ragged list": (lambda: Predictions([[1.0, 2.0], [1.0]]), r"logits: expected an array or a tensor of numbers, got list"),
    "labels of another length": (lambda: Record(sample(), [0] * 5), r"expected 6 labels, one for each image, got 5"),
    "a label too large": (lambda: Record(sample(), [0, 1, 4, 3, 4, 0]), r"lie in 0 … 3, got 4 in row 2 \(2 such\)"),
    "a label below zero": (lambda: Record(sample(), [0, -1, 0, 0, 0, 0]), r"lie in 0 … 3, got -1 in row 1 \(1 such\)"),
    "labels that are floats": (lambda: Record(sample(), [0.0] * 6), r"labels must be integers, got torch.float32"),
    "labels that are booleans": (lambda: Record(sample(), [True] * 6), r"labels must be integers, got torch.bool"),
    "one-hot labels": (
        lambda: Record(sample(), torch.zeros(6, 4, dtype=torch.int64)),
        r"labels must have shape \(images,\), got \(6, 4\)",
    ),
    "labels that are names": (
        lambda: Record(sample(), ["cat"] * 6),
        "labels: expected a list, an array or a tensor of class numbers, got list",
    ),
    "views the predictions lack": (
        lambda: sample().select(["flip", "blur", "noise"]),
        r"expected predictions with the views blur, noise, got: flip, crop",
    ),
    "a single row": (lambda: sample()[torch.tensor(2)], r"expected a slice or a list of rows"),
    "no rows": (lambda: sample()[[]], r"expected a slice or a list of rows with at least one image, got \[\]"),
    "an empty slice": (lambda: sample()[4:2], r"with at least one image"),
    "a row that is not there": (lambda: sample()[[0, 6]], r"expected a slice or a list of rows.* of 6 images"),
    "a mask of another length": (lambda: sample()[np.ones(5, bool)], r"expected a slice or a list of rows.* of 6 images"),
    "labels where there are none": (lambda: Record(sample()).require_labels(), r"expected a record with labels, got one"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_used_is_refused_with_a_sentence(case):
    act, sentence = REFUSED[case]
    with pytest.raises(InputError, match=sentence):
        act()


def test_probabilities_given_as_logits_are_taken_as_they_are_and_nothing_is_guessed():
    probs = logits().softmax(-1)
    assert torch.equal(Predictions(probs).logits, probs)


@pytest.mark.parametrize(
    ("given_dtype", "kept"),
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_half_precision_comes_up_to_float32_and_the_rest_stays(given_dtype, kept):
    made = Predictions(logits(dtype=given_dtype), {"flip": view(dtype=given_dtype)})
    assert made.logits.dtype == made.views["flip"].dtype == kept
    assert torch.equal(made.logits, logits(dtype=given_dtype).to(kept))


def test_mixed_dtypes_are_brought_to_the_widest():
    made = Predictions(logits(dtype=torch.float16), {"flip": view(dtype=torch.float64)})
    assert made.logits.dtype == made.views["flip"].dtype == torch.float64


def test_numpy_and_torch_and_lists_say_the_same():
    tensors = sample()
    arrays = Predictions(logits().numpy(), {"flip": view(1).numpy(), "crop": view(5).numpy()})
    lists = Predictions(logits().tolist(), {"flip": view(1).tolist(), "crop": view(5).tolist()})
    for other in (arrays, lists):
        assert torch.equal(other.logits, tensors.logits)
        assert all(torch.equal(other.views[kind], tensors.views[kind]) for kind in tensors.kinds)


def test_arrays_are_welcome_however_they_lie_in_memory():
    array = logits().numpy()
    read_only = array.copy()
    read_only.flags.writeable = False
    for given_array in (array[::-1][::-1], np.asfortranarray(array), read_only):
        assert torch.equal(Predictions(given_array).logits, logits())
    assert torch.equal(Predictions(array[::-1]).logits, logits().flip(0))
    assert as_labels(np.array([2, 1, 0])[::-1], images=3, classes=3).tolist() == [0, 1, 2]


def test_predictions_do_not_hang_on_to_a_graph():
    assert not Predictions(logits().requires_grad_()).logits.requires_grad


@pytest.mark.parametrize(
    "labels",
    [
        [0, 3, 1, 0, 2, 1],
        (0, 3, 1, 0, 2, 1),
        np.array([0, 3, 1, 0, 2, 1], dtype=np.uint16),
        np.array([0, 3, 1, 0, 2, 1], dtype=np.int8),
        torch.tensor([0, 3, 1, 0, 2, 1], dtype=torch.int32),
        torch.tensor([0, 3, 1, 0, 2, 1], dtype=torch.uint8),
    ],
    ids=lambda labels: f"{type(labels).__name__} {getattr(labels, 'dtype', '')}",
)
def test_labels_come_as_any_integers(labels):
    checked = as_labels(labels, images=6, classes=4)
    assert checked.dtype == torch.int64
    assert checked.tolist() == [0, 3, 1, 0, 2, 1]


def test_a_class_without_a_label_is_fine_because_the_logits_count_the_classes():
    assert Record(sample(), [0] * 6).predictions.classes == 4


# --- Parts ------------------------------------------------------------------------------------------------------------


ROWS = {
    "slice": slice(1, 5, 2),
    "slice that counts down": slice(None, None, -1),
    "list": [1, 3],
    "tuple": (1, 3),
    "negative rows": [-5, -3],
    "array": np.array([1, 3]),
    "reversed array": np.array([3, 1])[::-1],
    "tensor": torch.tensor([1, 3]),
    "mask": np.array([False, True, False, True, False, False]),
    "list of booleans": [False, True, False, True, False, False],
}


@pytest.mark.parametrize("rows", ROWS)
def test_rows_are_chosen_in_every_usual_way(rows):
    record = Record(sample(), [0, 1, 2, 3, 0, 1], {"model": "toy"})
    part = record[ROWS[rows]] if rows != "slice that counts down" else record[3:0:-2][::-1]
    assert torch.equal(part.predictions.logits, logits()[[1, 3]])
    assert torch.equal(part.predictions.views["crop"], view(5)[[1, 3]])
    assert part.labels.tolist() == [1, 3]
    assert part.origin == {"model": "toy"}
    assert len(part) == 2


@given(st.integers(1, 30), st.integers(1, 40))
@settings(deadline=None)
def test_chunks_put_together_are_the_whole(n, size):
    whole = Predictions(logits(n), {"flip": view(1, n=n)})
    parts = list(whole.chunks(size))
    assert all(len(part) <= size for part in parts)
    assert torch.equal(torch.cat([part.logits for part in parts]), whole.logits)
    assert torch.equal(torch.cat([part.views["flip"] for part in parts]), whole.views["flip"])


def test_a_view_is_the_mean_of_its_repeats_in_logit_space_image_by_image():
    made = sample()
    slow = np.array([[view(5)[i, :, c].double().mean() for c in range(K)] for i in range(N)])
    rows = made.view_logits(["crop", "flip"])
    assert rows.shape == (N, 2, K)
    np.testing.assert_allclose(rows[:, 0].numpy(), slow, rtol=1e-5, atol=1e-6)
    assert torch.equal(rows[:, 1], view(1)[:, 0])


def test_predictions_say_what_they_hold():
    made = sample()
    assert (len(made), made.classes, made.kinds, made.passes) == (6, 4, ("flip", "crop"), 7)
    assert repr(made) == "Predictions(6 images, 4 classes; 1 flip, 5 crop)"
    assert repr(Predictions(logits())) == "Predictions(6 images, 4 classes; no views)"
    assert made.select(["crop"]).kinds == ("crop",)
    assert made.to(torch.float64).views["crop"].dtype == torch.float64


# --- Records on disk --------------------------------------------------------------------------------------------------


def same(a: Record, b: Record) -> bool:
    return (
        torch.equal(a.predictions.logits, b.predictions.logits)
        and a.predictions.kinds == b.predictions.kinds
        and all(
            torch.equal(a.predictions.views[kind], b.predictions.views[kind])
            for kind in a.predictions.kinds
        )
        and (a.labels is None) == (b.labels is None)
        and (a.labels is None or torch.equal(a.labels, b.labels))
        and dict(a.origin) == dict(b.origin)
    )


@given(
    st.integers(1, 8),
    st.integers(2, 6),
    st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]),
    st.permutations(["zoom", "flip", "crop"]),
    st.integers(0, 3),
    st.booleans(),
    st.dictionaries(
        st.sampled_from(["model", "seed", "dataset"]),
        st.text(st.characters(codec="utf-8"), max_size=8),
    ),
)
@settings(max_examples=60, deadline=None)
def test_a_record_comes_back_bit_for_bit(
    tmp_path_factory, n, k, dtype, names, count, labelled, origin
):
    path = tmp_path_factory.mktemp("records") / "deep" / "er" / "toy.safetensors"
    views = {name: view(1 + i, n=n, k=k, dtype=dtype) for i, name in enumerate(names[:count])}
    record = Record(
        Predictions(logits(n, k, dtype), views),
        [i % k for i in range(n)] if labelled else None,
        origin,
    )
    assert record.save(path) == path
    assert same(Record.load(path), record)


def test_half_precision_on_disk_is_the_rounding_to_float16_and_nothing_else(tmp_path):
    record = Record(sample(), [0] * 6)
    back = Record.load(record.save(tmp_path / "half.safetensors", half=True))
    rounded = Record(record.predictions.to(torch.float16).to(torch.float32), [0] * 6)
    assert same(back, rounded)
    again = Record.load(back.save(tmp_path / "again.safetensors", half=True))
    assert same(again, back)


def test_half_precision_refuses_what_it_cannot_hold_and_leaves_no_file(tmp_path):
    record = Record(Predictions(torch.full((2, 3), 1e5)))
    with pytest.raises(
        InputError, match=r"float16 holds logits up to 65504, got larger ones: use half=False"
    ):
        record.save(tmp_path / "half.safetensors", half=True)
    assert list(tmp_path.iterdir()) == []


def test_part_of_a_record_is_saved_as_that_part(tmp_path):
    part = Record(sample(), [0, 1, 2, 3, 0, 1])[::2]
    assert same(Record.load(part.save(tmp_path / "part.safetensors")), part)


def test_a_file_with_the_layout_loads_whoever_wrote_it(tmp_path):
    path = tmp_path / "foreign.safetensors"
    save_file(
        {
            "logits": logits(),
            "view.b": view(2),
            "view.a": view(1),
            "labels": torch.zeros(6, dtype=torch.int32),
        },
        path,
    )
    record = Record.load(path)
    assert set(record.predictions.kinds) == {"a", "b"}
    assert record.origin == {}


def foreign(tmp_path: Path) -> Path:
    path = tmp_path / "weights.safetensors"
    save_file({"layer.weight": torch.zeros(2, 2)}, path)
    return path


def truncated(tmp_path: Path) -> Path:
    path = Record(sample()).save(tmp_path / "short.safetensors")
    path.write_bytes(path.read_bytes()[:-8])
    return path


def cut_in_the_header(tmp_path: Path) -> Path:
    path = Record(sample()).save(tmp_path / "short.safetensors")
    path.write_bytes(path.read_bytes()[:40])
    return path


def text(tmp_path: Path) -> Path:
    path = tmp_path / "notes.safetensors"
    path.write_text("these are my notes, not tensors")
    return path


def empty(tmp_path: Path) -> Path:
    path = tmp_path / "empty.safetensors"
    path.write_bytes(b"")
    return path


def lying_header(tmp_path: Path) -> Path:
    path = tmp_path / "lying.safetensors"
    header = json.dumps(
        {"logits": {"dtype": "F32", "shape": [10**6, 10], "data_offsets": [0, 4 * 10**7]}}
    ).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    return path


def bad_inside(tmp_path: Path) -> Path:
    path = tmp_path / "nan.safetensors"
    save_file({"logits": spoiled(logits(), 1, float("nan"))}, path)
    return path


def bad_labels(tmp_path: Path) -> Path:
    path = tmp_path / "labels.safetensors"
    save_file({"logits": logits(), "labels": torch.full((6,), 9)}, path)
    return path


BROKEN = {
    foreign: r"weights.safetensors is not a record: expected tensors logits, labels, images and view.<name>, got layer.weight",
    truncated: r"short.safetensors is not a whole safetensors file",
    cut_in_the_header: r"short.safetensors is not a whole safetensors file",
    text: r"notes.safetensors is not a whole safetensors file",
    empty: r"empty.safetensors is not a whole safetensors file",
    lying_header: r"lying.safetensors is not a whole safetensors file",
    bad_inside: r"nan.safetensors: logits must be finite, got nan in row 1",
    bad_labels: r"labels.safetensors: labels must lie in 0 … 3, got 9 in row 0",
    (lambda tmp_path: tmp_path / "none.safetensors"): r"there is no file .*none.safetensors",
    (lambda tmp_path: tmp_path): r"is not a whole safetensors file|got the folder",
}


@pytest.mark.parametrize("make", BROKEN, ids=lambda make: make.__name__)
def test_a_broken_or_foreign_file_is_named_in_a_sentence(make, tmp_path):
    with pytest.raises(InputError, match=BROKEN[make]):
        Record.load(make(tmp_path))


@pytest.mark.parametrize(
    "failure", [OSError("No space left on device"), KeyboardInterrupt()], ids=repr
)
def test_a_record_saved_over_another_is_never_half_written(tmp_path, monkeypatch, failure):
    path = Record(sample()).save(tmp_path / "record.safetensors")
    before = path.read_bytes()

    def dies_half_way(tensors, target, metadata):
        Path(target).write_bytes(before[: len(before) // 2])
        raise failure

    monkeypatch.setattr("atta._base.tensors.save_file", dies_half_way)
    with pytest.raises((InputError, KeyboardInterrupt)):
        Record(Predictions(logits(seed=1))).save(path)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["record.safetensors"]


def test_names_that_no_file_can_hold_are_refused_and_origins_made_readable(tmp_path):
    with pytest.raises(InputError, match="a kind of view needs a name, got"):
        Predictions(logits(), {"\ud800": logits()[:, None]})
    record = Record(sample(), origin={"folder": "caf\udce9"})
    assert Record.load(record.save(tmp_path / "r.safetensors")).origin == {"folder": "caf\\udce9"}


def test_saving_where_a_folder_is_says_so(tmp_path):
    with pytest.raises(InputError, match="expected the name of a file to write, got the folder"):
        Record(sample()).save(tmp_path)


def test_the_origin_is_text_and_travels_along(tmp_path):
    record = Record(sample(), origin={"model": "resnet50", "seed": 7})
    assert Record.load(record.save(tmp_path / "r.safetensors")).origin == {
        "model": "resnet50",
        "seed": "7",
    }


def test_views_that_share_memory_with_the_logits_are_saved(tmp_path):
    one = logits()
    record = Record(
        Predictions(one, {"same": one[:, None], "twice": one[:, None].expand(-1, 2, -1)})
    )
    back = Record.load(record.save(tmp_path / "r.safetensors")).predictions
    assert back.kinds == ("same", "twice")
    assert torch.equal(back.views["same"][:, 0], one)
    assert torch.equal(back.views["twice"][:, 1], one)


@pytest.mark.parametrize("kinds", [("b,a", "a", "b"), ("[", "]"), ('["b"]', "b", "a"), (",",), ()])
def test_whatever_views_and_origins_are_called_they_come_back_in_their_order(kinds, tmp_path):
    origin = {
        key: f"{key}!"
        for key in (
            "kinds",
            "atta.digest",
            "atta.hash",
            "atta.origin",
            "digest",
            "origin",
            "format",
        )
    }
    record = Record(Predictions(logits(), {kind: view(1) for kind in kinds}), origin=origin)
    back = Record.load(record.save(tmp_path / "r.safetensors"))
    assert back.predictions.kinds == kinds
    assert back.origin == origin


def test_a_record_of_an_earlier_version_is_read(tmp_path):
    path = tmp_path / "old.safetensors"
    tensors = {"logits": logits(), "view.b": view(1), "view.a": view(2)}
    origin = {"model": "m", "digest": "of something else", "origin": "here"}
    save_file(tensors, path, {**origin, "kinds": "b,a"})
    record = Record.load(path)
    assert record.predictions.kinds == ("b", "a")
    assert record.origin == origin


def test_every_flipped_bit_of_a_record_is_noticed(tmp_path):
    path = Record(sample(), [0, 1, 2, 3, 0, 1], {"model": "m"}).save(tmp_path / "r.safetensors")
    notices_flipped_bits(path, Record.load)


def test_looking_for_numbers_that_are_not_finite_takes_little_memory():
    """A mask of all of them, and what it is made of, took half as much again as the logits and their copy."""
    one = torch.zeros(300, 20_000)
    with torch.profiler.profile(profile_memory=True) as seen:
        Predictions(one)
    assert max((event.cpu_memory_usage for event in seen.events()), default=0) <= 1000
    one[299, 3], one[7, 9] = float("nan"), float("-inf")
    with pytest.raises(
        InputError, match=r"logits must be finite, got -inf in row 7 \(2 such rows\)"
    ):
        Predictions(one)


LOGITS = Path(os.environ.get("ATTA_DATA", "nowhere")) / "logits"


@pytest.mark.skipif(not LOGITS.is_dir(), reason="ATTA_DATA does not say where recorded logits are")
def test_recorded_logits_load():
    for path in sorted(LOGITS.glob("*.safetensors")):
        record = Record.load(path)
        assert record.predictions.classes == 10
        assert record.predictions.passes == 17
        assert set(record.predictions.kinds) == {"flip", "crop", "brightness", "contrast"}
    assert (Record.load(LOGITS / "cifar10_ood.safetensors").labels) is None


@pytest.mark.parametrize("kind", ["uint8", "uint16", "uint32", "uint64", ">i4", "<i2"])
def test_labels_and_logits_of_any_layout_are_taken(kind):
    labels = np.arange(N) % K
    assert (
        as_labels(labels.astype(kind)[::-1], images=N, classes=K).tolist() == labels[::-1].tolist()
    )
    assert (
        as_labels(torch.from_numpy(labels).to(torch.uint16), images=N, classes=K).tolist()
        == labels.tolist()
    )
    array = logits(dtype=torch.float64).numpy()
    assert torch.equal(Predictions(array.astype(">f8")).logits, torch.from_numpy(array))
    with pytest.raises(InputError, match="labels must lie in 0"):
        as_labels(np.full(N, 2**64 - 1, dtype=np.uint64), images=N, classes=K)


def test_logits_in_a_format_that_nothing_computes_in_are_refused():
    with pytest.raises(
        InputError, match=r"logits must be floating-point numbers, got torch\.float8"
    ):
        Predictions(logits().to(torch.float8_e4m3fn))


def test_a_record_shows_itself_in_a_notebook_with_every_word_escaped(record):
    html = Record(record.predictions, record.labels, {"dataset": "<script>"})._repr_html_()
    assert "&lt;script&gt;" in html
    assert "<script>" not in html
    assert ">300<" in html


def test_a_thousand_names_do_not_fill_a_notebook() -> None:
    names = json.dumps([f"n{i:08d} tench, Tinca tinca" for i in range(1000)])
    record = Record(
        Predictions(torch.zeros(2, 3)), None, {"classes": names, "note": "x" * 1000, "model": "m"}
    )
    for shown in (repr(record), record._repr_html_()):
        assert "n00000000 tench, Tinca tinca" in shown
        assert "(1000 in all)" in shown
        assert len(shown) < 1500
    assert record.origin["classes"] == names
