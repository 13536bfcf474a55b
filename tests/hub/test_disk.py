from __future__ import annotations

import errno
from pathlib import Path

import pytest

from slipstream.errors import DiskSpaceError, ResourceError
from slipstream.hub.disk import file_errors, format_bytes, free_bytes, require_space

pytestmark = pytest.mark.fast


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (98_362_432, "98.4 MB"),
        (999_960_000, "1.0 GB"),
        (7 * 10**15, "7000.0 TB"),
    ],
)
def test_format_bytes(num_bytes: int, text: str) -> None:
    assert format_bytes(num_bytes) == text


def test_free_bytes_of_a_folder_to_come(tmp_path: Path) -> None:
    assert free_bytes(tmp_path / "not" / "yet") > 0


def test_require_space_names_both_numbers(tmp_path: Path) -> None:
    require_space(tmp_path, 5, 5, "testing")
    with pytest.raises(DiskSpaceError, match=r"testing needs 6 B of disk space, but only 5 B are free\..*--cache-dir"):
        require_space(tmp_path, 6, 5, "testing")


def test_file_errors_tells_a_full_disk_from_other_trouble(tmp_path: Path) -> None:
    with pytest.raises(DiskSpaceError, match="became full while testing"), file_errors(tmp_path, "testing"):
        raise OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(ResourceError, match=r"gone: testing failed: No such file") as caught:  # noqa: SIM117
        with file_errors(tmp_path, "testing"):
            (tmp_path / "gone").read_bytes()
    assert not isinstance(caught.value, DiskSpaceError)
