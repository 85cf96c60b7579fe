"""A second opinion of the same network with the batch normalisation statistics of the new images."""

import copy
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

import atta
from atta import InputError, Predictions, TemperatureScaling
from atta.calibrators.shift import STATISTICS, Reference, adapt, refused
from atta.classifier.classifier import CalibratedClassifier
from atta.classifier.export import open_graph
from atta.networks.borrowing import OLD, layers, renormalised, sharing
from scenarios import rehearsed

CLASSES = 4
SIGNAL = 0.07


def shown(
    n: int, seed: int, classes: int = CLASSES, *, dim: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Noise with a bright quarter, which is the class; dim images have less contrast and a cast."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (n,), generator=g)
    images = 0.2 + 0.6 * torch.rand(n, 3, 8, 8, generator=g)
    for i, (row, column) in enumerate((r, c) for r in (0, 4) for c in (0, 4)):
        images[labels == i, :, row : row + 4, column : column + 4] += SIGNAL
    if dim:
        images = 0.4 * images + 0.3 - 0.1 * torch.tensor([1.0, 0.0, 0.3])[:, None, None]
    return images.clamp(0, 1), labels


@cache
def trained() -> nn.Module:
    torch.manual_seed(0)
    parts = nn.Sequential(
        nn.BatchNorm2d(3),
        nn.Conv2d(3, 8, 4, 4),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32, CLASSES),
    )
    descent = torch.optim.Adam(parts.parameters(), lr=0.02)
    images, labels = shown(1000, seed=1)
    for _ in range(60):
        descent.zero_grad()
        nn.functional.cross_entropy(parts(images), labels).backward()
        descent.step()
    return parts.eval()


def network() -> nn.Module:
    return copy.deepcopy(trained())


@pytest.fixture(scope="module")
def classifier() -> CalibratedClassifier:
    images, labels = shown(600, seed=2)
    return atta.calibrate(
        network(), images, labels, policy="flip", method="temperature", progress=False
    )


@pytest.fixture(scope="module")
def dim() -> torch.Tensor:
    return shown(400, seed=3, dim=True)[0]


@pytest.fixture(scope="module")
def adapted(classifier, dim) -> CalibratedClassifier:
    return classifier.adapt(dim, statistics=True)


def test_statistics_are_the_means_over_batches_mixed_with_the_old_ones():
    one = network()
    images = shown(128, seed=5, dim=True)[0]
    other = renormalised(one, images.split(64))
    means = torch.stack([part.mean((0, 2, 3)) for part in images.split(64)]).mean(0)
    expected = torch.lerp(one[0].running_mean, means, 128 / (128 + OLD))
    torch.testing.assert_close(other[0].running_mean, expected)
    assert not any(part.training for part in other.modules())
    assert other[0].momentum == one[0].momentum
    assert other[1].weight is one[1].weight
    assert [*layers(other)] == ["0", "2"]
    with pytest.raises(InputError, match="2 layers with batch normalisation"):
        sharing(one, {})


def test_the_second_opinion_is_used_and_no_class_changes(classifier, adapted, dim):
    images, labels = shown(800, seed=4, dim=True)
    assert "Statistics of the images: used" in str(adapted.adapted)
    assert STATISTICS in adapted.calibrator.kinds
    plain, both, before = classifier.adapt(dim)(images), adapted(images), classifier(images)
    assert torch.equal(both.argmax(1), before.argmax(1))

    def brier(probs: torch.Tensor) -> float:
        confidence, winner = probs.max(1)
        return float((confidence - (winner == labels).float()).square().mean())

    assert brier(both) < 0.9 * brier(plain)
    assert adapted.mean_passes == 2


def test_every_way_to_ask_gives_the_same_answer(classifier, adapted, tmp_path):
    images = shown(20, seed=4, dim=True)[0]
    probs = adapted(images)
    np.testing.assert_allclose(adapted.labelled_proba(images)[0].numpy(), probs.numpy(), atol=1e-6)
    loaded = CalibratedClassifier.load(adapted.save(tmp_path / "adapted"), network())
    assert torch.equal(loaded(images), probs)
    assert torch.equal(loaded.unadapted()(images), classifier(images))
    adapted.export(tmp_path / "adapted.onnx")
    found, *_ = open_graph(tmp_path / "adapted.onnx").run(images)
    torch.testing.assert_close(found, probs, atol=1e-5, rtol=1e-4)
    assert (tmp_path / "adapted.onnx").stat().st_size < 200_000
    assert adapted(images[:0]).shape == (0, CLASSES)


def test_every_bit_comes_back(classifier, adapted):
    before = {name: value.clone() for name, value in network().state_dict().items()}
    assert all(torch.equal(value, before[name]) for name, value in _plain(classifier).items())
    back = adapted.unadapted()
    assert back.second is None
    assert back.model is classifier.model
    images = shown(20, seed=4, dim=True)[0]
    assert torch.equal(back(images), classifier(images))


def _plain(classifier: CalibratedClassifier) -> dict[str, torch.Tensor]:
    return {
        name.removeprefix("model."): value for name, value in classifier.model.state_dict().items()
    }


def test_without_a_drift_and_for_other_classes_it_is_refused(classifier):
    same = classifier.adapt(shown(200, seed=7)[0], statistics=True)
    assert same.second is None
    assert same.adapted.statistics == "not used, because no drift was seen"


def test_images_of_other_classes_are_refused_because_their_statistics_mislead():
    fit, labels = rehearsed(1000, seed=0)
    calibrator = TemperatureScaling().fit(fit, labels)
    reference = Reference.of(calibrator, fit, labels)
    images, classes = rehearsed(2000, seed=9, fade=0.2)
    few = images[torch.where(classes < 3)[0]]
    for shown, why in ((few, "in other shares"), (images, "")):
        _, done = adapt(calibrator, calibrator, reference, shown)
        assert done.drifted
        assert why in refused(reference, shown, done)
    assert refused(reference, images, done) == ""


def test_a_network_without_batch_normalisation_is_told_so():
    bare = nn.Sequential(nn.Flatten(), nn.Linear(192, CLASSES))
    images, labels = shown(300, seed=2)
    logits = bare(images).detach()
    fitted = TemperatureScaling().fit(logits, labels)
    reference = replace(Reference.of(fitted, Predictions(logits), labels), slope=1.0)
    one = CalibratedClassifier(bare, fitted, image_shape=(3, 8, 8), reference=reference)
    with pytest.raises(InputError, match="statistics: expected a network with batch normalisation"):
        one.adapt(images, statistics=True)
