"""Every kind of model becomes one module from pixels to logits."""

import copy
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from atta._base.errors import InputError
from atta.networks.adapters import (
    FromProbabilities,
    Normalized,
    NumpyModel,
    OnnxModel,
    as_logits,
    check_external_data,
)
from atta.networks.resnet import small_cnn
from scenarios import ChannelMeans

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
    assert torch.equal(as_logits(ChannelMeans(wrap))(IMAGES), ChannelMeans()(IMAGES))


def test_adapting_twice_changes_nothing():
    model = as_logits(ChannelMeans())
    assert as_logits(model) is model


@pytest.mark.parametrize(
    ("wrap", "message"),
    [
        (
            lambda logits: (logits, logits),
            r"shape \(5, k\), got a tuple of 2; return the logits alone",
        ),
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
        as_logits(ChannelMeans(wrap))(IMAGES)


def test_a_plain_function_must_say_that_it_takes_numpy():
    with pytest.raises(
        InputError, match="got function; wrap a function on NumPy arrays in NumpyModel"
    ):
        as_logits(lambda images: images)
    with pytest.raises(
        InputError,
        match=r"expected a torch module or the path of an .onnx file, got the path weights.pt",
    ):
        as_logits("weights.pt")


@pytest.mark.parametrize("channels_last", [False, True])
def test_a_numpy_function_sees_the_layout_it_asked_for(channels_last):
    seen = []

    def fn(pixels: np.ndarray) -> np.ndarray:
        seen.append((pixels.shape, pixels.dtype, pixels.flags["C_CONTIGUOUS"]))
        return pixels.mean(axis=(1, 2) if channels_last else (2, 3))

    logits = NumpyModel(fn, channels_last=channels_last)(IMAGES)
    torch.testing.assert_close(logits, ChannelMeans()(IMAGES))
    assert seen == [((5, 8, 8, 3) if channels_last else (5, 3, 8, 8), np.float32, True)]


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [(np.float64, torch.float64), (np.float32, torch.float32), (np.float16, torch.float32)],
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
    model = FromProbabilities(ChannelMeans(lambda logits: (20 * logits).softmax(dim=1)))
    torch.testing.assert_close(
        model(IMAGES).softmax(dim=1), (20 * ChannelMeans()(IMAGES)).softmax(dim=1)
    )


def test_a_probability_of_zero_stays_finite():
    certain = FromProbabilities(NumpyModel(lambda _: np.eye(5)))(IMAGES)
    assert certain.isfinite().all()
    torch.testing.assert_close(certain.softmax(dim=1), torch.eye(5, dtype=torch.float64))


def test_logits_declared_as_probabilities_are_refused():
    with pytest.raises(InputError, match="expected probabilities that sum to 1"):
        FromProbabilities(ChannelMeans(lambda logits: logits * 5))(IMAGES)
    with pytest.raises(InputError, match="expected probabilities that sum to 1"):
        FromProbabilities(ChannelMeans(lambda logits: torch.tensor([2.0, -1.0]).expand(5, 2)))(
            IMAGES
        )


@given(st.lists(st.tuples(st.floats(-1, 1), st.floats(0.01, 2)), min_size=3, max_size=3))
@settings(max_examples=25, deadline=None)
def test_normalising_undoes_itself(statistics):
    mean, std = zip(*statistics, strict=True)
    seen = Normalized(nn.Identity(), mean, std)(IMAGES)
    back = seen * torch.tensor(std)[:, None, None] + torch.tensor(mean)[:, None, None]
    torch.testing.assert_close(back, IMAGES, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.rand(2, 1, 8, 8), r"expected images of shape \(n, 3, h, w\).* got \(2, 1, 8, 8\)"),
        (torch.rand(3, 8, 8), r"got \(3, 8, 8\)"),
        (
            torch.zeros(2, 3, 8, 8, dtype=torch.uint8),
            r"floats in \[0, 1\], got torch.uint8; divide by 255",
        ),
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
    """Write a graph that takes the mean of each channel, with any input shape and outputs."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    folder = tmp_path_factory.mktemp("onnx")

    def write(shape, outputs=("logits",), inputs=("pixels",), dtype=onnx.TensorProto.FLOAT):
        helper = onnx.helper
        axes = helper.make_tensor("axes", onnx.TensorProto.INT64, [2], [2, 3])
        nodes = [
            helper.make_node("ReduceMean", [inputs[0], "axes"], [name], keepdims=0)
            for name in outputs
        ]
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
        torch.testing.assert_close(model(IMAGES[:n]), ChannelMeans()(IMAGES[:n]))


def test_an_onnx_model_can_be_copied_and_sent_to_another_process(onnx_file):
    model = as_logits(onnx_file(["n", 3, "h", "w"]))
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin(IMAGES), model(IMAGES))


def test_an_onnx_file_with_several_outputs_needs_a_name(onnx_file):
    path = onnx_file(["n", 3, 8, 8], outputs=("features", "logits"))
    with pytest.raises(InputError, match=r"one output, .* found features, logits and output=None"):
        as_logits(path)
    with pytest.raises(InputError, match="found features, logits and output='probs'"):
        OnnxModel(path, output="probs")
    assert OnnxModel(path, output="logits")(IMAGES).shape == (5, 3)


def test_an_onnx_file_in_half_precision_gives_float32(onnx_file):
    logits = as_logits(onnx_file(["n", 3, 8, 8], dtype=10))(IMAGES)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, ChannelMeans()(IMAGES), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (["n", 1, 8, 8], r"\('n', 1, 8, 8\) .* got \(5, 3, 8, 8\)"),
        (["n", 3, 32, 32], r"\('n', 3, 32, 32\)"),
    ],
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
    with pytest.raises(
        InputError, match=r"one input \(n, c, h, w\), found pixels \['n', 3, 8, 8\], mask"
    ):
        as_logits(onnx_file(["n", 3, 8, 8], inputs=("pixels", "mask")))
    with pytest.raises(InputError, match=r"floating point pixels, found tensor\(int32\)"):
        as_logits(onnx_file(["n", 3, 8, 8], dtype=6))


def outside(path, place):
    """A copy of an ONNX file, beside it, whose numbers lie in `place`."""
    import onnx

    model = onnx.load(path, load_external_data=False)
    tensor = onnx.helper.make_tensor("more", onnx.TensorProto.FLOAT, [1], [0.0])
    tensor.ClearField("float_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=place)
    tensor.external_data.add(key="length", value="4")
    model.graph.initializer.append(tensor)
    copy = path.with_name(f"outside-{path.name}")
    copy.write_bytes(model.SerializeToString())
    return copy


@pytest.mark.parametrize(
    "place", ["../weights.bin", "/etc/passwd", "sub/../../weights.bin", "link.bin"]
)
def test_an_onnx_file_whose_numbers_lie_outside_of_its_folder_is_refused(
    onnx_file, tmp_path, place
):
    path = onnx_file(["n", 3, 8, 8])
    (tmp_path / "weights.bin").write_bytes(bytes(4))
    link = path.with_name("link.bin")
    link.unlink(missing_ok=True)
    link.symlink_to(tmp_path / "weights.bin")
    with pytest.raises(InputError, match=r"expected weights in the folder of .* refused"):
        as_logits(outside(path, place))
    link.unlink()


def test_numbers_beside_an_onnx_file_are_read_by_a_model_and_refused_in_a_graph_of_ours(onnx_file):
    path = onnx_file(["n", 3, 8, 8])
    path.with_name("weights.bin").write_bytes(bytes(4))
    copy = outside(path, "weights.bin")
    assert torch.equal(as_logits(copy)(IMAGES), as_logits(path)(IMAGES))
    with pytest.raises(InputError, match="to contain its weights"):
        check_external_data(copy, same_folder=False)


def test_an_onnx_network_that_fails_while_it_runs_says_so_in_a_sentence(tmp_path):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    for name, node in {
        "shape": "shape = Constant <value_ints=[7, 7]> () y = Reshape (x, shape)",
        "batch": "shape = Constant <value_ints=[1, -1]> () y = Reshape (x, shape)",
        "memory": "shape = Constant <value_ints=[1000000, 1000000, 1, 1]> () y = Expand (x, shape)",
    }.items():
        text = f"""<ir_version: 8, opset_import: ["": 17]>
            fails (float[n,c,h,w] x) => (float[p,q] y) {{{node}}}"""
        onnx.save(onnx.parser.parse_model(text), tmp_path / f"{name}.onnx")
        with pytest.raises(InputError, match=r"images of shape \(5, 3, 8, 8\)|logits of shape"):
            as_logits(tmp_path / f"{name}.onnx")(IMAGES)


class OneNumber(nn.Module):
    """One number per image, its brightness relative to grey: a logit, or its sigmoid."""

    def __init__(self, wrap=lambda z: z):
        super().__init__()
        self.wrap = wrap

    def forward(self, images):
        return self.wrap(8 * (images.mean(dim=(1, 2, 3)) - 0.5)[:, None])


@pytest.mark.parametrize("wrap", [lambda z: z, lambda z: z[:, 0]], ids=["a column", "squeezed"])
def test_one_logit_is_that_of_class_one_and_its_sign_is_kept(wrap):
    images = torch.linspace(0, 1, 40)[:, None, None, None].expand(-1, 3, 8, 8)
    z = OneNumber()(images)[:, 0]
    logits = as_logits(OneNumber(wrap))(images)
    assert torch.equal(logits.argmax(dim=1), (z > 0).long())
    by_numpy = as_logits(
        NumpyModel(lambda pixels: OneNumber(wrap)(torch.from_numpy(pixels)).numpy())
    )(images)
    assert torch.allclose(logits, by_numpy, atol=1e-5)
    assert torch.allclose(logits.softmax(dim=1)[:, 1], z.sigmoid())


def test_one_probability_is_that_of_class_one():
    images = torch.rand(20, 3, 8, 8)
    logits = FromProbabilities(OneNumber(torch.sigmoid))(images)
    assert torch.allclose(logits.softmax(dim=1)[:, 1], OneNumber()(images)[:, 0].sigmoid())
    with pytest.raises(InputError, match="expected probabilities that sum to 1"):
        FromProbabilities(OneNumber())(images)
