"""LaTeX for papers: escaped text, the coalition graph as a TikZ file, captions, and the method's BibTeX entry."""

from __future__ import annotations

from collections.abc import Sequence

import networkx as nx

from analysis.coalition_style import NEGATIVE_COLOR, POSITIVE_COLOR, Look
from analysis.coalitions import LayerCoalitions
from analysis.head_graph import kv_groups_matter, layout

_ESCAPES = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "{''}",
    **{sign: "\\" + sign for sign in "{}$&#%_"},
}
_LETTERS = {chr(code) for code in range(0xC0, 0x100)} - set("ÐðÞþ×÷")  # what pdfLaTeX sets without more packages

BIBTEX_KEY = "chakrabarti2026multihead"
BIBTEX = f"""@misc{{{BIBTEX_KEY},
  title = {{{{Multi-Head Attention is a Multi-Player Game}}}},
  author = {{Chakrabarti, Kushal and Balachundar, Nirmal}},
  year = {{2026}},
  eprint = {{2602.00861}},
  archivePrefix = {{arXiv}},
}}
"""

_STANDALONE = r"""% Compiles on its own, and \input{...} puts the picture into a paper whose preamble has
%   \usepackage{tikz} \usetikzlibrary{backgrounds,shapes.geometric}
\makeatletter
\ifx\@nodocument\relax
  \def\headgraphend{}
\else
  \def\headgraphend{\end{document}}
  \documentclass{article}
  \usepackage{tikz}
  \usetikzlibrary{backgrounds,shapes.geometric}
  \pagestyle{empty}
  \begin{document}
\fi
\makeatother
"""


def escape(text: str) -> str:
    """Any text as LaTeX that prints it; a letter that pdfLaTeX does not know is printed as its code, [U+4E2D]."""
    return "".join(_escape(sign) for sign in text)


def _escape(sign: str) -> str:
    if sign in _ESCAPES:
        return _ESCAPES[sign]
    if sign.isspace():
        return " "
    if sign in _LETTERS or (sign.isascii() and sign.isprintable()):
        return sign
    return f"[U+{ord(sign):04X}]"


def tikz(graph: nx.Graph, looks: Sequence[Look]) -> str:
    """The graph as a LaTeX file that compiles on its own and can be \\input: edge width |G|, negative edges dashed.

    `looks` is one a node, in the graph's order. Node names are L3H7, so only letters and digits.
    """
    widest = max((strength for *_, strength in graph.edges(data="strength")), default=0.0) or 1.0
    colors = {"headpositive": POSITIVE_COLOR, "headnegative": NEGATIVE_COLOR, **{_color(one): one.color for one in looks}}
    definitions = "".join(f"\\definecolor{{{name}}}{{HTML}}{{{color[1:].upper()}}}\n" for name, color in sorted(colors.items()))
    positions = {node: (3.2 * x, 3.2 * y) for node, (x, y) in layout(graph).items()}
    kv = r"\\[-4pt]\tiny kv{}" if kv_groups_matter(graph) else ""
    picture = nx.to_latex_raw(
        graph,
        pos=dict(positions),
        default_node_options="font=\\sffamily\\scriptsize, align=center, minimum size=6.5mm, inner sep=0.5pt",
        node_options={node: _node_options(one) for node, one in zip(graph, looks, strict=True)},
        node_label={node: f"H{data['head']}" + kv.format(data["kv_group"]) for node, data in graph.nodes(data=True)},
        default_edge_options="[-, on background layer]",
        edge_options={(u, v): _edge_options(weight, widest) for u, v, weight in graph.edges(data="weight")},
    )
    top = max((y for _, y in positions.values()), default=0.0) + 0.7
    title = f"      \\node[font=\\sffamily\\small, align=center] at (0, {top:.3f}) {{{escape(graph.name)}}};\n"
    picture = picture.replace("    \\end{tikzpicture}", title + "    \\end{tikzpicture}")
    return f"{_STANDALONE}{definitions}{picture}\\headgraphend\n"


def _color(look: Look) -> str:
    return f"head{look.color[1:].lower()}"


def _node_options(look: Look) -> str:
    return f"[{look.shape}, draw=black, fill={'white' if look.hollow else _color(look)}, text={look.text}]"


def _edge_options(weight: float, widest: float) -> str:
    sign = "headpositive" if weight >= 0 else "headnegative, dashed"
    return f"[line width={0.1 + 2.4 * abs(weight) / widest:.3f}pt, {sign}]"


def caption(title: str, entry: LayerCoalitions, affinity: str, threshold: float) -> str:
    """What a figure of a layer's coalitions shows, as LaTeX: how they were found, how sure they are, and the kv groups."""
    sure, kv = "", f" {escape(entry.kv.sentence)}" if entry.kv else ""
    if entry.stability:
        draws, batches = entry.stability.resamples, entry.stability.batches
        sure = f" Mean adjusted Rand index over {draws} bootstrap resamples of {batches} batches: {entry.stability.mean_ari:.2f}."
    edges = f" Edges: $|G| \\geq {threshold:g}$, dashed where $G < 0$." if threshold else " Edges are dashed where $G < 0$."
    return (
        f"Coalitions of the attention heads of {escape(title)}~\\cite{{{BIBTEX_KEY}}}. Spectral clustering of the {affinity} "
        f"affinity; {escape(entry.note)} Modularity {entry.modularity:.3f}.{sure}{edges}{kv}"
    )


def figure_environment(images: Sequence[str], text: str, label: str) -> str:
    """A column-wide figure of some image files one above the other; its caption `text` is LaTeX already."""
    graphics = "\\\\\n".join(f"  \\includegraphics[width=\\columnwidth]{{{image}}}" for image in images)
    return f"\\begin{{figure}}\n  \\centering\n{graphics}\n  \\caption{{{text}}}\n  \\label{{{label}}}\n\\end{{figure}}\n"
