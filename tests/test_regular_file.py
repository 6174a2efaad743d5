"""regular_file.py: what has no end is refused before it is read, and nothing is read without a bound."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tensor_graphs.regular_file import open_regular, read_regular, read_text


def test_a_file_is_read_whole(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes("ä\r\nb\rc".encode())
    assert read_regular(file, 100) == file.read_bytes() and read_text(file, 100) == "ä\nb\nc"


def test_a_file_of_more_bytes_than_the_bound_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(b"x" * 11)
    assert len(read_regular(file, 11)) == 11
    with pytest.raises(OSError, match="it has more than the 10 bytes that are read of such a file"):
        read_regular(file, 10)


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/urandom", "/dev/null"])
def test_a_device_is_no_regular_file(device: str) -> None:
    with pytest.raises(OSError, match="it is a device, not a regular file"):
        read_regular(device, 10, pipes=True)


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        open_regular(tmp_path)


def test_a_pipe_is_never_waited_for_and_read_only_where_pipes_are_taken(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="it is a pipe, not a regular file"):
        read_regular(pipe, 10)
    assert read_regular(pipe, 10, pipes=True) == b""                # nobody writes into it
    keep = os.open(pipe, os.O_RDWR)
    writer = os.open(pipe, os.O_WRONLY)
    os.write(writer, b"tg 1")
    with open_regular(pipe, pipes=True) as file:
        os.close(writer)
        os.close(keep)
        assert file.read() == b"tg 1"
