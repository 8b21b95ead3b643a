"""The ``[task.NAME]`` tables of a suite file: files of one's own, or a synthetic task."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from clbench.tasks.files import FileTaskSpec

SyntheticName = Literal[
    "sentiment", "acceptability", "paraphrase", "qa", "entailment", "entailment3"
]
"""The keys of `clbench.tasks.synthetic.SPECS`."""
MOST = 200_000
"""Rows of a synthetic split at most: about a minute of generating for a task of pairs."""


class SyntheticTaskSpec(BaseModel):
    """A ``[task.NAME]`` table that asks for a synthetic task in another size or with noise.

    Attributes
    ----------
    synthetic
        A name of `clbench.tasks.synthetic.SPECS`, such as ``sentiment``.
    train, validation
        Rows of each split, at most `MOST`.
    seed
        Of the texts, and of the noise.
    label_noise
        Chance of each training row that its label is changed to another class, 0 to 1; the
        validation rows keep theirs.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    synthetic: SyntheticName
    train: Annotated[int, Field(ge=2, le=MOST)] = 2000
    validation: Annotated[int, Field(ge=1, le=MOST)] = 500
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    label_noise: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0


def _kind(table: Any) -> str:
    is_synthetic = isinstance(table, SyntheticTaskSpec) or (
        isinstance(table, dict) and "synthetic" in table
    )
    return "table with a key `synthetic`" if is_synthetic else "table of files"


OwnTaskSpec = FileTaskSpec | SyntheticTaskSpec
"""A ``[task.NAME]`` table, read."""

OwnTaskTable = Annotated[
    Annotated[FileTaskSpec, Tag("table of files")]
    | Annotated[SyntheticTaskSpec, Tag("table with a key `synthetic`")],
    Discriminator(_kind),
]
"""The same for pydantic: a key `synthetic` makes it a synthetic task's."""
