"""From a graph to a native program: order, buffers, calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from slipstream.errors import ConfigError
from slipstream.kernels.cpu.emit import NOWHERE, Places, emit
from slipstream.kernels.cpu.fuse import GROUP, Fusion, fuse
from slipstream.kernels.cpu.graph import (
    LOGITS,
    Add,
    Attention,
    GatedActivation,
    Graph,
    Inputs,
    Linear,
    Node,
    RMSNorm,
    SoftCap,
)
from slipstream.kernels.cpu.native import Program
from slipstream.lean import dataclass

Form = Literal["rows", "tiles"]  # float32, or int8 in the kernels' order
Key = tuple[Node, Form]


@dataclass(frozen=True, slots=True)
class Planned:
    """One native op: what it reads and writes, and the call that adds it to the program."""

    reads: tuple[Key, ...]
    writes: tuple[Key, ...]
    call: Callable[[Places], None]


@dataclass(frozen=True, slots=True)
class Lowered:
    """Where results are after a run. `output`: a buffer, or None when `run` writes it to its output argument."""

    output: int | None
    kept: tuple[int, ...]


def lower(graph: Graph, program: Program) -> Lowered:
    """Fills `program`.

    Raises ConfigError for a shape that no kernel takes.
    """
    fusion = fuse(graph)
    plan, direct = _plan(graph, fusion, program)
    try:
        return _issue(graph, plan, program, direct)
    except ValueError as error:
        raise ConfigError(f"{error}.", where="the cpu backend", fix="Use backend=reference.") from error


def _plan(graph: Graph, fusion: Fusion, program: Program) -> tuple[list[Planned], bool]:
    groups = _joined(graph, fusion)
    leaders = [node for node in graph.nodes if _leads(node, fusion, groups)]
    reads = {node: _reads(node, fusion) for node in leaders}
    needed = {key for keys in reads.values() for key in keys} | {(each, "rows") for each in graph.results}
    linear_end = isinstance(graph.output, Linear | SoftCap | Add) and _product(graph.output, fusion) is not None
    direct = linear_end and graph.output.domain == LOGITS and not graph.users[graph.output]
    plan: list[Planned] = []
    for node in leaders:
        members = groups.get(node, (node,))
        made: list[Key] = [(each, "rows") for each in members if (each, "rows") in needed or _always_rows(each, fusion)]
        if (node, "tiles") in needed and _makes_tiles(node):
            made.append((node, "tiles"))
        chain = fusion.chains.get(node) if isinstance(node, RMSNorm) else None
        stored = [*members]
        if chain is not None and chain.sum is not None:
            made.append((chain.sum, "rows"))
            stored.append(chain.sum)
        plan.append(Planned(tuple(reads[node]), tuple(made), emit(node, members, fusion, program)))
        for each in stored:
            if (each, "tiles") in needed and (each, "tiles") not in made:
                if (each, "rows") not in made:
                    raise AssertionError("a tensor to be quantised was not stored")
                plan.append(Planned(((each, "rows"),), ((each, "tiles"),), _quantize(each, program)))
    return plan, direct


def _leads(node: Node, fusion: Fusion, groups: dict[Node, tuple[Node, ...]]) -> bool:
    if node in fusion.absorbed or node in fusion.moved:
        return False
    return not isinstance(node, Linear) or node in groups


def _joined(graph: Graph, fusion: Fusion) -> dict[Node, tuple[Node, ...]]:
    """Products of one input are one op; {the first of them: all of them}."""
    by_input: dict[tuple[Node, bool], list[Node]] = {}
    for node in graph.nodes:
        if isinstance(node, Linear) and node not in fusion.absorbed:
            by_input.setdefault((node.inputs[0], node.quantized), []).append(node)
    return {nodes[0]: tuple(nodes) for nodes in by_input.values()}


def _product(node: Node, fusion: Fusion) -> Linear | None:
    """The product that `node` is, or that its op ends with."""
    if isinstance(node, Linear):
        return node
    if isinstance(node, Add) and node in fusion.residual_linear:
        return fusion.residual_linear[node][0]
    return fusion.capped.get(node) if isinstance(node, SoftCap) else None


def _input_key(product: Linear) -> Key:
    return product.inputs[0], "tiles" if product.quantized else "rows"


def _reads(node: Node, fusion: Fusion) -> list[Key]:
    if isinstance(node, Add) and node in fusion.residual_linear:
        product, other = fusion.residual_linear[node]
        return [_input_key(product), (other, "rows")]
    product_of = _product(node, fusion)
    if product_of is not None:
        return [_input_key(product_of)]
    if isinstance(node, GatedActivation) and node in fusion.gated:
        return [_input_key(fusion.gated[node][0])]
    if isinstance(node, RMSNorm):
        chain = fusion.chains[node]
        sources = [chain.source] if chain.residual is None else [chain.source, chain.residual]
        return [(each, "rows") for each in sources]
    if isinstance(node, Attention):
        q, k = fusion.prologues[node]
        return [(each, "rows") for each in (q.source, k.source, node.inputs[2])]
    return [(each, "rows") for each in node.inputs]


def _always_rows(node: Node, fusion: Fusion) -> bool:
    """Ops that work in their float32 output even when only its quantised form is asked for."""
    if isinstance(node, RMSNorm):
        return False
    return not isinstance(node, GatedActivation)


def _makes_tiles(node: Node) -> bool:
    if isinstance(node, Attention):
        return node.spec.num_heads // node.spec.num_kv_heads * node.spec.head_dim % GROUP == 0
    return isinstance(node, RMSNorm | GatedActivation)


def _quantize(node: Node, program: Program) -> Callable[[Places], None]:
    def call(places: Places) -> None:
        program.token(
            node.domain, node.columns, places.rows(node), False, None, 0.0, 1.0, NOWHERE, NOWHERE, None, 0.0, NOWHERE,
            places.tiles(node),
        )  # fmt: skip

    return call


def _issue(graph: Graph, plan: list[Planned], program: Program, direct: bool) -> Lowered:
    """Gives every stored tensor a buffer, reusing those whose last reader is past, and adds the ops."""
    last_use: dict[Key, int] = {}
    for i, op in enumerate(plan):
        for key in (*op.writes, *op.reads):
            last_use[key] = i
    for each in graph.results:
        last_use[each, "rows"] = len(plan) + 1
    places = Places()
    free: dict[tuple[Form, int, int], list[int]] = {}
    ending: dict[int, list[Key]] = {}
    for key, i in last_use.items():
        # One op longer than read: a thread may still be reading when another, which met no barrier, writes the next.
        ending.setdefault(i + 1, []).append(key)
    for i, op in enumerate(plan):
        for key in op.writes:
            node, form = key
            if direct and node is graph.output:
                places.put(key, program.add_output(node.columns))
                continue
            spare = free.setdefault((form, node.domain, node.columns), [])
            if isinstance(node, Inputs) and form == "rows":  # filled before the first op: nobody else's until read
                places.put(key, program.add_input(node.columns))
            elif spare:
                places.put(key, spare.pop())
            elif form == "rows":
                places.put(key, program.add_rows(node.domain, node.columns))
            else:
                places.put(key, program.add_tiles(node.domain, node.columns))
        op.call(places)
        for node, form in ending.get(i, ()):
            if not (direct and node is graph.output):
                free.setdefault((form, node.domain, node.columns), []).append(places.get((node, form)))
    kept = tuple(places.get((each, "rows")) for each in graph.kept)
    return Lowered(None if direct else places.get((graph.output, "rows")), kept)
