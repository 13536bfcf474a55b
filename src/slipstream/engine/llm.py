"""`LLM`: a model in this process, for scripts. Names as in vLLM where the meaning is the same."""

from __future__ import annotations

import reprlib
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from itertools import count
from numbers import Integral
from operator import index as as_index
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from slipstream.config.decision import Decision
from slipstream.config.types import EngineOptions
from slipstream.engine.core import EngineCore
from slipstream.engine.loading import EnginePlan, LoadedEngine, Progress, engine_options, load_engine
from slipstream.engine.outputs import OutputDelta, RequestOutput
from slipstream.engine.protocol import EngineStats, GenerationRequest
from slipstream.engine.queue import QueueFullError
from slipstream.errors import EngineError, InvalidParamsError, RequestError
from slipstream.sampling.params import SamplingParams
from slipstream.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from slipstream.text.chat_template import ChatTemplate

Key = TypeVar("Key")
Prompt = str | Sequence[int]
Message = Mapping[str, Any]
PromptProgress = Callable[[int, int], None]  # (tokens of the prompt computed, tokens of the prompt)
ParamsArgument = SamplingParams | Sequence[SamplingParams] | None

_NO_TOKEN_IDS = (bytes, bytearray, Mapping, Set)  # iterable, and of integers even, but not a sequence of token ids
_OWN_NAMES = frozenset({"self", "messages", "tools", "add_generation_prompt"})  # of `encode_chat`


class LLM:
    """Loads a model and answers batches of prompts.

    `model` is a pulled name, a file or a folder; every other keyword is a setting of `EngineOptions`
    (max_num_seqs, block_size, memory_utilization, ...). Unknown names raise ConfigError. A whole EngineOptions may
    stand in the place of `model`. Streams may be read in turns, and threads take turns step by step.

        with LLM("smollm2") as llm:
            [output] = llm.generate(["The sky is"], SamplingParams(temperature=0, max_tokens=16))
            print(output.outputs[0].text)
    """

    def __init__(
        self,
        model: str | EngineOptions,
        *,
        cache_dir: Path | None = None,
        load_progress: Progress | None = None,
        **settings: Any,
    ) -> None:
        options = engine_options(model, settings)
        self._engine: LoadedEngine | None = load_engine(
            options, cache_dir=cache_dir, progress=load_progress, batch=True
        )
        self._ids = count()
        self._mailbox: dict[str, list[OutputDelta]] = {}  # given by the core, not yet taken by its stream
        self._turn = Lock()  # held while the core works
        self._left: deque[str] = deque()  # requests that nobody waits for any more, to be aborted

    # ---- answers ----

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: ParamsArgument = None,
        *,
        use_tqdm: bool = False,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Complete prompts (text or token ids), all in one continuous batch; results in the order of the prompts.

        Every prompt is checked before any work starts: RequestError names the first that is wrong.
        `use_tqdm` shows a progress bar on stderr. `priority`, lower being more important, needs policy "priority".
        """
        items = _as_list(prompts)
        if priority is not None and self.plan.options.policy != "priority":
            raise InvalidParamsError(
                f'has no effect with policy "{self.plan.options.policy}".',
                where="priority",
                fix='Make the LLM with policy="priority".',
            )
        requests = [
            self._request(prompt, params, rank)
            for prompt, params, rank in zip(
                items, _spread(sampling_params, len(items)), _priorities(priority, len(items)), strict=True
            )
        ]
        return self._run(requests, progress=use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: ParamsArgument = None,
        *,
        use_tqdm: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation or several. Raises ChatTemplateError if the model has no chat template."""
        single = not isinstance(messages, Sequence) or not messages or isinstance(messages[0], Mapping)
        conversations: list[Any] = [messages] if single else list(messages)
        extra = _template_names(chat_template_kwargs)
        prompts = [
            self.encode_chat(each, tools=tools, add_generation_prompt=add_generation_prompt, **extra)
            for each in conversations
        ]
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm)

    def stream(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        prompt_progress: PromptProgress | None = None,
    ) -> Generator[OutputDelta, None, None]:
        """Complete one prompt, yielding what each step adds. Leaving the iterator early ends the request.

        `prompt_progress` is called after each step that left a part of the prompt to be computed, with the tokens that
        are computed and those of the whole prompt: a step takes `max_prefill_chunk` of them at most.
        """
        request = self._request(prompt, sampling_params or SamplingParams(), 0)
        self._core.check(request)
        return self._deltas([request], prompt_progress)

    def generate_as_completed(
        self, items: Iterable[tuple[Key, Prompt, SamplingParams]], *, max_open: int | None = None
    ) -> Iterator[tuple[Key, RequestOutput | RequestError]]:
        """Complete any number of prompts without holding them all: (the item's key, its result) as they finish.

        At most `max_open` items (default: twice max_num_seqs) are unfinished at any time. An
        item that is invalid gives its RequestError and does not disturb the others.
        """
        core = self._core
        limit = max_open or 2 * self.plan.options.max_num_seqs
        source = iter(items)
        open_outputs: dict[str, tuple[Key, RequestOutput]] = {}
        exhausted = False
        try:
            while not exhausted or open_outputs:
                while not exhausted and len(open_outputs) < limit:
                    taken = next(source, None)
                    exhausted = taken is None
                    if taken is not None:
                        key, prompt, params = taken
                        try:
                            request = self._request(prompt, params, 0)
                            core.check(request)
                            while not self._try_add(request):
                                self._step()
                        except RequestError as error:
                            yield key, error
                            continue
                        output = RequestOutput.empty(
                            request.request_id, request.prompt, request.prompt_token_ids, params.n
                        )
                        open_outputs[request.request_id] = key, output
                self._step()
                for request_id in open_outputs.keys() & self._mailbox.keys():
                    key, output = open_outputs[request_id]
                    for delta in self._mailbox.pop(request_id):
                        output.add(delta)
                    if output.finished:
                        del open_outputs[request_id]
                        yield key, output
        finally:
            self._leave(open_outputs)

    def encode_chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **extra: Any,
    ) -> list[int]:
        """Token ids of what the model's chat template makes of the messages, with exactly one BOS where one belongs.

        `extra` are further names that the template knows. Raises ChatTemplateError and InvalidParamsError.
        """
        text = self._template.render(messages, tools=tools, add_generation_prompt=add_generation_prompt, **extra)
        return self.tokenizer.encode_chat(text)

    def require_chat_template(self) -> None:
        """Raises ChatTemplateError if the model has no usable chat template."""
        self._template  # noqa: B018  compiled on first use, and kept

    # ---- what is in force ----

    @property
    def plan(self) -> EnginePlan:
        return self._loaded.plan

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """Every setting: what was asked for, what is in force and why."""
        return self._loaded.plan.decisions

    @property
    def tokenizer(self) -> Tokenizer:
        return self._loaded.tokenizer

    def stats(self) -> EngineStats:
        return self._core.stats()

    # ---- the end ----

    def close(self) -> None:
        """Frees weights and KV cache. May be called twice; any other call then raises EngineError."""
        self._engine = None

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _loaded(self) -> LoadedEngine:
        if self._engine is None:
            raise EngineError("this LLM is closed.", fix="Make a new one.")
        return self._engine

    @property
    def _core(self) -> EngineCore:
        return self._loaded.core

    @cached_property
    def _template(self) -> ChatTemplate:
        from slipstream.text.chat_template import ChatTemplate  # Jinja is needed by few runs and takes its time

        return ChatTemplate.of(self.tokenizer)

    def _request(self, prompt: Prompt, params: SamplingParams, priority: int) -> GenerationRequest:
        name = f"request-{next(self._ids)}"
        if isinstance(prompt, str):
            ids = self.tokenizer.encode(prompt)
            return GenerationRequest(name, tuple(ids), params, prompt=prompt, priority=priority)
        try:
            if isinstance(prompt, _NO_TOKEN_IDS):
                raise TypeError(f"{type(prompt).__name__} has no order, or holds no numbers")
            return GenerationRequest(name, tuple(map(as_index, prompt)), params, priority=priority)
        except TypeError as error:
            raise InvalidParamsError(
                f"a prompt is a text or a sequence of token ids, not {reprlib.repr(prompt)}.", where=f"request {name}"
            ) from error

    def _run(self, requests: Sequence[GenerationRequest], *, progress: bool) -> list[RequestOutput]:
        for request in requests:
            self._core.check(request)
        outputs = {
            each.request_id: RequestOutput.empty(each.request_id, each.prompt, each.prompt_token_ids, each.params.n)
            for each in requests
        }
        bar = _progress_bar(len(requests)) if progress else nullcontext(_no_progress)
        with bar as advance:
            for delta in self._deltas(requests):
                output = outputs[delta.request_id]
                output.add(delta)
                advance(int(output.finished), len(delta.token_ids))
        return list(outputs.values())

    def _deltas(
        self, requests: Sequence[GenerationRequest], prompt_progress: PromptProgress | None = None
    ) -> Generator[OutputDelta, None, None]:
        """Run the requests, stepping the core; what it gives other open streams waits for them in the mailbox."""
        core, own = self._core, {request.request_id for request in requests}
        waiting = deque(requests)
        try:
            while True:
                while waiting and self._try_add(waiting[0]):
                    waiting.popleft()
                for request_id in own & self._mailbox.keys():
                    yield from self._mailbox.pop(request_id)
                if not waiting and own.isdisjoint(core.open_request_ids) and own.isdisjoint(self._mailbox):
                    return
                self._step()
                for request_id in own if prompt_progress is not None else ():
                    done = core.prompt_progress(request_id)
                    if done is not None and prompt_progress is not None:
                        prompt_progress(*done)
        finally:
            self._leave(own)

    def _try_add(self, request: GenerationRequest) -> bool:
        """False if the queue is full, so that a step has to be taken first."""
        with self._turn:
            try:
                self._core.add(request)
            except QueueFullError:
                return False
            return True

    def _step(self) -> None:
        with self._turn:
            for delta in self._core.step():
                self._mailbox.setdefault(delta.request_id, []).append(delta)
            self._abort_left()

    def _leave(self, request_ids: Iterable[str]) -> None:
        """Abort requests, now or when the step under way is done: garbage collection can end a stream inside one."""
        self._left.extend(request_ids)
        if self._turn.acquire(blocking=False):
            try:
                self._abort_left()
            finally:
                self._turn.release()

    def _abort_left(self) -> None:
        while self._left:
            request_id = self._left.popleft()
            if self._engine is not None:
                self._engine.core.abort(request_id)
            self._mailbox.pop(request_id, None)


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or several; what is neither comes out as one, which is refused as such."""
    if isinstance(prompts, (str, *_NO_TOKEN_IDS)) or not (hasattr(prompts, "__len__") and hasattr(prompts, "__iter__")):
        return [prompts]  # type: ignore[list-item]
    return [prompts] if len(prompts) > 0 and isinstance(prompts[0], Integral) else list(prompts)  # type: ignore[list-item, arg-type]


def _template_names(extra: Mapping[str, Any] | None) -> dict[str, Any]:
    if extra is None:
        return {}
    if not isinstance(extra, Mapping) or not all(isinstance(name, str) for name in extra):
        raise InvalidParamsError(f"must map names to values, not {reprlib.repr(extra)}.", where="chat_template_kwargs")
    taken = sorted(extra.keys() & _OWN_NAMES)
    if taken:
        raise InvalidParamsError(
            f"{', '.join(taken)} cannot be set here.",
            where="chat_template_kwargs",
            fix="messages, tools and add_generation_prompt are arguments of their own.",
        )
    return dict(extra)


def _spread(params: ParamsArgument, num_prompts: int) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * num_prompts
    if not isinstance(params, Sequence) or not all(isinstance(each, SamplingParams) for each in params):
        raise InvalidParamsError(
            f"must be SamplingParams or a list of them, not {reprlib.repr(params)}.", where="sampling_params"
        )
    if len(params) != num_prompts:
        raise InvalidParamsError(
            f"{len(params)} sampling_params for {num_prompts} prompts.", fix="Give one or as many."
        )
    return list(params)


def _priorities(priority: Sequence[int] | None, num_prompts: int) -> Sequence[int]:
    if priority is None:
        return [0] * num_prompts
    if len(priority) != num_prompts:
        raise InvalidParamsError(f"{len(priority)} priorities for {num_prompts} prompts.", fix="Give as many.")
    return priority


Advance = Callable[[int, int], None]  # (requests finished, tokens generated)


def _no_progress(finished: int, tokens: int) -> None:
    pass


def _progress_bar(total: int) -> AbstractContextManager[Advance]:
    from slipstream.engine.progress import request_progress

    return request_progress(total)
