"""The cache over its life: written by one, mapped by all, rebuilt when broken, done without if it cannot be written."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from slipstream.weights.checkpoint import TensorInfo
from slipstream.weights.match import TensorSource
from slipstream.weights.packed_cache import CachePlace, cache_place, open_or_write
from slipstream.weights.packed_file import PackedWriter
from slipstream.weights.slots import TensorSlot
from tests.weights.fake_checkpoint import FakeCheckpoint

pytestmark = pytest.mark.fast

DATA = np.arange(5000, dtype=np.uint8)

# A process of its own: argv is the folder and what `write` does between two matrices.
WRITER = """
import sys, time
from pathlib import Path
import numpy as np
from slipstream.weights.packed_cache import CachePlace, open_or_write

folder, between = Path(sys.argv[1]), sys.argv[2]

def write(writer):
    with (folder / "log").open("a") as log:
        log.write("written\\n")
    writer.add("a", "F32", (1, 1250), np.arange(5000, dtype=np.uint8))
    exec(between)
    writer.add("b", "F32", (1, 1250), np.arange(5000, dtype=np.uint8))

print("ready", flush=True)
sys.stdin.readline()
file, report = open_or_write(CachePlace(folder / "packed", "model-cpu", "0123456789abcdef" * 2), write)
print(report.in_use, report.why, int(file.data("b").sum()) if file else None, flush=True)
"""


def place(folder: Path, key: str = "0123456789abcdef" * 2) -> CachePlace:
    return CachePlace(folder / "packed", "model-cpu", key)


def write(writer: PackedWriter) -> None:
    writer.add("a", "F32", (1, 1250), DATA)
    writer.add("b", "F32", (1, 1250), DATA)


def never(writer: PackedWriter) -> None:
    raise AssertionError("the file is there")


def start(folder: Path, between: str = "pass", limit: str = "") -> subprocess.Popen[str]:
    command = [sys.executable, "-c", limit + WRITER, str(folder), between]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "packed").iterdir())


def test_it_is_written_once_and_mapped_from_then_on(tmp_path: Path) -> None:
    first, report = open_or_write(place(tmp_path), write)
    assert report.in_use
    assert report.warning is None
    second, report = open_or_write(place(tmp_path), never)
    assert report.in_use
    assert report.warning is None
    assert first is not None
    assert second is not None
    for file in (first, second):
        np.testing.assert_array_equal(file.data("b"), DATA)
    assert names(tmp_path) == ["model-cpu-0123456789abcdef.packed", "model-cpu.lock"]


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty"])
def test_a_broken_file_is_written_anew_and_said_so(tmp_path: Path, damage: str) -> None:
    open_or_write(place(tmp_path), write)
    path = place(tmp_path).path
    good = path.read_bytes()
    flipped = bytearray(good)
    flipped[4321] ^= 4
    path.write_bytes({"truncate": good[:-9], "flip": bytes(flipped), "empty": b""}[damage])
    file, report = open_or_write(place(tmp_path), write)
    assert report.in_use
    assert report.warning is not None
    assert "written anew" in report.warning
    assert file is not None
    assert path.read_bytes() == good


def test_another_layout_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    open_or_write(place(tmp_path), write)
    _, report = open_or_write(place(tmp_path, "f" * 32), write)
    assert report.in_use
    assert report.warning is None
    assert names(tmp_path) == ["model-cpu-ffffffffffffffff.packed", "model-cpu.lock"]


def test_a_writer_killed_half_way_leaves_nothing_in_the_way(tmp_path: Path) -> None:
    process = start(tmp_path, "print('half', flush=True); time.sleep(60)")
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "half\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdin.close()
    process.stdout.close()
    assert "model-cpu.partial" in names(tmp_path)
    file, report = open_or_write(place(tmp_path), write)
    assert file is not None
    assert report.warning is None
    assert names(tmp_path) == ["model-cpu-0123456789abcdef.packed", "model-cpu.lock"]


def test_of_processes_that_start_together_one_writes(tmp_path: Path) -> None:
    processes = [start(tmp_path, "time.sleep(0.3)") for _ in range(3)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    answers = {process.communicate()[0] for process in processes}
    assert answers == {f"True kept in {place(tmp_path).path} {int(DATA.sum())}\n"}
    assert (tmp_path / "log").read_text() == "written\n"


def test_a_writer_that_takes_too_long_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "packed").mkdir()
    with place(tmp_path).lock.open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        file, report = open_or_write(place(tmp_path), never, patience=0.0)
    assert file is None
    assert not report.in_use
    assert report.warning is not None
    assert "another process" in report.warning


def test_a_full_disk_leaves_no_part_of_a_file(tmp_path: Path) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
    answer = start(tmp_path, limit=limit).communicate("\n")[0]
    assert answer.startswith("False ")
    assert "File too large" in answer
    assert names(tmp_path) == ["model-cpu.lock"]


def test_a_folder_that_cannot_be_made_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "packed").write_text("in the way")
    file, report = open_or_write(place(tmp_path), never)
    assert file is None
    assert report.warning is not None
    assert report.warning.startswith("packed weights are not kept for the next start: ")
    assert str(tmp_path / "packed") in report.why


def test_a_pipe_in_its_place_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "packed").mkdir()
    os.mkfifo(place(tmp_path).path)
    signal.alarm(20)
    try:
        file, report = open_or_write(place(tmp_path), write)
    finally:
        signal.alarm(0)
    assert file is not None
    assert report.warning is not None
    assert report.warning.endswith(".packed were written anew: it is not a regular file.")


def test_a_folder_in_its_place_is_named(tmp_path: Path) -> None:
    path = place(tmp_path).path
    path.mkdir(parents=True)
    file, report = open_or_write(place(tmp_path), write)
    assert file is None
    assert report.why == f"{path}: Is a directory"
    assert sorted(each.name for each in path.parent.iterdir()) == [path.name, "model-cpu.lock"]


def test_what_is_wrong_with_the_model_is_not_taken_for_a_cache_problem(tmp_path: Path) -> None:
    def broken_model(writer: PackedWriter) -> None:
        writer.add("a", "F32", (1, 1250), DATA)
        raise ValueError("the model")

    with pytest.raises(ValueError, match="the model"):
        open_or_write(place(tmp_path), broken_model)
    assert names(tmp_path) == ["model-cpu.lock"]


def test_the_key_is_of_the_files_the_parts_and_the_layout(tmp_path: Path) -> None:
    model = tmp_path / "my model [1].gguf"
    model.write_bytes(bytes(3 << 20))
    checkpoint = FakeCheckpoint({}, "gguf")
    checkpoint.path, checkpoint.files = model, (model,)

    def source(dtype: str = "Q8_0") -> TensorSource:
        slot = TensorSlot("w", (32, 32), "linear", "w")
        return TensorSource(slot, TensorInfo("w", (32, 32), dtype, 1088), None, (0, 32), None, 0.0, 1088)

    def key(layout: str = "1", dtype: str = "Q8_0") -> CachePlace:
        return cache_place(tmp_path, checkpoint, [source(dtype)], "cpu", layout)

    first = key()
    assert first == key()
    assert first.path.name.startswith("my_model__1_-")
    others = [key(layout="2"), key(dtype="Q4_0")]
    times = os.stat(model)
    os.utime(model, ns=(times.st_atime_ns, times.st_mtime_ns + 1))
    others.append(key())
    for at in (0, (3 << 20) - 1):
        raw = bytearray(3 << 20)
        raw[at] = 1
        model.write_bytes(raw)
        os.utime(model, ns=(times.st_atime_ns, times.st_mtime_ns))
        others.append(key())
    model.write_bytes(bytes((3 << 20) + 1))
    os.utime(model, ns=(times.st_atime_ns, times.st_mtime_ns))
    others.append(key())
    assert len({first.key, *(other.key for other in others)}) == 1 + len(others)
    assert {other.prefix for other in others} == {first.prefix}
