"""The network runs once: the same views however the work is cut, and the model stays as it was."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import atta
from atta._base.errors import Advice, InputError
from atta.data.image_set import ImageSet
from atta.data.views import Policy, View
from atta.networks.resnet import small_cnn
from atta.run.collect import collect
from scenarios import (
    LABELS,
    SEVEN,
    Angry,
    Counting,
    Items,
    Scripted,
    Stream,
    Sums,
    close,
    linear,
    mostly_right,
    pixels,
    run,
    same,
    small_network,
    tensors,
    twenty,
)

# ---- what is computed


def test_a_record_holds_the_logits_of_each_image_and_of_each_of_its_views():
    images, model = twenty(9), Sums()
    record = run(images, torch.arange(9) % 3)
    floats = images.float() / 255
    assert torch.equal(record.predictions.logits, model(floats))
    for kind, repeat, view in Policy.parse(SEVEN).render(floats, torch.arange(9), seed=0):
        assert torch.equal(record.predictions.views[kind][:, repeat], model(view))
    assert torch.equal(record.labels, torch.arange(9) % 3)
    assert record.predictions.kinds == ("flip", "crop", "brightness", "contrast")


def test_the_paper_s_eighth_policy_is_the_default_and_serves_the_other_seven():
    assert collect(Sums(), twenty(2), progress=False).predictions.passes == 17


@pytest.mark.parametrize("batch_size", [1, 2, 7, 64])
def test_every_view_is_the_same_to_the_bit_at_any_batch_size(batch_size):
    assert same(run(twenty()), run(twenty(), batch_size=batch_size))


def test_a_network_answers_the_same_to_its_rounding_at_any_batch_size():
    records = [run(twenty(), model=small_network(), batch_size=size) for size in (1, 7, 64)]
    assert close(records[0], records[1])
    assert close(records[0], records[2])


@settings(max_examples=20, deadline=None)
@given(order=st.permutations(range(12)))
def test_images_in_any_order_with_their_indices_are_shown_in_the_same_views(order):
    whole = ImageSet("toy", twenty(12), torch.arange(12) % 3, ("a", "b", "c"))
    assert same(run(whole)[list(order)], run(whole.subset(order), batch_size=5))


def test_seed_and_draws_decide_the_views():
    random = [run(twenty(), seed=seed) for seed in (0, 0, 1)]
    assert same(random[0], random[1])
    assert not same(random[0], random[2])
    stratified = [run(twenty(), seed=seed, draws="stratified") for seed in (0, 1)]
    assert same(*stratified)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 8, 8), (3, 24, 40), (1, 40, 24), (3, 512, 512)])
def test_grey_and_colour_small_and_large_square_and_not_all_work(shape):
    c, h, w = shape
    model = small_cnn(3, in_channels=c, small_images=h < 64)
    record = run(twenty(2, shape), model=model, policy="flip + crop")
    assert record.predictions.passes == 3
    assert record.origin["image_shape"] == f"{c} x {h} x {w}"


def test_views_of_another_size_than_the_image_s_work_beside_the_others():
    record = run(twenty(), model=small_network(), policy="flip + 2 native-crop + brightness")
    one_by_one = run(
        twenty(), model=small_network(), policy="flip + 2 native-crop + brightness", batch_size=1
    )
    assert close(record, one_by_one)


def test_a_view_of_one_s_own_is_shown_by_a_policy_made_with_it():
    policy = Policy.parse("flip + dim", views={"dim": View.of("dim", lambda images: images / 2)})
    record = run(twenty(), policy=policy)
    assert torch.equal(record.predictions.views["dim"][:, 0], Sums()(twenty().float() / 255 / 2))


def test_bytes_and_the_floats_they_stand_for_give_the_same_record():
    assert same(run(twenty()), run(twenty().float() / 255))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_network_is_given_pixels_in_its_own_dtype_and_answers_in_float32_or_wider(dtype):
    record = run(twenty(), model=small_network().to(dtype))
    assert record.predictions.logits.dtype == (
        torch.float64 if dtype == torch.float64 else torch.float32
    )
    assert torch.allclose(
        record.predictions.logits.float(),
        run(twenty(), model=small_network()).predictions.logits,
        atol=0.05,
    )


def test_the_record_can_be_learned_from():
    logits = run(twenty(), model=small_network()).predictions.logits
    scale = torch.ones((), requires_grad=True)
    (logits * scale).sum().backward()
    assert scale.grad is not None


@pytest.mark.parametrize(
    "switches", [{"channels_last": True}, {"autocast": True}, {"autocast": torch.bfloat16}]
)
def test_faster_ways_to_run_change_the_answers_by_rounding_only(switches):
    plain, fast = (
        run(twenty(), model=small_network()),
        run(twenty(), model=small_network(), **switches),
    )
    assert fast.predictions.logits.dtype == torch.float32
    for a, b in zip(tensors(plain), tensors(fast), strict=True):
        assert torch.allclose(a, b, atol=0.03)


def test_compile_runs_what_torch_compiled(monkeypatch):
    compiled = []

    def fake(model):
        compiled.append(model)
        return model

    monkeypatch.setattr(torch, "compile", fake)
    assert same(run(twenty()), run(twenty(), compile=True))
    assert len(compiled) == 1


# ---- the model is borrowed


def state(model):
    return {
        "flags": [(name, module.training) for name, module in model.named_modules()],
        "tensors": {
            name: (
                tensor.data_ptr(),
                tensor.stride(),
                tensor.requires_grad,
                tensor.detach().clone(),
            )
            for name, tensor in (*model.named_parameters(), *model.named_buffers())
        },
    }


def assert_untouched(before, after):
    assert before["flags"] == after["flags"]
    for name, (*facts, values) in before["tensors"].items():
        assert facts == list(after["tensors"][name][:-1])
        assert torch.equal(values, after["tensors"][name][-1])


def mixed_modes():
    model = small_network().train()
    model[1].eval()
    model[0].weight.requires_grad_(False)
    return model


def test_the_model_is_given_back_as_it_came_down_to_each_layer_s_mode():
    model = mixed_modes()
    before = state(model)
    run(twenty(), model=model, channels_last=True)
    assert_untouched(before, state(model))


def test_the_model_is_given_back_as_it_came_when_the_run_fails():
    model = nn.Sequential(small_network(), Angry(at=2)).train()
    before = state(model)
    with pytest.raises(InputError, match="no more"):
        run(twenty(), model=model, channels_last=True)
    assert_untouched(before, state(model))


def test_the_network_runs_in_evaluation_mode():
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(192, 3)).train()
    assert same(run(twenty(), model=model), run(twenty(), model=model))


# ---- images from anywhere


def sources():
    from PIL import Image

    images = twenty()
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
        "dataset of Pillow images": (
            Items([Image.fromarray(image.numpy()) for image in last], LABELS),
            {},
        ),
        "list": (list(images), {"labels": LABELS}),
        "loader": (DataLoader(TensorDataset(images, LABELS), batch_size=6), {}),
        "loader of images alone": (DataLoader(Items(images), batch_size=3), {"labels": LABELS}),
        "iterable": (Stream(images), {}),
        "loader of an iterable": (DataLoader(Stream(images), batch_size=7), {}),
    }


@pytest.mark.parametrize("name", sources())
def test_every_source_of_the_same_images_gives_the_same_record(name):
    images, more = sources()[name]
    labels = more.pop("labels", None)
    assert same(run(twenty(), LABELS), run(images, labels, batch_size=8, **more))


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_that_read_ahead_change_nothing(workers):
    dataset = TensorDataset(twenty(), LABELS)
    assert same(run(dataset), run(dataset, workers=workers, batch_size=3))


def test_loader_processes_change_nothing():
    dataset = TensorDataset(twenty(), LABELS)
    assert same(run(dataset), run(DataLoader(dataset, batch_size=4, num_workers=2)))


def test_a_loader_that_drops_its_last_batch_gives_fewer_images():
    assert len(run(DataLoader(TensorDataset(twenty(), LABELS), batch_size=6, drop_last=True))) == 18


@pytest.mark.parametrize("workers", [0, 2])
def test_a_folder_is_labelled_by_its_class_folders(folder, workers):
    record = run(folder, shuffle=False, workers=workers, batch_size=6)
    assert same(record, run(twenty(), torch.arange(20) // 7))
    assert record.origin["dataset"] == "images"


def test_a_flat_folder_has_no_labels(folder):
    assert same(run(str(folder / "a")), run(twenty()[:7]))


def test_a_saved_set_is_read_as_it_was(tmp_path):
    part = ImageSet("toy", twenty(), LABELS, ("a", "b", "c")).subset([3, 1, 4])
    part.save(tmp_path / "part.safetensors")
    assert same(run(part), run(tmp_path / "part.safetensors"))


def test_an_array_on_disk_is_read_in_slices(tmp_path):
    np.save(tmp_path / "images.npy", twenty().numpy())
    assert same(
        run(twenty()), run(np.load(tmp_path / "images.npy", mmap_mode="r"), channels="first")
    )


@pytest.fixture
def table():
    datasets = pytest.importorskip("datasets")
    from PIL import Image

    images = [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in twenty()]
    features = datasets.Features(
        {"img": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b", "c"])}
    )
    return datasets.Dataset.from_dict({"img": images, "label": LABELS.tolist()}, features=features)


def test_a_hugging_face_table_is_read_by_the_types_of_its_columns(table):
    assert same(run(twenty(), LABELS), run(table, batch_size=6))
    chosen = [4, 2, 9]
    assert same(run(twenty()[chosen], LABELS[chosen]), run(table.select(chosen)))


def test_a_hugging_face_table_that_cannot_be_read_so_is_refused(table):
    datasets = pytest.importorskip("datasets")
    with pytest.raises(InputError, match=r"expected one split .* got test: choose one"):
        run(datasets.DatasetDict({"test": table}))
    with pytest.raises(InputError, match="without a transform"):
        run(table.with_transform(lambda rows: rows))


def test_a_hugging_face_dataset_that_streams_is_read_once_in_its_order(table):
    datasets = pytest.importorskip("datasets")
    stream = table.to_iterable_dataset()
    assert same(run(twenty(), LABELS), run(stream, batch_size=6))
    assert same(
        run(twenty()[3:9], LABELS[3:9], class_names=("c", "a", "b")), run(stream.skip(3).take(6))
    )
    unnamed = datasets.IterableDataset.from_generator(
        lambda: ({"x": row["img"], "label": row["label"]} for row in table)
    )
    assert same(run(twenty(), LABELS), run(unnamed))
    with pytest.raises(InputError, match=r"expected one split .* got test: choose one"):
        run(datasets.IterableDatasetDict({"test": stream}))
    with pytest.raises(InputError, match="expected one column of images"):
        run(stream.remove_columns("img"))


@pytest.mark.parametrize("streams", [True, False], ids=["streams", "loader"])
def test_labels_that_come_once_are_found_by_name_as_well(table, streams):
    names, images = (
        ("c", "a", "b"),
        table.to_iterable_dataset() if streams else TensorDataset(twenty(), LABELS),
    )
    if not streams:
        images.classes = ["a", "b", "c"]
        images = DataLoader(images, batch_size=6)
    # A layout that is chosen by its speed would change the last bits.
    how = {"policy": "flip", "progress": False, "channels_last": False}
    expected = atta.calibrate(small_network(), twenty(), (LABELS + 1) % 3, **how)
    found = atta.calibrate(small_network(), images, class_names=names, **how)
    assert found.summary.after == expected.summary.after
    assert found.class_names == names


# ---- what cannot be used is said


def floats(low, high):
    return twenty().float() / 255 * (high - low) + low


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
            r"in \[0, 1\], got 0 to 2\d\d, first in image 0 .* uint8, or divide by 255",
        ),
        (
            lambda: floats(-2, 2),
            {},
            r"got -.* put it around the model: Normalized\(model, mean, std\)",
        ),
        (lambda: floats(0, 1) * float("nan"), {}, "got nan in image 0 of the images"),
        (
            lambda: twenty().numpy(),
            {},
            r"expected channels='first' or channels='last' .* got neither .* shape \(3, 8, 8\)",
        ),
        (
            lambda: twenty().permute(0, 2, 3, 1),
            {},
            r"expected channels first, as torch has them, got \(8, 8, 3\)",
        ),
        (
            lambda: twenty().long(),
            {},
            "expected uint8 or floating point pixels in the images, got torch.int64",
        ),
        (
            lambda: twenty().numpy().astype("u2"),
            {"channels": "first"},
            "floating point pixels in the images, got uint16",
        ),
        (lambda: twenty()[0, 0], {}, r"expected images of shape \(n, c, h, w\), got \(8, 8\)"),
        (lambda: twenty()[:, 0], {}, r"got \(20, 8, 8\); write images\[None\] for one image"),
        (lambda: twenty()[:0], {}, "expected at least one image in the images, found none"),
        (
            lambda: DataLoader(Stream(()), batch_size=2),
            {},
            "expected at least one image in Stream, found none",
        ),
        (lambda: 3, {}, "expected images as a tensor, .* got int"),
        (lambda: ["a"], {}, "expected files of images, found none at a"),
        (
            lambda: Items([{"picture": 1}]),
            {},
            r"expected one image \(image, .* in image 0 of Items, got a dict of picture: rename",
        ),
        (
            lambda: Items([{"image": 1, "img": 2, "label": 3}]),
            {},
            "got a dict of image, img, label: rename or remove keys",
        ),
        (
            lambda: Items(twenty(), ["cat"] * 20),
            {},
            "expected a whole number as the label of image 0 .* got 'cat'",
        ),
        (
            lambda: Items(twenty(), [0.5] * 20),
            {},
            "expected a whole number as the label of image 0 .* got 0.5",
        ),
        (
            lambda: DataLoader(Items(twenty()), batch_size=None),
            {},
            r"expected batches of shape .* got \(3, 8, 8\)",
        ),
        (
            lambda: [twenty()[0], twenty(1, (3, 9, 8))[0]],
            {},
            r"expected images of the shape \(3, 8, 8\), got \(3, 9, 8\) in image 1 .*preprocessing",
        ),
        (twenty, {"labels": [0, 1]}, r"expected 20 labels, one for each image, got \(2,\)"),
        (
            twenty,
            {"labels": ["cat"] * 20},
            r"the images have 1 classes \(cat\), and the network has 3: it is unclear",
        ),
        (twenty, {"labels": [5] * 20}, r"labels must lie in 0 … 2, got 5 in row 0"),
        (lambda: Items(twenty(), [5] * 20), {}, r"labels must lie in 0 … 2, got 5"),
        (lambda: "no/such/folder", {}, "expected a folder of images, found none at no/such/folder"),
        (
            twenty,
            {"batch_size": 0},
            "batch_size: expected 1 or more, got 0",
        ),
        (twenty, {"batch_sise": 3}, "collect takes no 'batch_sise'. Did you mean 'batch_size'"),
        (twenty, {"policy": "flop"}, "got 'flop'. Did you mean 'flip'"),
        (twenty, {"draws": "odd"}, "expected 'random' or 'stratified', got 'odd'"),
        (twenty, {"model": 3}, "expected a torch module or the path of an .onnx file, got int"),
        (
            twenty,
            {"model": Scripted(lambda x, _: x), "batch_size": 20},
            r"\(20, k\), got shape \(20, 3, 8, 8\)",
        ),
        (
            twenty,
            {"model": Scripted(lambda x, _: x[:1, 0, 0]), "batch_size": 20},
            r"\(20, k\), got shape \(1, 8\)",
        ),
        (
            twenty,
            {"model": Scripted(lambda x, _: x[:, 0, 0, :0])},
            "at least two classes, got 0 for the image itself",
        ),
        (
            twenty,
            {"model": Scripted(lambda x, i: x[:, 0, 0, : 2 + (i == 3)]), "batch_size": 20},
            "2 classes as for the image itself, got 3 for crop",
        ),
        (
            twenty,
            {"model": Scripted(lambda x, i: x[:, 0, 0, : 2 + (i > 7)]), "batch_size": 10},
            "expected 2 classes as before, got 3 from image 10 of the images on",
        ),
        (
            twenty,
            {"model": Scripted(nan_at), "batch_size": 20},
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


@pytest.mark.parametrize(
    "which", [("a/00.png", "b/08.png"), ("c/19.png",)], ids=["the first", "the last"]
)
def test_images_that_cannot_be_read_are_left_out_if_that_is_asked_for(folder, which, tmp_path):
    for name in which:
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: len(data) // 2])
    left = [i for i in range(20) if not any(name.endswith(f"/{i:02}.png") for name in which)]
    with pytest.warns(
        Advice, match="left out: expected an image in .*, but it cannot be decoded"
    ) as said:
        record = run(folder, skip_bad=True, shuffle=False, output=tmp_path / "shards")
    assert sum("left out" in str(one.message) for one in said) == len(which)
    assert json.loads(record.origin["left_out"]) == [str(folder / name) for name in which]
    assert same(record, run(ImageSet("toy", twenty(), torch.arange(20) // 7, "abc").subset(left)))
    given = torch.arange(20) // 7
    files = sorted(folder.rglob("*.png"))
    assert same(record, run(files, given, skip_bad=True, workers=2))
    assert atta.calibrate(
        small_network(), folder, skip_bad=True, policy="flip", progress=False
    ).summary.images == len(left)


def test_a_stream_cannot_be_looked_at_before_and_nothing_can_be_left_to_read(folder):
    with pytest.raises(InputError, match="skip_bad: a loader or a stream reads its images itself"):
        run(DataLoader(TensorDataset(twenty(), LABELS)), skip_bad=True)
    for path in folder.rglob("*.png"):
        path.write_bytes(b"no image")
    with pytest.raises(
        InputError,
        match=r"that can be read, found none: .*\.png, but .*decoded: cannot identify image file$",
    ):
        run(folder, skip_bad=True)


def test_images_of_different_sizes_are_named_and_can_be_resized(folder):
    from PIL import Image

    from atta.data.folder import folder_of_images

    Image.new("RGB", (9, 8)).save(folder / "b" / "08.png")
    with pytest.raises(
        InputError,
        match=r"got \(3, 8, 9\) in .*b/08\.png; .*need preprocessing: preprocess=Preprocess",
    ):
        run(folder)
    assert len(run(folder_of_images(folder).resized(8))) == 20


def test_a_folder_without_images_or_with_two_kinds_of_order_is_refused(folder, tmp_path):
    with pytest.raises(
        InputError,
        match=r"expected images, or folders of images named by their class, in .* found images",
    ):
        run(tmp_path)
    (folder / "loose.png").write_bytes((folder / "a" / "00.png").read_bytes())
    with pytest.raises(InputError, match=r"found both: loose\.png and a, b, c"):
        run(folder)


# ---- what is said


def test_the_origin_says_how_the_record_was_made(tmp_path):
    images = ImageSet("toy", twenty(), LABELS, ("a", "b", "c"))
    record = run(images, model=small_network(), seed=3, origin={"model": "mine", "note": "first"})
    expected = {
        "model": "mine",
        "note": "first",
        "dataset": "toy",
        "classes": '["a", "b", "c"]',
        "image_shape": "3 x 8 x 8",
        "policy": SEVEN,
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
    run(twenty(), progress=True)
    out, err = capfd.readouterr()
    assert "collecting" in err
    assert "images/s" in err
    assert out == ""
    run(twenty())
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "fault", [KeyError("pixels"), IndexError("3"), AttributeError("no such"), OSError("gone")]
)
def test_whatever_a_model_raises_is_said_in_a_sentence(fault):
    class Fails(torch.nn.Module):
        def forward(self, images):
            raise fault

    with pytest.raises(
        InputError, match=r"the model failed on images of 3 x 8 x 8 \(channels x height x width\): "
    ) as caught:
        atta.collect(Fails(), torch.rand(2, 3, 8, 8), policy="flip", progress=False)
    assert caught.value.__cause__ is fault


def test_a_seed_is_a_whole_number():
    how = {"progress": False, "checks": False}
    assert collect(linear(), pixels(2), seed=np.int64(3), **how).origin["seed"] == "3"
    for seed in ("a", None, 1.5):
        with pytest.raises(InputError, match="seed must be a whole number, got"):
            collect(linear(), pixels(2), seed=seed, **how)


# ---- rehearsals


def test_rehearsals_lie_beside_the_views_and_are_none_of_them(tmp_path):
    record = run(twenty(), LABELS, rehearse=[3, 5])
    predictions = record.predictions
    assert predictions.rehearsals == ("rehearse-3", "rehearse-5")
    assert predictions.kinds == run(twenty()).predictions.kinds
    assert predictions.passes == 7
    assert (
        predictions.select(["flip"]).rehearsals
        == predictions.take({"flip": 1}).rehearsals
        == predictions.rehearsals
    )
    assert predictions.select(predictions.kinds, rehearsals=False).rehearsals == ()
    assert "rehearse-3" in repr(predictions)
    again = atta.Record.load(record.save(tmp_path / "record.safetensors"))
    assert same(again, record)
    assert again.predictions.rehearsals == predictions.rehearsals


def test_rehearsals_are_drawn_by_the_image_whatever_the_draws_and_the_batches():
    images = twenty()
    alone = run(images, draws="stratified", rehearse=[4], batch_size=3).predictions.views[
        "rehearse-4"
    ]
    torch.testing.assert_close(
        alone, run(images, rehearse=[4]).predictions.views["rehearse-4"], rtol=1e-5, atol=1e-3
    )


def test_a_ladder_is_climbed_where_accuracy_has_hardly_fallen():
    model = Counting()
    labels = model.inner(pixels() / 255).argmax(1)
    flat = nn.Sequential(
        nn.Flatten(), nn.Linear(192, 3, bias=False)
    )  # sees nothing but the mean: little hurts it
    with torch.no_grad():
        flat[1].weight.copy_(torch.tensor([[1.0], [0.0], [-1.0]]).expand(3, 192))
    record = run(pixels(), flat(pixels() / 255).argmax(1), model=flat, policy="flip", rehearse=True)
    assert record.predictions.rehearsals == ("rehearse-3", "rehearse-5")
    record = run(pixels(), labels, model=model, policy="flip", rehearse=True)
    assert model.seen == 60 * (2 + len(record.predictions.rehearsals))
    assert 1 <= len(record.predictions.rehearsals) <= 3


def test_a_ladder_is_gone_down_where_nothing_is_left_of_accuracy():
    class Fine(nn.Module):
        """Knows an image by its smallest digits, which no corruption leaves."""

        def forward(self, images):
            return (
                nn.functional.one_hot(
                    (images.double().mean((1, 2, 3)) * 1e7).long() % 20, 20
                ).float()
                * 5
            )

    model = Fine()
    labels = model(pixels().float() / 255).argmax(1)
    assert run(
        pixels(), labels, model=model, policy="flip", rehearse=True
    ).predictions.rehearsals == (
        "rehearse-3",
        "rehearse-1",
    )


def test_a_ladder_needs_labels_and_says_so_before_the_network_runs():
    model = Counting()
    with pytest.raises(InputError, match=r"labels: expected a class number.*rehearse=\[3, 5\]"):
        run(pixels(), model=model, rehearse=True)
    assert model.seen == 0
    items = Items(pixels() / 255, mostly_right(linear()))
    assert run(items, model=linear(), rehearse=True).predictions.rehearsals


def test_images_that_come_once_are_rehearsed_at_fixed_severities():
    record = run(Stream(twenty() / 255), rehearse=True)
    assert record.predictions.rehearsals == ("rehearse-2", "rehearse-3", "rehearse-5")


def test_a_ladder_that_was_interrupted_goes_on_from_its_shards(tmp_path):
    labels = mostly_right(linear())
    whole = run(pixels(), labels, model=Counting(), rehearse=True, output=tmp_path / "shards")
    again = Counting()
    assert same(
        run(pixels(), labels, model=again, rehearse=True, output=tmp_path / "shards"), whole
    )
    assert again.seen == 0
