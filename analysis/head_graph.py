"""The coalition graph of a layer: a networkx graph of heads with the values that exports and figures share, and its layout."""

from __future__ import annotations

import itertools
import math
import unicodedata

import networkx as nx

from analysis.coalitions import LayerCoalitions
from analysis.heads import head_name, kv_groups
from analysis.models import adapter_name
from analysis.results import InteractionResult


def head_graph(result: InteractionResult, entry: LayerCoalitions, threshold: float = 0.0) -> nx.Graph:
    """Heads as nodes, pairs with |G| >= threshold as edges; every attribute has one plain Python type.

    Node L16H3: layer, head, coalition, kv_group (int), isolated (bool), and confidence (float) after a bootstrap. Edge: weight
    = G with its sign, strength = |G|, omega, rho (float), same_coalition, same_kv_group (bool). A pair whose G is not a number
    has no edge and is counted in `graph.graph["edges_omitted"]`.

    Raises
    ------
    ValueError
        For a threshold outside [0, 1].
    """
    if not 0 <= threshold <= 1:
        raise ValueError(f"the threshold is {threshold}; |G| lies between 0 and 1, and so must it.")
    row, layer = result.row_of(entry.layer), entry.layer
    G, omega, rho = (matrix[row].tolist() for matrix in (result.G, result.omega, result.rho))
    groups = kv_groups(result.n_heads, result.n_kv_heads)
    names = [head_name(layer, head) for head in range(result.n_heads)]
    graph = nx.Graph(name=result_title(result, layer), coupling=result.coupling, threshold=float(threshold))
    for head, name in enumerate(names):
        graph.add_node(name, layer=layer, head=head, coalition=int(entry.labels[head]), kv_group=groups[head])
        graph.nodes[name]["isolated"] = bool(entry.isolated[head])
        if entry.stability is not None:
            graph.nodes[name]["confidence"] = float(entry.stability.confidence[head])
    omitted = 0
    for i, j in itertools.combinations(range(result.n_heads), 2):
        weight = G[i][j]
        omitted += math.isnan(weight)
        if abs(weight) >= threshold:
            values = {"weight": weight, "strength": abs(weight), "omega": omega[i][j], "rho": rho[i][j]}
            same = {"same_coalition": bool(entry.labels[i] == entry.labels[j]), "same_kv_group": groups[i] == groups[j]}
            graph.add_edge(names[i], names[j], **values, **same)
    graph.graph["edges_omitted"] = omitted
    return graph


def layout(graph: nx.Graph) -> dict[str, tuple[float, float]]:
    """Positions of the nodes, without chance: coalitions around a circle of radius 1, the heads of each around its centre."""
    members: dict[int, list[str]] = {}
    for node, coalition in graph.nodes(data="coalition"):
        members.setdefault(coalition, []).append(node)
    centres = nx.circular_layout(members, scale=1.0 if len(members) > 1 else 0.0)
    positions = {}
    for coalition, nodes in members.items():
        share = len(nodes) * len(members) / len(graph)  # 1 for a coalition of mean size
        radius = 1.5 * math.sqrt(share) / max(len(members), 3) if len(nodes) > 1 else 0.0
        positions |= nx.circular_layout(nodes, scale=radius, center=centres[coalition])
    return {node: (round(float(x), 6), round(float(y), 6)) for node, (x, y) in positions.items()}


def kv_groups_matter(graph: nx.Graph) -> bool:
    """Whether kv groups can stand behind coalitions: there are several, of several heads."""
    return 1 < len(set(nx.get_node_attributes(graph, "kv_group").values())) < len(graph)


def result_title(result: InteractionResult, layer: int) -> str:
    """What a file of a layer is called inside: model, adapter, layer and coupling; control characters become blanks."""
    model, adapter = result.provenance["model"]["name"], result.provenance["adapter"]
    name = f"{model} + {adapter_name(adapter['source'])}" if adapter else model
    printable = "".join(" " if unicodedata.category(sign).startswith("C") else sign for sign in name)
    return f"{printable}, layer {layer}, {result.coupling} coupling"
