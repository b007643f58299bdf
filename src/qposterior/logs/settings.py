"""What may be set of a fit. Nothing heavy is imported here: the command line makes options of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from qposterior.errors import InvalidInputError
from qposterior.settings import check_settings, setting

if TYPE_CHECKING:
    from qposterior.logs.raw import RawRows
    from qposterior.model.model_prior import ModelPrior
    from qposterior.model.noise import Noise
    from qposterior.model.prior import BoundedPrior, GaussianPrior

DRAWS = {"model": 2000, "q": 4000, "bootstrap": 2000}
"""Draws that are returned unless told: of models one half chooses a policy and the other values it."""

METHOD = """model (default): draw rewards and transitions and solve each draw; q: draw Q itself under a prior on Q (what
--noise or such a prior asks for); bootstrap: for comparison."""
RISK = "What the recommended policy is best at: its mean value, or that of the worst SHARE of the draws."
CAUTIOUS = "Leave the usual action of a state only where another is better with probability P, such as 0.95."
ACTIONS = """seen: those tried in the state; all: also those tried elsewhere, predicted and never recommended. all for
method model, else seen."""
READING = ("sql", "next_from", "outcome", "ends", "cost", "missing", "na", "normalise", "numeric")
"""The settings that say how rows become those of a log."""

NEXT_FROM = """Build next_state and the ends of episodes: the rows of each ID follow each other in the order of ORDER
(numbers, or times like 2024-03-01 14:30); without ORDER as in the file."""
SQL = "Read the rows that one SELECT over the table log returns: the rows of the file, cells of a CSV as text."
OUTCOME = "With --next-from: the column that says in the last row of each ID how it ended."
ENDS = "With --next-from: whether an episode ends with the last row of each ID, or the record only stops there."
NA = "With --missing: further cells that say nothing, such as '-,?,unknown'."
MISSING = "Rows with missing cells (empty, NA, null, …): leave them out, or fail and say where they are."
NORMALISE = "Take labels that differ only in case or blanks for one."
NUMERIC = """States are bins of the numbers in these columns, cut where it matters; the next ones stand in next_COLUMN,
…, or --next-from builds them. Needs the extra numeric."""
PRIOR = """model:alike=… (method model), gaussian:scale=… or bounded:upper=… (method q); chosen unless given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FitSettings:
    """What may be set; None is chosen from the data."""

    goals: tuple[str, ...] = setting((), "A state that ends an episode; repeatable.", flag="--goal")
    method: str | None = setting(None, METHOD, choices=tuple(DRAWS))
    rewards: str | None = setting(
        None, "Chosen from the log unless given.", called="kind of rewards", choices=("deterministic", "noisy")
    )
    transitions: str | None = setting(
        None, "Likewise.", called="kind of transitions", choices=("deterministic", "dirichlet", "empirical")
    )
    discount: float | None = setting(None, "In (0, 1]; chosen from the log unless given.", interval="(0, 1]")
    prior: GaussianPrior | BoundedPrior | ModelPrior | None = setting(None, PRIOR, metavar="NAME:KEY=VALUE,…")
    noise: Noise | None = None
    actions: str | None = setting(None, ACTIONS, called="choice of actions", choices=("seen", "all"))
    particles: int | None = setting(None, "Draws; 2,000 models or 4,000 of Q unless given.", least=100)
    risk: str = setting("mean", RISK, metavar="mean|cvar:SHARE")
    cautious: float | None = setting(None, CAUTIOUS, interval="(0, 1)", metavar="P")
    seed: int = setting(0, least=0)
    next_from: str | None = setting(None, NEXT_FROM, flag="--next-from", metavar="ID[,ORDER]")
    sql: str | None = setting(None, SQL, metavar="SELECT")
    outcome: str | None = setting(None, OUTCOME, metavar="COLUMN")
    ends: str | None = setting(None, ENDS, called="what the last row of each ID is", choices=("last", "none"))
    cost: bool = setting(False, "Rewards are costs: the smaller the better.")
    missing: str | None = setting(None, MISSING, called="what is done with missing cells", choices=("drop", "fail"))
    na: str | None = setting(None, NA, metavar="CELL,…")
    normalise: bool = setting(False, NORMALISE)
    numeric: str | None = setting(None, NUMERIC, metavar="COLUMN,…")

    def __post_init__(self) -> None:
        from qposterior.checks import check_list, check_type, shown
        from qposterior.inference.policy_search import Risk
        from qposterior.model.model_prior import ModelPrior
        from qposterior.model.noise import Noise
        from qposterior.model.prior import BoundedPrior, GaussianPrior

        if any(not isinstance(label, str) for label in check_list("goals", self.goals, "labels")):
            raise InvalidInputError(f"goals must be labels of states, as text, got {shown(self.goals)}")
        check_settings(self)
        if self.prior is not None:
            check_type("prior", self.prior, GaussianPrior, BoundedPrior, ModelPrior)
        if self.noise is not None:
            check_type("noise", self.noise, Noise)
        Risk.parse(self.risk)
        _ = self.raw
        self._check_together()

    def _check_together(self) -> None:
        """Raise for settings that nothing would look at."""
        method, of_prior = self.chosen_method, self._method_of_prior
        if of_prior not in (None, method):
            subject = "a ModelPrior" if of_prior == "model" else "this prior"
            raise InvalidInputError(f'{subject} is for method "{of_prior}", not for {method!r}; leave one of them out')
        if self.noise is not None and method != "q":
            raise InvalidInputError(f'this noise is for method "q", not for {method!r}; leave one of them out')
        if method == "q" and (self.risk != "mean" or self.cautious is not None):
            raise InvalidInputError('risk and cautious need draws of the model; leave method="q" out')
        if method == "q" and self.numeric is not None:
            raise InvalidInputError('numeric states need draws of the model; leave method="q" out')

    @property
    def raw(self) -> RawRows:
        """How rows become those of a log."""
        from qposterior.logs.raw import Numeric, RawRows

        return RawRows.parse(
            self.next_from,
            outcome=self.outcome,
            cost=self.cost,
            ends=self.ends,
            missing=self.missing,
            na=self.na,
            normalise=self.normalise,
            sql=self.sql,
            numeric=Numeric.parse(self.numeric, discount=self.discount, seed=self.seed),
        )

    @property
    def _method_of_prior(self) -> str | None:
        """The method that the prior is for: it is called like what the prior speaks of."""
        from qposterior.model.prior import variable_of

        return None if self.prior is None else variable_of(self.prior)

    @property
    def chosen_method(self) -> str:
        """The method, told or chosen: a prior or noise of Q asks for the posterior under a prior on Q."""
        return self.method or ("q" if self.noise is not None else self._method_of_prior or "model")

    @property
    def num_draws(self) -> int:
        """How many draws are asked for."""
        return self.particles or DRAWS[self.chosen_method]
