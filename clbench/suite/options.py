"""The options of a run, declared once, and how they change a suite."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ValidationError

from clbench.core.errors import (
    SettingsError,
    UnknownNameError,
    dashed,
    describe_errors,
    did_you_mean,
    display_path,
    format_value,
    named,
    sentence,
)
from clbench.core.files import user_path
from clbench.core.options import DATA_FOLDER, OF_SUITE, check_types, described, how, what, where
from clbench.core.registry import Seed
from clbench.models.locate import MODELS
from clbench.suite.baselines import Baseline
from clbench.suite.read import Suite, packaged_files
from clbench.suite.schema import FEWEST, LOOKS, MOST_SEEDS, UNTIL_SETTLED, ScenarioSpec
from clbench.tasks.corpus import resolve_corpus
from clbench.tasks.hub import data_folder
from clbench.training.protocol import Protocol

MOST_POINTS = 100
"""Most points of a sweep."""


@described
@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of a run, as in `clbench.run`; None stands for the suite's value.

    A single value may be given instead of a sequence of one.

    Attributes
    ----------
    {options}

    Raises
    ------
    SettingsError
        If a value is of another type or empty, the device is not ``auto``, ``cpu``, ``cuda``,
        ``cuda:N`` or ``mps``, or seeds are not unique whole numbers from 0 to 2³² - 1.
    """

    model: Annotated[
        str | None, how("Built-in model, model folder, or name on the hub.", "NAME|DIR")
    ] = None
    data: Annotated[str | Path | None, DATA_FOLDER] = None
    corpus: Annotated[
        str | Path | None,
        how(
            "Text for methods and shifts with a language loss: a file with one text "
            "per line, wiki40b/en or built-in.",
            "FILE|NAME",
        ),
    ] = None
    methods: Annotated[
        Sequence[str | Baseline] | None,
        what(
            "Baselines to run (methods with fixed settings; clbench list methods): names or files.",
            "A,B",
            default=OF_SUITE,
        ),
    ] = None
    scenarios: Annotated[
        Sequence[str] | None,
        what("Scenarios to run, such as 'sst2*'.", "PATTERN", default="all"),
    ] = None
    seeds: Annotated[
        Sequence[Seed] | str | None,
        what(
            "Seeds, such as 0,1,2 or 0-4. With until-settled or until-settled:5,10,20, "
            "add seeds from 0 on until every primary comparison is settled. The run is looked at "
            "after each of these numbers of seeds, and the error rate is spent over the looks.",
            "SEEDS",
            default=OF_SUITE,
        ),
    ] = None
    limit: Annotated[int | None, how("Maximum rows of each split.", "ROWS")] = None
    scored_limit: Annotated[
        int | None,
        how("Maximum rows of each task to score on.", "ROWS", default="the suite's, else limit"),
    ] = None
    subset: Annotated[
        Literal["fixed", "seed"] | None,
        how("Training rows within the limit: the same for every seed, or others for each."),
    ] = None
    epochs: Annotated[
        int | None,
        how(
            "Passes over each task's rows, also where the suite sets epochs or steps by task.", "N"
        ),
    ] = None
    precision: Annotated[
        Literal["auto", "float32", "bf16"] | None,
        how("Training precision; auto is bf16 where it is measured to be 1.3 times as fast."),
    ] = None
    head: Annotated[
        Literal["classification", "language-model"] | None,
        how("Heads for each task, or the model's own head, which answers in words."),
    ] = None
    lm_eval: Annotated[
        Sequence[str] | None,
        how(
            "Tasks of the LM Evaluation Harness to run on language models after the last "
            "stage (pip install lm-eval).",
            "A,B",
        ),
    ] = None
    device: Annotated[
        str, where("Device to compute on: auto, cpu, cuda, cuda:N or mps.", "DEVICE")
    ] = "auto"
    plugins: Annotated[
        Sequence[str | Path],
        what("Python file that registers methods, shifts, tasks, models or metrics.", "FILE"),
    ] = ()
    references: Annotated[
        bool | None,
        what(
            "Whether to also train each scenario's last task alone, once for each seed, for "
            "intransigence.",
            default="the suite's, normally yes",
        ),
    ] = None
    smoke: Annotated[
        bool,
        what(
            "Try the suite in minutes, on one seed, at about a tenth of its rows, scored rows and "
            "steps. Results go to results/SUITE-smoke and are marked: they say nothing."
        ),
    ] = False
    sweep: Annotated[
        int | tuple[int, ...] | None,
        what(
            "Run each baseline at N values of its dial (the first setting of its [sweep]), "
            "its own value included, to compare trade-off curves; with N,M at M values of the "
            f"second setting for each, as rate-steps needs. At most {MOST_POINTS} points.",
            "N[,M]",
            read=lambda text: read_points(text),
        ),
    ] = None
    keep_stages: Annotated[
        bool,
        where(
            "Keep the weights after each cell's last stage under stages/, so that a longer "
            "order of the same sequence can continue from them."
        ),
    ] = False
    out: Annotated[
        str | Path | None, where("Folder of the results.", "DIR", default="results/SUITE")
    ] = None
    replace: Annotated[
        bool, where("Rerun cells of other settings; move their files to cells/replaced/.")
    ] = False

    def __post_init__(self) -> None:
        if self.sweep is not None:
            check_points(self.sweep)
        check_types(self)
        if isinstance(self.seeds, str):
            object.__setattr__(self, "seeds", read_seeds(self.seeds))
        for name in ("methods", "scenarios", "seeds", "lm_eval", "data", "out"):
            if getattr(self, name) in ((), ""):
                raise SettingsError(f"{named(name)}: is empty. Leave it out.")
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?|mps", self.device):
            raise SettingsError(
                f"{named('device')} {self.device!r}: must be auto, cpu, cuda, cuda:N such as "
                "cuda:0, or mps."
            )
        if isinstance(self.seeds, str):
            if self.smoke:
                raise SettingsError(
                    f"{named('seeds')} {self.seeds}: a smoke run settles nothing. Leave one out."
                )
            return
        for seed, times in Counter(self.seeds).items():
            if times > 1:
                raise SettingsError(f"{named('seeds')}: {seed} is given twice. Remove one.")

    @property
    def looks(self) -> tuple[int, ...]:
        """Numbers of seeds after which a run that adds seeds is looked at, growing; or none."""
        if not isinstance(self.seeds, str):
            return ()
        return tuple(map(int, self.seeds.partition(":")[2].split(",")))

    def command(self, suite: Suite) -> tuple[str, ...]:
        """Return the words of a ``clbench run`` command for the same cells, without ``--out``."""
        is_packaged = packaged_files("scenarios").get(suite.path.stem) == suite.path
        words = ["clbench", "run", suite.path.stem if is_packaged else _word(suite.path)]
        for field in fields(RunOptions):
            name, value = field.name, getattr(self, field.name)
            if name in ("out", "replace") or value == field.default:
                continue
            if isinstance(value, bool):
                words.append(dashed(name if value else f"no_{name}"))
            elif name in ("scenarios", "plugins"):
                words += [word for item in value for word in (dashed(name), _word(item))]
            else:
                items = value if isinstance(value, tuple) else (value,)
                words += [dashed(name), ",".join(map(_word, items))]
        return tuple(words)

    def data_folder(self) -> Path | None:
        """Return the absolute path of `data` or None; a DataError if it is not a folder."""
        return data_folder(self.data)

    def choose_scenarios(self, suite: Suite, option: str = "scenarios") -> list[ScenarioSpec]:
        """Return the suite's scenarios that match any of the patterns, in the suite's order.

        Raises an UnknownNameError if a pattern matches none.
        """
        names, selection = suite.scenario_names, set[str]()
        for pattern in ("*",) if self.scenarios is None else self.scenarios:
            matches = [name for name in names if fnmatchcase(name, pattern)]
            if not matches:
                raise UnknownNameError(
                    f"{named(option)} {pattern!r} matches no scenario of {suite.name}."
                    f"{did_you_mean(pattern, names)}"
                )
            selection.update(matches)
        return [scenario for scenario in suite.file.scenario if scenario.name in selection]

    def override(self, suite: Suite) -> Protocol:
        """Return the suite's protocol with the options of the command.

        Raises
        ------
        SettingsError, DataError
            If the protocol does not allow a value, or the corpus does not exist.
        """
        protocol = suite.file.protocol
        names = ("limit", "scored_limit", "subset", "epochs", "precision", "head")
        given = {name: getattr(self, name) for name in names}
        changes: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
        if self.smoke:
            changes["smoke"] = True
        if self.lm_eval is not None:
            changes["lm_eval"] = list(self.lm_eval)
        if self.epochs is not None:
            changes |= {"task_epochs": {}, "steps": None, "task_steps": {}}
        if self.model is None:
            changes["model"] = _model_of(suite)
        else:
            # The suite's revision belongs to the suite's model.
            changes |= {"model": self.model, "revision": None}
        if self.corpus is None:
            changes["corpus"] = resolve_corpus(protocol.corpus, suite.base, "[protocol] corpus")
        else:
            changes["corpus"] = resolve_corpus(str(self.corpus), Path(), named("corpus"))
        values = {**protocol.model_dump(), **changes}
        try:
            protocol = Protocol.model_validate(values, strict=True)
        except ValidationError as error:
            text = sentence(describe_errors(error, values)[0])
            if key := str(*error.errors()[0]["loc"][:1]):
                raise SettingsError(f"{named(key)}{text.removeprefix(key)}") from error
            raise SettingsError(f"[protocol], with the options given: {text}") from error
        if protocol.subset == "seed" and protocol.limit is None:
            raise SettingsError(
                "subset = 'seed' draws nothing without a limit. Set "
                f"{named('limit')} (key `limit` in [protocol])."
            )
        return protocol


def read_points(text: str) -> int | tuple[int, ...]:
    """Return the numbers of points of a text such as ``5`` or ``5,3``."""
    if not re.fullmatch(r"\s*\d{1,4}\s*(,\s*\d{1,4}\s*)?", text):
        raise SettingsError(f"{named('sweep')} {text!r}: must be N or N,M, such as 5 or 5,3.")
    numbers = tuple(map(int, text.split(",")))
    return numbers if len(numbers) > 1 else numbers[0]


def check_points(sweep: object) -> None:
    """Raise a SettingsError unless these are one or two numbers of points, not too many."""
    counts = sweep if isinstance(sweep, tuple | list) else (sweep,)
    whole = len(counts) in (1, 2) and all(type(n) is int and n >= 2 for n in counts)
    if not whole or math.prod(counts) > MOST_POINTS:
        raise SettingsError(
            f"{named('sweep')}: must be N or N,M (in Python a tuple), whole numbers of at least 2 "
            f"and at most {MOST_POINTS} points in all, got {format_value(sweep)}."
        )


def read_seeds(text: str) -> tuple[int, ...] | str:
    """Return the seeds of a text such as ``0,1,2``, ``0-4`` or ``7,0-4``, in order.

    ``until-settled`` becomes ``until-settled:5,10,20``, with its default looks.
    """
    name, colon, looks = text.partition(":")
    if name == UNTIL_SETTLED:
        parts = looks.split(",") if colon else [str(look) for look in LOOKS]
        if all(re.fullmatch(r"\s*\d{1,4}\s*", part) for part in parts):
            counts = [int(part) for part in parts]
            if counts[0] >= FEWEST and counts[-1] <= MOST_SEEDS and sorted({*counts}) == counts:
                return f"{UNTIL_SETTLED}:{','.join(map(str, counts))}"
    seeds: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,10})\s*(?:-\s*(\d{1,10})\s*)?", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last < 2**32:
            raise SettingsError(
                f"{named('seeds')} {text!r}: must be seeds such as 0,1,2 or 0-4, or "
                f"{UNTIL_SETTLED}:5,10,20 with growing numbers from {FEWEST} to {MOST_SEEDS}."
            )
        if len(seeds) + last - first >= MOST_SEEDS:
            raise SettingsError(f"{named('seeds')} {text!r}: has more than {MOST_SEEDS} seeds.")
        seeds += range(first, last + 1)
    return tuple(seeds)


def _model_of(suite: Suite) -> str:
    """Return the suite's model; a folder is resolved against that of the suite file."""
    name = suite.file.protocol.model
    if name in MODELS:
        return name
    folder = user_path(name, "[protocol] model", suite.base)
    return str(folder) if folder.is_dir() or name.startswith(".") else name


def _word(value: Any) -> str:
    """Return a value as a word of a command: a baseline's name, or a relative path."""
    return display_path(value) if isinstance(value, Path) else str(getattr(value, "name", value))
