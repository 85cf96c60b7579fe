"""The network runs once: the same views however the work is cut, a model that is given back as it came, and a folder
of shards from which a killed run goes on to the same bits."""

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import atta
from atta.collection import shards as shards_module
from atta.collection.collect import collect
from atta.collection.memory import peak_memory, tensor_memory
from atta.images.sets import ImageSet
from atta.images.views import Policy, View
from atta.networks.adapters import NumpyModel
from atta.networks.resnet import small_cnn
from atta.types import InputError

POLICY = "flip + 2 crop + 2 brightness + contrast"


class Sums(nn.Module):
    """Says exactly what it was shown: whole numbers, so that no order of summation changes a bit.

    Pixels become multiples of 2⁻²⁴, weighted by their place; the sums are exact in float64.
    """

    def forward(self, images):
        whole = (images.double() * 2**24).round().flatten(1)
        weights = torch.arange(whole.shape[1], dtype=torch.float64) % 7 + 1
        return torch.stack([whole.sum(1), (whole * weights).sum(1), whole.amax(1)], dim=1)


def pixels(n=20, c=3, h=8, w=8, seed=0):
    return torch.randint(0, 256, (n, c, h, w), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def network(classes=3, channels=3):
    torch.manual_seed(0)
    return small_cnn(classes, in_channels=channels)


def run(images, labels=None, model=None, **settings):
    return collect(model or Sums(), images, labels, **{"policy": POLICY, "progress": False} | settings)


def tensors(record):
    return [record.predictions.logits, *record.predictions.views.values()]


def same(a, b):
    labels = (a.labels is None) == (b.labels is None) and (a.labels is None or torch.equal(a.labels, b.labels))
    return labels and all(torch.equal(x, y) for x, y in zip(tensors(a), tensors(b), strict=True))


def close(a, b):
    return all(torch.allclose(x, y, atol=1e-5) for x, y in zip(tensors(a), tensors(b), strict=True))


# ---- what is computed


def test_a_record_holds_the_logits_of_each_image_and_of_each_of_its_views():
    images, model = pixels(9), Sums()
    record = run(images, torch.arange(9) % 3)
    floats = images.float() / 255
    assert torch.equal(record.predictions.logits, model(floats))
    for kind, repeat, view in Policy.parse(POLICY).render(floats, torch.arange(9), seed=0):
        assert torch.equal(record.predictions.views[kind][:, repeat], model(view))
    assert torch.equal(record.labels, torch.arange(9) % 3)
    assert record.predictions.kinds == ("flip", "crop", "brightness", "contrast")


def test_the_paper_s_eighth_policy_is_the_default_and_serves_the_other_seven():
    assert collect(Sums(), pixels(2), progress=False).predictions.passes == 17


@pytest.mark.parametrize("batch_size", [1, 2, 7, 64])
def test_every_view_is_the_same_to_the_bit_at_any_batch_size(batch_size):
    assert same(run(pixels()), run(pixels(), batch_size=batch_size))


def test_a_network_answers_the_same_to_its_rounding_at_any_batch_size():
    records = [run(pixels(), model=network(), batch_size=size) for size in (1, 7, 64)]
    assert close(records[0], records[1])
    assert close(records[0], records[2])


@settings(max_examples=20, deadline=None)
@given(order=st.permutations(range(12)))
def test_images_in_any_order_with_their_indices_are_shown_in_the_same_views(order):
    whole = ImageSet("toy", pixels(12), torch.arange(12) % 3, ("a", "b", "c"))
    assert same(run(whole)[list(order)], run(whole.subset(order), batch_size=5))


def test_seed_and_draws_decide_the_views():
    random = [run(pixels(), seed=seed) for seed in (0, 0, 1)]
    assert same(random[0], random[1])
    assert not same(random[0], random[2])
    stratified = [run(pixels(), seed=seed, draws="stratified") for seed in (0, 1)]
    assert same(*stratified)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 8, 8), (3, 24, 40), (1, 40, 24), (3, 512, 512)])
def test_grey_and_colour_small_and_large_square_and_not_all_work(shape):
    c, h, w = shape
    model = small_cnn(3, in_channels=c, small_images=h < 64)
    record = run(pixels(2, c, h, w), model=model, policy="flip + crop")
    assert record.predictions.passes == 3
    assert record.origin["image_shape"] == f"{c} x {h} x {w}"


def test_views_of_another_size_than_the_image_s_work_beside_the_others():
    record = run(pixels(), model=network(), policy="flip + 2 native-crop + brightness")
    one_by_one = run(pixels(), model=network(), policy="flip + 2 native-crop + brightness", batch_size=1)
    assert close(record, one_by_one)


def test_a_view_of_one_s_own_is_shown_by_a_policy_made_with_it():
    policy = Policy.parse("flip + dim", views={"dim": View.of("dim", lambda images: images / 2)})
    record = run(pixels(), policy=policy)
    assert torch.equal(record.predictions.views["dim"][:, 0], Sums()(pixels().float() / 255 / 2))


def test_bytes_and_the_floats_they_stand_for_give_the_same_record():
    assert same(run(pixels()), run(pixels().float() / 255))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_network_is_given_pixels_in_its_own_dtype_and_answers_in_float32_or_wider(dtype):
    record = run(pixels(), model=network().to(dtype))
    assert record.predictions.logits.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert torch.allclose(
        record.predictions.logits.float(), run(pixels(), model=network()).predictions.logits, atol=0.05
    )


def test_the_record_can_be_learned_from():
    logits = run(pixels(), model=network()).predictions.logits
    scale = torch.ones((), requires_grad=True)
    (logits * scale).sum().backward()
    assert scale.grad is not None


@pytest.mark.parametrize("switches", [{"channels_last": True}, {"autocast": True}, {"autocast": torch.bfloat16}])
def test_faster_ways_to_run_change_the_answers_by_rounding_only(switches):
    plain, fast = run(pixels(), model=network()), run(pixels(), model=network(), **switches)
    assert fast.predictions.logits.dtype == torch.float32
    for a, b in zip(tensors(plain), tensors(fast), strict=True):
        assert torch.allclose(a, b, atol=0.03)


def test_compile_runs_what_torch_compiled(monkeypatch):
    compiled = []

    def fake(model):
        compiled.append(model)
        return model

    monkeypatch.setattr(torch, "compile", fake)
    assert same(run(pixels()), run(pixels(), compile=True))
    assert len(compiled) == 1


# ---- the model is borrowed


def state(model):
    return {
        "flags": [(name, module.training) for name, module in model.named_modules()],
        "tensors": {
            name: (tensor.data_ptr(), tensor.stride(), tensor.requires_grad, tensor.detach().clone())
            for name, tensor in (*model.named_parameters(), *model.named_buffers())
        },
    }


def assert_untouched(before, after):
    assert before["flags"] == after["flags"]
    for name, (*facts, values) in before["tensors"].items():
        assert facts == list(after["tensors"][name][:-1])
        assert torch.equal(values, after["tensors"][name][-1])


def mixed_modes():
    model = network().train()
    model[1].eval()
    model[0].weight.requires_grad_(False)
    return model


def test_the_model_is_given_back_as_it_came_down_to_each_layer_s_mode():
    model = mixed_modes()
    before = state(model)
    run(pixels(), model=model, channels_last=True)
    assert_untouched(before, state(model))


def test_the_model_is_given_back_as_it_came_when_the_run_fails():
    model = nn.Sequential(network(), Angry(at=2)).train()
    before = state(model)
    with pytest.raises(InputError, match="no more"):
        run(pixels(), model=model, channels_last=True)
    assert_untouched(before, state(model))


def test_the_network_runs_in_evaluation_mode():
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(192, 3)).train()
    assert same(run(pixels(), model=model), run(pixels(), model=model))


class Angry(nn.Module):
    """Gives what it is given, and raises at the n-th call."""

    def __init__(self, at, error=None):
        super().__init__()
        self.calls, self.at, self.error = 0, at, error or RuntimeError("no more")

    def forward(self, answer):
        self.calls += 1
        if self.calls == self.at:
            raise self.error
        return answer


# ---- images from anywhere


class Items(Dataset):
    def __init__(self, images, labels=None):
        self.images, self.labels = images, labels

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return self.images[i] if self.labels is None else (self.images[i], self.labels[i])


class Endless(IterableDataset):
    def __init__(self, images):
        self.images = images

    def __iter__(self):
        return iter([(image, i % 3) for i, image in enumerate(self.images)])


LABELS = torch.arange(20) % 3


def sources():
    from PIL import Image

    images = pixels()
    last = images.permute(0, 2, 3, 1).contiguous()
    return {
        "tensor": (images, {"labels": LABELS}),
        "tensor, channels last": (last, {"labels": LABELS, "channels": "last"}),
        "NumPy, channels first": (images.numpy(), {"labels": LABELS.tolist(), "channels": "first"}),
        "NumPy, channels last": (last.numpy(), {"labels": LABELS.numpy(), "channels": "last"}),
        "ImageSet": (ImageSet("toy", images, LABELS, ("a", "b", "c")), {}),
        "TensorDataset": (TensorDataset(images, LABELS), {}),
        "dataset of integers as labels": (Items(images, LABELS.tolist()), {}),
        "dataset of images alone": (Items(images), {"labels": LABELS}),
        "dataset of arrays": (Items(last.numpy(), LABELS), {"channels": "last"}),
        "dataset of Pillow images": (Items([Image.fromarray(image.numpy()) for image in last], LABELS), {}),
        "list": (list(images), {"labels": LABELS}),
        "loader": (DataLoader(TensorDataset(images, LABELS), batch_size=6), {}),
        "loader of images alone": (DataLoader(Items(images), batch_size=3), {"labels": LABELS}),
        "iterable": (Endless(images), {}),
        "loader of an iterable": (DataLoader(Endless(images), batch_size=7), {}),
    }


@pytest.mark.parametrize("name", sources())
def test_every_source_of_the_same_images_gives_the_same_record(name):
    images, more = sources()[name]
    labels = more.pop("labels", None)
    assert same(run(pixels(), LABELS), run(images, labels, batch_size=8, **more))


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_that_read_ahead_change_nothing(workers):
    dataset = TensorDataset(pixels(), LABELS)
    assert same(run(dataset), run(dataset, workers=workers, batch_size=3))


def test_loader_processes_change_nothing():
    dataset = TensorDataset(pixels(), LABELS)
    assert same(run(dataset), run(DataLoader(dataset, batch_size=4, num_workers=2)))


def test_a_loader_that_drops_its_last_batch_gives_fewer_images():
    assert len(run(DataLoader(TensorDataset(pixels(), LABELS), batch_size=6, drop_last=True))) == 18


@pytest.fixture
def folder(tmp_path):
    from PIL import Image

    for i, image in enumerate(pixels()):
        path = tmp_path / "images" / "abc"[i // 7] / f"{i:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(path)
    return tmp_path / "images"


@pytest.mark.parametrize("workers", [0, 2])
def test_a_folder_is_labelled_by_its_class_folders(folder, workers):
    record = run(folder, workers=workers, batch_size=6)
    assert same(record, run(pixels(), torch.arange(20) // 7))
    assert record.origin["dataset"] == "images"


def test_a_flat_folder_has_no_labels(folder):
    assert same(run(str(folder / "a")), run(pixels()[:7]))


def test_a_saved_set_is_read_as_it_was(tmp_path):
    part = ImageSet("toy", pixels(), LABELS, ("a", "b", "c")).subset([3, 1, 4])
    part.save(tmp_path / "part.safetensors")
    assert same(run(part), run(tmp_path / "part.safetensors"))


def test_an_array_on_disk_is_read_in_slices(tmp_path):
    np.save(tmp_path / "images.npy", pixels().numpy())
    assert same(run(pixels()), run(np.load(tmp_path / "images.npy", mmap_mode="r"), channels="first"))


@pytest.fixture
def table():
    datasets = pytest.importorskip("datasets")
    from PIL import Image

    images = [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in pixels()]
    features = datasets.Features({"img": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b", "c"])})
    return datasets.Dataset.from_dict({"img": images, "label": LABELS.tolist()}, features=features)


def test_a_hugging_face_table_is_read_by_the_types_of_its_columns(table):
    assert same(run(pixels(), LABELS), run(table, batch_size=6))
    chosen = [4, 2, 9]
    assert same(run(pixels()[chosen], LABELS[chosen]), run(table.select(chosen)))


def test_a_hugging_face_table_that_cannot_be_read_so_is_refused(table):
    datasets = pytest.importorskip("datasets")
    with pytest.raises(InputError, match=r"expected one split .* got test: choose one"):
        run(datasets.DatasetDict({"test": table}))
    with pytest.raises(InputError, match="without a transform"):
        run(table.with_transform(lambda rows: rows))


# ---- what cannot be used is said


def floats(low, high):
    return pixels().float() / 255 * (high - low) + low


class Wrong(nn.Module):
    def __init__(self, answer):
        super().__init__()
        self.answer, self.calls = answer, 0

    def forward(self, images):
        self.calls += 1
        return self.answer(images, self.calls)


def nan_at(images, calls):
    logits = torch.zeros(images.shape[0], 3)
    if calls == 3:
        logits[4] = float("nan")
    return logits


@pytest.mark.parametrize(
    ("images", "more", "sentence"),
    [
        (
            lambda: floats(0, 255),
            {},
            r"in \[0, 1\], got 0 to 2\d\d from image 0 .* give bytes as uint8, or divide by 255",
        ),
        (lambda: floats(-2, 2), {}, r"got -.* put it around the model: Normalized\(model, mean, std\)"),
        (lambda: floats(0, 1) * float("nan"), {}, "got nan in image 0 of the images"),
        (lambda: pixels().numpy(), {}, r"expected channels='first' or channels='last' .* nothing guesses"),
        (lambda: pixels().permute(0, 2, 3, 1), {}, r"expected channels first, as torch has them, got \(0, 8, 8, 3\)"),
        (lambda: pixels().long(), {}, "expected uint8 or floating point pixels in the images, got torch.int64"),
        (
            lambda: pixels().numpy().astype("u2"),
            {"channels": "first"},
            "floating point pixels in the images, got uint16",
        ),
        (lambda: pixels()[0], {}, r"expected images of shape \(n, c, h, w\), got \(3, 8, 8\)"),
        (lambda: pixels()[:0], {}, "expected at least one image in the images, found none"),
        (lambda: DataLoader(Endless(()), batch_size=2), {}, "expected at least one image in Endless, found none"),
        (lambda: 3, {}, "expected images as a tensor, .* got int"),
        (lambda: ["a"], {}, "expected a tensor, a NumPy array or a Pillow image in image 0 .* got str"),
        (lambda: Items([{"image": 1}]), {}, "expected an image, or an image and its label, .* got a dict of image"),
        (lambda: Items(pixels(), ["cat"] * 20), {}, "expected a whole number as the label of image 0 .* got 'cat'"),
        (lambda: Items(pixels(), [0.5] * 20), {}, "expected a whole number as the label of image 0 .* got 0.5"),
        (lambda: DataLoader(Items(pixels()), batch_size=None), {}, r"expected batches of shape .* got \(3, 8, 8\)"),
        (lambda: [pixels()[0], pixels(h=9)[0]], {}, r"shape \(3, 8, 8\), as the first has, got \(3, 9, 8\) in image 1"),
        (pixels, {"labels": [0, 1]}, r"expected 20 labels, one an image, got \(2,\)"),
        (pixels, {"labels": ["cat"] * 20}, "expected labels as whole numbers, one an image, got list"),
        (pixels, {"labels": [5] * 20}, r"labels must lie in 0 … 2, got 5 in row 0"),
        (lambda: Items(pixels(), [5] * 20), {}, r"labels must lie in 0 … 2, got 5"),
        (lambda: "no/such/folder", {}, "expected a folder of images, found none at no/such/folder"),
        (pixels, {"batch_size": 0}, "batch_size: expected 1 or more, got 0"),
        (pixels, {"memory": 100}, r"memory: expected at least the [\d,]+ bytes that one image takes, got 100"),
        (pixels, {"policy": "flop"}, "got 'flop'. Did you mean 'flip'"),
        (pixels, {"draws": "odd"}, "expected 'random' or 'stratified', got 'odd'"),
        (pixels, {"model": 3}, "expected a torch module or the path of an .onnx file, got int"),
        (pixels, {"model": Wrong(lambda x, _: x), "batch_size": 20}, r"\(20, k\), got shape \(20, 3, 8, 8\)"),
        (pixels, {"model": Wrong(lambda x, _: x[:1, 0, 0]), "batch_size": 20}, r"\(20, k\), got shape \(1, 8\)"),
        (pixels, {"model": Wrong(lambda x, _: x[:, 0, 0, :1])}, "at least two classes, got 1 for the image itself"),
        (
            pixels,
            {"model": Wrong(lambda x, i: x[:, 0, 0, : 2 + (i == 3)]), "batch_size": 20},
            "2 classes as for the image itself, got 3 for crop",
        ),
        (
            pixels,
            {"model": Wrong(lambda x, i: x[:, 0, 0, : 2 + (i > 7)]), "batch_size": 10},
            "expected 2 classes as before, got 3 from image 10 of the images on",
        ),
        (
            pixels,
            {"model": Wrong(nan_at), "batch_size": 20},
            "expected finite logits, got nan for images 4, first in the view crop",
        ),
    ],
)
def test_what_cannot_be_used_is_named_in_one_sentence(images, more, sentence):
    with pytest.raises(InputError, match=sentence):
        run(images(), more.pop("labels", None), **more)


def test_an_image_that_cannot_be_read_is_named(folder):
    (folder / "b" / "08.png").write_bytes(b"no image")
    with pytest.raises(InputError, match=r"b/08\.png"):
        run(folder)


def test_images_of_different_sizes_are_named_and_can_be_resized(folder):
    from PIL import Image

    from atta.images.layouts import folder_of_images

    Image.new("RGB", (9, 8)).save(folder / "b" / "08.png")
    with pytest.raises(InputError, match=r"got \(3, 8, 9\) in .*b/08\.png; resize them, as ImageSet\.resized"):
        run(folder)
    assert len(run(folder_of_images(folder).resized(8))) == 20


def test_a_folder_without_images_or_with_two_kinds_of_order_is_refused(folder, tmp_path):
    with pytest.raises(
        InputError, match=r"expected images, or folders of images named by their class, in .* found images"
    ):
        run(tmp_path)
    (folder / "loose.png").write_bytes((folder / "a" / "00.png").read_bytes())
    with pytest.raises(InputError, match=r"found both: loose\.png and a, b, c"):
        run(folder)


# ---- memory


def test_a_bound_on_memory_is_kept_and_changes_nothing_but_the_batch():
    images, sizes = pixels(40, h=16, w=16), []
    model = nn.Sequential(network(), Seen(sizes))
    free = run(images, model=model, batch_size=100)
    assert max(sizes) == 80  # Two views of 40 images fit into one pass.
    sizes.clear()
    bound = 8_000_000
    bounded = run(images, model=model, memory=bound, batch_size=100)
    largest = max(sizes)
    assert 1 < largest < 40
    assert close(free, bounded)
    model.eval()
    with torch.no_grad():
        assert peak_memory(lambda: model(images[:largest].float()), torch.device("cpu")) < bound


class Seen(nn.Module):
    """Notes how many rows it was given."""

    def __init__(self, sizes):
        super().__init__()
        self.sizes = sizes

    def forward(self, answer):
        self.sizes.append(answer.shape[0])
        return answer


def test_memory_is_counted_by_what_lives_at_once():
    def work():
        for _ in range(5):
            torch.zeros(1000).add(1)

    assert tensor_memory(work) == 2 * 4000


def test_a_gpu_that_runs_out_of_memory_is_given_smaller_batches(tmp_path):
    sizes = []

    def greedy(images, calls):
        if images.shape[0] > 6:
            raise torch.cuda.OutOfMemoryError("too much")
        sizes.append(images.shape[0])
        return Sums()(images)

    assert same(run(pixels()), run(pixels(), model=Wrong(greedy), batch_size=20, shards=tmp_path))
    assert max(sizes) == 5
    assert json.loads((tmp_path / "run.json").read_text())["rows"] == 5


# ---- shards


@pytest.fixture
def eager(monkeypatch):
    """A shard after every batch."""
    monkeypatch.setattr(shards_module, "SECONDS", 0.0)


SCRIPT = """
import os, signal, sys, torch
from torch import nn
import atta
from atta.collection import shards
from atta.networks.resnet import small_cnn

shards.SECONDS = 0.0
folder, output, deadly = sys.argv[1], sys.argv[2], int(sys.argv[3])


class Deadly(nn.Module):
    calls = 0

    def forward(self, answer):
        Deadly.calls += 1
        if Deadly.calls == deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer


torch.manual_seed(0)
model = nn.Sequential(small_cnn(3), Deadly())
images = torch.randint(0, 256, (50, 3, 8, 8), dtype=torch.uint8)
settings = {"policy": "flip + 2 crop", "batch_size": 8, "progress": False}
atta.collect(model, images, torch.arange(50) % 3, shards=folder, **settings).save(output)
"""


@pytest.mark.skipif(os.name == "nt", reason="there is no SIGKILL on Windows")
def test_a_run_that_was_killed_goes_on_and_its_file_is_the_same_to_the_last_bit(tmp_path):
    def start(folder, output, deadly):
        command = [sys.executable, "-c", SCRIPT, str(tmp_path / folder), str(tmp_path / output), str(deadly)]
        environment = os.environ | {"PYTHONPATH": str(Path(atta.__file__).parent.parent), "OMP_NUM_THREADS": "1"}
        return subprocess.run(command, env=environment, check=False, capture_output=True, text=True)

    killed = start("cut", "never", 15)  # in the middle of the fourth batch
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert len(list((tmp_path / "cut").glob("*.safetensors"))) == 3
    assert not (tmp_path / "never").exists()
    for folder, output in (("cut", "resumed"), ("whole", "uninterrupted")):
        assert (done := start(folder, output, 0)).returncode == 0, done.stderr
    assert (tmp_path / "resumed").read_bytes() == (tmp_path / "uninterrupted").read_bytes()


def interrupted(images, at, **settings):
    with pytest.raises(KeyboardInterrupt):
        run(images, model=nn.Sequential(network(), Angry(at, KeyboardInterrupt())), **settings)


def calls(images, **settings):
    model = nn.Sequential(network(), Angry(0))
    record = run(images, model=model, **settings)
    return record, model[1].calls


@pytest.mark.parametrize(
    "images",
    [
        pixels,
        lambda: TensorDataset(pixels(), LABELS),
        lambda: DataLoader(TensorDataset(pixels(), LABELS), batch_size=6),
        lambda: Endless(pixels()),
    ],
)
def test_ctrl_c_keeps_what_was_done_whatever_the_images_come_from(tmp_path, images):
    whole, all_calls = calls(images(), batch_size=4)
    interrupted(images(), 16, batch_size=4, shards=tmp_path)  # in the third batch of seven passes
    resumed, fewer_calls = calls(images(), batch_size=4, shards=tmp_path)
    assert same(whole, resumed)
    assert (all_calls, fewer_calls) == (35, 21)
    again, no_calls = calls(images(), batch_size=4, shards=tmp_path)
    assert same(whole, again)
    assert no_calls == 0


def test_a_full_disk_is_said_and_what_was_done_is_kept(tmp_path, monkeypatch, eager):
    from atta import predictions

    save, writes = predictions.save_file, []

    def full(*arguments):
        writes.append(arguments)
        if len(writes) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        save(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(predictions, "save_file", full)
        with pytest.raises(InputError, match=r"No space left on device.* the 8 images before it are kept, run again"):
            calls(pixels(), batch_size=4, shards=tmp_path)
    resumed, fewer_calls = calls(pixels(), batch_size=4, shards=tmp_path)
    assert same(resumed, calls(pixels(), batch_size=4)[0])
    assert fewer_calls == 21


def test_an_image_that_cannot_be_read_leaves_what_was_done(folder, tmp_path):
    image = (folder / "c" / "17.png").read_bytes()
    (folder / "c" / "17.png").write_bytes(b"no image")
    with pytest.raises(InputError, match=r"c/17\.png"):
        calls(folder, batch_size=4, shards=tmp_path / "shards")
    (folder / "c" / "17.png").write_bytes(image)
    assert calls(folder, batch_size=4, shards=tmp_path / "shards")[1] == 7


@pytest.mark.parametrize(
    ("images", "more", "sentence"),
    [
        (
            lambda: pixels(seed=1),
            {},
            "expected the images from image 0 of the images on to be those whose shards are in",
        ),
        (lambda: pixels().flip(0), {}, "got others; choose another folder"),
        (lambda: pixels().float() / 255, {}, "got others"),
        (lambda: pixels(21), {}, "their images is 20 and not 21"),
        (pixels, {"seed": 1}, "their seed is 0 and not 1; choose another folder, or delete this one"),
        (pixels, {"policy": "flip"}, "their policy is 'flip .* and not 'flip'"),
        (pixels, {"batch_size": 5}, "their batch_size is 4 and not 5"),
        (pixels, {"autocast": True}, "their autocast is 'None' and not 'torch.bfloat16'"),
        (pixels, {"model": small_cnn(3)}, "their model is "),
    ],
)
def test_shards_of_another_run_are_refused(tmp_path, images, more, sentence):
    interrupted(pixels(), 16, batch_size=4, shards=tmp_path)
    settings = {"model": nn.Sequential(network(), Angry(0)), "batch_size": 4, "shards": tmp_path} | more
    with pytest.raises(InputError, match=sentence):
        run(images(), **settings)


def test_a_folder_of_other_things_is_not_written_to(tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(InputError, match=r"expected an empty folder, or one of shards, found thesis\.tex"):
        run(pixels(), shards=tmp_path)


def test_a_broken_description_is_said(tmp_path):
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(InputError, match="to describe a run, but it cannot be read"):
        run(pixels(), shards=tmp_path)


def test_a_resumed_run_takes_the_batch_size_that_was_found_before(tmp_path):
    images, bound = pixels(40, h=16, w=16), {"memory": 8_000_000, "shards": tmp_path}
    whole, trials = calls(images, **bound)
    for shard in tmp_path.glob("*.safetensors"):
        shard.unlink()
    batch = json.loads((tmp_path / "run.json").read_text())["batch"]
    again, no_trials = calls(images, **bound)
    assert same(whole, again)
    assert same(whole, run(images, model=network(), batch_size=batch))
    assert trials > no_trials >= 7 * 40 // batch


def test_other_models_than_torch_s_are_recognised_by_what_can_be_known(tmp_path):
    model = NumpyModel(lambda images: images.mean(axis=(2, 3)))
    assert same(run(pixels(), model=model, shards=tmp_path), run(pixels(), model=model, shards=tmp_path))


# ---- what is said


def test_the_origin_says_how_the_record_was_made(tmp_path):
    images = ImageSet("toy", pixels(), LABELS, ("a", "b", "c"))
    record = run(images, model=network(), seed=3, origin={"model": "mine", "note": "first"})
    expected = {
        "model": "mine",
        "note": "first",
        "dataset": "toy",
        "classes": '["a", "b", "c"]',
        "image_shape": "3 x 8 x 8",
        "policy": POLICY,
        "passes": "7",
        "seed": "3",
        "draws": "random",
        "atta": atta.__version__,
        "torch": torch.__version__,
    }
    assert record.origin == expected
    record.save(tmp_path / "record.safetensors")
    assert same(record, atta.Record.load(tmp_path / "record.safetensors"))


def test_progress_is_shown_on_the_error_stream_or_not_at_all(capfd):
    run(pixels(), progress=True)
    out, err = capfd.readouterr()
    assert "collecting" in err
    assert "images/s" in err
    assert out == ""
    run(pixels())
    assert capfd.readouterr() == ("", "")
