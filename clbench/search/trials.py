"""The trials of a search: their records, the folder that holds them, and who hears of them."""

import json
import logging
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from clbench.core.errors import DataError, RunFolderError, describe_errors, named
from clbench.core.files import plain, read_file, write_atomically
from clbench.core.options import checks_arguments
from clbench.core.registry import LARGEST, Amount
from clbench.models.groups import Division
from clbench.results.resume import first_difference
from clbench.search.rates import SearchOrigin, Trial, read_log
from clbench.suite.baselines import Cost

FAILED = -2.0
"""Score of a failed trial: below any sum of two scores, correlations included."""

QUIET = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Ctrl-C ends the search
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # workers import the user's modules from the driver's folder
}
"""Environment in which Ray Tune writes no tables or logs, and leaves signals and folders alone."""


Model = TypeVar("Model", bound=BaseModel)


@contextmanager
def quiet_ray() -> Iterator[None]:
    """Silence Ray Tune, whose output repeats the trial files."""
    logger = logging.getLogger("ray")
    level, own = logger.level, {k: v for k, v in QUIET.items() if k not in os.environ}
    logger.setLevel(logging.CRITICAL)
    os.environ.update(own)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
        for name in own:
            os.environ.pop(name, None)


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
    number: int
    rates: list[float]
    status: Literal["running", "complete", "stopped", "failed"] = "running"
    reason: str | None = None
    epochs: list[EpochRecord] = []
    p_o_before: float | None = None
    p_o: float | None = None
    p_s: float | None = None
    seconds: Amount = 0.0
    started: str = ""
    finished: str = ""

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


class SearchListener:
    """Receives the progress of a search, in the searching process; the base ignores it."""

    def started(self, trials: int, pending: int, epochs: int) -> None:
        """Called once with the numbers of trials, pending trials, and epochs of a whole trial."""

    def trial_ended(self, trial: TrialRecord) -> None:
        """Called when a trial is complete, stopped or failed."""

    def note(self, text: str) -> None:
        """Called with a line for the user."""


def cost_of(trials: Sequence[TrialRecord], seeds: Iterable[int], *, on_reported_rows: bool) -> Cost:
    """Return the cost of all trials, including those without a result."""
    return Cost(
        trials=len(trials),
        epochs=sum(len(trial.epochs) for trial in trials),
        seconds=min(LARGEST, round(sum(trial.seconds for trial in trials), 3)),
        seeds=tuple(sorted({*seeds})),
        on_reported_rows=on_reported_rows,
    )


def read_json(path: Path, model: type[Model], remedy: str = "") -> Model | None:
    """Return the content of a file of a search or tuning, or None if there is none.

    Raises a RunFolderError if it cannot be read, or is damaged or of another version.
    """
    try:
        return model.model_validate_json(read_file(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValidationError) as error:
        reason = error.strerror if isinstance(error, OSError) else describe_errors(error)[0][:200]
        remedy = remedy or f"Choose another {named('out')}."
        raise RunFolderError(f"{path} cannot be read: {reason}. {remedy}") from error


class _SearchFile(BaseModel):
    model_config = ConfigDict(extra="allow")
    format: Literal["clbench-search"] = "clbench-search"
    schema_version: Literal[1] = 1
    recipe: dict[str, Any]


@checks_arguments
class SearchFolder:
    """The folder of one search: `search.json`, and a file for each trial; it may not exist yet."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.trials = self.path / "trials"
        self.file = self.path / "search.json"

    def content(self) -> dict[str, Any]:
        """Return the content of `search.json`, or an empty dict if there is none.

        Raises a RunFolderError if the file is unreadable or not that of a search.
        """
        file = read_json(self.file, _SearchFile)
        return {} if file is None else file.model_dump()

    def check(self, recipe: Mapping[str, Any]) -> None:
        """Check that a search with `recipe` can start or resume here; writes nothing.

        Raises a RunFolderError if the folder holds something else, or a search with another
        recipe; the message names the first difference.
        """
        if content := self.content():
            if difference := first_difference(content["recipe"], plain(recipe)):
                raise RunFolderError(f"{self.file} {difference}. Choose another {named('out')}.")
        elif (self.path / "suite.json").exists() or any(self.trials.glob("*.json")):
            raise RunFolderError(
                f"{self.path} holds a run, or trials without their search.json. Choose another "
                f"{named('out')}."
            )

    def begin(self, recipe: Mapping[str, Any], description: Mapping[str, Any]) -> None:
        """Write `search.json`: the recipe of the trials and a description of the search."""
        header = {"format": "clbench-search", "schema_version": 1}
        content = plain({**header, **description, "recipe": recipe})
        write_atomically(self.file, json.dumps(content, indent=1, allow_nan=False) + "\n")

    def write(self, trial: TrialRecord) -> None:
        """Write the file of a trial atomically."""
        write_atomically(
            self.trials / f"{trial.number:04d}.json", trial.model_dump_json(indent=1) + "\n"
        )

    def read(self) -> list[TrialRecord]:
        """Return all trials by number; raise a RunFolderError if a file does not hold a trial."""
        remedy = "Move it away; a new trial takes its place."
        paths = self.trials.glob("[!.]*.json")
        trials = [trial for path in paths if (trial := read_json(path, TrialRecord, remedy))]
        return sorted(trials, key=lambda trial: trial.number)

    def origin(self) -> SearchOrigin:
        """Return the flat rate and model of the search, or raise a DataError if there is none."""
        content = self.content()
        if not content:
            raise DataError(f"{self.path} holds no search. Give the folder of a clbench search.")
        space = content["recipe"]["search"]
        return SearchOrigin(space["flat"], space["depth"], space["division"])


@dataclass(frozen=True)
class TrialSource:
    """The complete trials of one pair of tasks; a log has only the first three fields."""

    path: Path
    trials: Sequence[Trial]
    name: str
    split: str = ""  # description of the rows that give the rewards
    origin: SearchOrigin | None = None
    records: Sequence[TrialRecord] = ()  # all trials of the search
    seeds: tuple[int, ...] = ()
    on_reported_rows: bool = False


def read_source(path: str | Path) -> TrialSource:
    """Read a search folder or a trial log; raise a DataError if it has no complete trial."""
    path = Path(path)
    if not path.is_dir():
        return TrialSource(path, read_log(path), path.stem)
    folder = SearchFolder(path)
    origin, content, records = folder.origin(), folder.content(), folder.read()
    trials = [trial for record in records if (trial := record.trial()) is not None]
    if not trials:
        raise DataError(f"{path}: none of its {len(records)} trials is complete.")
    name, split = content.get("scenario") or path.name, content.get("split", "")
    recipe = content["recipe"]
    is_reported = recipe["protocol"]["score_on"] == "validation"
    return TrialSource(path, trials, name, split, origin, records, (recipe["seed"],), is_reported)


def common_origin(
    sources: Sequence[TrialSource],
    *,
    flat: float | None = None,
    depth: int | None = None,
    division: Division | None = None,
) -> SearchOrigin:
    """Return the flat rate and model that the rates of all sources refer to.

    By default these are the searches'; a log counts as a search on BERT base at 2e-5. `flat`
    replaces the flat rates of the searches. Raises a DataError if searches differ from each other,
    or from `depth` or `division`.
    """
    values = {"flat": flat, "depth": depth, "division": division}
    changes: dict[str, Any] = {key: value for key, value in values.items() if value is not None}
    searches = [source for source in sources if source.origin is not None]
    origin = replace((searches[0].origin if searches else None) or SearchOrigin(), **changes)
    for source in searches:
        assert source.origin is not None
        other = source.origin if flat is None else replace(source.origin, flat=flat)
        if difference := first_difference(asdict(other), asdict(origin)):
            raise DataError(
                f"{source.path} {difference}. Combine searches on one model, or give "
                f"{named('flat')}."
            )
    return origin
