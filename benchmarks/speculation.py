"""Time per output token with speculation and without, in pairs, by kind of task.

    python -m benchmarks.speculation MODEL [--spec-bench FILE] [--human-eval FILE] [--draft ngram] [--policy cost]
        [--num-tokens 5] [--batch 1 4 16] [--temperature 0 1] [--max-tokens 128] [--groups 6] [--json] [--out DIR]

One engine; prompts of one kind go through it in groups of the batch size, each group once with drafts and once without
(`speculative` of the request), the order alternating, so that whatever else slows the machine down strikes both. The
ratio of a group is that of its mean TPOT, without over with; of a kind, the geometric mean over its groups with
Student's 95 % interval of the logarithms. The prefix cache is off. Both runs must give the same tokens.

`by steps` is the same ratio by what steps usually take: the steps of all groups in which all of the group's requests
decode are sorted by their numbers of drafted tokens, each counts as the median of its sort, and their sum is divided by
the tokens. What slows single steps down is out of it, and so is the end of a batch, where ever fewer requests share a
step. Its interval is the jackknife's over groups.

Kinds: the categories of Spec-Bench (question.jsonl of github.com/hemingkx/Spec-Bench, first turns), HumanEval
(HumanEval.jsonl.gz), and code edits (benchmarks/code_edits: "return this file with one change", behind one example of
an edit and its answer: without it SmolLM2-135M returns a quarter of the lines, with it half of them).
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, TypeAlias

from benchmarks.program import run_program
from slipstream import SamplingParams
from slipstream.bench.stats import Interval, t_interval
from slipstream.config.types import EngineOptions
from slipstream.engine.core import EngineCore
from slipstream.engine.loading import LoadedEngine, load_engine
from slipstream.engine.outputs import CompletionStats
from slipstream.engine.protocol import GenerationRequest, RequestSpeculation
from slipstream.text.chat_template import ChatTemplate

ROOT = Path(__file__).parent.parent
EDITS = Path(__file__).parent / "code_edits"
OFF = RequestSpeculation("off")
ON = RequestSpeculation("auto")

Prompt: TypeAlias = str | tuple[str, ...]
"""What is asked, or what user and assistant said in turns before."""


@dataclass(frozen=True)
class Answer:
    token_ids: tuple[int, ...]
    stats: CompletionStats


@dataclass(frozen=True)
class TimedStep:
    """One step in which every request of the group decodes."""

    drafted: int
    tokens: int
    seconds: float


Steps: TypeAlias = Sequence[TimedStep]


@dataclass(frozen=True)
class Pair:
    """One group, without drafts and with them."""

    off: tuple[Answer, ...]
    on: tuple[Answer, ...]
    off_steps: Steps = ()
    on_steps: Steps = ()

    @property
    def ratio(self) -> float | None:
        """Of the mean TPOT; None if no answer has a second token."""
        off, on = _tpot(self.off), _tpot(self.on)
        return None if off is None or on is None else off / on

    @property
    def same(self) -> bool:
        return [each.token_ids for each in self.off] == [each.token_ids for each in self.on]


@dataclass(frozen=True)
class Row:
    """One kind at one batch size and temperature. TPOT in seconds."""

    kind: str
    batch: int
    temperature: float
    groups: int
    ratio: float
    low: float
    high: float
    firm: bool
    tpot_off: float
    tpot_on: float
    acceptance: float | None
    mean_accepted_length: float | None
    drafted_per_token: float
    different: int  # groups whose tokens differ: must be 0
    by_steps: tuple[float, float, float] | None = None  # ratio and interval; None without steps, or with one group only


def _tpot(answers: Sequence[Answer]) -> float | None:
    known = [each.stats.tpot for each in answers if each.stats.tpot is not None]
    return statistics.fmean(known) if known else None


def summarise(kind: str, batch: int, temperature: float, pairs: Sequence[Pair]) -> Row | None:
    """None if no group gives a ratio."""
    ratios = [pair.ratio for pair in pairs if pair.ratio is not None]
    interval = t_interval([math.log(ratio) for ratio in ratios])
    if interval is None:
        return None
    stats = [each.stats for pair in pairs for each in pair.on]
    drafts, drafted = sum(s.num_drafts for s in stats), sum(s.num_draft_tokens for s in stats)
    accepted = sum(s.num_accepted_tokens for s in stats)
    return Row(
        kind,
        batch,
        temperature,
        len(ratios),
        *_exp(interval),
        interval.firm,
        statistics.fmean(t for pair in pairs if (t := _tpot(pair.off)) is not None),
        statistics.fmean(t for pair in pairs if (t := _tpot(pair.on)) is not None),
        accepted / drafted if drafted else None,
        1 + accepted / drafts if drafts else None,
        drafted / max(1, sum(s.num_output_tokens for s in stats)),
        sum(not pair.same for pair in pairs),
        ratio_by_steps(pairs),
    )


def ratio_by_steps(pairs: Sequence[Pair]) -> tuple[float, float, float] | None:
    """(ratio, low, high)."""
    if len(pairs) < 2:
        return None
    whole = _log_ratio(pairs)
    parts = [_log_ratio([*pairs[:i], *pairs[i + 1 :]]) for i in range(len(pairs))]
    if whole is None or any(each is None for each in parts):
        return None
    # Tukey's pseudo-values.
    found = t_interval([len(pairs) * whole - (len(pairs) - 1) * each for each in parts if each is not None])
    assert found is not None
    return _exp(Interval(whole, whole - (found.value - found.low), whole + (found.high - found.value), found.firm))


def _log_ratio(pairs: Sequence[Pair]) -> float | None:
    """Without over with, of the usual time per token."""
    off = seconds_per_token([step for pair in pairs for step in pair.off_steps])
    on = seconds_per_token([step for pair in pairs for step in pair.on_steps])
    return None if off is None or on is None else math.log(off / on)


def seconds_per_token(steps: Steps) -> float | None:
    """With every step taken to last as long as the median of those with as many drafted tokens."""
    kinds: dict[int, list[float]] = {}
    for step in steps:
        kinds.setdefault(step.drafted, []).append(step.seconds)
    tokens = sum(step.tokens for step in steps)
    return sum(len(each) * statistics.median(each) for each in kinds.values()) / tokens if tokens else None


def _exp(interval: Interval) -> tuple[float, float, float]:
    return math.exp(interval.value), math.exp(interval.low), math.exp(interval.high)


def overall(rows: Sequence[Row], by_steps: bool = False) -> Interval | None:
    """Geometric mean over kinds, with Student's interval over them."""
    ratios = [row.by_steps[0] for row in rows if row.by_steps is not None] if by_steps else [row.ratio for row in rows]
    found = t_interval([math.log(ratio) for ratio in ratios])
    return None if found is None else Interval(*_exp(found), found.firm)


# ---- what is asked ----


def spec_bench(path: Path) -> dict[str, list[Prompt]]:
    kinds: dict[str, list[Prompt]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        kinds.setdefault(entry["category"], []).append(entry["turns"][0])
    return kinds


def human_eval(path: Path) -> list[Prompt]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [f"Complete this function.\n\n```python\n{json.loads(line)['prompt']}```" for line in file]


def code_edits(folder: Path = EDITS) -> list[Prompt]:
    """The first line of each file says the change; the file to be changed comes behind an empty line."""
    example = folder / "example"
    change, _, file = (example / "edit.txt").read_text(encoding="utf-8").partition("\n\n")
    shown = (_edit(change, file), (example / "answer.txt").read_text(encoding="utf-8"))
    prompts: list[Prompt] = []
    for path in sorted(folder.glob("*.txt")):
        change, _, content = path.read_text(encoding="utf-8").partition("\n\n")
        name = path.name.removesuffix(".txt").partition("-")[2]
        prompts.append((*shown, _edit(change, f"{name}:\n{content}")))
    return prompts


def _edit(change: str, file: str) -> str:
    return f"{change} Return the whole file with this one change and nothing else.\n\n{file}"


def chosen_kinds(
    wanted: Sequence[str] | None, spec_bench_file: Path | None, human_eval_file: Path | None
) -> dict[str, list[Prompt]]:
    """Prompts by kind: the bundled code edits and what is in the files. Exits naming a wanted kind that is missing."""
    kinds = {"code-edit": code_edits()}
    if human_eval_file is not None:
        kinds["humaneval"] = human_eval(human_eval_file)
    if spec_bench_file is not None:
        kinds |= spec_bench(spec_bench_file)
    unknown = [kind for kind in wanted or () if kind not in kinds]
    if unknown:
        raise SystemExit(f"--kinds: {', '.join(unknown)} is not among {', '.join(kinds)}.")
    return {kind: kinds[kind] for kind in wanted} if wanted else kinds


# ---- how it is measured ----


def answer(
    core: EngineCore,
    name: str,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    wish: Any,
    steps: list[TimedStep] | None = None,
) -> Any:
    """All prompts in one batch. steps: takes those in which all of them decode."""
    for index, prompt in enumerate(prompts):
        core.add(GenerationRequest(f"{name}-{index}", tuple(prompt), params, speculative=wish))
    tokens: dict[str, list[int]] = {}
    stats: dict[str, CompletionStats] = {}
    drafted = core.stats().num_draft_tokens
    while core.has_work:
        whole = len(tokens) == len(prompts) and not stats
        started = perf_counter()
        deltas = core.step()
        seconds = perf_counter() - started
        before, drafted = drafted, core.stats().num_draft_tokens
        if whole and steps is not None:
            fresh = sum(len(delta.token_ids) for delta in deltas)
            steps.append(TimedStep(drafted - before, fresh, seconds))
        for delta in deltas:
            tokens.setdefault(delta.request_id, []).extend(delta.token_ids)
            if delta.stats is not None:
                stats[delta.request_id] = delta.stats
    names = [f"{name}-{index}" for index in range(len(prompts))]
    return tuple(Answer(tuple(tokens.get(each, ())), stats[each]) for each in names)


def measure(core: EngineCore, prompts: Sequence[Sequence[int]], batch: int, groups: int, params: SamplingParams) -> Any:
    pairs = []
    for number in range(min(groups, len(prompts) // batch)):
        group = prompts[number * batch : (number + 1) * batch]
        order = (OFF, ON) if number % 2 == 0 else (ON, OFF)
        steps: dict[str, list[TimedStep]] = {wish.mode: [] for wish in order}
        found = {
            wish.mode: answer(core, f"{number}-{wish.mode}", group, params, wish, steps[wish.mode]) for wish in order
        }
        pairs.append(Pair(found["off"], found["auto"], steps["off"], steps["auto"]))
    return pairs


def tokenise(loaded: LoadedEngine, prompts: Sequence[Prompt], room: int) -> list[list[int]]:
    """Through the chat template where there is one; what is too long for the context is left out."""
    tokenizer = loaded.tokenizer
    turns = [(prompt,) if isinstance(prompt, str) else prompt for prompt in prompts]
    if tokenizer.chat_template is None:
        encoded = [tokenizer.encode("\n\n".join(each)) for each in turns]
    else:
        template = ChatTemplate.of(tokenizer)
        encoded = [
            tokenizer.encode_chat(template.render(_messages(each), add_generation_prompt=True)) for each in turns
        ]
    return [ids for ids in encoded if len(ids) <= room]


def _messages(turns: Sequence[str]) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(turns)]


def table(rows: Sequence[Row]) -> str:
    lines = [
        f"{'kind':<16} {'batch':>5} {'T':>4} {'groups':>6} {'ratio':>6}  {'95 %':<13} {'by steps':>8} {'95 %':<13} "
        f"{'off ms':>7} {'on ms':>7} {'accepted':>8} {'length':>6} {'drafted':>7}"
    ]
    for row in rows:
        interval = f"{row.low:.2f}-{row.high:.2f}" if row.firm else "-"
        usual, of_usual = "-", "-"
        if row.by_steps is not None:
            usual, of_usual = f"{row.by_steps[0]:.2f}", f"{row.by_steps[1]:.2f}-{row.by_steps[2]:.2f}"
        accepted = "-" if row.acceptance is None else f"{100 * row.acceptance:.0f} %"
        length = "-" if row.mean_accepted_length is None else f"{row.mean_accepted_length:.2f}"
        lines.append(
            f"{row.kind:<16} {row.batch:>5} {row.temperature:>4g} {row.groups:>6} {row.ratio:>6.2f}  {interval:<13} "
            f"{usual:>8} {of_usual:<13} "
            f"{1000 * row.tpot_off:>7.2f} {1000 * row.tpot_on:>7.2f} {accepted:>8} {length:>6} "
            f"{row.drafted_per_token:>7.2f}" + (f"  {row.different} GROUPS DIFFER" if row.different else "")
        )
    return "\n".join(lines)


def measure_kind(core: EngineCore, kind: str, prompts: Sequence[list[int]], args: argparse.Namespace) -> list[Row]:
    """One row for each temperature and batch size; none where no answer has a second token."""
    rows = []
    for temperature in args.temperature:
        params = SamplingParams(temperature=temperature, seed=1, max_tokens=args.max_tokens)
        for batch in args.batch:
            row = summarise(kind, batch, temperature, measure(core, prompts, batch, args.groups, params))
            if row is not None:
                rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--spec-bench", type=Path, metavar="FILE")
    parser.add_argument("--human-eval", type=Path, metavar="FILE")
    parser.add_argument("--draft", default="auto", help="as --speculative of the verbs")
    parser.add_argument("--draft-head", metavar="FOLDER", help="as of the verbs")
    parser.add_argument("--policy", default="cost", choices=("cost", "threshold", "fixed"))
    parser.add_argument("--num-tokens", type=int, default=5)
    parser.add_argument("--batch", type=int, nargs="+", default=[1])
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--groups", type=int, default=6, help="of each kind, at most")
    parser.add_argument("--kinds", nargs="+", help="only these")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "speculation", help="folder for the JSON")
    args = parser.parse_args()
    kinds = chosen_kinds(args.kinds, args.spec_bench, args.human_eval)
    options = EngineOptions.from_flat(
        model=args.model,
        enable_prefix_caching=False,
        max_num_seqs=max(args.batch),
        speculative=args.draft,
        draft_head=args.draft_head,
        speculative_policy=args.policy,
        num_speculative_tokens=args.num_tokens,
        num_threads=args.threads,
    )
    loaded = load_engine(options)
    step_times = [str(each) for each in loaded.plan.decisions if each.field == "step_times"]
    rows: list[Row] = []
    for kind, texts in kinds.items():
        prompts = tokenise(loaded, texts, loaded.plan.options.max_model_len - args.max_tokens)
        rows += measure_kind(loaded.core, kind, prompts, args)
    means = {
        f"batch {batch}, temperature {temperature:g}" + (", by steps" if by_steps else ""): overall(chosen, by_steps)
        for batch in args.batch
        for temperature in args.temperature
        for by_steps in (False, True)
        if (chosen := [row for row in rows if (row.batch, row.temperature) == (batch, temperature)])
    }
    result = {
        "model": args.model,
        "settings": {each.field: each.effective for each in loaded.plan.decisions},
        "step_times": step_times,
        "rows": [asdict(row) for row in rows],
        "geometric_means": {
            name: None if found is None else [found.value, found.low, found.high] for name, found in means.items()
        },
    }
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "speculation.json").write_text(json.dumps(result) + "\n", encoding="utf-8")
    if args.json:
        print(json.dumps(result))
        return
    print("\n".join([*step_times, *loaded.plan.warnings, table(rows)]))
    for name, found in means.items():
        if found is not None:
            interval = f" ({found.low:.2f}-{found.high:.2f})" if found.firm else ""
            print(f"geometric mean over kinds, {name}: {found.value:.2f}{interval}")


if __name__ == "__main__":
    run_program(main)
