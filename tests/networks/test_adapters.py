"""Every kind of model becomes one module from pixels to logits, and weights go out and come back exactly."""

import copy
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from atta.files import whole_file
from atta.networks.adapters import (
    MODELS,
    FromProbabilities,
    Normalized,
    NumpyModel,
    OnnxModel,
    as_logits,
    load_weights,
    resnet18,
    resnet50,
    save_weights,
    small_cnn,
)
from atta.types import InputError


def torchvision_shapes(depths: tuple[int, ...], convolutions: int, expansion: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes of torchvision's ResNet with 1000 classes, written down from its published checkpoints."""
    shapes: dict[str, tuple[int, ...]] = {}

    def conv(conv_name: str, norm_name: str, out: int, into: int, kernel: int) -> None:
        shapes[f"{conv_name}.weight"] = (out, into, kernel, kernel)
        shapes.update({f"{norm_name}.{part}": (out,) for part in ("weight", "bias", "running_mean", "running_var")})
        shapes[f"{norm_name}.num_batches_tracked"] = ()

    conv("conv1", "bn1", 64, 3, 7)
    into = 64
    for stage, depth in enumerate(depths, start=1):
        width = 32 * 2**stage
        for index in range(depth):
            name = f"layer{stage}.{index}"
            if convolutions == 3:
                sizes = [(width, into, 1), (width, width, 3), (4 * width, width, 1)]
            else:
                sizes = [(width, into, 3), (width, width, 3)]
            for number, (out, channels, kernel) in enumerate(sizes, start=1):
                conv(f"{name}.conv{number}", f"{name}.bn{number}", out, channels, kernel)
            if index == 0 and into != expansion * width:
                conv(f"{name}.downsample.0", f"{name}.downsample.1", expansion * width, into, 1)
            into = expansion * width
    return shapes | {"fc.weight": (1000, into), "fc.bias": (1000,)}


@pytest.mark.parametrize(
    ("build", "shapes", "entries", "parameters"),
    [
        (resnet18, torchvision_shapes((2, 2, 2, 2), 2, 1), 122, 11_689_512),
        (resnet50, torchvision_shapes((3, 4, 6, 3), 3, 4), 320, 25_557_032),
    ],
)
def test_torchvision_checkpoints_fit_by_name_and_shape(build, shapes, entries, parameters):
    with torch.device("meta"):
        model = build(1000, small_images=False)
    found = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    assert found == shapes
    assert len(found) == entries
    assert sum(p.numel() for p in model.parameters()) == parameters


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("channels", "height", "width"), [(1, 8, 8), (3, 32, 32), (3, 64, 48)])
def test_every_network_takes_greyscale_and_any_size(name, channels, height, width):
    model = MODELS[name](7, in_channels=channels, small_images=height <= 32).eval()
    with torch.inference_mode():
        logits = model(torch.rand(1, channels, height, width))
    assert logits.shape == (1, 7)
    assert logits.isfinite().all()


def test_a_small_stem_keeps_the_resolution_and_a_large_one_quarters_it():
    image = torch.rand(1, 3, 32, 32)
    for small, side in ((True, 32), (False, 8)):
        model = resnet18(2, small_images=small)
        assert model.maxpool(model.conv1(image)).shape[-1] == side


def test_the_small_network_is_small():
    assert 50_000 < sum(p.numel() for p in small_cnn(10, in_channels=1).parameters()) < 100_000


def test_convolutions_start_with_the_variance_that_keeps_gradients_level():
    weight = resnet18(10).layer3[0].conv2.weight
    assert weight.std().item() == pytest.approx((2 / (256 * 9)) ** 0.5, rel=0.01)


# ---- adapters


class Flatten(nn.Module):
    """Logits that are easy to predict: the mean of each channel."""

    def forward(self, images: Tensor) -> Tensor:
        return images.mean(dim=(2, 3))


class Wrapped(nn.Module):
    def __init__(self, wrap):
        super().__init__()
        self.wrap = wrap

    def forward(self, pixel_values):
        return self.wrap(pixel_values.mean(dim=(2, 3)))


IMAGES = torch.rand(5, 3, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "wrap",
    [
        lambda logits: logits,
        lambda logits: SimpleNamespace(logits=logits, hidden_states=None),
        lambda logits: {"loss": None, "logits": logits},
    ],
    ids=["tensor", "object with logits", "mapping with logits"],
)
def test_torch_and_hugging_face_modules_give_their_logits(wrap):
    assert torch.equal(as_logits(Wrapped(wrap))(IMAGES), Flatten()(IMAGES))


def test_adapting_twice_changes_nothing():
    model = as_logits(Flatten())
    assert as_logits(model) is model


@pytest.mark.parametrize(
    ("wrap", "message"),
    [
        (lambda logits: (logits, logits), r"shape \(5, k\), got a tuple of 2; return the logits alone"),
        (lambda logits: [logits], "got a list of 1"),
        (lambda logits: {"scores": logits}, "got a dict"),
        (lambda logits: logits[0], r"got shape \(3,\)"),
        (lambda logits: logits[:4], r"got shape \(4, 3\)"),
        (lambda logits: logits[:, :, None], r"got shape \(5, 3, 1\)"),
        (lambda logits: logits.argmax(1, keepdim=True), "got torch.int64: are these classes"),
    ],
)
def test_anything_but_one_row_of_logits_an_image_is_refused(wrap, message):
    with pytest.raises(InputError, match=message):
        as_logits(Wrapped(wrap))(IMAGES)


def test_a_plain_function_must_say_that_it_takes_numpy():
    with pytest.raises(InputError, match="got function; wrap a function on NumPy arrays in NumpyModel"):
        as_logits(lambda images: images)
    with pytest.raises(InputError, match=r"expected a module or the path of an .onnx file, got the path weights.pt"):
        as_logits("weights.pt")


@pytest.mark.parametrize("channels_last", [False, True])
def test_a_numpy_function_sees_the_layout_it_asked_for(channels_last):
    seen = []

    def fn(pixels: np.ndarray) -> np.ndarray:
        seen.append((pixels.shape, pixels.dtype, pixels.flags["C_CONTIGUOUS"]))
        return pixels.mean(axis=(1, 2) if channels_last else (2, 3))

    logits = NumpyModel(fn, channels_last=channels_last)(IMAGES)
    torch.testing.assert_close(logits, Flatten()(IMAGES))
    assert seen == [((5, 8, 8, 3) if channels_last else (5, 3, 8, 8), np.float32, True)]


@pytest.mark.parametrize(
    ("dtype", "expected"), [(np.float64, torch.float64), (np.float32, torch.float32), (np.float16, torch.float32)]
)
def test_a_numpy_answer_keeps_its_precision(dtype, expected):
    answer = np.ones((5, 2), dtype)
    answer.flags.writeable = False  # as JAX hands it out
    assert NumpyModel(lambda _: answer)(IMAGES).dtype == expected


def test_a_numpy_function_that_returns_classes_or_a_tuple_is_refused():
    with pytest.raises(InputError, match="are these classes"):
        NumpyModel(lambda _: np.zeros((5, 1), np.int64))(IMAGES)
    with pytest.raises(InputError, match="got a tuple of 1"):
        NumpyModel(lambda _: (np.zeros((5, 2)),))(IMAGES)


def test_probabilities_become_logits_whose_softmax_gives_them_back():
    model = FromProbabilities(Wrapped(lambda logits: (20 * logits).softmax(dim=1)))
    torch.testing.assert_close(model(IMAGES).softmax(dim=1), (20 * Flatten()(IMAGES)).softmax(dim=1))


def test_a_probability_of_zero_stays_finite():
    certain = FromProbabilities(NumpyModel(lambda _: np.eye(5)))(IMAGES)
    assert certain.isfinite().all()
    torch.testing.assert_close(certain.softmax(dim=1), torch.eye(5, dtype=torch.float64))


def test_logits_declared_as_probabilities_are_refused():
    with pytest.raises(InputError, match="expected probabilities that sum to 1"):
        FromProbabilities(Wrapped(lambda logits: logits * 5))(IMAGES)
    with pytest.raises(InputError, match="expected probabilities that sum to 1"):
        FromProbabilities(Wrapped(lambda logits: torch.tensor([2.0, -1.0]).expand(5, 2)))(IMAGES)


@given(st.lists(st.tuples(st.floats(-1, 1), st.floats(0.01, 2)), min_size=3, max_size=3))
@settings(max_examples=25, deadline=None)
def test_normalising_undoes_itself(statistics):
    mean, std = zip(*statistics, strict=True)
    seen = Normalized(nn.Identity(), mean, std)(IMAGES)
    back = seen * torch.tensor(std)[:, None, None] + torch.tensor(mean)[:, None, None]
    torch.testing.assert_close(back, IMAGES, atol=1e-5, rtol=1e-4)


def test_normalisation_travels_with_the_weights(tmp_path):
    save_weights(Normalized(small_cnn(2), (0.1, 0.2, 0.3), (1.0, 2.0, 3.0)), tmp_path / "model.safetensors")
    other = Normalized(small_cnn(2), (0.0,) * 3, (1.0,) * 3)
    load_weights(other, tmp_path / "model.safetensors")
    assert other.mean.tolist() == pytest.approx([0.1, 0.2, 0.3])


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.rand(2, 1, 8, 8), r"expected images of shape \(n, 3, h, w\).* got \(2, 1, 8, 8\)"),
        (torch.rand(3, 8, 8), r"got \(3, 8, 8\)"),
        (torch.zeros(2, 3, 8, 8, dtype=torch.uint8), r"floats in \[0, 1\], got torch.uint8; divide by 255"),
    ],
)
def test_normalising_says_what_it_expected(images, message):
    with pytest.raises(InputError, match=message):
        Normalized(nn.Identity(), (0.5,) * 3, (0.2,) * 3)(images)


def test_mean_and_std_must_pair_and_std_be_positive():
    with pytest.raises(InputError, match="got 3 means and 1 stds"):
        Normalized(nn.Identity(), (0.5,) * 3, (0.2,))
    with pytest.raises(InputError, match="expected a positive std"):
        Normalized(nn.Identity(), (0.5,), (0.0,))


def test_an_adapted_model_exports_with_a_free_batch():
    network = nn.Sequential(small_cnn(4), nn.Softmax(dim=1))
    model = FromProbabilities(Normalized(network, (0.5,) * 3, (0.2,) * 3)).eval()
    shapes = ({0: torch.export.Dim("n", min=1)},)
    exported = torch.export.export(model, (IMAGES,), dynamic_shapes=shapes).module()
    for n in (1, 5, 9):
        images = torch.rand(n, 3, 8, 8)
        torch.testing.assert_close(exported(images), model(images))


# ---- ONNX


@pytest.fixture(scope="module")
def onnx_file(tmp_path_factory):
    """Write a graph that takes the mean of each channel, with any input shape and number of outputs."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    folder = tmp_path_factory.mktemp("onnx")

    def write(shape, outputs=("logits",), inputs=("pixels",), dtype=onnx.TensorProto.FLOAT):
        helper = onnx.helper
        axes = helper.make_tensor("axes", onnx.TensorProto.INT64, [2], [2, 3])
        nodes = [helper.make_node("ReduceMean", [inputs[0], "axes"], [name], keepdims=0) for name in outputs]
        graph = helper.make_graph(
            nodes,
            "mean",
            [helper.make_tensor_value_info(name, dtype, shape) for name in inputs],
            [helper.make_tensor_value_info(name, dtype, None) for name in outputs],
            [axes],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
        path = folder / f"{len(list(folder.iterdir()))}.onnx"
        onnx.save(model, path)
        return path

    return write


@pytest.mark.parametrize("batch", ["n", 1, 2, 5, 8])
def test_an_onnx_file_runs_with_a_free_or_a_fixed_batch(onnx_file, batch):
    model = as_logits(onnx_file([batch, 3, 8, 8]))
    for n in (0, 1, 5):
        torch.testing.assert_close(model(IMAGES[:n]), Flatten()(IMAGES[:n]))


def test_an_onnx_model_can_be_copied_and_sent_to_another_process(onnx_file):
    model = as_logits(onnx_file(["n", 3, "h", "w"]))
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin(IMAGES), model(IMAGES))


def test_an_onnx_file_with_several_outputs_needs_a_name(onnx_file):
    path = onnx_file(["n", 3, 8, 8], outputs=("features", "logits"))
    with pytest.raises(InputError, match="one output, found features, logits: name the logits"):
        as_logits(path)
    with pytest.raises(InputError, match="an output 'probs', found features, logits"):
        OnnxModel(path, output="probs")
    assert OnnxModel(path, output="logits")(IMAGES).shape == (5, 3)


def test_an_onnx_file_in_half_precision_gives_float32(onnx_file):
    logits = as_logits(onnx_file(["n", 3, 8, 8], dtype=10))(IMAGES)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, Flatten()(IMAGES), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize(
    ("shape", "message"),
    [(["n", 1, 8, 8], r"\('n', 1, 8, 8\) .* got \(5, 3, 8, 8\)"), (["n", 3, 32, 32], r"\('n', 3, 32, 32\)")],
)
def test_an_onnx_file_checks_channels_and_size(onnx_file, shape, message):
    with pytest.raises(InputError, match=message):
        as_logits(onnx_file(shape))(IMAGES)


def test_a_file_that_is_no_usable_onnx_model_is_refused(onnx_file, tmp_path):
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"not a graph")
    with pytest.raises(InputError, match="to be an ONNX model"):
        as_logits(broken)
    with pytest.raises(InputError, match="expected an ONNX file, found none at"):
        as_logits(tmp_path / "none.onnx")
    with pytest.raises(InputError, match=r"one input \(n, c, h, w\), found pixels \['n', 3, 8, 8\], mask"):
        as_logits(onnx_file(["n", 3, 8, 8], inputs=("pixels", "mask")))
    with pytest.raises(InputError, match=r"floating point pixels, found tensor\(int32\)"):
        as_logits(onnx_file(["n", 3, 8, 8], dtype=6))


# ---- weights


def same(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


def test_weights_come_back_exactly(tmp_path):
    model, other = small_cnn(4).to(memory_format=torch.channels_last), small_cnn(4)
    save_weights(model, tmp_path / "deep" / "model.safetensors", {"origin": "test"})
    load_weights(other, tmp_path / "deep" / "model.safetensors")
    assert same(model, other)
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["model.safetensors"]


def test_tied_weights_can_be_saved(tmp_path):
    def tied():
        first = nn.Linear(3, 3)
        second = nn.Linear(3, 3)
        second.weight = first.weight
        return nn.Sequential(first, second)

    model, other = tied(), tied()
    save_weights(model, tmp_path / "tied.safetensors")
    load_weights(other, tmp_path / "tied.safetensors")
    assert same(model, other)


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "module._orig_mod."])
def test_a_torch_file_loads_whatever_wrapped_the_model(tmp_path, prefix):
    model, other = small_cnn(4), small_cnn(4)
    torch.save({prefix + name: value for name, value in model.state_dict().items()}, tmp_path / "model.pt")
    load_weights(other, tmp_path / "model.pt")
    assert same(model, other)


def test_a_module_truly_called_module_keeps_its_name(tmp_path):
    model = nn.ModuleDict({"module": nn.Linear(2, 2)})
    save_weights(model, tmp_path / "model.safetensors")
    load_weights(model, tmp_path / "model.safetensors")


def test_weights_inside_a_checkpoint_need_their_key(tmp_path):
    model, other = small_cnn(4), small_cnn(4)
    torch.save({"epoch": 3, "state_dict": model.state_dict()}, tmp_path / "checkpoint.pt")
    with pytest.raises(InputError, match="found the keys epoch, state_dict; name the one with `key`"):
        load_weights(other, tmp_path / "checkpoint.pt")
    with pytest.raises(InputError, match="under 'model'"):
        load_weights(other, tmp_path / "checkpoint.pt", key="model")
    load_weights(other, tmp_path / "checkpoint.pt", key="state_dict")
    assert same(model, other)


def test_weights_that_do_not_fit_are_named(tmp_path):
    path = tmp_path / "model.safetensors"
    save_weights(nn.ModuleDict({"a": nn.Linear(2, 3), "b": nn.Linear(2, 2)}), path)
    with pytest.raises(InputError) as error:
        load_weights(nn.ModuleDict({"a": nn.Linear(2, 2), "c": nn.Linear(2, 2)}), path)
    for part in ("it lacks c.bias, c.weight", "has no b.bias, b.weight", "a.weight is (3, 2) there and (2, 2) in the"):
        assert part in str(error.value)


def test_many_faults_are_counted_rather_than_listed(tmp_path):
    save_weights(small_cnn(4), tmp_path / "model.safetensors")
    with pytest.raises(InputError, match=r"it lacks bn1.bias, .* and \d+ more"):
        load_weights(resnet18(4), tmp_path / "model.safetensors")


class Dangerous:
    def __reduce__(self):
        return print, ("this must never be printed",)


def test_a_pickle_is_refused_and_never_run(tmp_path, capsys):
    torch.save({"weight": Dangerous()}, tmp_path / "model.pt")
    (tmp_path / "plain.pkl").write_bytes(pickle.dumps(Dangerous(), protocol=2))
    for name in ("model.pt", "plain.pkl"):
        with pytest.raises(InputError, match="could run code"):
            load_weights(small_cnn(2), tmp_path / name)
    assert capsys.readouterr().out == ""


def test_files_that_are_missing_or_broken_are_named(tmp_path):
    with pytest.raises(InputError, match="found none at"):
        load_weights(small_cnn(2), tmp_path / "none.safetensors")
    for name in ("broken.safetensors", "broken.pt"):
        (tmp_path / name).write_bytes(b"")
        with pytest.raises(InputError, match="cannot be read"):
            load_weights(small_cnn(2), tmp_path / name)
    torch.save(torch.zeros(3), tmp_path / "tensor.pt")
    with pytest.raises(InputError, match="found a Tensor"):
        load_weights(small_cnn(2), tmp_path / "tensor.pt")


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")

    def fail_half_way() -> None:
        with whole_file(path) as part:
            part.write_text("half of the n")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail_half_way()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(InputError, match="got the folder"), whole_file(tmp_path):
        pass
