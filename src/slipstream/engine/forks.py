"""The n > 1 completions of one prompt: the prompt is computed once and its full blocks are shared."""

from __future__ import annotations

from slipstream.engine.request import Request
from slipstream.kv.manager import KVManager


class Forks:
    """Children that wait for a parent's prompt, and waiting children that own shared blocks already.

    A child takes its references the moment the prompt is computed, while it still waits itself: the parent may
    end in that very step. Such held blocks are given up before any running request is preempted.
    """

    def __init__(self, kv: KVManager) -> None:
        self._kv = kv
        self._children: dict[str, list[Request]] = {}  # by the id of the parent whose prompt is not computed yet
        self._holders: dict[Request, None] = {}

    def add(self, child: Request, parent: Request) -> None:
        if parent.computed >= parent.num_prompt_tokens:
            self._fork(parent, child)
        else:
            self._children.setdefault(parent.id, []).append(child)

    def waiting(self) -> set[Request]:
        """Children that cannot start yet."""
        return {child for children in self._children.values() for child in children}

    def parent_advanced(self, parent: Request) -> None:
        if self._children and parent.computed >= parent.num_prompt_tokens:
            for child in self._children.pop(parent.id, ()):
                self._fork(parent, child)

    def ended(self, request: Request) -> None:
        """A child leaves its siblings; if children still wait for the request, the first becomes their parent."""
        siblings = self._children.get(request.fork_of, []) if request.fork_of is not None else []
        if request in siblings:
            siblings.remove(request)
        waiting = self._children.pop(request.id, [])
        if waiting:
            heir, *others = waiting
            heir.fork_of = None
            for child in others:
                child.fork_of = heir.id
            if others:
                self._children[heir.id] = others

    def started(self, request: Request) -> None:
        """Its blocks are a running request's blocks now (or gone with it)."""
        self._holders.pop(request, None)

    def give_up_held(self) -> bool:
        """Release what one waiting child holds; it will compute its prompt anew. False if none holds anything."""
        if not self._holders:
            return False
        child, _ = self._holders.popitem()
        self._kv.release(child)
        child.computed = 0
        return True

    def _fork(self, parent: Request, child: Request) -> None:
        if child.lacks_prompt_logprobs:
            return  # it needs logits at every prompt position, so it computes them all
        child.computed = self._kv.fork(parent, child)
        if child.blocks:
            self._holders[child] = None
