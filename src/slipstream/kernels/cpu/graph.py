"""What a recorded forward is made of: one node per op call.

Ops on nodes compute nothing. A node knows its inputs, so the last one holds the whole forward.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from slipstream.kernels.batch import ForwardBatch
from slipstream.kernels.cpu.weights import CpuMatrix, CpuRope, CpuVector
from slipstream.kernels.specs import ActivationKind, AttentionSpec
from slipstream.kv.storage import KVStorage
from slipstream.lean import dataclass

TOKENS, LOGITS = 0, 1  # what the rows of a tensor are: the batch's tokens, or its wanted logits


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A tensor [rows, columns] and the op that makes it. `batch`: the op's own, or its inputs'."""

    inputs: tuple[Node, ...]
    columns: int
    domain: int
    batch: ForwardBatch


@dataclass(frozen=True, slots=True, eq=False)
class Embedding(Node):
    table: CpuMatrix
    scale: float


@dataclass(frozen=True, slots=True, eq=False)
class Inputs(Node):
    """What the batch brings besides token ids."""


@dataclass(frozen=True, slots=True, eq=False)
class Linear(Node):
    weight: CpuMatrix
    bias: CpuVector | None

    @property
    def quantized(self) -> bool:
        """Whether the input is taken as int8."""
        return not self.weight.packed.dense


@dataclass(frozen=True, slots=True, eq=False)
class RMSNorm(Node):
    weight: CpuVector
    eps: float


@dataclass(frozen=True, slots=True, eq=False)
class HeadNorm(Node):
    weight: CpuVector
    head_dim: int
    eps: float


@dataclass(frozen=True, slots=True, eq=False)
class Rope(Node):
    table: CpuRope
    head_dim: int


@dataclass(frozen=True, slots=True, eq=False)
class Attention(Node):
    kv: KVStorage
    layer_index: int
    spec: AttentionSpec


@dataclass(frozen=True, slots=True, eq=False)
class GatedActivation(Node):
    kind: ActivationKind


@dataclass(frozen=True, slots=True, eq=False)
class Add(Node):
    pass


@dataclass(frozen=True, slots=True, eq=False)
class Scale(Node):
    factor: float


@dataclass(frozen=True, slots=True, eq=False)
class SoftCap(Node):
    cap: float


@dataclass(frozen=True, slots=True, eq=False)
class SelectRows(Node):
    pass


@dataclass(frozen=True, slots=True, eq=False)
class Route(Node):
    """[T, 2 k]: the weights of a token's experts, then their numbers."""

    top_k: int
    normalise: bool


@dataclass(frozen=True, slots=True, eq=False)
class Experts(Node):
    """Of (x, routing)."""

    experts: tuple[tuple[CpuMatrix, CpuMatrix, CpuMatrix], ...]
    kind: ActivationKind


class Graph:
    """The nodes that `output` and `kept` need, inputs before users, and who uses each. `kept`: further results."""

    def __init__(self, output: Node, kept: tuple[Node, ...] = ()) -> None:
        self.output = output
        self.kept = kept
        self.results = frozenset((output, *kept))
        self.nodes = _in_order((output, *kept))
        self.users: dict[Node, list[Node]] = defaultdict(list)
        for node in self.nodes:
            for each in node.inputs:
                self.users[each].append(node)
        self.position = {node: i for i, node in enumerate(self.nodes)}

    def only_user(self, node: Node) -> Node | None:
        """The one op that reads `node`, when nothing else does and it is no result."""
        users = self.users[node]
        return users[0] if len(users) == 1 and node not in self.results else None


def _in_order(results: Sequence[Node]) -> list[Node]:
    """Depth first without recursion: a model may be deeper than Python's stack."""
    order: list[Node] = []
    done: set[Node] = set()
    stack: list[tuple[Node, bool]] = [(each, False) for each in reversed(results)]
    while stack:
        node, ready = stack.pop()
        if ready:
            order.append(node)
        elif node not in done:
            done.add(node)
            stack.append((node, True))
            stack.extend((each, False) for each in reversed(node.inputs))
    return order
