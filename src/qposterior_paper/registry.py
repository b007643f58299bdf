"""All figures by name, in the order of the paper."""

from __future__ import annotations

from qposterior.errors import unknown_name
from qposterior_paper import (
    adaptation,
    bandit,
    contour,
    diagrams,
    discount,
    dithering,
    exact,
    five_state,
    learning_time,
    marginals,
    misspecified,
    monitors,
    policy_sampling,
    priors,
    recurrent,
    regret,
)
from qposterior_paper.figure import PaperFigure

FIGURES: dict[str, PaperFigure] = {
    item.name: item
    for item in (
        diagrams.FIGURE,
        exact.FIGURE,
        misspecified.FIGURE,
        bandit.FIGURE,
        policy_sampling.FIGURE,
        contour.FIGURE,
        recurrent.FIGURE,
        discount.FIGURE,
        priors.FIGURE,
        marginals.FIGURE,
        five_state.FIGURE,
        monitors.FIGURE,
        adaptation.SAMPLE_DISTRIBUTION,
        adaptation.ADAPTATION,
        regret.REGRET,
        regret.PARTICLE_NUMBERS,
        learning_time.FIGURE,
        dithering.FIGURE,
    )
}


def find_figure(name: str) -> PaperFigure:
    """Return the figure of a name, or raise with the nearest one."""
    if name not in FIGURES:
        raise unknown_name("figure", name, FIGURES)
    return FIGURES[name]
