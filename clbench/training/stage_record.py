"""The record of a stage: the engine fills it, the stage cache keeps it, a cell's file holds it."""

from functools import lru_cache, partial
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetPydanticSchema,
    with_config,
)
from typing_extensions import TypedDict

from clbench.core.errors import printable
from clbench.core.registry import Amount, Count

LONGEST_STORED_NAME = 200
"""Characters after which a name is cut: a part of a task has a longer name than the task."""

Name = Annotated[str, AfterValidator(lru_cache(partial(printable, longest=LONGEST_STORED_NAME)))]
Value = Annotated[float, Field(ge=-1e39, le=1e39)] | None
"""A value of a curve: at most a float32, as diverging losses are; None where it is not finite."""
Point = Annotated[list[Value], Field(min_length=2, max_length=2)]
OPEN = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)


@with_config(OPEN)
class _Curves(TypedDict, total=False, extra_items=list[Point]):  # type: ignore[call-arg]
    step: list[Count]
    loss: list[Value]
    lr: list[Value]
    scores: dict[str, list[Point]]


Curves = Annotated[dict[str, Any], GetPydanticSchema(lambda _, schema_of: schema_of(_Curves))]


class StageRecord(BaseModel):
    """Training on one task of a cell.

    Attributes
    ----------
    task
        Name of the task or of a part of it, such as ``glue/sst2[short]``.
    rows, steps, epochs
        Training rows (those of earlier tasks included), optimizer steps, passes over the rows.
    examples, tokens
        Rows and real tokens (without padding) that went through the model.
    train_seconds, eval_seconds
        Time of training, and of scoring during and after it, in seconds. Steps whose memory is
        measured are slow, so they are not timed: the time of the others is scaled up by the tokens.
    memory_mb
        Peak size of a training step's tensors in megabytes (1e6 bytes), at the largest batches of
        the stage, see `clbench.training.memory.StepMemory`.
    cached
        Whether the stage came from the stage cache. Times are then those of the run that
        trained it.
    curves
        ``step``, ``loss`` (mean since the last point) and ``lr`` (of the first group, at the last
        step) as lists of equal length, ``scores`` as a list of ``[step, score]`` for each task, and
        the method's own curves.
    """

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    task: Name
    rows: Count
    steps: Count
    epochs: Amount
    examples: Count
    tokens: Count
    train_seconds: Amount
    eval_seconds: Amount = 0.0
    memory_mb: Amount | None = None
    cached: bool = False
    curves: Curves = {}

    def points(self, curve: str, task: str | None = None) -> list[tuple[float, float]]:
        """Return steps and finite values of a curve, of ``scores`` those on one task."""
        curves = self.curves
        if curve in ("loss", "lr"):
            pairs = zip(curves.get("step", []), curves.get(curve, []), strict=False)
        else:
            pairs = curves.get(curve, []) if task is None else curves.get(curve, {}).get(task, [])
        return [(step, value) for step, value in pairs if None not in (step, value)]
