"""Loading through the cache of packed matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from slipstream.kernels.table import PackedForms, Weight
from slipstream.weights.checkpoint import Checkpoint
from slipstream.weights.loader import load_source, load_weights, read_source, with_progress
from slipstream.weights.match import Ignore, match_slots
from slipstream.weights.packed_cache import CacheReport, cache_place, open_or_write
from slipstream.weights.packed_file import PackedFile, PackedWriter
from slipstream.weights.slots import TensorSlot

_VALUES = "values"  # in the place of a GGUF type name


def load_cached(
    slots: Sequence[TensorSlot],
    checkpoint: Checkpoint,
    bind: Callable[[TensorSlot, NDArray[np.float32]], Weight],
    *,
    bind_stored: Callable[[TensorSlot, str, NDArray[np.uint8]], Weight | None] | None,
    forms: PackedForms,
    backend: str,
    folder: Path,
    progress: Callable[[int, int], None] | None = None,
    ignore: Ignore = (),
) -> tuple[dict[str, Weight], CacheReport]:
    """As `load_weights`, with the same values bit for bit, and matrices mapped from a file below `folder`.

    The file is written if it is missing, broken, or of another state of the model; one packed matrix is then alive
    at a time. If it cannot be written, all matrices are packed into memory, and the report says why. Vectors lie in the
    file as float32: touching one in the checkpoint would map half a megabyte around it.

    Raises ModelFormatError as `load_weights` does.
    """
    sources = match_slots(slots, checkpoint, ignore=ignore)
    place = cache_place(folder, checkpoint, sources, backend, forms.layout({source.info.dtype for source in sources}))

    def write(writer: PackedWriter) -> None:
        for source in with_progress(sources, progress):
            weight, dtype = load_source(source, checkpoint, bind, bind_stored)
            data = forms.to_bytes(weight)
            if data is None:
                dtype, data = _VALUES, read_source(source, checkpoint).reshape(-1).view(np.uint8)
            writer.add(source.slot.name, dtype, source.slot.shape, data)

    file, report = open_or_write(place, write)
    if file is None:
        return load_weights(slots, checkpoint, bind, bind_stored=bind_stored, progress=progress, ignore=ignore), report
    return {source.slot.name: _mapped(source.slot, file, forms, bind) for source in sources}, report


def _mapped(
    slot: TensorSlot, file: PackedFile, forms: PackedForms, bind: Callable[[TensorSlot, NDArray[np.float32]], Weight]
) -> Weight:
    entry, data = file.entries[slot.name], file.data(slot.name)
    if entry.dtype == _VALUES:
        return bind(slot, data.view(np.float32).reshape(entry.shape).copy())
    return forms.from_bytes(entry.dtype, entry.shape, data)
