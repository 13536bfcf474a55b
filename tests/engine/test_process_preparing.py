"""Grammars are compiled beside the steps, and what is being compiled can be left."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from slipstream.engine.process.preparing import Preparing
from slipstream.engine.process.wire import Add
from slipstream.engine.protocol import GenerationRequest
from slipstream.errors import InvalidParamsError
from slipstream.sampling.grammar.spec import GrammarSpec
from slipstream.sampling.params import SamplingParams

pytestmark = pytest.mark.fast


def message(handle: int, pattern: str = "a") -> Add:
    params = SamplingParams(grammar=GrammarSpec.regex(pattern))
    return Add(handle, GenerationRequest(str(handle), (1,), params), 0.0)


def all_of(preparing: Preparing, count: int) -> list[tuple[Add, Exception | None]]:
    results: list[tuple[Add, Exception | None]] = []
    while len(results) < count:
        results += preparing.done()
    return results


def test_results_come_in_order_with_their_errors() -> None:
    def prepare(params: SamplingParams) -> None:
        assert params.grammar is not None
        if params.grammar.source == "bad":
            raise InvalidParamsError("no grammar.")

    preparing = Preparing(prepare, threads=1)
    assert not preparing.done()
    for handle, pattern in enumerate(("a", "bad", "b")):
        preparing.start(message(handle, pattern))
    results = all_of(preparing, 3)
    assert [(each.handle, type(error)) for each, error in results] == [
        (0, type(None)),
        (1, InvalidParamsError),
        (2, type(None)),
    ]
    assert len(preparing) == 0


@pytest.mark.parametrize("leave", [lambda p: [p.cancel(1)], lambda p: p.cancel_all()[1:]])
def test_what_was_left_is_not_compiled_and_does_not_come_back(leave: Callable[[Preparing], list[Add]]) -> None:
    go, compiled = threading.Event(), []

    def prepare(params: SamplingParams) -> None:
        assert go.wait(20)
        assert params.grammar is not None
        compiled.append(params.grammar.source)

    preparing = Preparing(prepare, threads=1)
    preparing.start(message(0, "first"))
    preparing.start(message(1, "second"))
    assert [each.handle for each in leave(preparing)] == [1]
    assert preparing.cancel(1) is None
    preparing.start(message(2, "third"))
    left = len(preparing)
    go.set()
    assert all_of(preparing, left)[-1][0].handle == 2
    assert "second" not in compiled


def test_one_does_not_wait_for_another() -> None:
    go = threading.Event()

    def prepare(params: SamplingParams) -> None:
        assert params.grammar is not None
        assert params.grammar.source != "slow" or go.wait(20)

    preparing = Preparing(prepare)
    preparing.start(message(0, "slow"))
    preparing.start(message(1, "quick"))
    [(first, error)] = all_of(preparing, 1)
    assert (first.handle, error) == (1, None)
    go.set()
    assert [each.handle for each, _ in all_of(preparing, 1)] == [0]
