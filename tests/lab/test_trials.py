"""Records that do not fit the experiment, or each other, are named before anything is fitted."""

from typing import Any

import pytest
import torch

from atta import Record
from atta._base.errors import InputError
from atta.lab.run import run
from atta.results.words import OOD_AUROC
from scenarios import made_up
from scenarios import small_experiment as small


@pytest.mark.parametrize(
    ("records", "change", "sentence"),
    [
        ({}, {}, "experiment 'small' needs the record a, got: none"),
        ({"a": made_up(300)}, {"test": "b"}, "experiment 'small' needs the record b, got: a"),
        (
            {"a": made_up(300), "b": made_up(50, 4)},
            {"test": "b"},
            "record b has 4 classes, a, which is fitted on, has 5",
        ),
        (
            {"a": made_up(60)},
            {},
            "record a has 60 images: expected fewer of them for validation, got 100",
        ),
        (
            {"a": made_up(100)},
            {},
            "record a has 100 images: expected fewer of them for validation, got 100",
        ),
        (
            {"a": made_up(300)},
            {"policies": ["flip + 5 crop"]},
            r"record a: v-atta with flip \+ 5 crop: expected .* 5 crop .* got 3",
        ),
        (
            {"a": made_up(300)},
            {"policies": ["noise"]},
            "record a: v-atta with noise: expected predictions with the views noise",
        ),
        (
            {"a": Record(made_up(300).predictions)},
            {},
            "record a: expected a record with labels, got one without",
        ),
        (
            {"a": made_up(200), "b": made_up(300)},
            {"test": "b", "aligned": True},
            "record b is not the last 300 images of a, which has 200",
        ),
    ],
)
def test_records_that_do_not_fit_are_named(
    records: dict[str, Record], change: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        run(small(**change), records)


def test_shifted_images_in_another_order_are_refused(record: Record) -> None:
    other = record[torch.randperm(300, generator=torch.Generator().manual_seed(1))]
    with pytest.raises(
        InputError, match=r"record b is not the last 300 images of a, .* their labels differ"
    ):
        run(small(test="b", aligned=True), {"a": record, "b": other})


def test_records_of_two_networks_are_refused(record: Record) -> None:
    a, b = (
        Record(record.predictions, record.labels, {"training_seed": str(seed)}) for seed in (0, 1)
    )
    with pytest.raises(
        InputError, match="records a and b are not of one network: their training_seed is 0 and 1"
    ):
        run(small(test="b"), {"a": a, "b": b})


def test_numbers_that_there_cannot_be_are_named_before_anything_is_fitted(record: Record) -> None:
    with pytest.raises(InputError, match="brier needs labels, and record b has none"):
        run(small(test="b"), {"a": record, "b": Record(record.predictions)})
    with pytest.raises(
        InputError, match="ood_auroc needs images of unknown classes, and record b has labels"
    ):
        run(small(test="b", metrics=[OOD_AUROC]), {"a": record, "b": record})


def test_all_images_can_be_taken_in_one_way_only(record: Record) -> None:
    results = run(
        small(test="b", validation=0, splits=5, choose=["paper"]),
        {"a": record, "b": made_up(50, seed=2)},
    )
    assert results.names("split") == [0]
    assert results.names("validation") == [300]
    with pytest.raises(
        InputError,
        match="300 images: expected fewer of them for validation, got 300; try validation=150",
    ):
        run(small(test="b", aligned=True, validation=0), {"a": record, "b": record})
