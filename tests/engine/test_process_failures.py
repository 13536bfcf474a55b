"""What happens when the engine's process crashes, hangs, cannot start, or loses its parent."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from process_harness import COMMAND, PROMPT, QUICK, collect, is_alive, make, request, tokens, until, use
from scheduling_fakes import sequential

from slipstream.engine.process.engine import ProcessEngine
from slipstream.engine.process.settings import ProcessSettings
from slipstream.errors import EngineError, EngineUnavailableError, UnsupportedModelError

HERE = Path(__file__).parent
PATIENT = ProcessSettings(backoff=30.0, warm_up=False)


@pytest.fixture(autouse=True)
def _quiet_log(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.CRITICAL, logger="slipstream.engine"):
        yield


async def run_into(engine: ProcessEngine, count: int = 12) -> list[asyncio.Task[object]]:
    """Requests that will not end by themselves, some of them running and some waiting."""
    tasks = [asyncio.ensure_future(collect(engine, request(f"r{i}", max_tokens=150))) for i in range(count)]
    await until(lambda: engine.stats().num_running > 0 and engine.stats().num_output_tokens > 0)
    return tasks


async def all_fail(tasks: list[asyncio.Task[object]], match: str) -> None:
    for task in tasks:
        with pytest.raises(EngineError, match=match) as caught:
            await task
        assert caught.value.where is not None
        assert caught.value.where.startswith("request r")
    assert "restarted" in str(caught.value)


async def comes_back(engine: ProcessEngine, restarts: int = 1) -> None:
    await until(lambda: engine.ready)
    assert tokens(await collect(engine, request("again"))) == sequential(PROMPT, 4)
    stats = engine.stats()
    assert (stats.num_restarts, stats.num_running, stats.kv_blocks_used) == (restarts, 0, 0)


def test_a_killed_process_fails_what_is_open_and_is_restarted(tmp_path: Path) -> None:
    starts = tmp_path / "starts"

    async def scenario(engine: ProcessEngine) -> None:
        for restarts in (1, 2):
            before = engine.info.pid
            tasks = await run_into(engine)
            made = engine.stats().num_output_tokens
            os.kill(before, signal.SIGKILL)
            await all_fail(tasks, "the engine's process was killed by SIGKILL")
            await comes_back(engine, restarts)
            assert engine.info.pid != before
            assert engine.stats().num_output_tokens >= made + 4  # totals go on
        assert starts.read_text().splitlines()[-1] == str(engine.info.pid)
        assert len(starts.read_text().splitlines()) == 3

    use(make(sleep=0.02, settings={"max_num_seqs": 8}, starts=str(starts)), scenario)


def test_requests_that_come_meanwhile_are_told_when_to_come_back() -> None:
    async def scenario(engine: ProcessEngine) -> None:
        os.kill(engine.info.pid, signal.SIGKILL)
        await until(lambda: not engine.ready)
        with pytest.raises(EngineUnavailableError, match="request a: the engine is being restarted") as caught:
            await collect(engine, request("a"))
        assert caught.value.retry_after is not None
        assert 20.0 < caught.value.retry_after < 40.0  # the delay of 30 s and the time that loading took
        assert await engine.timeline("a") is None
        await engine.abort("a")
        stats = engine.stats()
        assert (stats.num_running, stats.kv_blocks_used) == (0, 0)

    use(make(PATIENT), scenario)


def test_without_restart_the_engine_is_gone_for_good() -> None:
    async def scenario(engine: ProcessEngine) -> None:
        tasks = await run_into(engine, 3)
        os.kill(engine.info.pid, signal.SIGKILL)
        for task in tasks:
            with pytest.raises(EngineError, match=r"killed by SIGKILL.*Make a new engine"):
                await task
        assert not engine.ready
        with pytest.raises(EngineError, match=r"request a: the engine has stopped.*Make a new engine") as caught:
            await collect(engine, request("a"))
        assert not isinstance(caught.value, EngineUnavailableError)

    use(make(ProcessSettings(restart=False, warm_up=False), sleep=0.02), scenario)


def test_a_stopped_process_is_a_hang() -> None:
    async def scenario(engine: ProcessEngine) -> None:
        tasks = await run_into(engine)
        stopped = engine.info.pid
        os.kill(stopped, signal.SIGSTOP)
        await all_fail(tasks, "hangs: no sign of life for 2 s")
        assert not is_alive(stopped)
        await comes_back(engine)

    use(make(ProcessSettings(backoff=0.05, heartbeat_timeout=2.0, warm_up=False), sleep=0.02), scenario)


def test_a_step_without_end_is_a_hang() -> None:
    async def scenario(engine: ProcessEngine) -> None:
        task = asyncio.ensure_future(collect(engine, request("r", (6, 6))))
        await all_fail([task], "hangs: one step has taken more than 1 s")
        await comes_back(engine)

    use(make(ProcessSettings(backoff=0.05, step_timeout=1.0, warm_up=False), stick_on=6), scenario)


def test_a_long_step_is_no_hang() -> None:
    async def scenario(engine: ProcessEngine) -> None:
        assert tokens(await collect(engine, request("a", max_tokens=1))) == sequential(PROMPT, 1)
        assert engine.stats().num_restarts == 0

    use(make(ProcessSettings(heartbeat_timeout=2.0, warm_up=False), sleep=4.5), scenario)


def test_a_core_that_breaks_fails_what_is_open_and_is_made_anew() -> None:
    async def scenario(engine: ProcessEngine) -> None:
        tasks = await run_into(engine, 2)
        tasks.append(asyncio.ensure_future(collect(engine, request("r2", (5, 5)))))
        await all_fail(tasks, "does not answer the step in flight")
        await comes_back(engine)

    use(make(break_on=5, sleep=0.02), scenario)


def test_a_model_that_cannot_be_loaded_raises_its_own_error_and_is_not_tried_again(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    with pytest.raises(UnsupportedModelError) as caught:
        make(fail="nobody implements it.", starts=str(starts))
    error = caught.value
    assert (error.what, error.where, error.fix) == ("nobody implements it.", "model.gguf", "Take another.")
    assert str(error) == "model.gguf: nobody implements it. Take another."
    [pid] = starts.read_text().split()
    assert not is_alive(int(pid))


@pytest.mark.parametrize("fails", [True, False])
def test_a_process_that_does_not_leave_after_its_last_word_is_made_to(tmp_path: Path, fails: bool) -> None:
    starts = tmp_path / "starts"
    if fails:
        with pytest.raises(UnsupportedModelError):
            make(fail="nobody implements it.", linger=True, starts=str(starts))
    else:
        asyncio.run(make(linger=True, starts=str(starts)).close())
    assert not is_alive(int(starts.read_text()))


def test_a_process_that_leaves_at_once_is_quoted(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    with pytest.raises(EngineError, match=r"ended with status 3 \(it said: .*no such library"):
        make(exit=3, say="no such library", starts=str(starts))
    assert len(starts.read_text().split()) == 1


def test_a_command_that_does_not_exist() -> None:
    from slipstream.config.types import EngineOptions

    with pytest.raises(EngineError, match="cannot be started"):
        ProcessEngine(EngineOptions.from_flat(model="x"), command=("/no/such/program",))


def test_a_restart_that_fails_is_tried_again(tmp_path: Path) -> None:
    async def scenario(engine: ProcessEngine) -> None:
        os.kill(engine.info.pid, signal.SIGKILL)
        await until(lambda: not engine.ready)
        await comes_back(engine)

    starts = tmp_path / "starts"
    use(make(fail="not now.", fail_starts=[2, 3], starts=str(starts)), scenario)
    assert len(starts.read_text().split()) == 4


def test_what_the_process_prints_is_kept() -> None:
    async def scenario(engine: ProcessEngine) -> None:
        await collect(engine, request("a"))

    engine = make(say="a word")
    use(engine, scenario)
    assert engine.kept_stderr() == "a word\na word\n"


PARENT = """
    import os, sys, time
    from slipstream.config.types import EngineOptions
    from slipstream.engine.process.engine import ProcessEngine

    if __name__ == "__main__":
        engine = ProcessEngine(EngineOptions.from_flat(model='{}'), command=sys.argv[1:])
        print(engine.info.pid, flush=True)
        time.sleep(600)
"""


@pytest.mark.parametrize("stopped", [False, True])
def test_the_process_ends_with_a_killed_parent_and_leaves_no_files(tmp_path: Path, stopped: bool) -> None:
    script = tmp_path / "parent.py"
    script.write_text(textwrap.dedent(PARENT))
    scratch = tmp_path / "t"
    scratch.mkdir()
    environment = {**os.environ, "TMPDIR": str(scratch)}
    with subprocess.Popen([sys.executable, str(script), *COMMAND], stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert is_alive(child)
        if stopped:
            os.kill(child, signal.SIGSTOP)
        parent.kill()
    asyncio.run(until(lambda: not is_alive(child)))
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_parent_killed_with_its_group_while_it_starts_leaves_nothing_either(tmp_path: Path, number: int) -> None:
    script, starts, scratch = tmp_path / "parent.py", tmp_path / "starts", tmp_path / "t"
    script.write_text(textwrap.dedent(PARENT))
    scratch.mkdir()
    environment = {**os.environ, "TMPDIR": str(scratch)}
    command = [sys.executable, str(script), *COMMAND]
    with subprocess.Popen(command, env=environment, start_new_session=True) as parent:
        asyncio.run(until(lambda: _children(parent.pid) != [] and any(scratch.iterdir())))
        [child] = _children(parent.pid)
        # Between fork and exec it is still in its parent's group, and nothing could outlive that.
        asyncio.run(until(lambda: os.getpgid(child) == child))
        os.killpg(parent.pid, number)
    asyncio.run(until(lambda: not is_alive(child)))
    assert (list(scratch.iterdir()), starts.exists()) == ([], False)


def _children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def test_interrupts_are_the_parents_affair() -> None:
    async def scenario(engine: ProcessEngine) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(engine.info.pid, number)
        assert tokens(await collect(engine, request("a"))) == sequential(PROMPT, 4)
        assert engine.stats().num_restarts == 0

    use(make(QUICK), scenario)
