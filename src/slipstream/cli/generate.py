"""`slipstream generate`: complete one prompt, or a JSONL file of prompts."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from slipstream.cli.length import length_note, with_default_length
from slipstream.cli.load import load_llm
from slipstream.cli.options import engine_options, sampling_options
from slipstream.cli.parameters import Argument, Option
from slipstream.cli.prompt_line import PromptLine
from slipstream.cli.render import note, output_json, speed_line
from slipstream.engine.llm import LLM
from slipstream.engine.outputs import RequestOutput
from slipstream.errors import EngineError, InvalidParamsError, UsageError
from slipstream.sampling.params import SamplingParams

DEFAULTS: Mapping[str, Any] = {"temperature": 0.0}


@engine_options
@sampling_options
def generate(
    model: Annotated[str, Argument(metavar="MODEL", help="A pulled name, a file or a folder.")],
    *,
    prompt: Annotated[str | None, Option(metavar="TEXT", help="The text to continue.")] = None,
    prompt_file: Annotated[
        Path | None, Option(metavar="FILE", help="Read the prompt from FILE; - is standard input.")
    ] = None,
    chat: Annotated[bool, Option("--chat", help="Put the prompt into the model's chat template.")] = False,
    system: Annotated[str | None, Option(metavar="TEXT", help="System message; only with --chat.")] = None,
    batch: Annotated[
        Path | None, Option(metavar="FILE", help='JSONL: {"prompt": ...} or {"messages": [...]} per line.')
    ] = None,
    output: Annotated[
        Path | None, Option(metavar="FILE", help="Where --batch writes; an interrupted run goes on.")
    ] = None,
    overwrite: Annotated[bool, Option("--overwrite", help="With --batch: start FILE anew.")] = False,
    json_: Annotated[bool, Option("--json", help="Print one JSON object instead of text.")] = False,
    quiet: Annotated[bool, Option("--quiet", "-q", help="Nothing but the answer.")] = False,
    n: Annotated[int, Option("-n", "--n", help="Completions of the prompt; needs --json if above 1.")] = 1,
    logprobs: Annotated[int | None, Option(help="Log-probabilities of N alternatives per token (with --json).")] = None,
    settings: Mapping[str, Any],
    sampling: Mapping[str, Any],
) -> None:
    """Continue a prompt as it is, or answer it through the chat template with --chat.

    The text streams to standard output; one line with TTFT, TPOT, tokens/s and peak memory follows on standard
    error. Without sampling options the output is greedy and at most 256 tokens long, fewer where the context ends.
    """
    params = {**DEFAULTS, "n": n, **sampling}
    if logprobs is not None:
        params["logprobs"] = logprobs
    if batch is not None:
        if prompt is not None or prompt_file is not None or chat or system is not None:
            raise UsageError("--batch takes prompts and messages from its file only.")
        from slipstream.cli.batch_run import run_batch

        run_batch(model, batch, output, params, settings, overwrite=overwrite, as_json=json_, quiet=quiet)
        return
    if output is not None or overwrite:
        raise UsageError("--output and --overwrite belong to --batch.")
    if (n > 1 or logprobs is not None) and not json_:
        raise UsageError("several completions and log-probabilities need --json.")
    text = _read_prompt(prompt, prompt_file)
    if system is not None and not chat:
        raise UsageError("--system needs --chat.")
    checked = SamplingParams.from_mapping(params)
    with load_llm(model, settings, quiet=quiet, interactive=not json_) as llm:
        tokens = _chat_prompt(llm, text, system) if chat else llm.tokenizer.encode(text)
        context = llm.plan.options.max_model_len
        checked = with_default_length(checked, len(tokens), context)
        cut = length_note(checked, len(tokens), context)
        if cut is not None and not quiet:
            note(cut)
        if json_:
            _print_json(llm, model, text, tokens, checked)
        else:
            _stream(llm, tokens, checked, quiet=quiet)


def _read_prompt(prompt: str | None, file: Path | None) -> str:
    if (prompt is None) == (file is None):
        raise UsageError(
            "give the prompt with one of --prompt and --prompt-file (- is standard input), or many with --batch."
        )
    if file is None:
        assert prompt is not None
        text = prompt
    else:
        try:
            raw = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        except OSError as error:
            raise UsageError(f"cannot be read: {error.strerror}.", where=str(file)) from error
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InvalidParamsError(f"is not valid UTF-8 (byte {error.start}).", where=str(file)) from error
        text = text.removesuffix("\n").removesuffix("\r")  # an editor's, not the prompt's
    if not text:
        raise InvalidParamsError("the prompt is empty.", fix="Give at least one character.")
    return text


def _chat_prompt(llm: LLM, text: str, system: str | None) -> list[int]:
    messages = [{"role": "user", "content": text}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    return llm.encode_chat(messages)


def _stream(llm: LLM, prompt: list[int], params: SamplingParams, *, quiet: bool) -> None:
    stats = error = None
    with PromptLine(quiet=quiet) as line:
        for delta in llm.stream(prompt, params, prompt_progress=line.show):
            line.clear()
            sys.stdout.write(delta.text)
            sys.stdout.flush()
            stats, error = delta.stats, delta.error
    sys.stdout.write("\n")
    sys.stdout.flush()
    if error is not None:
        raise EngineError(error)
    if stats is not None and not quiet:
        note(speed_line(stats))


def _print_json(llm: LLM, model: str, prompt: str, tokens: list[int], params: SamplingParams) -> None:
    [output] = llm.generate([tokens], params)
    _raise_on_error(output)
    result = {
        "model": model,
        "prompt": prompt,
        "prompt_token_ids": list(output.prompt_token_ids),
        **output_json(output),
        "settings": {decision.field: decision.effective for decision in llm.decisions},
    }
    print(json.dumps(result, ensure_ascii=False))


def _raise_on_error(output: RequestOutput) -> None:
    for completion in output.outputs:
        if completion.error is not None:
            raise EngineError(completion.error)
