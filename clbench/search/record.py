"""What a trial of a search leaves behind: a JSON file under `trials/` as a typed model."""

from __future__ import annotations

import json
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from clbench.search.trial import Trial

SCHEMA_VERSION = 1
"""Raised whenever a file of the older form can no longer be read as it stands."""

FAILED = -2.0
"""Reward of a trial that failed: below any sum of two scores, correlations included."""

Status = Literal["running", "complete", "stopped", "failed"]


class EpochRecord(BaseModel):
    """One pass over the rows of a stage.

    Attributes
    ----------
    stage
        0 for D_o, 1 for D_s.
    epoch
        Passes done in this stage.
    scores
        Of the tasks trained so far, in their order; fractions.
    reward
        Their sum: p_o after each epoch on D_o, p_o + p_s after each on D_s.
    seconds
        Since the trial began.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    stage: int
    epoch: int
    scores: list[float]
    reward: float
    seconds: float


class TrialRecord(BaseModel):
    """One trial.

    Attributes
    ----------
    number
        From 1, in the order in which the rates were proposed.
    rates
        From the embeddings to the head.
    status
        ``complete``; ``stopped`` early; ``failed``; ``running``, also if it was cut off: it
        counts for the cost only, and a search that goes on tries its rates again.
    reason
        Why it was stopped or failed.
    epochs
        In order.
    p_o_before, p_o, p_s
        Scores on D_o before the shift, and on D_o and D_s after both; None where the trial did
        not come so far.
    seconds
        That it took, scoring included.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    schema_version: Literal[1] = 1
    number: Annotated[int, Field(ge=1)]
    rates: Annotated[list[Annotated[float, Field(gt=0.0)]], Field(min_length=3)]
    status: Status = "running"
    reason: str | None = None
    epochs: list[EpochRecord] = []
    p_o_before: float | None = None
    p_o: float | None = None
    p_s: float | None = None
    seconds: float = 0.0
    started: str = ""
    finished: str = ""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.status == "complete" and (None in (self.p_o, self.p_s) or not self.epochs):
            raise ValueError("a complete trial has epochs, p_o and p_s")
        return self

    @property
    def rewards(self) -> list[float]:
        """After each epoch; of a failed trial the last is `FAILED`."""
        rewards = [epoch.reward for epoch in self.epochs]
        return [*rewards, FAILED] if self.status == "failed" else rewards

    def trial(self) -> Trial | None:
        """For combining; None unless it is complete."""
        if self.status != "complete" or self.p_o is None or self.p_s is None:
            return None
        return Trial(tuple(self.rates), self.p_o, self.p_s, self.p_o_before)

    def to_json(self) -> str:
        """The file's text."""
        return json.dumps(self.model_dump(mode="json"), indent=1, allow_nan=False) + "\n"
