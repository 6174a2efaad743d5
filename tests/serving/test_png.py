"""serving/png.py: a file that is written is read by another library, and the other way round."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tensor_graphs.frontends.errors import FrontendError
from tensor_graphs.serving.png import read_png, write_png


def smooth(height: int, width: int, channels: int) -> np.ndarray:
    """A picture on which an encoder uses every filter."""
    y, x = np.mgrid[:height, :width]
    noise = np.random.default_rng(0).integers(0, 9, (height, width, channels))
    return (np.stack([x * (c + 2) + y * 3 for c in range(channels)], -1) + noise * (y[..., None] > height // 2)).astype(np.uint8)


@pytest.mark.parametrize("size", [(1, 1), (7, 5), (64, 33)])
def test_a_written_picture_is_read_by_pillow_and_by_ourselves(size: tuple[int, int], tmp_path: Path) -> None:
    picture = smooth(*size, 3)
    write_png(tmp_path / "x.png", picture)
    assert np.array_equal(np.asarray(Image.open(tmp_path / "x.png")), picture)
    assert np.array_equal(read_png(tmp_path / "x.png"), picture)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "LA"])
def test_pictures_that_pillow_writes_are_read(mode: str, tmp_path: Path) -> None:
    channels = len(mode)
    pixels = smooth(40, 31, channels)
    Image.fromarray(pixels[..., 0] if channels == 1 else pixels, mode).save(tmp_path / "x.png", optimize=True)
    expected = pixels[..., :3] if channels > 2 else np.repeat(pixels[..., :1], 3, axis=2)
    assert np.array_equal(read_png(tmp_path / "x.png"), expected)


def test_a_file_that_is_no_such_png_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.png"
    with pytest.raises(FrontendError, match="cannot read"):
        read_png(path)
    path.write_bytes(b"GIF89a")
    with pytest.raises(FrontendError, match="no PNG"):
        read_png(path)
    Image.fromarray(smooth(9, 9, 3)).convert("P").save(path)
    with pytest.raises(FrontendError, match="colour type 3"):
        read_png(path)
    write_png(path, smooth(9, 9, 3))
    data = path.read_bytes()
    for damaged in (data[:60], data[:50] + bytes([data[50] ^ 1]) + data[51:], data[:8]):
        path.write_bytes(damaged)
        with pytest.raises(FrontendError, match="damaged"):
            read_png(path)
    with pytest.raises(FrontendError, match="cannot write"):
        write_png(tmp_path / "none" / "x.png", smooth(2, 2, 3))
