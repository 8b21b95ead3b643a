"""The outcome of a search: the best trial, the weighted mean, their baseline files and figures."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from clbench.core.errors import SearchError
from clbench.core.files import write_atomically
from clbench.search.combination import BASE, combine
from clbench.search.search_folder import TrialRecord, cost_of
from clbench.search.space import SearchOrigin, SearchSpace
from clbench.suite.baselines import Cost

BEST, MEAN = "bertcl.toml", "bertcl-mean.toml"


@dataclass(frozen=True)
class SearchOutcome:
    """The outcome of a search.

    Attributes
    ----------
    trials
        All trials, in the order in which their rates were proposed.
    best
        Complete trial with the highest p_o + p_s, the earlier one if tied: the paper's BERTcL.
    mean
        Mean rates of the complete trials, weighted by b^(−rank) with b = 1.8.
    space, split
        The search space, and a description of the rows that gave the rewards.
    cost
        Cost of all trials, including those without a result.
    """

    trials: tuple[TrialRecord, ...]
    best: TrialRecord
    mean: tuple[float, ...]
    space: SearchSpace
    split: str
    cost: Cost

    @classmethod
    def of(cls, trials: Sequence[TrialRecord], space: SearchSpace, split: str) -> SearchOutcome:
        """Return the outcome of `trials`, or raise a SearchError if none is complete."""
        complete = [record for record in trials if record.status == "complete"]
        if not complete:
            reasons = [trial.reason for trial in trials if trial.reason]
            raise SearchError(
                f"No trial is complete yet ({len(trials)} started). Run the same command again to "
                "resume, with more time or trials."
                + (f" Reason of the last one: {reasons[-1]}" if reasons else "")
            )
        mean = combine([[trial for record in complete if (trial := record.trial())]]).rates
        best = max(complete, key=lambda record: (record.p_o or 0.0) + (record.p_s or 0.0))
        return cls(tuple(trials), best, mean, space, split, cost_of(trials))

    @property
    def counts(self) -> Counter[str]:
        """Number of trials by status."""
        return Counter(trial.status for trial in self.trials)

    def write(self, folder: Path, name: str) -> None:
        """Write the two baseline files and the figures of a search on the pair `name`."""
        from clbench.figures import rate_distributions, search_trace
        from clbench.figures.style import save_png

        origin, number = self.space.origin, self.best.number
        complete = self.counts["complete"]
        search = f"{len(self.trials)} trials ({complete} complete) of clbench search on {name}"
        reward, p = f"p_o + p_s on {self.split}", self.best.epochs[-1].reward
        files = {
            BEST: (
                self.best.rates,
                "the best trial",
                f"Trial {number}, the best of {search}: {p:.4f} = {reward}.",
            ),
            MEAN: (
                self.mean,
                "the mean of the trials, weighted by rank",
                f"Geometric mean with weights {BASE:g}^(-rank) of {search}, ranked by {reward}.",
            ),
        }
        for file, (rates, name_of_rates, source) in files.items():
            text = baseline_text(
                rates,
                origin,
                description=f"Learning rates searched on {name}: {name_of_rates}.",
                sources={
                    "multiples": f"{source} Over the flat rate {origin.flat:g}.",
                    "depth": "Layers of the model that was searched on.",
                    "division": "As the search grouped them.",
                },
                cost=self.cost,
            )
            write_atomically(folder / file, text)
        rates_figure = rate_distributions(
            {f"best trial ({number})": self.best.rates},
            self.mean,
            groups=self.space.names,
            flat=origin.flat,
            combined_name="weighted mean",
        )
        figures = {"rates.png": rates_figure, "trace.png": search_trace(self.trials)}
        for file, figure in figures.items():
            write_atomically(folder / file, partial(save_png, figure))


def baseline_text(
    rates: Sequence[float],
    origin: SearchOrigin,
    *,
    description: str,
    sources: Mapping[str, str],
    cost: Cost | None = None,
) -> str:
    """Return the content of a baseline file of the method ``layerwise``.

    The file holds the absolute `rates` as multiples of the flat rate, so that it can be used with
    another one. `sources` are those of ``multiples``, ``depth`` and ``division``.
    """
    names = origin.group_names(len(rates))
    multiples = [f"  {r / origin.flat!r},  # {name}" for r, name in zip(rates, names, strict=True)]
    quoted = {key: json.dumps(text, ensure_ascii=False) for key, text in sources.items()}
    lines = [
        'method = "layerwise"',
        f"description = {json.dumps(description, ensure_ascii=False)}",
        "",
        "[settings]",
        "multiples = [",
        *multiples,
        "]",
        f"depth = {origin.depth}",
        f'division = "{origin.division}"',
        "",
        "[sources]",
        *(f"{key} = {text}" for key, text in quoted.items()),
    ]
    if cost is not None:
        lines += ["", "[cost]", *(f"{key} = {value}" for key, value in cost.to_table().items())]
    return "\n".join(lines) + "\n"
