"""One recipe, the same result however often the run was stopped, and a file that says how it was made."""

import io
import subprocess
import sys
from contextlib import redirect_stdout
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from atta.images.sets import ImageSet
from atta.networks.adapters import small_cnn
from atta.networks.augment import MIRRORS, NUMBERS, augment, symmetries
from atta.networks.training import Recipe, load_trained, pixel_statistics, train
from atta.types import InputError

QUICK = Recipe(steps=12, batch_size=16, peak_lr=0.05)


def stripes(n: int = 64, side: int = 8, seed: int = 0) -> ImageSet:
    """Two classes that a small network tells apart: dark and light images, with noise."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % 2
    noise = torch.randint(0, 90, (n, 3, side, side), generator=generator)
    return ImageSet("stripes", (noise + 120 * labels[:, None, None, None]).byte(), labels, ("dark", "light"))


def weights(result) -> list[torch.Tensor]:
    return list(result.model.state_dict().values())


def equal(a, b) -> bool:
    return all(torch.equal(x, y) for x, y in zip(weights(a), weights(b), strict=True))


class StopsAt(nn.Module):
    """A network with dropout whose user presses Ctrl-C in the n-th step."""

    def __init__(self, stop_at: int | None) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.Flatten(), nn.Linear(144, 2)
        )
        self.stop_at, self.calls = stop_at, 0

    def forward(self, x):
        self.calls += 1
        if self.calls == self.stop_at:
            raise KeyboardInterrupt
        return self.body(x)


def fresh(stop_at: int | None = None) -> StopsAt:
    torch.manual_seed(3)
    return StopsAt(stop_at)


@pytest.mark.parametrize("stop_at", [2, 6, 12])
def test_a_run_that_was_interrupted_ends_bit_for_bit_as_if_it_had_not_been(tmp_path, stop_at):
    settings = {"recipe": QUICK, "progress": False, "checkpoint_seconds": 0.0}
    whole = train(fresh(), stripes(), **settings)
    with pytest.raises(KeyboardInterrupt):
        train(fresh(stop_at), stripes(), output=tmp_path, **settings)
    again = train(fresh(), stripes(), output=tmp_path, **settings)
    assert equal(whole, again)
    assert [row.loss for row in whole.history] == [row.loss for row in again.history]
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


def test_the_seed_decides_everything_and_leaves_the_global_generator_alone():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    runs = [train("small_cnn", stripes(), recipe=QUICK, seed=seed, progress=False) for seed in (0, 0, 1)]
    assert torch.equal(torch.get_rng_state(), before)
    assert equal(runs[0], runs[1])
    assert not equal(runs[0], runs[2])


def test_the_network_learns():
    result = train("small_cnn", stripes(), test_set=stripes(seed=1), recipe=replace(QUICK, steps=40), progress=False)
    assert result.accuracy is not None
    assert result.accuracy > 0.95
    assert result.history[-1].loss < result.history[0].loss
    assert not result.model.training


def test_a_trained_file_rebuilds_the_model_and_says_how_it_was_made(tmp_path):
    result = train("small_cnn", stripes(), test_set=stripes(seed=1), recipe=QUICK, output=tmp_path, progress=False)
    model, metadata = load_trained(tmp_path / "model.safetensors")
    images = torch.rand(4, 3, 8, 8)
    torch.testing.assert_close(model(images), result.model(images))
    assert metadata["architecture"] == {"name": "small_cnn", "num_classes": 2, "in_channels": 3, "small_images": True}
    assert metadata["classes"] == ["dark", "light"]
    assert metadata["dataset"] == "stripes"
    assert metadata["accuracy"] == result.accuracy
    assert metadata["recipe"]["steps"] == 12
    assert metadata["mean"] == pixel_statistics(stripes().tensors())[0]


def test_a_finished_run_is_not_trained_again(tmp_path):
    first = train("small_cnn", stripes(), recipe=QUICK, output=tmp_path, progress=False)
    epochs = []
    second = train("small_cnn", stripes(), recipe=QUICK, output=tmp_path, progress=False, on_epoch=epochs.append)
    assert epochs == []
    assert equal(first, second)
    assert second.history == first.history


def test_a_run_with_other_settings_does_not_go_on_from_this_one(tmp_path):
    train("small_cnn", stripes(), recipe=QUICK, output=tmp_path, progress=False)
    with pytest.raises(InputError, match=r"its seed is 0 and not 1; .* delete this file to start again"):
        train("small_cnn", stripes(), recipe=QUICK, output=tmp_path, seed=1, progress=False)
    with pytest.raises(InputError, match=r"its recipe.steps is 12 and not 13; choose another folder"):
        train("small_cnn", stripes(), recipe=replace(QUICK, steps=13), output=tmp_path, progress=False)
    train("small_cnn", stripes(), recipe=QUICK, output=tmp_path, seed=1, resume=False, progress=False)
    assert load_trained(tmp_path / "model.safetensors")[1]["seed"] == 1


def test_a_network_of_ones_own_is_given_again_to_load_it(tmp_path):
    result = train(fresh(), stripes(), recipe=QUICK, output=tmp_path, progress=False)
    with pytest.raises(InputError, match="give the model as well"):
        load_trained(result.path)
    model, _ = load_trained(result.path, fresh())
    torch.testing.assert_close(model(torch.ones(1, 3, 8, 8)), result.model(torch.ones(1, 3, 8, 8)))


def test_a_network_given_in_evaluation_mode_is_trained_all_the_same():
    whole = train(fresh(), stripes(), recipe=QUICK, progress=False)
    assert equal(whole, train(fresh().eval(), stripes(), recipe=QUICK, progress=False))


def test_a_half_precision_run_learns_too():
    result = train("small_cnn", stripes(), test_set=stripes(seed=1), recipe=QUICK, amp=True, progress=False)
    assert all(value.dtype in (torch.float32, torch.int64) for value in weights(result))


def test_the_bar_shows_loss_accuracy_and_speed():
    with redirect_stdout(io.StringIO()) as shown:
        train("small_cnn", stripes(16), recipe=replace(QUICK, steps=2))
    for word in ("loss", "accuracy", "images/s", "2/2"):
        assert word in shown.getvalue()


def test_what_cannot_be_trained_on_is_refused(tmp_path):
    unlabelled = ImageSet("sky", torch.zeros(4, 3, 8, 8, dtype=torch.uint8))
    with pytest.raises(InputError, match="expected labels with sky"):
        train("small_cnn", unlabelled, progress=False)
    with pytest.raises(InputError, match="expected one of resnet18, resnet50, small_cnn or a module, got 'vgg'"):
        train("vgg", stripes(), progress=False)
    with pytest.raises(InputError, match="expected a finite loss, got nan in epoch"):
        train("small_cnn", stripes(), recipe=replace(QUICK, peak_lr=1e30), progress=False)
    with pytest.raises(InputError, match="found no file at"):
        load_trained(tmp_path / "none.safetensors")
    with pytest.raises(InputError, match="at least 1 step"):
        Recipe(steps=0)
    with pytest.raises(InputError, match="mirrors among left-right, up-down, diagonal, got upside-down"):
        Recipe(mirrors=("upside-down",))


def test_a_plain_file_of_weights_is_no_trained_model(tmp_path):
    from atta.networks.adapters import save_weights

    save_weights(small_cnn(2), tmp_path / "model.safetensors")
    with pytest.raises(InputError, match="says nothing of its training"):
        load_trained(tmp_path / "model.safetensors")


def test_a_broken_file_is_named(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(InputError, match=r"expected a trained model at .*model.safetensors, but it cannot be read"):
        load_trained(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "checkpoint.pt").write_bytes(b"")
    with pytest.raises(InputError, match=r"expected a checkpoint of `train` at .*checkpoint.pt, but it cannot be read"):
        train("small_cnn", stripes(), recipe=QUICK, output=tmp_path, progress=False)


# ---- the recipe


def test_every_dataset_gets_about_the_same_number_of_updates():
    recipe = Recipe()
    assert recipe.epochs(50_000) == 41
    assert recipe.epochs(7_000) == 296
    assert Recipe(steps=10, batch_size=500).epochs(100) == 10


@given(st.floats(0, 1))
def test_the_learning_rate_rises_to_its_peak_and_falls_to_nothing(done):
    recipe = Recipe()
    assert 0 <= recipe.learning_rate(done) <= recipe.peak_lr
    assert recipe.learning_rate(recipe.rise) == recipe.peak_lr
    assert recipe.learning_rate(0.0) == 0
    assert recipe.learning_rate(1.0) == pytest.approx(0, abs=1e-12)


def test_pixel_statistics_are_those_of_the_whole_set():
    images = torch.randint(0, 256, (3000, 2, 4, 5), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    mean, std = pixel_statistics(images)
    pixels = images.double() / 255
    assert mean == pytest.approx(pixels.mean(dim=(0, 2, 3)).tolist())
    assert std == pytest.approx(pixels.std(dim=(0, 2, 3), correction=0).tolist())
    assert pixel_statistics(torch.zeros(2, 1, 3, 3, dtype=torch.uint8))[1] == [1 / 255]


# ---- augmentation

IMAGE = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
STILL = {"shift": 0.125, "zoom": 0.6, "zoomed": 0.0, "mirrors": MIRRORS}


def numbers(across=0.5, down=0.5, mirrored=(False, False, False), zoomed=0.9, zoom=0.5) -> torch.Tensor:
    return torch.tensor([[zoomed, zoom, across, down, *(0.1 if flag else 0.9 for flag in mirrored)]])


@pytest.mark.parametrize(
    ("mirrored", "expected"),
    [
        ((False, False, False), IMAGE),
        ((True, False, False), IMAGE.flip(3)),
        ((False, True, False), IMAGE.flip(2)),
        ((False, False, True), IMAGE.transpose(2, 3)),
        ((True, True, False), IMAGE.rot90(2, (2, 3))),
    ],
)
def test_each_mirror_moves_pixels_and_changes_none(mirrored, expected):
    torch.testing.assert_close(augment(IMAGE, numbers(mirrored=mirrored), **STILL), expected)


@given(st.lists(st.booleans(), min_size=3, max_size=3))
def test_mirrors_that_were_not_asked_for_are_not_used(mirrored):
    torch.testing.assert_close(augment(IMAGE, numbers(mirrored=mirrored), **(STILL | {"mirrors": ()})), IMAGE)


def test_a_shift_is_by_whole_pixels_and_reflects_what_it_uncovers():
    right = augment(IMAGE, numbers(across=0.99), **STILL)
    torch.testing.assert_close(right[..., :-1], IMAGE[..., 1:])
    torch.testing.assert_close(right[..., -1], IMAGE[..., -1])


def test_a_zoom_shows_a_window_of_the_image():
    ramp = torch.linspace(0, 1, 16).expand(1, 1, 16, 16).contiguous()
    settings = STILL | {"zoomed": 1.0, "zoom": 0.5, "shift": 0.0}
    shown = augment(ramp, numbers(zoom=0.0), **settings)
    assert (shown.max() - shown.min()).item() == pytest.approx(0.5, abs=0.05)


@given(st.integers(0, 2**31))
@settings(max_examples=25, deadline=None)
def test_an_image_is_augmented_alike_in_every_batch(seed):
    generator = torch.Generator().manual_seed(seed)
    images, u = torch.rand(5, 3, 9, 9, generator=generator), torch.rand(5, NUMBERS, generator=generator)
    chosen = STILL | {"zoomed": 0.5}
    together = augment(images, u, **chosen)
    assert together.min() >= 0
    assert together.max() <= 1 + 1e-6
    torch.testing.assert_close(augment(images[2:3], u[2:3], **chosen), together[2:3])


def test_symmetries_are_read_off_the_images():
    generator = torch.Generator().manual_seed(0)
    noise = torch.randint(0, 100, (400, 3, 16, 16), generator=generator)
    labels = torch.arange(400) % 4
    sky = 50 * (torch.arange(16) < 8)[:, None].expand(16, 16)
    assert symmetries(noise.byte(), labels) == MIRRORS
    assert symmetries((noise + sky).byte(), labels) == ("left-right",)
    assert symmetries((noise + sky.T).byte(), labels) == ("up-down",)
    assert symmetries((noise + sky * sky.T // 50).byte(), labels) == ("diagonal",)


def test_symmetries_look_at_each_class_by_itself():
    """Two classes that lean in opposite directions look even when they are taken together."""
    generator = torch.Generator().manual_seed(0)
    noise, labels = torch.randint(0, 100, (400, 1, 16, 16), generator=generator), torch.arange(400) % 2
    lean = 50 * (torch.arange(16) < 8).expand(1, 16, 16)
    images = torch.where(labels[:, None, None, None] == 1, noise + lean, noise + lean.flip(2)).byte()
    assert "left-right" not in symmetries(images, labels)
    assert "left-right" in symmetries(images, torch.zeros_like(labels))


def test_training_needs_neither_the_library_datasets_nor_a_decoder_nor_a_bar():
    absent = ("datasets", "PIL", "rich", "typer", "sklearn", "onnxruntime", "pyarrow")
    code = f"import sys; sys.modules.update(dict.fromkeys({absent})); import atta.networks.training, atta.images.sets"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_setting_of_the_recipe_is_named() -> None:
    assert Recipe.of(zoomed=0.0, steps=10) == Recipe(zoomed=0.0, steps=10)
    with pytest.raises(InputError, match=r"the recipe has no setting 'zoomd'. Did you mean 'zoomed'\? It has: steps, "):
        Recipe.of(zoomd=0.0)
