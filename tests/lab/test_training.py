"""The same result however often the run was stopped."""

import random
import subprocess
import sys
import warnings
from contextlib import nullcontext
from dataclasses import replace
from tempfile import TemporaryDirectory

import pytest
import torch

from atta._base.errors import Advice, InputError
from atta._base.files import locked
from atta.data.image_set import ImageSet
from atta.lab import training
from atta.lab.recipe import SEAL, RunFolder
from atta.lab.training import pixel_statistics
from scenarios import BRIEF, StopsAt, stripes


def train(model, images, output=None, **settings):
    """Train into a folder, by default one of its own."""
    with nullcontext(output) if output else TemporaryDirectory() as folder:
        return training.train(model, images, output=folder, **settings)


def weights(result) -> list[torch.Tensor]:
    return list(result.model.state_dict().values())


def losses(result) -> list[float]:
    return [epoch["loss"] for epoch in result.metadata["history"]]


def equal(a, b) -> bool:
    return all(torch.equal(x, y) for x, y in zip(weights(a), weights(b), strict=True))


@pytest.mark.parametrize("stop_at", [2, 6, 12])
def test_a_run_that_was_interrupted_ends_bit_for_bit_as_if_it_had_not_been(
    tmp_path, stop_at, monkeypatch
):
    monkeypatch.setattr(training, "CHECKPOINT_SECONDS", 0.0)
    settings = {"recipe": BRIEF, "progress": False}
    whole = train(StopsAt(), stripes(), **settings)
    with pytest.raises(KeyboardInterrupt):
        train(StopsAt(stop_at), stripes(), output=tmp_path, **settings)
    again = train(StopsAt(), stripes(), output=tmp_path, **settings)
    assert equal(whole, again)
    assert losses(whole) == losses(again)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


def test_a_full_disk_costs_a_checkpoint_and_not_the_training(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "CHECKPOINT_SECONDS", 0.0)
    written, real = [], RunFolder.write_checkpoint

    def full(folder, network, optimizer, history):
        if written:
            raise InputError("checkpoint.pt cannot be written: no space left on device")
        written.append(len(history))
        real(folder, network, optimizer, history)

    monkeypatch.setattr(RunFolder, "write_checkpoint", full)
    with pytest.warns(
        Advice,
        match="no space left on device; training continues with the checkpoint before",
    ):
        result = train(StopsAt(), stripes(), recipe=BRIEF, progress=False, output=tmp_path)
    assert equal(result, train(StopsAt(), stripes(), recipe=BRIEF, progress=False))
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


def test_the_seed_decides_everything_and_leaves_the_global_generator_alone():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    runs = [
        train("small_cnn", stripes(), recipe=BRIEF, seed=seed, progress=False) for seed in (0, 0, 1)
    ]
    assert torch.equal(torch.get_rng_state(), before)
    assert equal(runs[0], runs[1])
    assert not equal(runs[0], runs[2])


def test_the_network_learns():
    result = train(
        "small_cnn",
        stripes(),
        test_set=stripes(seed=1),
        recipe=replace(BRIEF, steps=40),
        progress=False,
    )
    assert result.accuracy is not None
    assert result.accuracy > 0.95
    assert losses(result)[-1] < losses(result)[0]
    assert not result.model.training


def test_a_finished_run_is_not_trained_again(tmp_path):
    first = train("small_cnn", stripes(), recipe=BRIEF, output=tmp_path, progress=False)
    epochs = []
    second = train(
        "small_cnn",
        stripes(),
        recipe=BRIEF,
        output=tmp_path,
        progress=False,
        on_epoch=epochs.append,
    )
    assert epochs == []
    assert equal(first, second)
    assert losses(second) == losses(first)


def test_a_network_given_in_evaluation_mode_is_trained_all_the_same():
    whole = train(StopsAt(), stripes(), recipe=BRIEF, progress=False)
    assert equal(whole, train(StopsAt().eval(), stripes(), recipe=BRIEF, progress=False))


def test_a_half_precision_run_learns_too(monkeypatch):
    monkeypatch.setattr(training, "HALVED", ("cpu",))
    result = train("small_cnn", stripes(), test_set=stripes(seed=1), recipe=BRIEF, progress=False)
    assert all(value.dtype in (torch.float32, torch.int64) for value in weights(result))


def test_the_bar_shows_loss_accuracy_and_speed(capfd):
    train("small_cnn", stripes(16), recipe=replace(BRIEF, steps=2))
    shown = capfd.readouterr().err
    for word in ("loss", "accuracy", "images/s", "2/2"):
        assert word in shown


def test_what_cannot_be_trained_on_is_refused():
    unlabelled = ImageSet("sky", torch.zeros(4, 3, 8, 8, dtype=torch.uint8))
    with pytest.raises(InputError, match="expected labels with sky"):
        train("small_cnn", unlabelled, progress=False)
    with pytest.raises(
        InputError,
        match="expected one of resnet18, resnet20, resnet50, small_cnn or a module, got 'vgg'",
    ):
        train("vgg", stripes(), progress=False)
    with pytest.raises(InputError, match="expected a finite loss, got nan in epoch"):
        train("small_cnn", stripes(), recipe=replace(BRIEF, peak_lr=1e30), progress=False)


def test_pixel_statistics_are_those_of_the_whole_set():
    images = torch.randint(
        0, 256, (3000, 2, 4, 5), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    mean, std = pixel_statistics(images)
    pixels = images.double() / 255
    assert mean == pytest.approx(pixels.mean(dim=(0, 2, 3)).tolist())
    assert std == pytest.approx(pixels.std(dim=(0, 2, 3), correction=0).tolist())
    assert pixel_statistics(torch.zeros(2, 1, 3, 3, dtype=torch.uint8))[1] == [1 / 255]


def test_training_needs_neither_the_library_datasets_nor_a_decoder_nor_a_bar():
    absent = ("datasets", "PIL", "rich", "typer", "sklearn", "onnxruntime", "pyarrow")
    hide = f"sys.modules.update(dict.fromkeys({absent}))"
    code = f"import sys; {hide}; import atta.lab.training, atta.data.image_set"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_one_run_at_a_time_trains_into_a_folder_on_a_device_that_is_there(tmp_path):
    with (
        locked(tmp_path / "model.safetensors"),
        pytest.raises(InputError, match="another run is writing"),
    ):
        train(StopsAt(), stripes(), output=tmp_path, recipe=BRIEF, progress=False)
    for settings, sentence in (
        ({"device": "meta"}, "device: expected cpu"),
        ({"seed": 10**18}, "seed: expected a whole number"),
    ):
        with pytest.raises(InputError, match=sentence):
            train(StopsAt(), stripes(), recipe=BRIEF, progress=False, **settings)


def damaged(content: bytes, seed: int) -> bytes:
    """The content with one fault: other bytes, a lost or repeated piece, or a lost end."""
    draw = random.Random(seed)
    start = draw.randrange(len(content))
    stop = min(len(content), start + draw.choice((1, 1, 1, 8, 512)))
    changed = bytes(byte ^ draw.randrange(1, 256) for byte in content[start:stop])
    piece = (changed, bytes(stop - start), b"", 2 * content[start:stop])[seed % 4]
    return content[:start] if seed % 10 == 9 else content[:start] + piece + content[stop:]


def state_of(network, optimizer) -> list[torch.Tensor]:
    momentum = (one["momentum_buffer"] for one in optimizer.state.values())
    return [*network.state_dict().values(), *momentum]


@pytest.mark.parametrize("sealed", [True, False], ids=["sealed", "as 0.1.0 wrote it"])
def test_a_damaged_checkpoint_never_changes_what_is_resumed(tmp_path, sealed):
    history = [{"epoch": 1, "of": 2, "loss": 0.5, "accuracy": 0.5, "images_per_second": 9.0}]

    def made() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        network = torch.nn.Linear(6, 3)
        return network, torch.optim.SGD(network.parameters(), 0.1, momentum=0.9)

    network, optimizer = made()
    network(torch.rand(2, 6)).sum().backward()
    optimizer.step()
    folder = RunFolder(tmp_path, {"seed": 0})
    folder.write_checkpoint(network, optimizer, history)
    content = folder.checkpoint.read_bytes()
    content = content if sealed else content.rpartition(SEAL)[0]
    folder.checkpoint.write_bytes(content)
    with nullcontext() if sealed else pytest.warns(Advice, match="version 0.1.0 wrote it"):
        assert folder.resume(*made()) == history
    refused = 0
    for seed in range(120):
        folder.checkpoint.write_bytes(damaged(content, seed))
        resumed = made()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", Advice)
                assert folder.resume(*resumed) == history
        except InputError:
            refused += 1
            continue
        pairs = zip(state_of(*resumed), state_of(network, optimizer), strict=True)
        assert all(torch.equal(one, other) for one, other in pairs)
    assert refused > (110 if sealed else 60)
