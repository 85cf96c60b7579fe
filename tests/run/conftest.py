"""A folder of image files, for whichever test of this room reads one."""

import pytest

from scenarios import twenty


@pytest.fixture
def folder(tmp_path):
    from PIL import Image

    for i, image in enumerate(twenty()):
        path = tmp_path / "images" / "abc"[i // 7] / f"{i:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(path)
    return tmp_path / "images"
