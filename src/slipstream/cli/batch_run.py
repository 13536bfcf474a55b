"""`slipstream generate --batch`: many prompts in one continuous batch, results as they finish."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from slipstream.cli.batch_io import BadLine, BatchLine, BatchWriter, read_batch
from slipstream.cli.length import with_default_length
from slipstream.cli.load import load_llm
from slipstream.cli.render import note, output_json
from slipstream.engine.llm import LLM
from slipstream.errors import RequestError, SlipstreamError, UsageError
from slipstream.sampling.params import SamplingParams


def run_batch(
    model: str,
    source: Path,
    target: Path | None,
    defaults: Mapping[str, Any],
    settings: Mapping[str, Any],
    *,
    overwrite: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Answer every line of `source`; results go to `target`, bad lines to `target` + ".errors".

    What an earlier run answered is skipped; an id that now asks something else is a bad line.

    Raises UsageError for files that cannot be used, and RequestError at the end if any line was bad, so that the
    exit code says so.
    """
    if target is None:
        raise UsageError("--batch needs --output FILE.")
    if not target.name:
        raise UsageError("--output must name a file.", where=str(target))
    if source.resolve() == target.resolve():
        raise UsageError("--batch and --output name the same file.", where=str(source))
    SamplingParams.from_mapping(defaults)
    total = _count_lines(source)
    counts = {"done": 0, "skipped": 0, "bad": 0}
    errors = target.with_name(target.name + ".errors")
    try:
        writer = BatchWriter(target, overwrite=overwrite)
        bad_writer = BatchWriter(errors, overwrite=True)
    except OSError as error:
        raise UsageError(f"cannot be written: {error.strerror}.", where=str(target)) from error
    with writer, bad_writer, load_llm(model, settings, quiet=quiet) as llm, _progress(total, quiet) as advance:
        _answer(llm, source, defaults, writer, bad_writer, counts, advance)
    if not counts["bad"]:
        errors.unlink()
    if as_json:
        print(json.dumps({"output": str(target), **counts, "errors": str(errors) if counts["bad"] else None}))
    elif not quiet:
        note(f"{counts['done']} answered, {counts['skipped']} already there, {counts['bad']} bad -> {target}")
    if counts["bad"]:
        raise RequestError(
            f"{counts['bad']} of {total} lines could not be answered.", where=str(source), fix=f"See {errors}."
        )


def _answer(
    llm: LLM,
    source: Path,
    defaults: Mapping[str, Any],
    writer: BatchWriter,
    bad_writer: BatchWriter,
    counts: dict[str, int],
    advance: Callable[[int, int], None],
) -> None:
    def refuse(number: int, identifier: str | None, error: str) -> None:
        counts["bad"] += 1
        bad_writer.write(identifier or f"line-{number}", {"line": number, "error": error})
        advance(1, 0)

    def items() -> Iterator[tuple[BatchLine, list[int], SamplingParams]]:
        for line in read_batch(source, defaults):
            if isinstance(line, BadLine):
                refuse(line.number, None, line.error)
            elif writer.done.get(line.id, "") == line.digest:
                counts["skipped"] += 1
                advance(1, 0)
            elif line.id in writer.done:
                refuse(line.number, line.id, f"{writer.path} holds an answer to another request under this id.")
            else:
                try:
                    prompt = _prompt(llm, line)
                except SlipstreamError as error:
                    refuse(line.number, line.id, str(error))
                else:
                    yield line, prompt, with_default_length(line.params, len(prompt), llm.plan.options.max_model_len)

    for line, result in llm.generate_as_completed(items()):
        if isinstance(result, RequestError):
            refuse(line.number, line.id, str(result))
            continue
        failed = next((each.error for each in result.outputs if each.error is not None), None)
        if failed is not None:
            refuse(line.number, line.id, failed)
            continue
        writer.write(line.id, {"line": line.number, "asked": line.digest, **output_json(result)})
        counts["done"] += 1
        advance(1, sum(len(each.token_ids) for each in result.outputs))


def _prompt(llm: LLM, line: BatchLine) -> list[int]:
    if line.prompt is not None:
        return llm.tokenizer.encode(line.prompt)
    assert line.messages is not None
    return llm.encode_chat(line.messages, tools=line.tools)


def _count_lines(source: Path) -> int:
    try:
        with source.open("rb") as file:
            return sum(1 for line in file if line.strip())
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}.", where=str(source)) from error


def _progress(total: int, quiet: bool) -> Any:
    if quiet:
        return nullcontext(lambda finished, tokens: None)
    from slipstream.engine.progress import request_progress

    return request_progress(total)
