"""One batch through all views: pixels in, logits out, in passes that fit."""

import json

import pytest
import torch

from atta._base.errors import InputError
from atta.data.source import as_source, batches_of
from atta.run.runner import IMAGE, as_pixels, batch_size, run_views
from scenarios import ChannelMeans, Scripted, Stream, Sums, run, same, twenty


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_pixels_are_floats_in_0_to_1_that_half_precision_does_not_round(dtype):
    images = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16)
    pixels = as_pixels(images, dtype)
    assert pixels.dtype == torch.promote_types(dtype, torch.float32)
    assert torch.equal(pixels, images.to(pixels.dtype) / 255)
    assert torch.equal(as_pixels(pixels, dtype), pixels)
    assert as_pixels(torch.full((1, 1, 2, 2), 1 + 1e-6), dtype).max() == 1


@pytest.mark.parametrize(("most", "passes"), [(1, [4, 4, 4, 4]), (2, [8, 4, 4]), (9, [8, 4, 4])])
def test_views_of_one_size_share_a_pass_and_keep_their_order(most, passes):
    small, large = torch.rand(4, 3, 6, 6), torch.rand(4, 3, 8, 8)
    shown = [
        (IMAGE, 0, small),
        ("flip", 0, small.flip(-1)),
        ("crop", 0, large),
        ("crop", 1, small),
    ]
    network = Scripted(lambda images, _: sizes.append(images.shape[0]) or ChannelMeans()(images))
    sizes = []
    answers = list(run_views(network, shown, most))
    assert sizes == passes
    assert [(name, repeat) for name, repeat, _ in answers] == [
        (name, repeat) for name, repeat, _ in shown
    ]
    for (*_, logits), (*_, images) in zip(answers, shown, strict=True):
        assert torch.allclose(logits, ChannelMeans()(images))


@pytest.mark.parametrize("images", [twenty, lambda: Stream(twenty())])
@pytest.mark.parametrize("start", [0, 7])
def test_batches_cover_a_source_from_any_start(images, start):
    source = as_source(images())
    batches = list(source.read(batches_of(6, start, source.count)))
    assert [batch.positions[0] for batch in batches] == list(range(start, 20, 6))
    assert torch.equal(torch.cat([batch.pixels for batch in batches]), twenty()[start:])


def test_the_batch_size_is_what_was_asked_for_or_what_is_usual():
    assert batch_size(5, torch.device("cpu")) == 5
    assert batch_size(None, torch.device("cpu")) == batch_size(None, torch.device("meta")) == 32
    assert batch_size(None, torch.device("cuda")) == 256
    with pytest.raises(InputError, match="batch_size: expected 1 or more, got 0"):
        batch_size(0, torch.device("cpu"))


def test_finite_logits_whose_sum_overflows_are_taken_and_infinite_ones_are_not():
    huge = Scripted(lambda images, _: torch.full((images.shape[0], 3), 3e38))
    assert run(twenty(), model=huge).predictions.logits.eq(3e38).all()
    opposite = Scripted(lambda images, _: torch.tensor([[torch.inf, -torch.inf]]).expand(20, 2))
    with pytest.raises(InputError, match="expected finite logits, got inf"):
        run(twenty(), model=opposite, batch_size=20)


def test_a_gpu_that_runs_out_of_memory_is_given_smaller_batches(tmp_path):
    sizes = []

    def greedy(images, calls):
        if images.shape[0] > 6:
            raise torch.cuda.OutOfMemoryError("too much")
        sizes.append(images.shape[0])
        return Sums()(images)

    assert same(
        run(twenty()), run(twenty(), model=Scripted(greedy), batch_size=20, output=tmp_path)
    )
    assert max(sizes) == 5
    assert json.loads((tmp_path / "run.json").read_text())["rows"] == 5
    assert same(
        run(twenty()), run(twenty(), model=Scripted(greedy), batch_size=20, output=tmp_path)
    )  # from its shards


def test_one_image_that_does_not_fit_is_said():
    def greedy(images, calls):
        raise torch.cuda.OutOfMemoryError("too much")

    with pytest.raises(InputError, match="one image does not fit into the memory of cpu"):
        run(twenty(3), model=Scripted(greedy))
