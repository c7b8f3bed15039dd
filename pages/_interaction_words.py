"""What the interaction page says about its pictures: four numbers, and what the heatmaps can and cannot tell."""

from __future__ import annotations

from analysis.figure_data import head_names
from analysis.tables import pair_table
from pages._interaction_tabs import MATRICES, Screen
from pages._sides import Side
from pages._widgets import numbers_row, three_digits

_HELP = (
    r"Interaction strength $\Gamma(G) = \|G - I\|_F$, mean over layers; below, its range. 0: no head is coupled to another.",
    r"The layer with the largest $\Gamma(G) = \|G - I\|_F$. Layers count from 0, as in the model's own code.",
    r"The pair of heads with the largest $|G_{ij}|$ over all layers, $G_{ij} = \omega_{ij}\,\rho_{ij}$.",
    r"Predicted tokens $t$ over which $\rho_{ij} \propto \sum_t \langle g_{i,t}, g_{j,t}\rangle$ is summed.",
)


def four_numbers(sides: list[Side]) -> None:
    """Mean Gamma, strongest layer, strongest pair and tokens of A, those of B below them."""
    numbers_row({side.label: _numbers(side) for side in sides}, _HELP)


def _numbers(side: Side) -> list[tuple[str, str, str]]:
    """(label, value, detail) of each."""
    result, gamma = side.result, side.result.gamma
    strongest = int(gamma.argmax())
    pairs = [(f"{row.head_i}, {row.head_j}", f"G {row.G:.3g}") for row in pair_table(result).head(1).itertuples()]
    return [
        ("Mean Γ(G)", three_digits(gamma.mean()), f"{gamma.min():.3g} to {gamma.max():.3g}"),
        ("Strongest layer", f"L{result.layers[strongest]}", f"Γ {gamma[strongest]:.3g}"),
        ("Strongest pair", *(pairs or [("none", "one head a layer")])[0]),
        ("Tokens", f"{result.tokens:,}", f"{result.cross_entropy:.2f} nats each"),
    ]


def reading(screen: Screen) -> list[str]:
    """What the heatmaps can and cannot tell, in sentences."""
    result = screen.sides[0].result
    scale = f"Colour runs from {-screen.limit:.3g} to {screen.limit:.3g}, white at 0, the same in every panel."
    what = f"Layer {screen.layer}, {MATRICES[screen.matrix]}, {result.coupling} coupling."
    said = [_gamma_here(screen), f"{what} {scale} The diagonal is always 1 and left out."]
    if 1 < result.n_kv_heads < result.n_heads:
        said.append(f"Squares outline the {result.n_kv_heads} kv groups: heads that share keys and values.")
    if result.coupling == "paper":
        said.append(
            f"Gauge noise of ω, and so of G: {result.gauge_noise:.2g}, which is 1/√(d·d_h). Between heads that share no value "
            "basis the paper's coupling cannot tell values of that size from chance; the invariant coupling can."
        )
    else:
        said.append("The invariant coupling does not depend on the heads' value bases: every cell compares with every other.")
    return said + _about_two(screen.sides) + _inactive(screen)


def _gamma_here(screen: Screen) -> str:
    """Gamma of the chosen layer in A and B, and their difference."""
    name = "Γ / √(H(H − 1))" if screen.normalized else "Γ(G)"
    here = {
        side.label: curve.y[side.result.row_of(screen.layer)]
        for side, curve in zip(screen.sides, screen.gamma, strict=True)
        if screen.layer in side.result.layers
    }
    values = ", ".join(f"{label} {three_digits(value)}" for label, value in here.items())
    change = f", B − A {here['B'] - here['A']:+.3g}" if len(here) == 2 else ""
    return f"{name} of layer {screen.layer}: {values}{change}."


def _about_two(sides: list[Side]) -> list[str]:
    """What to know before A and B are compared."""
    said = []
    if len({side.measurement.provenance["text"].get("sha256") for side in sides}) > 1:
        said.append("A and B were measured on different texts, so their difference is not the checkpoint's alone.")
    if len({side.result.coupling for side in sides}) > 1:
        said.append("A and B are shown through different couplings, so they do not compare.")
    heads = [side.result.n_heads for side in sides]
    if len(set(heads)) > 1:
        said.append(
            f"A has {heads[0]} heads a layer and B {heads[1]}: their matrices have no difference, and Γ is drawn in [0, 1], as "
            "Γ / √(H(H − 1))."
        )
    return said


def _inactive(screen: Screen) -> list[str]:
    said = []
    for side in screen.sides:
        if screen.layer in side.result.layers:
            flags = side.result.heads_flagged[side.result.row_of(screen.layer)]
            names = [name for name, flag in zip(head_names(screen.layer, side.result.n_heads), flags, strict=True) if flag]
            if names:
                said.append(
                    f"Inactive in {side.label} (no output weight or no gradient), so 0 off the diagonal: {', '.join(names)}."
                )
    return said
