"""The logic of the programs in benchmarks/; their measurements are not run here."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from benchmarks import domain_shift, overhead, peers, speculation, sustained, tree_gain
from benchmarks.peers import EngineSpec, Workload
from benchmarks.program import run_program
from scipy import stats as scipy_stats

from slipstream.engine.outputs import OutputDelta
from slipstream.engine.protocol import GenerationRequest
from slipstream.errors import DiskSpaceError, SlipstreamError

pytestmark = pytest.mark.fast

MIB = 2**20


def test_a_straight_line_has_its_slope() -> None:
    samples = [(float(second), 100 * MIB + second * 1024) for second in range(121)]
    found = sustained.trend(samples)
    assert (found.slope, found.low, found.high) == pytest.approx((60.0, 60.0, 60.0), abs=1e-6)


def test_the_interval_is_that_of_a_regression() -> None:
    rng = np.random.default_rng(0)
    samples = [(float(second), int(200 * MIB + rng.normal(0, MIB))) for second in range(60)]
    found = sustained.trend(samples)
    half = samples[30:]
    line = scipy_stats.linregress([time / 60 for time, _ in half], [memory / 1024 for _, memory in half])
    width = scipy_stats.t.ppf(0.975, 28) * line.stderr
    assert found.slope == pytest.approx(line.slope, rel=1e-9)
    assert (found.low, found.high) == pytest.approx((line.slope - width, line.slope + width), rel=2e-3)


def test_what_grows_at_first_and_then_rests_does_not_grow() -> None:
    samples = [(float(second), (100 + min(second, 50)) * MIB) for second in range(200)]
    result = {"memory": samples, "blocks_used_before": 0, "blocks_used_after": 0}
    assert sustained.verdict(result, 256.0)["memory_verdict"] == "no growth beyond 256 KiB per minute"


@pytest.mark.parametrize(
    ("per_second", "noise", "words"),
    [(0, 0, "no growth beyond"), (100, 0, "grows by 6000 KiB"), (0, 40000, "neither shown nor ruled out")],
)
def test_verdicts(per_second: int, noise: int, words: str) -> None:
    rng = random.Random(0)
    samples = [(float(s), 10**9 + 1024 * (per_second * s + int(rng.gauss(0, noise)))) for s in range(200)]
    result = {"memory": samples, "blocks_used_before": 1, "blocks_used_after": 4}
    found = sustained.verdict(result, 256.0)
    assert words in found["memory_verdict"]
    assert found["blocks_left"] == 3
    assert sustained.verdict({**result, "memory": samples[:2]}, 1.0)["memory_verdict"] == "too short to say"


def test_one_jump_is_named_and_two_are_growth() -> None:
    def memory(*jumps: int) -> list[tuple[float, int]]:
        return [(float(s), 100 * MIB + 1024 * s + sum(8 * MIB for at in jumps if s >= at)) for s in range(200)]

    assert sustained.without_jump(memory()) == (memory(), None)
    rest, jump = sustained.without_jump(memory(150))
    assert jump == (150.0, 8 * MIB + 1024)
    assert rest == [(time, used - 1024 * (time >= 150)) for time, used in memory()]
    assert sustained.without_jump(memory(150, 170)) == (memory(150, 170), None)
    assert sustained.without_jump(memory(50)) == (memory(50), None)  # the first half does not count anyway
    result = {"blocks_used_before": 0, "blocks_used_after": 0}
    found = sustained.verdict({**result, "memory": memory(150)}, 256.0)
    assert found["memory_verdict"] == "no growth beyond 256 KiB per minute, beside one jump of 8.0 MiB after 2 minutes"
    assert "grows by" in sustained.verdict({**result, "memory": memory(130, 170)}, 256.0)["memory_verdict"]


def test_random_requests_are_valid_and_fit() -> None:
    rng = random.Random(3)
    requests = [sustained.random_request(rng, number, 1000, 200) for number in range(300)]
    for request in requests:
        assert len(request.prompt_token_ids) >= 1
        assert len(request.prompt_token_ids) + request.params.max_tokens <= 200
        assert max(request.prompt_token_ids) < 1000
    assert len({request.priority for request in requests}) == 4
    assert any(request.timeout for request in requests)
    assert len({request.prompt_token_ids[:16] for request in requests if len(request.prompt_token_ids) >= 48}) == 8


class FakeWorker:
    def __init__(self, name: str, rate: float, unable: str | None = None) -> None:
        self.name, self._rate, self._unable = name, rate, unable
        self.calls = 0

    def call(self, request: dict) -> dict:
        self.calls += 1
        [(command, arguments)] = request.items()
        if command == self._unable:
            return {"unsupported": "it is not able to"}
        tokens = sum(map(len, arguments["prompts"]))
        if command == "decode":
            tokens = arguments["steps"] * len(arguments["prompts"])
        return {"seconds": tokens / self._rate, "tokens": tokens}


def test_an_engine_that_lacks_a_workload_is_left_out_of_it() -> None:
    workloads = (Workload("d", "decode", 2, 8, 4), Workload("p", "prefill", 1, 16))
    workers = [FakeWorker("slipstream", 400.0), FakeWorker("llama.cpp", 100.0), FakeWorker("other", 50.0, "decode")]
    rates, refused = peers.measure(workers, workloads, 3, 1000)
    assert refused == {"d": {"other": "it is not able to"}}
    assert {name: list(engines) for name, engines in rates.items()} == {
        "d": ["slipstream", "llama.cpp"],
        "p": ["slipstream", "llama.cpp", "other"],
    }
    assert [worker.calls for worker in workers] == [8, 8, 1 + 4]
    found = peers.summary(rates)
    assert found["ratios_over_llama_cpp"] == {"d": 4.0, "p": 4.0}
    assert found["ratios_over"]["p"] == {"llama.cpp": 4.0, "other": 8.0}
    assert found["tokens_per_second"]["d"] == {"slipstream": 400.0, "llama.cpp": 100.0}


def test_without_the_base_there_are_no_ratios_over_it() -> None:
    rates, _ = peers.measure([FakeWorker("slipstream", 4.0)], (Workload("p", "prefill", 1, 4),), 2, 1000)
    assert peers.summary(rates)["ratios_over_llama_cpp"] == {}


def test_absent_engines_are_named_with_the_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    here = Path(sys.executable)
    engines = (
        EngineSpec("slipstream", here, "x.py", "json"),
        EngineSpec("llama.cpp", tmp_path / "bin" / "python", "x.py", "llama_cpp"),
        EngineSpec("vllm", here, "x.py", "no_such_module_anywhere"),
        EngineSpec("openvino", here, "x.py", "json"),
    )
    monkeypatch.setattr(peers, "ENGINES", engines)
    chosen, absent = peers.choose(None, quick=True)
    assert [spec.name for spec in chosen] == ["slipstream"]
    assert "there is no" in absent["llama.cpp"]
    assert "no_such_module_anywhere is not installed" in absent["vllm"]
    assert "--quick" in absent["openvino"]
    assert [spec.name for spec in peers.choose(None, quick=False)[0]] == ["slipstream", "openvino"]
    assert [spec.name for spec in peers.choose("openvino", quick=True)[0]] == ["openvino"]
    with pytest.raises(SystemExit, match="no engine gpt"):
        peers.choose("gpt", quick=False)


def test_every_engine_has_its_worker() -> None:
    assert all((peers.WORKERS / spec.script).is_file() for spec in peers.ENGINES)


def test_a_worker_answers_what_it_cannot_do(tmp_path: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(peers.WORKERS)!r})\n"
        "from protocol import UnsupportedError, serve\n"
        "class Engine:\n"
        "    name, version = 'e', '1'\n"
        "    def load(self, **arguments): print('to standard error')\n"
        "    def prefill(self, prompts): return 0.5, len(prompts)\n"
        "    def decode(self, prompts, steps): raise UnsupportedError('no decoding')\n"
        "serve(Engine())\n"
    )
    asked = [
        {"load": {"model": "m", "threads": 1, "max_tokens": 1, "max_seqs": 1}},
        {"prefill": {"prompts": [[1]]}},
        {"decode": {"prompts": [[1]], "steps": 1}},
    ]
    lines = "".join(json.dumps(each) + "\n" for each in asked)
    done = subprocess.run([sys.executable, str(script)], input=lines, capture_output=True, text=True, check=True)
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"ready": "e", "version": "1"},
        {"seconds": 0.5, "tokens": 1},
        {"unsupported": "no decoding"},
    ]
    assert "to standard error" in done.stderr


# ---- overhead ----


class FakeClock:
    """Seconds that pass when it is told so; the thread's own stop while it waits."""

    def __init__(self) -> None:
        self.wall = self.cpu = 0.0

    def work(self, seconds: float, waiting: float = 0.0) -> None:
        self.wall += seconds + waiting
        self.cpu += seconds


class FakeCore:
    """Two requests of which the second gets its first token a step later; five steps in all."""

    def __init__(self, clock: FakeClock) -> None:
        self.model = overhead.TimedModel(self._forward, lambda: clock.wall, lambda: clock.cpu)
        self.added: list[str] = []
        self._clock = clock
        self._steps = 0

    def _forward(self) -> None:
        self._clock.work(8.0, waiting=2.0)

    @property
    def has_work(self) -> bool:
        return self._steps < 5

    def add(self, request: GenerationRequest) -> None:
        self.added.append(request.request_id)

    def step(self) -> list[OutputDelta]:
        self._steps += 1
        self._clock.work(0.25)
        self.model()
        self._clock.work(0.25, waiting=0.5 * self._steps)
        return [OutputDelta(name, 0, "", (1,)) for name in (self.added[:1] if self._steps == 1 else self.added)]


def test_a_decode_step_is_split_into_the_models_call_and_the_rest() -> None:
    core = FakeCore(FakeClock())
    times = overhead.decode(core, core.model, [GenerationRequest(name, (1,)) for name in "ab"])
    assert core.added == ["a", "b"]
    # Steps 1 and 2 are not plain decode for everybody yet, and in step 5 they end.
    assert [(each.step, each.forward, each.rest, each.rest_cpu) for each in times] == [
        (12.0, 10.0, 2.0, 0.5),
        (12.5, 10.0, 2.5, 0.5),
    ]
    found = overhead.summarize(2, [*times, overhead.StepTime(14.0, 11.0, 0.75)])
    assert found == {
        "batch": 2,
        "steps": 3,
        "step_ms": 12500.0,
        "forward_ms": 10000.0,
        "rest_ms": 2500.0,
        "rest_best_ms": 2000.0,
        "rest_cpu_ms": 500.0,
        "rest_cpu_best_ms": 500.0,
        "share": 0.2,
    }


@pytest.mark.parametrize(
    ("error", "said", "code"),
    [
        (DiskSpaceError("the disk is full.", where="here"), "error: here: the disk is full.\n", 5),
        (SlipstreamError("it cannot be.", fix="Leave it."), "error: it cannot be. Leave it.\n", 1),
        (KeyboardInterrupt(), "interrupted\n", 130),
    ],
)
def test_errors_of_a_program_are_sentences(
    error: BaseException, said: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(SystemExit) as ended:
        run_program(fail)
    assert ended.value.code == code
    assert capsys.readouterr() == ("", said)


def test_defects_of_a_program_keep_their_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        run_program(lambda: print(1 // 0))


@pytest.mark.parametrize("module", [overhead, peers, speculation, sustained, tree_gain, domain_shift])
def test_a_model_that_there_is_not_is_a_sentence(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [module.__name__, "no-such-model"])
    with pytest.raises(SystemExit) as ended:
        run_program(module.main)
    assert ended.value.code == 3
    assert capsys.readouterr().err.startswith(("error: there is no model 'no-such-model'", "error: no-such-model: "))
