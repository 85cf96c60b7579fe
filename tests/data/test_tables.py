"""Tables of images are read, and an error names the row or column at fault."""

import datasets as hf
import pytest

from atta._base.errors import InputError
from atta.data.tables import from_table
from layouts_made import PIXELS, encoded, write_parquet

pytestmark = pytest.mark.usefixtures("apart")


def table(folder, columns=None):
    found = hf.Dataset.from_parquet(str(folder / "test.parquet"))
    return from_table(found, "insects", "test", columns)


def test_a_table_without_labels_is_an_unlabelled_set(tmp_path):
    write_parquet(tmp_path / "test.parquet", columns=("picture", None))
    found = table(tmp_path)
    assert found.labels is None
    assert found[0][1] == -1
    assert found.classes == ()


def test_hidden_labels_count_as_none(tmp_path):
    write_parquet(tmp_path / "test.parquet", labels=[-1] * 6)
    assert table(tmp_path).labels is None


def test_columns_can_be_named(tmp_path):
    write_parquet(tmp_path / "test.parquet", columns=("picture", "kind"), names=None)
    found = table(tmp_path, ("picture", "kind"))
    assert found.classes == ("0", "1", "2")
    assert table(tmp_path, ("picture", None)).labels is None
    with pytest.raises(
        InputError, match="expected the columns species in insects, found picture, kind"
    ):
        table(tmp_path, ("picture", "species"))


def test_columns_of_another_type_are_refused(tmp_path):
    write_parquet(tmp_path / "test.parquet")
    with pytest.raises(
        InputError, match=r"expected images in the column label of insects, found ClassLabel"
    ):
        table(tmp_path, ("label", None))
    with pytest.raises(InputError, match="expected whole numbers in the column img"):
        table(tmp_path, ("img", "img"))


def test_a_table_with_two_columns_of_images_needs_their_names():
    pairs = hf.Dataset.from_dict({"a": [1], "b": [2]})
    with pytest.raises(
        InputError, match=r"expected one column of images .* found the columns a, b"
    ):
        from_table(pairs)


def test_a_corrupt_image_is_named_by_its_row(tmp_path):
    good = encoded(PIXELS[0])
    write_parquet(
        tmp_path / "test.parquet", pixels=[good, good[:60], b"no image"], labels=[0, 1, 2]
    )
    found = table(tmp_path)
    for row in (1, 2):
        with pytest.raises(
            InputError, match=f"expected an image in row {row} of insects/test, but it cannot"
        ):
            found[row]
