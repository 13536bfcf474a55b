import errno
import io
import json
from pathlib import Path

import pytest

from slipstream.cli.batch_io import BadLine, BatchLine, BatchWriter, read_batch
from slipstream.errors import DiskSpaceError, UsageError

pytestmark = pytest.mark.fast


def write(path: Path, *lines: bytes) -> Path:
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def test_good_lines_with_defaults_and_overrides(tmp_path):
    file = write(
        tmp_path / "in.jsonl",
        b'{"prompt": "a"}',
        b"",
        b'{"id": 5, "messages": [{"role": "user", "content": "x"}], "temperature": 0.5, "stop": ["z"]}',
    )
    first, second = read_batch(file, {"temperature": 0.0, "max_tokens": 8})
    assert isinstance(first, BatchLine)
    assert isinstance(second, BatchLine)
    assert (first.number, first.id, first.prompt, first.params.temperature) == (1, "line-1", "a", 0.0)
    assert (second.number, second.id, second.messages) == (3, "5", [{"role": "user", "content": "x"}])
    assert (second.params.temperature, second.params.max_tokens, second.params.stop) == (0.5, 8, ("z",))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"\xff\xfe", "not valid UTF-8 at byte 0"),
        (b"{", "not valid JSON"),
        (b"[" * 100000, "nested too deeply"),
        (b'{"prompt": "a", "temperature": ' + b"1" * 400 + b"}", "temperature: must be a finite number"),
        (b'{"prompt": "a", "temperature": ' + b"1" * 5000 + b"}", "thousands of digits"),
        (b'{"prompt": "a", "logit_bias": {"' + b"1" * 5000 + b'": 1}}', "logit_bias key: must be an integer"),
        (b"[1]", "expected an object"),
        (b"{}", "exactly one of"),
        (b'{"prompt": "a", "messages": []}', "exactly one of"),
        (b'{"prompt": 3}', "must be a string"),
        (b'{"messages": {}}', "must be a list"),
        (b'{"prompt": "a", "tools": []}', "come with 'messages'"),
        (b'{"prompt": "a", "id": true}', "id must be"),
        (b'{"prompt": "a", "temperature": -1}', "temperature"),
        (b'{"prompt": "a", "temprature": 1}', "temperature"),
    ],
)
def test_bad_lines_carry_their_number(tmp_path, line: bytes, message: str):
    file = write(tmp_path / "in.jsonl", b'{"prompt": "fine"}', line, b'{"prompt": "fine too"}')
    results = list(read_batch(file, {}))
    assert [type(result) for result in results] == [BatchLine, BadLine, BatchLine]
    assert results[1].number == 2
    assert message in results[1].error


def test_duplicate_ids_are_bad(tmp_path):
    file = write(tmp_path / "in.jsonl", b'{"prompt": "a", "id": "x"}', b'{"prompt": "b", "id": "x"}')
    first, second = read_batch(file, {})
    assert isinstance(first, BatchLine)
    assert isinstance(second, BadLine)
    assert "'x' was used before" in second.error


def test_resume_keeps_whole_lines_and_drops_a_cut_one(tmp_path):
    out = tmp_path / "out.jsonl"
    with BatchWriter(out) as writer:
        writer.write("1", {"text": "é"})
        writer.write("2", {})
    whole = out.read_bytes()
    out.write_bytes(whole + b'{"id": "3", "te')
    with BatchWriter(out) as writer:
        assert set(writer.done) == {"1", "2"}
        writer.write("3", {})
    assert [json.loads(line)["id"] for line in out.read_text().splitlines()] == ["1", "2", "3"]
    with BatchWriter(out, overwrite=True) as writer:
        assert writer.done == {}
    assert out.read_bytes() == b""


def test_half_a_surrogate_pair_is_written_as_json_writes_it(tmp_path):
    path = tmp_path / "out.jsonl"
    with BatchWriter(path) as writer:
        writer.write("\ud800", {"error": "\udfff\u00e9"})
    assert json.loads(path.read_text(encoding="utf-8")) == {"id": "\ud800", "error": "\udfff\u00e9"}
    with BatchWriter(path) as writer:
        assert set(writer.done) == {"\ud800"}
        writer.write("plain", {})
    with BatchWriter(path) as writer:
        assert set(writer.done) == {"\ud800", "plain"}


def test_a_foreign_file_is_not_touched(tmp_path):
    out = write(tmp_path / "notes.txt", b"my notes", b"more")
    with pytest.raises(UsageError, match="not the output of an earlier run"):
        BatchWriter(out)
    assert out.read_bytes() == b"my notes\nmore\n"


def test_a_foreign_file_of_brackets_is_not_touched(tmp_path):
    out = write(tmp_path / "brackets", b"[" * 100_000)
    with pytest.raises(UsageError, match="not the output of an earlier run"):
        BatchWriter(out)
    assert out.read_bytes() == b"[" * 100_000 + b"\n"


class NearlyFull(io.FileIO):
    """A disk with room for so many more bytes."""

    room = 15

    def write(self, data):
        if self.room == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = super().write(data[: self.room])
        self.room -= written
        return written


@pytest.mark.parametrize("mode", ["wb", "ab"])
def test_a_full_disk_leaves_whole_lines(tmp_path, mode):
    out = tmp_path / "out.jsonl"
    if mode == "ab":
        out.write_text('{"id": "0"}\n')
    with BatchWriter(out) as writer:
        before = out.read_text()
        writer._file.close()
        writer._file = NearlyFull(out, mode)
        writer.write("1", {})
        with pytest.raises(DiskSpaceError, match=r"out\.jsonl: cannot write the result: No space left on device"):
            writer.write("2", {})
        writer._file.room = 12
        writer.write("3", {})
        writer._file.room = 1000
    assert out.read_text() == before + '{"id": "1"}\n{"id": "3"}\n'


def test_a_file_of_one_foreign_line_without_newline_is_not_touched(tmp_path):
    out = tmp_path / "notes.txt"
    out.write_bytes(b"my notes")
    with pytest.raises(UsageError):
        BatchWriter(out)
    assert out.read_bytes() == b"my notes"


@pytest.mark.parametrize("overwrite", [False, True])
def test_two_processes_cannot_write_one_file(tmp_path, overwrite):
    out = tmp_path / "out.jsonl"
    with BatchWriter(out) as first:
        first.write("1", {})
        with pytest.raises(UsageError, match=r"out\.jsonl: another process is writing this file"):
            BatchWriter(out, overwrite=overwrite)  # a lock of the open file, so the same holds between processes
        first.write("2", {})
    with BatchWriter(out) as second:
        assert set(second.done) == {"1", "2"}


def test_many_may_write_to_nowhere():
    with BatchWriter(Path("/dev/null")) as first, BatchWriter(Path("/dev/null")) as second:
        first.write("1", {})
        second.write("1", {})


def test_a_file_that_is_refused_is_not_kept_open(tmp_path):
    out = write(tmp_path / "notes.txt", b"my notes")
    for _ in range(2):
        with pytest.raises(UsageError, match="not the output of an earlier run"):
            BatchWriter(out)
