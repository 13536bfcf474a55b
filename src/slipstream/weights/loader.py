"""Streaming a checkpoint's tensors into a model's slots."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from slipstream.errors import ModelFormatError
from slipstream.weights.checkpoint import Checkpoint
from slipstream.weights.match import Ignore, TensorSource, match_slots
from slipstream.weights.naming import show
from slipstream.weights.rope_rows import rope_rows_to_halves
from slipstream.weights.slots import TensorSlot

T = TypeVar("T")


def load_weights(
    slots: Sequence[TensorSlot],
    checkpoint: Checkpoint,
    bind: Callable[[TensorSlot, NDArray[np.float32]], T],
    *,
    bind_stored: Callable[[TensorSlot, str, NDArray[np.uint8]], T | None] | None = None,
    progress: Callable[[int, int], None] | None = None,
    ignore: Ignore = (),
) -> dict[str, T]:
    """Read every slot and hand it to `bind`; {slot name: what bind returned}, in file order.

    Nothing is read before all names and shapes fit (`match_slots`). Besides what `bind` keeps, one dequantised
    tensor is alive at a time.

    Args:
        slots: every tensor of the model; two slots may share a file tensor only through disjoint parts of it.
        checkpoint: the opened model.
        bind: takes the slot and its values, float32, C-contiguous, of shape `slot.shape`; it may keep the array.
        bind_stored: asked first, with the slot, the GGUF type name and the bytes as the file has them (rows in Hugging
            Face order); None leaves the tensor to `bind`. Raises ValueError for numbers that are not finite.
        progress: called with (bytes done, bytes in all), stored bytes, before the first tensor and after each.
        ignore: file tensors, by name or predicate, that the model knows and does not need.

    Raises:
        ModelFormatError: the tensors do not fit the slots, or one holds values that are not finite.
    """
    bound: dict[str, T] = {}
    for source in with_progress(match_slots(slots, checkpoint, ignore=ignore), progress):
        bound[source.slot.name], _ = load_source(source, checkpoint, bind, bind_stored)
    return bound


def with_progress(
    sources: Sequence[TensorSource], progress: Callable[[int, int], None] | None
) -> Iterator[TensorSource]:
    """The sources, one after the other; `progress` hears the bytes before the first and after each."""
    total = sum(source.nbytes for source in sources)
    done = 0
    if progress is not None:
        progress(done, total)
    for source in sources:
        yield source
        done += source.nbytes
        if progress is not None:
            progress(done, total)


def load_source(
    source: TensorSource,
    checkpoint: Checkpoint,
    bind: Callable[[TensorSlot, NDArray[np.float32]], T],
    bind_stored: Callable[[TensorSlot, str, NDArray[np.uint8]], T | None] | None,
) -> tuple[T, str]:
    """The bound slot, and the GGUF type name of what it was bound from."""
    value = None if bind_stored is None else _bind_stored(source, checkpoint, bind_stored)
    if value is not None:
        return value, source.info.dtype
    return bind(source.slot, read_source(source, checkpoint)), "F32"


def _bind_stored(
    source: TensorSource, checkpoint: Checkpoint, bind_stored: Callable[[TensorSlot, str, NDArray[np.uint8]], T | None]
) -> T | None:
    if source.offset or len(source.slot.shape) != 2:
        return None
    try:
        return bind_stored(source.slot, source.info.dtype, stored_rows(source, checkpoint))
    except ValueError as error:
        raise ModelFormatError(
            f"the tensor {show(source.info.name)}: {error}.",
            where=str(checkpoint.path),
            fix="The file is damaged; fetch it again.",
        ) from error


def stored_rows(source: TensorSource, checkpoint: Checkpoint) -> NDArray[np.uint8]:
    """The bytes of one matrix slot as the file stores them, flat, rows in Hugging Face order.

    Rows are whole numbers of blocks, so that they move without being decoded.
    """
    num_rows, columns = source.slot.shape
    data = checkpoint.raw(source.info.name)
    row_bytes = source.info.nbytes * columns // math.prod(source.info.shape)
    first = source.rows[0] + (source.expert or 0) * source.info.shape[-2]
    data = data[first * row_bytes : (first + num_rows) * row_bytes]
    if source.rope_heads is None:
        return data
    pairs = data.reshape(source.rope_heads, -1, 2, row_bytes)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(-1)


def read_source(source: TensorSource, checkpoint: Checkpoint) -> NDArray[np.float32]:
    """The values of one slot, of shape `source.slot.shape`, in Hugging Face row order.

    Raises:
        ModelFormatError: a value is not finite.
    """
    name = source.info.name
    if source.expert is None:
        values = checkpoint.read(name, source.rows)
    else:
        start, stop = source.rows
        values = checkpoint.read(name, (source.expert, source.expert + 1))[0]
        if stop - start != len(values):
            values = values[start:stop].copy()
    if not np.isfinite(values).all():
        raise ModelFormatError(
            f"the tensor {show(name)} holds values that are not finite (infinity or NaN).",
            where=str(checkpoint.path),
            fix="The file is damaged; fetch it again.",
        )
    if source.rope_heads is not None:
        values = rope_rows_to_halves(values, source.rope_heads)
    if source.offset:
        values += np.float32(source.offset)
    return values
