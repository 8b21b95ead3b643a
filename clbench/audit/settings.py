"""What decides an audit besides its models, declared once for Python and the command line."""

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Annotated, Any

from clbench.core.errors import SettingsError, named
from clbench.core.options import DATA_FOLDER, Option, described
from clbench.tasks.hub import data_folder

MARGIN = 0.02
"""Largest change that does not matter, in accuracy and in nats."""
LEAST = 1e-6
"""Smallest margin, and change to detect: that of one in a million items."""
FEWEST_ROWS = 50
"""Fewest rows of a task; below, hardly any loss can be shown."""
TEXTS, FEWEST_TEXTS = 300, 30
"""Held-out texts of the language loss."""
RATE = 1e-5
"""Learning rate of relearning: a fifth of 5e-5, the highest of Devlin et al. 2019 (appendix A.3).
At usual rates a few rows destroy as much as they bring back (``docs/findings.md``)."""


@described
@dataclass(frozen=True, kw_only=True)
class AuditSettings:
    """What decides an audit besides its models.

    Attributes
    ----------
    {options}

    Raises
    ------
    SettingsError
        If a number is not allowed.
    """

    tasks: Annotated[
        Sequence[str],
        Option(
            "Tasks to audit, or suite files that define tasks; for decoders also general, or one "
            "of its axes: knowledge, reasoning, arithmetic, instructions, reading, language, "
            "format, calibration.",
            "A,B",
            default="general, or four tasks of GLUE; built-in ones if no data are at hand",
        ),
    ] = ()
    data: Annotated[str | Path | None, DATA_FOLDER] = None
    corpus: Annotated[
        str, Option("Text for the language loss: one text per line, or wiki40b/en.", "FILE|NAME")
    ] = "built-in"
    rows: Annotated[int, Option("Maximum rows per task.", "ROWS")] = 500
    questions: Annotated[
        int | None,
        Option(
            "Maximum questions per general task, 20 or more; BBH's are rounded up to tens.",
            "N",
            default="100, or 50 with written answers",
        ),
    ] = None
    rephrase: Annotated[
        int, Option("Ask each general question in N wordings of the prompt, up to 3.", "N")
    ] = 1
    texts: Annotated[int, Option("Maximum texts for the language loss.", "TEXTS")] = TEXTS
    margin: Annotated[
        float,
        Option("A change counts as kept if its interval lies within ±X (accuracy, nats).", "X"),
    ] = MARGIN
    detect: Annotated[
        float | None,
        Option("Take the rows that show a loss of X in accuracy with 80 % power.", "X"),
    ] = None
    until_settled: Annotated[
        bool, Option("Look at twice as many rows, twice at most, until no change is unclear.")
    ] = False
    localise: Annotated[
        bool, Option("Restore one layer at a time to find where the loss arises; slower.")
    ] = False
    relearn: Annotated[
        int | None,
        Option(
            "Train copies on N other rows of each lost task: what comes back was not lost.", "N"
        ),
    ] = None
    relearn_rate: Annotated[
        float, Option("Learning rate of --relearn; few rows at a usual rate destroy more.", "X")
    ] = RATE
    seed: Annotated[int, Option("Seed of rows, folds and masks.")] = 0
    by_default: Annotated[bool, Option("Whether the tasks are the default ones.")] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "tasks", tuple(self.tasks))
        for name in ("margin", "detect", "relearn_rate"):
            check_change(name, getattr(self, name))
        least = {"rows": FEWEST_ROWS, "texts": FEWEST_TEXTS, "rephrase": 1, "seed": 0}
        for name, fewest in least.items():
            check_count(name, getattr(self, name), fewest)
        if self.relearn is not None:
            check_count("relearn", self.relearn, 1)
        elif self.relearn_rate != RATE:
            both = f"{named('relearn_rate')} is the rate of {named('relearn')}"
            raise SettingsError(f"{both}. Give both, or neither.")
        if self.detect is not None and self.questions is not None:
            both = f"{named('detect')} chooses the number of questions"
            raise SettingsError(f"{both}. Leave {named('questions')} out.")

    @property
    def folder(self) -> Path | None:
        """The absolute path of `data` or None; raises a DataError if it is not a folder."""
        return data_folder(self.data)

    def numbers(self) -> dict[str, Any]:
        """Return the numbers that decide the scores; those of options that are off are left out."""
        values: dict[str, Any] = {"rows": self.rows, "texts": self.texts, "margin": self.margin}
        if self.questions is not None or self.rephrase != 1:
            values |= {"questions": self.questions, "rephrase": self.rephrase}
        if self.relearn is not None:
            values |= {"relearn": self.relearn, "relearn_rate": self.relearn_rate}
        return values


def check_change(name: str, value: float | None) -> None:
    """Raise a SettingsError unless an option is None or from `LEAST` to below 1.

    That is a change of scores that can be judged, or the rate of relearning.
    """
    if value is not None and not LEAST <= value < 1.0:
        usual = RATE if name == "relearn_rate" else MARGIN
        raise SettingsError(
            f"{named(name, value)}: must be from {LEAST:g} to below 1, such as {usual:g}."
        )


def check_count(name: str, value: object, least: int = 0) -> None:
    """Raise a SettingsError unless a setting is a whole number of `least` or more, of 64 bits."""
    if not isinstance(value, Integral) or not least <= int(value) < 2**63:
        raise SettingsError(f"{named(name, value)}: must be {least} or more, below 2⁶³.")
