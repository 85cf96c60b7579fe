"""benchmarks/front.py: the parts that need no networks, on made-up records of 200 images."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import atta
from atta.calibrators import CATTA
from atta.data.views import Policy
from atta.lab.fits import Rows

ROOT = Path(__file__).parent.parent
IMAGES, CLASSES = 200, 4
HELD = {
    "rest": "flip + 5 crop + 5 brightness + 5 contrast + shift + flip-shift",
    "nudge": "3 nudge",
}


@pytest.fixture(scope="module")
def front() -> Any:
    sys.path.insert(0, str(ROOT))
    try:
        from benchmarks import front
    finally:
        sys.path.remove(str(ROOT))
    return front


def made(policy: str, seed: int, draws: str = "stratified") -> atta.Record:
    """The labels are the same for all seeds, as those of the same images are."""
    labels = torch.arange(IMAGES) % CLASSES
    generator = torch.Generator().manual_seed(seed)

    def logits(*repeats: int) -> torch.Tensor:
        noise = torch.randn(IMAGES, *repeats, CLASSES, generator=generator)
        return 4 * (
            torch.eye(CLASSES)[labels].reshape(IMAGES, *(1 for _ in repeats), CLASSES) + noise
        )

    views = {kind: logits(count) for kind, count in Policy.parse(policy).repeats.items()}
    return atta.Record(
        atta.Predictions(logits(), views), labels, {"draws": draws, "policy": policy}
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, policy in HELD.items():
        for network in (0, 1):
            made(policy, seed=network).save(tmp_path / "records" / f"{name}-{network}.safetensors")
    made("flip + 6 crop + 5 brightness + 5 contrast", 2, "random").save(
        tmp_path / "records" / "pool-0.safetensors"
    )
    made("flip + 6 crop + 5 brightness + 5 contrast", 3, "random").save(
        tmp_path / "records" / "pool-1.safetensors"
    )
    return tmp_path / "records"


def test_stratified_views_are_taken_from_a_record_with_exactly_their_repeats(
    front: Any, folder: Path
) -> None:
    network = front.read(folder)[0]
    assert network.views("nudge-2") is None  # one nudge goes elsewhere than the first of three
    assert network.views("nudge-4").views["nudge"].shape[1] == 3
    assert network.views("aug1").kinds == ("flip", "crop")
    drawn = network.views("aug8", "random")
    assert torch.equal(
        drawn.views["crop"],
        atta.Record.load(folder / "pool-0.safetensors").predictions.views["crop"][:, :5],
    )
    assert {"aug8", "nudge-4", "shift-mix-4"} <= set(network.held)
    assert not {"nudge-2", "shift-mix-5"} & set(network.held)


def test_records_of_other_images_are_refused(front: Any, folder: Path) -> None:
    record = atta.Record.load(folder / "nudge-1.safetensors")
    assert record.labels is not None
    atta.Record(record.predictions, record.labels.flip(0), record.origin).save(
        folder / "nudge-1.safetensors"
    )
    with pytest.raises(atta.InputError, match="same images"):
        front.read(folder)
    with pytest.raises(atta.InputError, match="expected records"):
        front.read(folder.parent)


class Quick(atta.VATTA):
    """V-ATTA by name; its own fit takes seconds on labels that are half noise."""

    def learn_many(self, sets: Any) -> list[Any]:
        return [CATTA().learn(predictions, labels) for predictions, labels in sets]


def jobs(front: Any, network: Any) -> Mapping[str, Any]:
    return {
        "a": (atta.TemperatureScaling(), network.need("aug8")),
        "b": (atta.Vanilla(), network.need("aug8")),
    }


def test_with_one_split_a_difference_and_its_interval_are_those_of_paired(
    front: Any, folder: Path
) -> None:
    network = front.read(folder)[0]
    found = front.Measured(
        {"0": front.averaged(network, jobs(front, network), 120, 1, folder.parent)}
    )
    fitted, tested = (rows.sort().values for rows in Rows(IMAGES, 120, 1).drawn())
    predictions, labels = network.need("aug8"), network.labels
    a, b = (
        method.fit(predictions[fitted], labels[fitted])(predictions[tested])
        for method in (atta.TemperatureScaling(), atta.Vanilla())
    )
    expected = atta.paired(a, b, labels[tested], metrics=["brier", "nll"])
    for term in ("brier", "nll"):
        [(point, low, high)] = found.differences([("a", "b")], term)
        assert (low, high) == pytest.approx(expected[term], abs=1e-5)
        both = (atta.evaluate(probs, labels[tested], metrics=[term])[term] for probs in (a, b))
        assert point == pytest.approx(next(both) - next(both), abs=1e-6)
        assert found.number("a", term) == pytest.approx(
            atta.evaluate(a, labels[tested])[term], abs=1e-6
        )


def test_an_image_is_averaged_over_the_splits_in_which_it_is_tested(
    front: Any, folder: Path
) -> None:
    network = front.read(folder)[0]
    wanted = {"b": (atta.Vanilla(), network.need("aug8"))}
    found = front.averaged(network, wanted, 150, 3, folder.parent)["b"]
    seen: dict[int, list[torch.Tensor]] = {}
    for split in (1, 2, 3):
        fitted, tested = Rows(IMAGES, 150, split).drawn()
        for image, column in zip(
            tested.tolist(), front.terms(wanted["b"], network.labels, fitted, tested).T, strict=True
        ):
            seen.setdefault(image, []).append(column.double())
    assert 50 < len(seen) < IMAGES  # some are tested more than once, some never
    assert torch.allclose(
        found, torch.stack([torch.stack(seen[i]).mean(dim=0) for i in sorted(seen)], dim=1)
    )


def test_the_page_is_written_and_what_is_in_the_cache_is_not_fitted_again(
    front: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fits: list[str] = []

    def made_up(
        job: Any, labels: torch.Tensor, fitted: torch.Tensor, tested: torch.Tensor
    ) -> torch.Tensor:
        fits.append(job[0].name)
        table = torch.rand(4, len(tested), generator=torch.Generator().manual_seed(len(fits)))
        table[3] = float(job[0].name == "c-atta")  # the one that is said to change every class
        return table

    monkeypatch.setattr(front, "terms", made_up)
    monkeypatch.setattr(front, "VATTA", Quick)
    arguments = [str(folder), "--splits", "2", "--validation", "100", "--sizes", "60", "100"]
    arguments += ["--cache", str(tmp_path / "cache"), "--page", str(tmp_path / "page.md")]
    front.main(arguments)
    page, count = (tmp_path / "page.md").read_text(encoding="utf-8"), len(fits)
    cells = {line.split(" |")[0]: line for line in reversed(page.splitlines())}
    assert "+0.0 (+0.0 to +0.0)" in cells["| v-atta · aug8"]  # it is what all are held against
    tested = len(
        set(Rows(IMAGES, 100, 1).drawn()[1].tolist())
        | set(Rows(IMAGES, 100, 2).drawn()[1].tolist())
    )
    assert cells["| c-atta · aug8"].endswith(f"| {2 * tested} |")
    assert cells["| sequential-v-atta 2.5 · aug8"].endswith("| 0 |")
    front.measure(front.read(folder), 100, (60, 100), 2, tmp_path / "cache")
    assert len(fits) == count
