"""Which part of which file tensor feeds each slot, checked strictly both ways before anything is read."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence

from slipstream.errors import ModelFormatError
from slipstream.lean import dataclass
from slipstream.weights.checkpoint import Checkpoint, TensorInfo
from slipstream.weights.naming import duplicates, name_list, show
from slipstream.weights.slots import TensorSlot

Ignore = Container[str] | Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class TensorSource:
    """The part of a file tensor that becomes `slot`.

    Attributes:
        expert: index into the tensor's leading dimension, which the slot does not have.
        rows: [start, stop) of the rows (of that expert).
        rope_heads: heads whose rows are to be put back into Hugging Face order.
        offset: added to every value.
        nbytes: stored bytes of the part.
    """

    slot: TensorSlot
    info: TensorInfo
    expert: int | None
    rows: tuple[int, int]
    rope_heads: int | None
    offset: float
    nbytes: int


def match_slots(slots: Sequence[TensorSlot], checkpoint: Checkpoint, *, ignore: Ignore = ()) -> list[TensorSource]:
    """The source of every slot, in file order.

    Args:
        slots: every tensor of the model.
        checkpoint: the opened model.
        ignore: names of file tensors (or a predicate on names) that the model knows and does not need.

    Raises:
        ModelFormatError: slots without a tensor, tensors (or parts of tensors) without a slot, tensors used twice,
            or shapes that differ; one error names them all.
        ValueError: two slots have the same name.
    """
    if repeated := duplicates([slot.name for slot in slots]):
        raise ValueError(f"slots appear twice: {name_list(repeated)}")
    tensors = checkpoint.tensors
    missing: list[str] = []
    mismatched: list[str] = []
    sources: dict[str, list[TensorSource]] = {}
    wanted: set[str] = set()
    for slot in slots:
        name = slot.gguf_name if checkpoint.format == "gguf" else slot.hf_name or slot.name
        wanted.add(name)
        if name not in tensors:
            missing.append(name if name == slot.name else f"{name} (for {slot.name})")
            continue
        source = _source(slot, tensors[name], checkpoint.format == "gguf")
        if isinstance(source, str):
            mismatched.append(source)
        else:
            sources.setdefault(name, []).append(source)
    unexpected = [name for name in tensors if name not in wanted and not _ignored(name, ignore)]
    if not mismatched:
        mismatched = [problem for parts in sources.values() for problem in _coverage(parts)]
    _report(checkpoint, missing, unexpected, mismatched)
    return [part for name in tensors for part in _in_order(sources.get(name, ()))]


def _source(slot: TensorSlot, info: TensorInfo, gguf: bool) -> TensorSource | str:
    """The slot's source, or what is wrong with its shape."""
    expert = slot.gguf_expert if gguf else None
    asked_rows = slot.gguf_rows if gguf else slot.hf_rows
    shape = info.shape if expert is None else info.shape[1:]
    if not shape or len(shape) != len(slot.shape):
        return f"{show(info.name)} has the shape {info.shape}, {slot.name} needs {slot.shape}"
    rows = asked_rows or (0, shape[0])
    if expert is not None and not 0 <= expert < info.shape[0]:
        return f"{show(info.name)} has {info.shape[0]} experts, {slot.name} needs number {expert} (from 0)"
    if not 0 <= rows[0] < rows[1] <= shape[0]:
        return f"{show(info.name)} has {shape[0]} rows, {slot.name} needs rows {rows[0]} to {rows[1]}"
    part = (rows[1] - rows[0], *shape[1:])
    if part != slot.shape:
        of_part = f" in rows {rows[0]} to {rows[1]}" if asked_rows else ""
        return f"{show(info.name)} has the shape {part}{of_part}, {slot.name} needs {slot.shape}"
    heads = slot.gguf_rope_heads if gguf else None
    if heads is not None and (heads < 1 or slot.shape[0] % (2 * heads)):
        return f"{show(info.name)} has {slot.shape[0]} rows, which do not divide into {heads} heads of even size"
    nbytes = info.nbytes * math.prod(part) // math.prod(info.shape)
    return TensorSource(slot, info, expert, rows, heads, 0.0 if gguf else slot.hf_offset, nbytes)


def _in_order(parts: Iterable[TensorSource]) -> list[TensorSource]:
    return sorted(parts, key=lambda part: (part.expert or 0, part.rows))


def _coverage(parts: Sequence[TensorSource]) -> list[str]:
    """What keeps `parts`, all of one tensor, from covering each of its rows exactly once."""
    info = parts[0].info
    if len({part.expert is None for part in parts}) > 1:
        return [f"{show(info.name)} is used both whole and by expert"]
    by_expert: dict[int | None, list[tuple[int, int]]] = {}
    for part in _in_order(parts):
        by_expert.setdefault(part.expert, []).append(part.rows)
    problems: list[str] = []
    if None not in by_expert:
        unused = [str(expert) for expert in range(info.shape[0]) if expert not in by_expert]
        if unused:
            problems.append(f"{show(info.name)} has experts that nothing uses: {name_list(unused, 8)}")
    for expert, ranges in by_expert.items():
        of_expert = "" if expert is None else f" of expert {expert}"
        end = 0
        for start, stop in ranges:
            if start > end:
                problems.append(f"{show(info.name)}: nothing uses the rows {end} to {start}{of_expert}")
            elif start < end:
                problems.append(f"{show(info.name)}: the rows {start} to {min(end, stop)}{of_expert} are used twice")
            end = max(end, stop)
        num_rows = info.shape[0] if expert is None else info.shape[1]
        if end < num_rows:
            problems.append(f"{show(info.name)}: nothing uses the rows {end} to {num_rows}{of_expert}")
    return problems


def _ignored(name: str, ignore: Ignore) -> bool:
    return name in ignore if isinstance(ignore, Container) else ignore(name)


def _report(checkpoint: Checkpoint, missing: list[str], unexpected: list[str], mismatched: list[str]) -> None:
    groups: Mapping[str, list[str]] = {
        "missing": missing,
        "unexpected": unexpected,
        "of the wrong shape or use": mismatched,
    }
    problems = [
        f"{len(names)} tensors {kind}: {name_list(names)}." if len(names) != 1 else f"1 tensor {kind}: {names[0]}."
        for kind, names in groups.items()
        if names
    ]
    if problems:
        raise ModelFormatError(
            "the tensors do not fit the model. " + " ".join(problems),
            where=str(checkpoint.path),
            fix="The file may be incomplete, or its configuration may not be its own.",
        )
