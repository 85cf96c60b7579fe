"""Every fit once, and the same whatever else is fitted."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atta import MATTA, VATTA, Dirichlet, Record, TemperatureScaling
from atta._base.errors import InputError
from atta.calibrators import Calibrator, Method
from atta.lab.fits import RECORDED, Fit, Fits, Rows, fingerprint
from scenarios import made_up

QUICK = MATTA(epochs=3)


def state(calibrator: Calibrator) -> list[torch.Tensor]:
    return list(calibrator.state_dict().values())


def equal(a: Calibrator, b: Calibrator) -> bool:
    return all(torch.equal(x, y) for x, y in zip(state(a), state(b), strict=True))


@given(st.integers(10, 60), st.data())
def test_the_draw_parts_the_rows_and_is_always_the_same(images: int, data: st.DataObject) -> None:
    rows = Rows(images, data.draw(st.integers(1, images)), data.draw(st.integers(0, 5)))
    fit, rest = rows.drawn()
    assert fit.shape == (rows.validation,)
    assert sorted(torch.cat([fit, rest]).tolist()) == list(range(images))
    assert torch.equal(fit, rows.drawn()[0])


@given(st.integers(5, 40), st.integers(0, 3))
def test_each_validation_row_is_held_out_once(validation: int, split: int) -> None:
    whole = Rows(50, validation, split)
    parts = [part.rows for part in Fit("a", whole, VATTA()).parted()]
    held = torch.cat([part.folded()[1] for part in parts])
    assert sorted(held.tolist()) == sorted(whole.drawn()[0].tolist())
    for part in parts:
        assert not set(part.folded()[0].tolist()) & set(part.folded()[1].tolist())
        assert set(part.folded()[0].tolist()) | set(part.folded()[1].tolist()) == set(
            whole.folded()[0].tolist()
        )


def test_the_first_draw_takes_the_rows_as_they_stand() -> None:
    fit, rest = Rows(10, 3).drawn()
    assert fit.tolist() == [0, 1, 2]
    assert rest.tolist() == [3, 4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("validation", [0, -1, 11])
def test_a_draw_needs_images(validation: int) -> None:
    with pytest.raises(
        InputError, match=f"expected 1 to 10 validation images out of 10, got {validation}"
    ):
        Rows(10, validation)


def test_folds_need_an_image_each() -> None:
    with pytest.raises(
        InputError, match="expected at least 5 validation images for 5 folds, got 4"
    ):
        Fit("a", Rows(10, 4), VATTA()).parted()


def test_a_fit_is_that_of_the_method_on_those_rows_and_views(record: Record) -> None:
    fit = Fit("a", Rows(300, 100, split=2), VATTA(), "flip + 2 crop")
    rows = fit.rows.folded()[0]
    predictions = record.predictions.take({"flip": 1, "crop": 2})[rows]
    assert record.labels is not None
    assert equal(Fits({"a": record})[fit], VATTA().fit(predictions, record.labels[rows]))


def test_recorded_views_are_all_there_are(record: Record) -> None:
    fits = Fits({"a": record})
    assert fits.views(Fit("a", Rows(300, 100), VATTA(), RECORDED)) == {
        "flip": 1,
        "crop": 3,
        "brightness": 2,
        "contrast": 2,
    }


def test_a_fit_does_not_depend_on_the_others(record: Record) -> None:
    wanted = [
        Fit("a", Rows(300, validation, split), method, policy)
        for validation in (60, 100)
        for split in (0, 1)
        for method in (QUICK, VATTA(optimizer="adam", epochs=3))
        for policy in ("flip + 2 crop", "flip + crop + contrast", "crop + 2 brightness")
    ]
    together = Fits({"a": record})
    together.make(reversed(wanted))
    for fit in wanted:
        assert equal(together[fit], Fits({"a": record})[fit])


def test_a_fit_is_made_once(
    record: Record, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fit, told = Fit("a", Rows(300, 100), QUICK, "flip"), []
    first = Fits({"a": record}, tmp_path)
    first.make([fit, fit], told.append)
    calibrator = first[fit]
    monkeypatch.setattr(MATTA, "fit_many", lambda *_: pytest.fail("fitted again"))
    assert first[fit] is calibrator
    again = Fits({"a": record}, tmp_path)
    again.make([fit], told.append)
    assert equal(again[fit], calibrator)
    assert set(told) == {"m-atta"}


def test_a_damaged_file_is_fitted_again(record: Record, tmp_path: Path) -> None:
    fit = Fit("a", Rows(300, 100), QUICK, "flip")
    calibrator = Fits({"a": record}, tmp_path)[fit]
    (path,) = tmp_path.rglob("*.safetensors")
    path.write_bytes(path.read_bytes()[:20])
    assert equal(Fits({"a": record}, tmp_path)[fit], calibrator)


def test_the_key_knows_all_a_fit_depends_on(record: Record) -> None:
    fits = Fits({"a": record, "b": made_up(seed=1)})
    fit = Fit("a", Rows(300, 100), QUICK, "flip + crop")
    others = [
        replace(fit, record="b"),
        replace(fit, rows=Rows(300, 99)),
        replace(fit, rows=Rows(300, 100, split=1)),
        replace(fit, rows=Rows(300, 100, fold=0)),
        replace(fit, method=replace(QUICK, epochs=4)),
        replace(fit, method=VATTA()),
        replace(fit, policy="flip + 2 crop"),
        replace(fit, policy="crop + flip"),
    ]
    assert len({fits.key(one) for one in (fit, *others)}) == 9
    assert fits.key(replace(fit, policy="flip + 1 crop")) == fits.key(fit), (
        "written otherwise, it is the same policy"
    )


def test_the_fingerprint_is_that_of_the_numbers_not_of_the_file(
    record: Record, tmp_path: Path
) -> None:
    loaded = Record.load(record.save(tmp_path / "x.safetensors"))
    assert fingerprint(loaded) == fingerprint(record)
    assert fingerprint(Record(record.predictions)) != fingerprint(record)
    assert fingerprint(record[:299]) != fingerprint(record)


def test_a_record_with_too_few_views_is_refused(record: Record) -> None:
    with pytest.raises(InputError, match="expected predictions with 5 crop views an image, got 3"):
        Fits({"a": record})[Fit("a", Rows(300, 100), VATTA(), "flip + 5 crop")]


def test_methods_without_views_see_none_of_the_policy(record: Record) -> None:
    fits = Fits({"a": record})
    assert fits.views(Fit("a", Rows(300, 100), TemperatureScaling())) == {}


def test_the_longest_pieces_come_first_and_what_is_not_batched_comes_alone(
    record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces: list[tuple[str, int, int]] = []

    fit_many = Method.fit_many

    def fit(method: Method, sets: Sequence[tuple[Any, Any]]) -> list[Calibrator]:
        pieces.append((method.name, len(sets), len(sets[0][1])))
        return fit_many(method, sets)

    monkeypatch.setattr(Method, "fit_many", fit)
    draws = [Rows(300, size, split) for size in (50, 100) for split in range(2)]
    single = [Fit("a", rows, Dirichlet(grid=[(1.0, 1.0)])) for rows in draws]
    batched = [Fit("a", rows, QUICK, "flip + 2 crop") for rows in draws[2:]]
    Fits({"a": record}).make([*single, *batched])
    assert pieces == [("m-atta", 2, 100), *[("dirichlet", 1, 100)] * 2, *[("dirichlet", 1, 50)] * 2]
