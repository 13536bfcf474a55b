"""Hidden states of every position, computed by our own engine's kernels: the same numbers that serving computes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

from slipstream.kernels.batch import ForwardBatch
from slipstream.kernels.table import Kernels, Tensor
from slipstream.kv.storage import KVStorage
from slipstream.models.build import kv_spec
from slipstream.models.family import Model
from slipstream.training.answers import Answer
from slipstream.training.progress import Stage
from slipstream.training.shards import read_arrays, write_arrays

Floats = NDArray[np.float32]
Compute = Callable[[Sequence[NDArray[np.int32]]], list[Floats]]

BLOCK = 16
STEP_BLOCKS = 64
GROUP = 64  # indices of answers per file


class HiddenStates:
    """sequences of token ids -> [n, hidden] float32 of each: the residual stream behind the last layer, before the
    final norm, at every position. Holds a KV cache for `max_length` tokens, or STEP_BLOCKS blocks if that is more."""

    def __init__(self, model: Model, kernels: Kernels, *, max_length: int, kv_dtype: str) -> None:
        blocks = max(_blocks(max_length), STEP_BLOCKS)
        spec = kv_spec(model.config, block_size=BLOCK, dtype=kv_dtype)
        self._kv = KVStorage(spec, blocks, kernels.new_kv(spec, blocks))
        forward: Callable[[ForwardBatch, KVStorage], Tensor] = model.hidden_states
        self._forward = forward if kernels.compile is None else kernels.compile(forward, self._kv)
        self._to_numpy = kernels.to_numpy

    def __call__(self, sequences: Sequence[NDArray[np.int32]]) -> list[Floats]:
        found: list[Floats] = []
        for together in _steps(sequences):
            batch = _batch(together)
            hidden = np.array(self._to_numpy(self._forward(batch, self._kv)))
            found += np.split(hidden, batch.query_start[1:-1])
        return found


def _steps(sequences: Sequence[NDArray[np.int32]]) -> Iterable[list[NDArray[np.int32]]]:
    """Neighbours together while they have no more than STEP_BLOCKS blocks."""
    together: list[NDArray[np.int32]] = []
    for sequence in sequences:
        if together and sum(_blocks(len(each)) for each in (*together, sequence)) > STEP_BLOCKS:
            yield together
            together = []
        together.append(sequence)
    if together:
        yield together


def _blocks(length: int) -> int:
    return -(-length // BLOCK)


def _batch(sequences: Sequence[NDArray[np.int32]]) -> ForwardBatch:
    """Whole sequences, each in blocks of its own."""
    lengths = [len(each) for each in sequences]
    blocks = [_blocks(length) for length in lengths]
    table = np.full((len(sequences), max(blocks)), -1, np.int32)
    slots: list[NDArray[np.int64]] = []
    first = 0
    for row, (length, count) in enumerate(zip(lengths, blocks, strict=True)):
        table[row, :count] = np.arange(first, first + count)
        slots.append(first * BLOCK + np.arange(length))
        first += count
    return ForwardBatch(
        token_ids=np.concatenate(sequences).astype(np.int32),
        positions=np.concatenate([np.arange(length) for length in lengths]).astype(np.int32),
        slots=np.concatenate(slots).astype(np.int32),
        query_start=np.cumsum([0, *lengths]).astype(np.int32),
        kv_len=np.array(lengths, np.int32),
        block_table=table,
        logits_rows=np.arange(sum(lengths), dtype=np.int32),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """Where one answer's features lie: rows [start, stop) of a file."""

    answer: Answer
    path: Path
    start: int
    stop: int

    def read(self) -> Floats:
        """[n, hidden] float32."""
        with safe_open(self.path, framework="numpy") as file:
            values = file.get_slice("features")[self.start : self.stop]
            scales = file.get_slice("scales")[self.start : self.stop]
        features: Floats = values.astype(np.float32) * scales[:, None]
        return features


def write_features(
    answers: Sequence[Answer],
    compute: Compute,
    folder: Path,
    stage: Stage,
) -> list[Stored]:
    """Features of all answers, in files of GROUP indices; files of an earlier run that hold the same are kept.

    Values are float16 after a division by the row's largest magnitude, `scales`: hidden states of some models are
    beyond the range of float16.
    """
    groups: dict[int, list[Answer]] = {}
    for answer in answers:
        groups.setdefault(answer.index // GROUP, []).append(answer)
    stored: list[Stored] = []
    for number, members in sorted(groups.items()):
        path = folder / f"features-{number:05d}.safetensors"
        if not _holds(path, members):
            features = np.concatenate(compute([each.tokens for each in members]))
            scales = np.maximum(np.abs(features).max(axis=1), np.float32(1e-30))
            write_arrays(
                path,
                {
                    "features": (features / scales[:, None]).astype(np.float16),
                    "scales": scales.astype(np.float32),
                    "indices": np.array([each.index for each in members], np.int64),
                    "lengths": np.array([len(each.tokens) for each in members], np.int64),
                },
            )
        stops = np.cumsum([len(each.tokens) for each in members])
        stored += [
            Stored(each, path, int(stop) - len(each.tokens), int(stop))
            for each, stop in zip(members, stops, strict=True)
        ]
        stage.advance(int(stops[-1]))
    return stored


def _holds(path: Path, members: Sequence[Answer]) -> bool:
    if not path.exists():
        return False
    arrays = read_arrays(path, "indices", "lengths")
    held: list[tuple[int, int]] = list(zip(arrays["indices"].tolist(), arrays["lengths"].tolist(), strict=True))
    return held == [(each.index, len(each.tokens)) for each in members]
