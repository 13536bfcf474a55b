"""Which ops are carried out together.

Everything here is an optimisation: a node that joins nothing is lowered by itself.
"""

from __future__ import annotations

from dataclasses import field

from slipstream.kernels.cpu.graph import (
    Add,
    Attention,
    GatedActivation,
    Graph,
    HeadNorm,
    Linear,
    Node,
    RMSNorm,
    Rope,
    Scale,
    SelectRows,
    SoftCap,
)
from slipstream.lean import dataclass

GROUP = 32


@dataclass(slots=True)
class RowChain:
    """What one pass over the rows of an RMSNorm does: gather, post norm, scale, add, norm."""

    source: Node
    gather: bool = False
    post: RMSNorm | None = None
    scale: float = 1.0
    residual: Node | None = None
    sum: Node | None = None  # the addition, when others read it too


@dataclass(slots=True)
class HeadPrologue:
    """Norm and rotation that attention applies while it reads q or k."""

    source: Node
    norm: HeadNorm | None = None
    rope: Rope | None = None


@dataclass(slots=True)
class Fusion:
    """`absorbed` nodes are computed inside another's op and never stored by themselves.

    `moved` are sums that the norm behind them stores.
    """

    absorbed: set[Node] = field(default_factory=set)
    residual_linear: dict[Add, tuple[Linear, Node]] = field(default_factory=dict)  # (product, what is added)
    gated: dict[GatedActivation, tuple[Linear, Linear]] = field(default_factory=dict)
    capped: dict[SoftCap, Linear] = field(default_factory=dict)
    chains: dict[RMSNorm, RowChain] = field(default_factory=dict)
    prologues: dict[Attention, tuple[HeadPrologue, HeadPrologue]] = field(default_factory=dict)
    moved: set[Node] = field(default_factory=set)


def fuse(graph: Graph) -> Fusion:
    fusion = Fusion()
    for node in graph.nodes:
        if isinstance(node, GatedActivation):
            _gated(graph, fusion, node)
        elif isinstance(node, SoftCap):
            _capped(graph, fusion, node)
        elif isinstance(node, Attention):
            q, k, _ = node.inputs
            fusion.prologues[node] = (_prologue(graph, fusion, q), _prologue(graph, fusion, k))
        elif isinstance(node, Add):
            _residual(graph, fusion, node)
    for node in graph.nodes:
        if isinstance(node, RMSNorm) and node not in fusion.absorbed:
            fusion.chains[node] = _chain(graph, fusion, node)
    return fusion


def _plain_linear(graph: Graph, fusion: Fusion, node: Node, user: Node) -> bool:
    return isinstance(node, Linear) and graph.only_user(node) is user and node not in fusion.absorbed


def _gated(graph: Graph, fusion: Fusion, node: GatedActivation) -> None:
    gate, up = node.inputs
    if not (isinstance(gate, Linear) and isinstance(up, Linear) and gate is not up):
        return
    alike = gate.inputs == up.inputs and gate.quantized and up.quantized and gate.columns % GROUP == 0
    if alike and gate.bias is None and up.bias is None and all(graph.only_user(each) is node for each in (gate, up)):
        fusion.gated[node] = (gate, up)
        fusion.absorbed |= {gate, up}


def _capped(graph: Graph, fusion: Fusion, node: SoftCap) -> None:
    (product,) = node.inputs
    if isinstance(product, Linear) and _plain_linear(graph, fusion, product, node):
        fusion.capped[node] = product
        fusion.absorbed.add(product)


def _prologue(graph: Graph, fusion: Fusion, x: Node) -> HeadPrologue:
    prologue = HeadPrologue(x)
    if isinstance(x, Rope) and graph.only_user(x) is not None:
        prologue.rope = x
        fusion.absorbed.add(x)
        (prologue.source,) = x.inputs
    norm = prologue.source
    if isinstance(norm, HeadNorm) and graph.only_user(norm) is not None:
        prologue.norm = norm
        fusion.absorbed.add(norm)
        (prologue.source,) = norm.inputs
    return prologue


def _residual(graph: Graph, fusion: Fusion, node: Add) -> None:
    x, y = node.inputs
    for product, other in ((y, x), (x, y)):
        if isinstance(product, Linear) and product is not other and _plain_linear(graph, fusion, product, node):
            fusion.residual_linear[node] = (product, other)
            fusion.absorbed.add(product)
            return


def _chain(graph: Graph, fusion: Fusion, norm: RMSNorm) -> RowChain:
    (x,) = norm.inputs
    chain = RowChain(x)
    if isinstance(x, SelectRows) and graph.only_user(x) is norm:
        chain.gather = True
        fusion.absorbed.add(x)
        (x,) = x.inputs
        chain.source = x
    if not isinstance(x, Add) or x in fusion.residual_linear or x is graph.output or x in fusion.moved:
        return chain
    alone = len(graph.users[x]) == 1 and x not in graph.results
    # A sum that others read is stored by this pass: this must be the first to need it, and pass all rows.
    if not alone and (chain.gather or min(graph.users[x], key=graph.position.__getitem__) is not norm):
        return chain
    a, b = x.inputs
    prefers_first = _foldable(graph, fusion, a, x) and not _foldable(graph, fusion, b, x)
    chain.source, chain.residual = (a, b) if prefers_first else (b, a)
    if alone:
        fusion.absorbed.add(x)
    else:
        chain.sum = x
        fusion.moved.add(x)
    part = chain.source
    if isinstance(part, Scale) and _foldable(graph, fusion, part, x):
        chain.scale = part.factor
        fusion.absorbed.add(part)
        (chain.source,) = part.inputs
        x, part = part, chain.source
    if isinstance(part, RMSNorm) and _foldable(graph, fusion, part, x):
        chain.post = part
        fusion.absorbed.add(part)
        fusion.chains.pop(part, None)
        (chain.source,) = part.inputs
    return chain


def _foldable(graph: Graph, fusion: Fusion, node: Node, user: Node) -> bool:
    """A norm or a scaling that only `user` reads and that has not taken in anything itself."""
    if graph.only_user(node) is not user:
        return False
    if isinstance(node, Scale):
        return True
    if not isinstance(node, RMSNorm):
        return False
    chain = fusion.chains.get(node)
    return chain is not None and chain.source is node.inputs[0] and not chain.gather and chain.residual is None
