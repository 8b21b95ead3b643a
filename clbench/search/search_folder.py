"""The folder of a search: `search.json`, and a file for each trial under `trials/`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from clbench.core.errors import DataError, RunFolderError, describe_errors
from clbench.core.files import read_file, write_atomically
from clbench.core.registry import LARGEST, Amount
from clbench.models.groups import MOST_LAYERS, Division
from clbench.results.cell import plain
from clbench.results.resume import first_difference
from clbench.search.combination import Trial
from clbench.search.space import SearchOrigin
from clbench.suite.baselines import Cost

FORMAT = "clbench-search"
SCHEMA_VERSION = 1
"""Increase it when older files can no longer be read."""
FAILED = -2.0
"""Reward of a failed trial: below any sum of two scores, correlations included."""


class _SearchPart(BaseModel):
    model_config = ConfigDict(extra="allow")
    flat: Annotated[float, Field(gt=0.0, le=1.0)]
    depth: Annotated[int, Field(ge=1, le=MOST_LAYERS)]
    division: Division


class _Recipe(BaseModel):
    model_config = ConfigDict(extra="allow")
    search: _SearchPart


class _SearchFile(BaseModel):
    model_config = ConfigDict(extra="allow")
    format: Literal["clbench-search"]
    schema_version: Literal[1]
    scenario: str = ""
    split: str = ""
    recipe: _Recipe


class EpochRecord(BaseModel):
    """One epoch of a trial."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    stage: int  # 0 for D_o, 1 for D_s
    epoch: int  # from 1 in each stage
    scores: list[float]  # of the tasks trained so far, in their order; fractions
    reward: float  # sum of the scores
    seconds: float  # since the trial began


class TrialRecord(BaseModel):
    """One trial, as its JSON file holds it.

    Attributes
    ----------
    number, rates
        Number from 1, in the order of proposals; rates from the embeddings to the head.
    status
        ``complete``; ``stopped`` early; ``failed``; or ``running``, also after an interruption. An
        interrupted trial counts only towards the cost, and its rates are tried again.
    reason
        Why the trial was stopped or failed.
    p_o_before, p_o, p_s
        Scores on D_o before the shift, and on D_o and D_s after both stages; None where the
        trial did not get that far.
    seconds, started, finished
        Seconds of training and scoring; start and end in UTC, ISO 8601.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    schema_version: Literal[1] = 1
    number: Annotated[int, Field(ge=1)]
    rates: Annotated[list[Annotated[float, Field(gt=0.0)]], Field(min_length=3)]
    status: Literal["running", "complete", "stopped", "failed"] = "running"
    reason: str | None = None
    epochs: list[EpochRecord] = []
    p_o_before: float | None = None
    p_o: float | None = None
    p_s: float | None = None
    seconds: Amount = 0.0
    started: str = ""
    finished: str = ""

    @model_validator(mode="after")
    def _check_complete(self) -> Self:
        if self.status == "complete" and (None in (self.p_o, self.p_s) or not self.epochs):
            raise ValueError("a complete trial has epochs, p_o and p_s")
        self.trial()  # raises a ValueError for rates and scores out of range
        return self

    @property
    def rewards(self) -> list[float]:
        """Reward after each epoch; a failed trial ends with `FAILED`."""
        rewards = [epoch.reward for epoch in self.epochs]
        return [*rewards, FAILED] if self.status == "failed" else rewards

    def trial(self) -> Trial | None:
        """Return the trial for `combine`, or None unless it is complete."""
        if self.status != "complete" or self.p_o is None or self.p_s is None:
            return None
        return Trial(tuple(self.rates), self.p_o, self.p_s, self.p_o_before)


def cost_of(trials: Sequence[TrialRecord]) -> Cost:
    """Return the cost of all trials, including those without a result."""
    return Cost(
        trials=len(trials),
        epochs=sum(len(trial.epochs) for trial in trials),
        seconds=min(LARGEST, round(sum(trial.seconds for trial in trials), 3)),
    )


class SearchFolder:
    """The folder of one search; it may not exist yet."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.trials = self.path / "trials"
        self.file = self.path / "search.json"

    def content(self) -> dict[str, Any]:
        """Return the content of `search.json`, or an empty dict if there is none.

        Raises a RunFolderError if the file is unreadable or not that of a search.
        """
        try:
            return _SearchFile.model_validate_json(read_file(self.file)).model_dump()
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except OSError as error:
            reason = error.strerror
            raise RunFolderError(f"{self.file} cannot be read: {reason}. Move it away.") from error
        except ValidationError as error:
            raise RunFolderError(
                f"{self.file} was not written by this version of clbench "
                f"({describe_errors(error)[0][:200]}). Choose another --out."
            ) from error

    def check(self, recipe: Mapping[str, Any]) -> None:
        """Check that a search with `recipe` can start or resume here; writes nothing.

        Raises a RunFolderError if the folder holds something else, or a search with another
        recipe; the message names the first difference.
        """
        content = self.content()
        if content:
            difference = first_difference(content["recipe"], plain(recipe))
            if difference is not None:
                raise RunFolderError(f"{self.file} {difference}. Choose another --out.")
        elif (self.path / "suite.json").exists() or any(self.trials.glob("*.json")):
            raise RunFolderError(
                f"{self.path} holds a run, or trials without their search.json. Choose another "
                "--out."
            )

    def begin(self, recipe: Mapping[str, Any], description: Mapping[str, Any]) -> None:
        """Write `search.json`: the recipe of the trials and a description of the search."""
        header = {"format": FORMAT, "schema_version": SCHEMA_VERSION}
        content = plain({**header, **description, "recipe": recipe})
        write_atomically(self.file, json.dumps(content, indent=1, allow_nan=False) + "\n")

    def write(self, trial: TrialRecord) -> None:
        """Write the file of a trial atomically."""
        path = self.trials / f"{trial.number:04d}.json"
        write_atomically(path, trial.model_dump_json(indent=1) + "\n")

    def read(self) -> list[TrialRecord]:
        """Return all trials by number; raise a DataError if a file does not hold a trial."""
        trials = []
        for path in sorted(self.trials.glob("[!.]*.json")):
            try:
                trials.append(TrialRecord.model_validate_json(read_file(path)))
            except OSError as error:
                reason = error.strerror
                raise DataError(f"{path} cannot be read: {reason}. Move it away.") from error
            except ValidationError as error:
                raise DataError(
                    f"{path} is not a trial: {describe_errors(error)[0][:200]}. Move it "
                    "away; a new trial takes its place."
                ) from error
        return sorted(trials, key=lambda trial: trial.number)

    def origin(self) -> SearchOrigin:
        """Return the flat rate and model of the search, or raise a DataError if there is none."""
        content = self.content()
        if not content:
            raise DataError(f"{self.path} holds no search. Give the folder of a clbench search.")
        space = content["recipe"]["search"]
        return SearchOrigin(space["flat"], space["depth"], space["division"])
