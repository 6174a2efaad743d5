"""devices/write_checksummed_files.py: what nobody uses goes. Files appear whole, and who reads them: test_checksummed_files.py."""

from __future__ import annotations

import os
from pathlib import Path

from tensor_graphs.devices.write_checksummed_files import prune


def test_files_that_were_not_used_for_the_longest_time_go_and_the_newest_stays(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("oldest", "older", "newest")]
    for age, file in zip((300, 200, 100), files, strict=True):
        file.write_bytes(b"." * 40)
        os.utime(file, (1e9 - age, 1e9 - age))
    prune(tmp_path, 100, files[2])
    assert sorted(tmp_path.iterdir()) == sorted(files[1:])
    prune(tmp_path, 10, files[2])
    assert list(tmp_path.iterdir()) == [files[2]]


def test_a_file_that_another_process_removes_meanwhile_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "gone").symlink_to(tmp_path / "removed")            # it is listed, and is not there
    for name in ("old", "new"):
        (tmp_path / name).write_bytes(b"." * 40)
    os.utime(tmp_path / "old", (1, 1))
    prune(tmp_path, 50, tmp_path / "new")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["gone", "new"]
