"""Groups of nodes that are one call of alpha: activations behind layers, residual sums, channel shuffles."""

from __future__ import annotations

from typing import Any

from alpha.interop.pytorch.graph import Graph, Node, replaced
from alpha.interop.pytorch.layers import TABLE
from alpha.interop.pytorch.rules.elementwise import UNARY

_RESHAPES = ("view", "reshape", "flatten", "_unsafe_view")
_COPIES = ("contiguous", "clone")
_TAKE_RELU = ("conv2d", "conv1d", "batch_norm", "linear")


def simplify(graph: Graph, model: Any, fuse: bool = True) -> None:
    """Rewrites a graph in place; its results stay the same.

    Args:
        fuse: whether a layer takes over the relu and the sum behind it.
    """
    _named_layers(graph)
    _attention(graph)
    _borders(graph, model)
    _shuffles(graph)
    if fuse:
        _residuals(graph)
        _relus(graph)
    _hints(graph)


def _put(graph: Graph, old: Node, new: Node) -> None:
    """Makes all readers of a node read another one, and removes the node."""
    def by(node: Node) -> Node:
        return new if node is old else node

    for node in graph.nodes:
        if node is not new:
            node.args = replaced(node.args, by)
    graph.output = replaced(graph.output, by)
    graph.nodes = [node for node in graph.nodes if node is not old]


def _kind(node: Node) -> str:
    return node.place.kind.rpartition(".")[2] if node.place.kind.startswith("torch.nn.") else ""


def _called(node: Node) -> bool:
    """Tells whether a node is the call of a layer."""
    kind = _kind(node)
    return kind in TABLE and node.op in TABLE[kind][0]


def _named_layers(graph: Graph) -> None:
    """Makes one node of the several that a LocalResponseNorm is."""
    for layer in dict.fromkeys(n.place.layer for n in graph.nodes if _kind(n) == "LocalResponseNorm"):
        inside = [n for n in graph.nodes if n.place.layer == layer and _kind(n) == "LocalResponseNorm"]
        outside = [v for n in inside for v in n.inputs() if v not in inside]
        last = inside[-1]
        if len(set(outside)) == 1:
            made = Node("local_response_norm", {"input": outside[0]}, last.shape, last.dtype, last.place)
            graph.nodes.insert(graph.nodes.index(last) + 1, made)
            _put(graph, last, made)
    graph.drop_unread()


def _attention(graph: Graph) -> None:
    """Makes one node of a MultiheadAttention of one input, without masks, whose weights nothing reads."""
    calls: dict[str, list[Node]] = {}
    for node in graph.nodes:
        if _kind(node) == "MultiheadAttention" and node.op not in ("parameter", "buffer"):
            calls.setdefault(node.place.layer, []).append(node)
    users = graph.users()
    for inside in calls.values():
        within = set(inside)
        outside = {v for n in inside for v in n.inputs() if v not in within and v.op not in ("parameter", "buffer")}
        read = [n for n in inside if any(user not in within for user in users[n])]
        products = [n for n in inside if n.op in ("scaled_dot_product_attention", "bmm", "baddbmm")]
        masked = any(n.op == "baddbmm" or n.args.get("attn_mask") is not None or n.args.get("is_causal")
                     for n in products)
        linears = sum(n.op == "linear" for n in inside)
        if len(outside) != 1 or len(read) != 1 or masked or linears != 2 or not products:
            continue
        x, last = outside.pop(), read[0]
        if x.ndim == 3 and str(x.shape) == str(last.shape):
            made = Node("multi_head_attention", {"input": x}, last.shape, last.dtype, last.place)
            graph.nodes.insert(graph.nodes.index(last) + 1, made)
            _put(graph, last, made)
    graph.drop_unread()


def _borders(graph: Graph, model: Any) -> None:
    """Leaves a border that is no zeros to the Conv2d that has it as its padding_mode."""
    users = graph.users()
    for node in list(graph.nodes):
        source = node.args.get("input")
        if (node.op == "conv2d" and isinstance(source, Node) and source.op == "pad" and _called(node)
                and source.place.layer == node.place.layer and users[source] == [node]):
            module = model.get_submodule(node.place.layer)
            if type(module).__name__ == "Conv2d" and module.padding_mode != "zeros":
                node.args["input"] = source.args["self"]
                graph.nodes.remove(source)


def _shuffles(graph: Graph) -> None:
    """Finds channel shuffles: a view (N, groups, C / groups, H, W), its transpose (1, 2), and a view back."""
    users = graph.users()
    for node in list(graph.nodes):
        if node.op not in _RESHAPES or node.ndim != 4:
            continue
        chain: list[Node] = []
        turned = node.args.get("self")
        while isinstance(turned, Node) and turned.op in _COPIES and users[turned] == [chain[-1] if chain else node]:
            chain.append(turned)
            turned = turned.args.get("self", turned.args.get("input"))
        if not isinstance(turned, Node) or turned.op not in ("transpose", "permute") or turned.ndim != 5:
            continue
        apart, a = turned.args["self"], turned.args
        swaps = [k % 5 for k in a["dims"]] == [0, 2, 1, 3, 4] if turned.op == "permute" else sorted(
            [a["dim0"] % 5, a["dim1"] % 5]) == [1, 2]
        if not swaps or apart.op not in _RESHAPES or len(users[apart]) != 1 or len(users[turned]) != 1:
            continue
        whole = apart.args["self"]
        if isinstance(whole, Node) and str(whole.shape) == str(node.shape) and str(
                apart.shape[3:]) == str(node.shape[2:]) and isinstance(apart.shape[1], int):
            made = Node("channel_shuffle", {"self": whole, "groups": apart.shape[1]}, node.shape, node.dtype,
                        node.place)
            graph.nodes.insert(graph.nodes.index(node) + 1, made)
            _put(graph, node, made)
    graph.drop_unread()


def _residuals(graph: Graph) -> None:
    """Gives the other operand of a sum to the batch norm in front of it, which adds it in the same pass."""
    users = graph.users()
    for node in list(graph.nodes):
        if node.op != "add" or node.args.get("alpha", 1) != 1:
            continue
        pair = node.args["self"], node.args["other"]
        if not all(isinstance(v, Node) for v in pair) or pair[0] is pair[1]:
            continue
        for norm, other in (pair, pair[::-1]):
            if (norm.op == "batch_norm" and _called(norm) and users[norm] == [node] and "_residual" not in norm.args
                    and str(norm.shape) == str(other.shape) and norm.dtype == other.dtype):
                norm.args["_residual"] = other
                graph.nodes.remove(norm)
                graph.nodes.insert(graph.nodes.index(node), norm)
                _put(graph, node, norm)
                users = graph.users()
                break


def _relus(graph: Graph) -> None:
    """Gives a relu to the layer in front of it."""
    users = graph.users()
    for node in list(graph.nodes):
        source = node.args.get("self")
        if (node.op == "relu" and isinstance(source, Node) and source.op in _TAKE_RELU and _called(source)
                and users[source] == [node] and not source.args.get("_relu")):
            source.args["_relu"] = True
            _put(graph, node, source)
            users[source] = users.pop(node)


def _hints(graph: Graph) -> None:
    """Notes at a node how its readers use it."""
    users = graph.users()
    for node in graph.nodes:
        if node.op in _RESHAPES and node.ndim == 2:
            node.args["_to_linear"] = _reach_linear(node, users)
        if node.op == "conv2d" and _called(node) and not node.args.get("_relu"):
            readers = users[node]
            if len(readers) == 1 and readers[0] and readers[0].op == "batch_norm" and _called(readers[0]) and (
                    readers[0].args["input"] is node):
                node.args["_for_norm"] = True
        if node.op in ("max", "min") and node.overload == "dim":
            node.args["_items"] = tuple([user.args["index"] for user in users[node] if user and user.op == "item"])


def _reach_linear(node: Node, users: dict[Node, list[Node | None]]) -> bool:
    """Tells whether all that comes of a node, element by element, is read by linear layers."""
    for user in users[node]:
        if user is None:
            return False
        if user.op == "linear" and user.args["input"] is node and user.args["weight"] is not node:
            if not _called(user):
                return False
        elif user.op not in (*UNARY, "dropout", *_COPIES) or not _reach_linear(user, users):
            return False
    return bool(users[node])
