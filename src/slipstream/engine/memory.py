"""How many KV blocks fit, in numbers that can be shown before anything is allocated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from slipstream.errors import ConfigError, InsufficientMemoryError
from slipstream.kv.spec import KVSpec

DERIVED_SHARE = 0.5  # of the total, for a pool whose size nobody asked for: a larger one starves other programs
MIN_DERIVED_MODEL_LEN = 256  # tokens; a context lowered below this helps nobody


Bound = Literal["memory", "half", "sequences", "asked"]


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """All sizes in bytes, lengths in tokens."""

    spec: KVSpec
    total: int
    free: int | None  # when planned; None: not considered
    memory_utilization: float
    weights: int
    workspace: int
    headroom: float  # share of what is left for KV that stays unused
    num_blocks: int
    max_model_len: int
    max_model_len_wanted: int
    bound: Bound  # what decides num_blocks
    draft_spec: KVSpec | None = None  # of the draft model's pool, which has as many blocks; None: there is none
    bytes_per_token: int = 0  # of host memory that a token takes besides its KV: what is looked up for drafts
    store_bytes: int = 0  # of the workspace: recent answers to draft from
    warnings: tuple[str, ...] = ()

    @property
    def kv_bytes(self) -> int:
        """The draft model's pool included."""
        return self.num_blocks * _bytes_per_block(self.spec, self.draft_spec)

    @property
    def num_tokens(self) -> int:
        return self.num_blocks * self.spec.block_size

    @property
    def num_blocks_why(self) -> str:
        if self.bound == "asked":
            return "as set"
        if self.bound == "half":
            return "half of the memory, the most that is taken unless num_blocks or memory_utilization is set"
        if self.bound == "sequences":
            return "all that max_num_seqs sequences of max_model_len can need"
        return f"what memory holds beside {gib(self.weights)} of weights, {self.headroom:.1%} head-room kept"

    @property
    def max_model_len_why(self) -> str | None:
        """Why the context is shorter than the model allows; None if it is not."""
        if self.max_model_len == self.max_model_len_wanted:
            return None
        return (
            f"the KV cache holds {self.num_tokens} tokens ({gib(self.kv_bytes)}), "
            f"fewer than the {self.max_model_len_wanted} of the model's context"
        )

    def formula(self) -> str:
        """The computation, line by line, for people."""
        s = self.spec
        budget = f"{self.memory_utilization:.2f} x {gib(self.total)} total"
        if self.free is not None:
            budget = f"min({budget}, {gib(self.free)} free)"
        reason = "" if self.bound == "memory" else f": {self.num_blocks_why}"
        draft = (
            () if self.draft_spec is None else (f"the same of the draft model or head{_per_token(self.draft_spec)}",)
        )
        return "\n".join(
            (
                f"KV per token{_per_token(s)}",
                *draft,
                *((f"n-grams per token = {self.bytes_per_token} bytes",) if self.bytes_per_token else ()),
                *((f"recent answers = {gib(self.store_bytes)} of the workspace",) if self.store_bytes else ()),
                f"KV budget = ({budget} - {gib(self.weights)} weights - {gib(self.workspace)} workspace)"
                f" x {1 - self.headroom:.3f} (head-room)",
                f"KV cache = {self.num_blocks} blocks x {s.block_size} tokens = {self.num_tokens} tokens"
                f" = {gib(self.kv_bytes)}{reason}",
                f"Sequences of {self.max_model_len} tokens that fit at once:"
                f" {self.num_blocks // s.blocks_for(self.max_model_len)}",
            )
        )


def plan_memory(
    spec: KVSpec,
    *,
    total: int,
    weights: int,
    workspace: int,
    max_model_len: int,
    max_num_seqs: int,
    free: int | None = None,
    memory_utilization: float = 0.9,
    headroom: float = 0.125,
    max_model_len_asked: bool = False,
    num_blocks: int | None = None,
    memory_utilization_asked: bool = True,
    bytes_per_position: int = 0,
    draft_spec: KVSpec | None = None,
    bytes_per_token: int = 0,
    store_bytes: int = 0,
) -> MemoryPlan:
    """Divide memory. Pure: sizes in bytes go in, a plan comes out.

    total, free: of the device that holds the KV cache (`free` before the weights are loaded). workspace: the
    largest activations and scratch of one step. `max_model_len` counts as wish if derived from the model and is
    then lowered to what fits (see `MemoryPlan.max_model_len_why`); if asked for, it fits or this raises.
    bytes_per_position: of tables with a row for each position of the context; they count as workspace.
    draft_spec: of a draft model's KV pool with as many blocks; its weights and workspace are part of the others.
    bytes_per_token: that each token in the pool takes besides, in memory that is not allocated beforehand.
    store_bytes: of recent answers, which fill up while the engine runs; they count as workspace.
    num_blocks: the blocks asked for; None: as many as fit and can be used, but with a memory_utilization that nobody
    asked for no more than half of the total.

    Raises InsufficientMemoryError with all the numbers, and ConfigError for a share outside its range or for fewer
    blocks asked for than one sequence needs.
    """
    if not 0.0 < memory_utilization <= 1.0:
        raise ConfigError(f"must be above 0 and at most 1, not {memory_utilization}.", where="memory_utilization")
    if not 0.0 <= headroom < 1.0:
        raise ConfigError(f"must be at least 0 and below 1, not {headroom}.", where="headroom")
    budget = int(total * memory_utilization)
    if free is not None:
        budget = min(budget, free)
    workspace += store_bytes
    left = budget - weights - workspace
    positions = max_model_len * bytes_per_position
    block_bytes = _bytes_per_block(spec, draft_spec) + bytes_per_token * spec.block_size
    fitting = max(0, int((left - positions) * (1.0 - headroom)) // block_bytes)
    if fitting < spec.blocks_for(max_model_len) and not max_model_len_asked and num_blocks is None:
        # One sequence takes all blocks then, and no more positions than they have.
        per_block = block_bytes + bytes_per_position * spec.block_size
        fitting = min(spec.blocks_for(max_model_len), max(0, int(left * (1.0 - headroom)) // per_block))
    if num_blocks is not None:
        if num_blocks > fitting:
            raise _too_many_blocks(block_bytes, num_blocks, fitting)
        fitting = num_blocks
    effective_len = max_model_len
    if fitting < spec.blocks_for(max_model_len):
        shortest = max_model_len if max_model_len_asked else min(max_model_len, MIN_DERIVED_MODEL_LEN)
        effective_len = fitting * spec.block_size
        if effective_len < shortest and num_blocks is not None:
            raise _too_few_blocks(spec, num_blocks, shortest, max_model_len_asked)
        if effective_len < shortest:
            needed = workspace + shortest * bytes_per_position
            raise _insufficient(
                spec,
                block_bytes,
                budget,
                total,
                free,
                weights,
                needed,
                headroom,
                shortest,
                max_model_len_asked,
                fitting,
            )
    workspace += effective_len * bytes_per_position
    used = fitting
    bound: Bound = "memory" if num_blocks is None else "asked"
    if num_blocks is None:
        half = int(total * DERIVED_SHARE) // block_bytes
        enough = spec.blocks_for(effective_len)
        if not memory_utilization_asked and max(half, enough) < used:
            used, bound = max(half, enough), "half"
        if enough * max_num_seqs < used:
            used, bound = enough * max_num_seqs, "sequences"
    return MemoryPlan(
        spec=spec,
        total=total,
        free=free,
        memory_utilization=memory_utilization,
        weights=weights,
        workspace=workspace,
        headroom=headroom,
        num_blocks=used,
        max_model_len=effective_len,
        max_model_len_wanted=max_model_len,
        bound=bound,
        draft_spec=draft_spec,
        bytes_per_token=bytes_per_token,
        store_bytes=store_bytes,
        warnings=_warnings(used * block_bytes, total),
    )


def gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB"


def _bytes_per_block(spec: KVSpec, draft_spec: KVSpec | None) -> int:
    return spec.bytes_per_block + (0 if draft_spec is None else draft_spec.bytes_per_block)


def _per_token(s: KVSpec) -> str:
    return (
        f" = 2 (K, V) x {s.num_layers} layers x {s.num_kv_heads} KV heads x {s.head_dim} values"
        f" in {s.dtype} = {s.bytes_per_token} bytes"
    )


def _warnings(kv_bytes: int, total: int) -> tuple[str, ...]:
    if kv_bytes * 2 <= total:
        return ()
    return (
        f"the KV cache takes {gib(kv_bytes)}, more than half of the memory ({gib(total)}); "
        "lower memory_utilization, max_num_seqs or max_model_len to leave room for others.",
    )


def _too_many_blocks(block_bytes: int, asked: int, fitting: int) -> InsufficientMemoryError:
    return InsufficientMemoryError(
        f"{asked} KV blocks were asked for ({gib(asked * block_bytes)}), but {fitting} fit "
        f"({gib(fitting * block_bytes)}).",
        where="num_blocks",
        fix="Ask for fewer, or raise memory_utilization.",
    )


def _least(length_asked: bool) -> str:
    return "" if length_asked else ", the least context that an engine starts with by itself,"


def _too_few_blocks(spec: KVSpec, asked: int, length: int, length_asked: bool) -> ConfigError:
    needed = spec.blocks_for(length)
    return ConfigError(
        f"{asked} KV blocks were asked for, but one sequence of {length} tokens{_least(length_asked)} needs {needed}.",
        where="num_blocks",
        fix=f"Ask for {needed} or more, or {'lower' if length_asked else 'set a smaller'} max_model_len.",
    )


def _insufficient(
    spec: KVSpec,
    block_bytes: int,
    budget: int,
    total: int,
    free: int | None,
    weights: int,
    workspace: int,
    headroom: float,
    length: int,
    length_asked: bool,
    fitting: int,
) -> InsufficientMemoryError:
    needed = spec.blocks_for(length)
    of_free = "" if free is None else f", {gib(free)} of it free"
    shorter = "Lower" if length_asked else "Set a smaller"
    return InsufficientMemoryError(
        f"one sequence of {length} tokens{_least(length_asked)} needs {needed} KV blocks "
        f"({gib(needed * block_bytes)}), "
        f"but {fitting} fit ({gib(fitting * block_bytes)}): {gib(budget)} usable of {gib(total)}{of_free}, "
        f"less {gib(weights)} weights, {gib(workspace)} workspace and {headroom:.1%} head-room.",
        where="KV cache",
        fix=f"{shorter} max_model_len, raise memory_utilization, or use a smaller or more strongly quantised model.",
    )
