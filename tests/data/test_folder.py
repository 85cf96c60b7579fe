"""Folders of images are read, and an error names the file or the folder at fault."""

import pytest

from atta._base.errors import InputError
from atta.data.folder import folder_of_images
from layouts_made import write_images

pytestmark = pytest.mark.usefixtures("apart")


def test_an_empty_class_folder_is_named(tmp_path):
    write_images(tmp_path)
    (tmp_path / "dog").mkdir()
    with pytest.raises(
        InputError, match=r"expected images in every class folder of .* found none in dog"
    ):
        folder_of_images(tmp_path)


def test_a_class_folder_whose_link_leads_nowhere_is_named(tmp_path):
    write_images(tmp_path)
    (tmp_path / "dog").symlink_to(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"in every class folder of .* found none in dog"):
        folder_of_images(tmp_path)


def test_a_corrupt_file_is_named(tmp_path):
    write_images(tmp_path)
    (tmp_path / "bee" / "1.png").write_bytes(b"no image")
    with pytest.raises(
        InputError, match=r"expected an image in .*bee/1.png, but it cannot be decoded"
    ):
        folder_of_images(tmp_path).tensors()
