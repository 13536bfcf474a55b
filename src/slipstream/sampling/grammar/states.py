"""Where the sampler finds a request's place in its grammar."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from slipstream.sampling.grammar.compiler import GrammarCompiler
from slipstream.sampling.grammar.spec import GrammarSpec
from slipstream.sampling.grammar.state import GrammarState


class GrammarStates:
    """A memory, not a truth: the state for some output tokens is the same whether it is found here or built anew.

    So nobody has to tell it about requests that end, are preempted or had drafts refused; the least recently used
    of `capacity` states is forgotten.
    """

    def __init__(self, compiler: GrammarCompiler, capacity: int = 512) -> None:
        self._compiler = compiler
        self._capacity = capacity
        self._states: OrderedDict[str, GrammarState] = OrderedDict()

    def at(self, request_id: str, spec: GrammarSpec, output: Sequence[int]) -> GrammarState:
        """The state behind `output`. Raises InvalidParamsError for a bad grammar, GrammarError for a bad output."""
        state = self._states.get(request_id)
        if state is None or state.compiled.spec != spec:
            state = self._states[request_id] = GrammarState(self._compiler.compile(spec), name=spec.name_of())
        self._states.move_to_end(request_id)
        if len(self._states) > self._capacity:
            self._states.popitem(last=False)
        state.sync(output)
        return state
