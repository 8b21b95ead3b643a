"""What came of a search: the best trial, the weighted mean, their baselines and figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from clbench.cache import write_atomically
from clbench.errors import SearchError
from clbench.results.output_folder import as_folder_error, write_text
from clbench.search.baseline import baseline_text
from clbench.search.combine import BASE, combine
from clbench.search.record import TrialRecord
from clbench.search.space import Space
from clbench.suite.baselines import Cost

BEST, MEAN = "bertcl.toml", "bertcl-mean.toml"


@dataclass(frozen=True)
class Found:
    """What a search found.

    Attributes
    ----------
    trials
        All, in the order in which their rates were proposed.
    best
        The complete one with the highest p_o + p_s, the earlier of equals: BERTcL of the paper.
    mean
        Rates: the mean of the complete trials with weights b^(−rank), b = 1.8.
    space
        What was searched.
    split
        What the rewards are of, in words.
    cost
        Of the whole search, trials that came to nothing included.
    """

    trials: tuple[TrialRecord, ...]
    best: TrialRecord
    mean: tuple[float, ...]
    space: Space
    split: str
    cost: Cost

    @property
    def counts(self) -> Counter[str]:
        """Trials by status."""
        return Counter(trial.status for trial in self.trials)


def cost_of(trials: Sequence[TrialRecord]) -> Cost:
    """What trials took together: those that were stopped, failed or cut off as well."""
    return Cost(
        trials=len(trials),
        epochs=sum(len(trial.epochs) for trial in trials),
        seconds=round(sum(trial.seconds for trial in trials), 3),
    )


def outcome(trials: Sequence[TrialRecord], space: Space, split: str) -> Found:
    """Best trial, weighted mean and cost.

    Raises
    ------
    SearchError
        If no trial is complete.
    """
    complete = [each for trial in trials if (each := trial.trial()) is not None]
    if not complete:
        reasons = [trial.reason for trial in trials if trial.reason]
        why = f" The last reason: {reasons[-1]}" if reasons else ""
        raise SearchError(
            f"No trial has come to its end yet (trials begun: {len(trials)}). The same command "
            f"goes on; give it more time or trials.{why}"
        )
    made = combine([complete])
    # Of equal scores the earlier one, as there.
    best = next(t for t in trials if t.trial() == made.best[0])
    return Found(tuple(trials), best, made.rates, space, split, cost_of(trials))


def write_outcome(folder: Path, found: Found, name: str) -> None:
    """Write the two baseline files and the figures.

    Parameters
    ----------
    folder
        The search's.
    found
        What to write.
    name
        Of the pair.
    """
    from clbench.figures import rate_distributions, search_trace

    counts = found.counts
    told = f"{found.cost.trials} trials ({counts['complete']} complete) of clbench search on {name}"
    on = f"p_o + p_s on {found.split}"
    number, p = found.best.number, found.best.epochs[-1].reward
    for file, rates, description, source in (
        (
            BEST,
            found.best.rates,
            f"Learning rates found on {name}: the best trial.",
            f"Trial {number}, the best of {told}: {p:.4f} = {on}.",
        ),
        (
            MEAN,
            found.mean,
            f"Learning rates found on {name}: the mean of the trials, weighted by rank.",
            f"Geometric mean with weights {BASE:g}^(-rank) of {told}, ranked by {on}.",
        ),
    ):
        sources = {
            "multiples": f"{source} Over the flat rate {found.space.found.flat:g}.",
            "depth": "Layers of the model that was searched on.",
            "division": "As the search grouped them.",
        }
        text = baseline_text(
            rates, found.space.found, description=description, sources=sources, cost=found.cost
        )
        write_text(folder / file, text)
    figures = {
        "rates.png": rate_distributions(
            {f"best trial ({number})": found.best.rates},
            found.mean,
            groups=found.space.names,
            flat=found.space.found.flat,
            combined_name="weighted mean",
        ),
        "trace.png": search_trace(found.trials),
    }
    for file, figure in figures.items():
        with as_folder_error(folder / file):
            write_atomically(folder / file, partial(figure.savefig, format="png", dpi=200))
