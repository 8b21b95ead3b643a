"""The options of a run, and how they change a suite."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from clbench.core.errors import (
    DataError,
    SettingsError,
    UnknownNameError,
    describe_errors,
    describe_missing,
    did_you_mean,
    display_path,
    sentence,
)
from clbench.core.files import user_path
from clbench.models.locate import MODELS
from clbench.suite.baselines import Baseline
from clbench.suite.question import FEWEST, LOOKS, MOST_SEEDS, UNTIL_SETTLED
from clbench.suite.read import Suite, packaged_files
from clbench.suite.schema import ScenarioSpec
from clbench.tasks.corpus import resolve_corpus
from clbench.training.protocol import Protocol

MOST_POINTS = 100
"""Most points of a sweep."""


@dataclass(frozen=True)
class RunOptions:
    """The options of a run; None stands for the suite's value.

    The attributes are parameters of `clbench.run`, which describes them. A single value may be
    given instead of a sequence of one. `looks` are set from seeds given as
    ``until-settled``: growing numbers of seeds, after each of which the run is looked at.

    Raises
    ------
    SettingsError
        If a value is empty, the device is not ``auto``, ``cpu``, ``cuda``, ``cuda:N`` or
        ``mps``, or seeds are not unique whole numbers from 0 to 2³² - 1.
    """

    model: str | None = None
    data: str | Path | None = None
    corpus: str | Path | None = None
    methods: Sequence[str | Baseline] | None = None
    scenarios: Sequence[str] | None = None
    seeds: Sequence[int] | str | None = None
    looks: tuple[int, ...] = ()
    limit: int | None = None
    subset: str | None = None
    epochs: int | None = None
    precision: str | None = None
    head: str | None = None
    lm_eval: Sequence[str] | None = None
    device: str = "auto"
    plugins: Sequence[str | Path] = ()
    references: bool | None = None
    sweep: int | None = None
    keep_stages: bool = False
    out: str | Path | None = None

    def __post_init__(self) -> None:
        if isinstance(self.seeds, str):
            object.__setattr__(self, "looks", _looks(self.seeds))
            object.__setattr__(self, "seeds", tuple(range(self.looks[-1])))
        for name in ("methods", "scenarios", "seeds", "plugins", "lm_eval"):
            value = getattr(self, name)
            if value is not None:
                is_list = isinstance(value, Sequence) and not isinstance(value, str)
                values = tuple(value) if is_list else (value,)
                object.__setattr__(self, name, values)
                if name != "plugins" and not values:
                    raise SettingsError(f"--{name}: is empty. Leave it out for the suite's {name}.")
        if self.sweep is not None and not 2 <= self.sweep <= MOST_POINTS:
            raise SettingsError(f"--sweep {self.sweep}: must be from 2 to {MOST_POINTS}.")
        for name in ("data", "out"):
            if getattr(self, name) == "":
                raise SettingsError(f"--{name}: is empty. Name a folder, or leave it out.")
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?|mps", self.device):
            raise SettingsError(
                f"--device {self.device!r}: must be auto, cpu, cuda, cuda:N such as cuda:0, or mps."
            )
        for position, seed in enumerate(self.seeds or ()):
            if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32:
                raise SettingsError(
                    f"--seeds: must be whole numbers from 0 to 4294967295, got {seed!r:.60}."
                )
            if seed in (self.seeds or ())[:position]:
                raise SettingsError(f"--seeds: {seed} is given twice. Remove one.")

    def command(self, suite: Suite) -> tuple[str, ...]:
        """Return the words of a ``clbench run`` command for the same cells, without ``--out``."""
        is_packaged = packaged_files("scenarios").get(suite.path.stem) == suite.path
        words = ["clbench", "run", suite.path.stem if is_packaged else _word(suite.path)]
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "out" or value == field.default:
                continue
            if field.name == "looks":
                words += ["--seeds", f"{UNTIL_SETTLED}:{','.join(map(str, value))}"]
                continue
            if field.name == "seeds" and self.looks:
                continue
            if field.name == "references":
                words += ["--references" if value else "--no-references"]
                continue
            if field.name == "keep_stages":
                words.append("--keep-stages")
                continue
            name = "plugin" if field.name == "plugins" else field.name.replace("_", "-")
            option = f"--{name}"
            if field.name in ("scenarios", "plugins"):
                for item in value:
                    words += [option, _word(item)]
            elif isinstance(value, tuple):
                words += [option, ",".join(map(_word, value))]
            else:
                words += [option, _word(value)]
        return tuple(words)

    def data_folder(self) -> Path | None:
        """Return the absolute path of ``--data`` or None; a DataError if it is not a folder."""
        if self.data is None:
            return None
        folder = user_path(self.data, "--data")
        if not folder.is_dir():
            problem = "is a file" if folder.is_file() else describe_missing(folder, "folder")
            raise DataError(
                f"--data {self.data}: {problem}. Give a folder DIR with copies of hub "
                "repositories, such as DIR/glue."
            )
        return folder.resolve()

    def choose_scenarios(self, suite: Suite, option: str = "--scenarios") -> list[ScenarioSpec]:
        """Return the suite's scenarios that match any of the patterns, in the suite's order.

        Raises
        ------
        UnknownNameError
            If a pattern matches no scenario.
        """
        names, selection = suite.scenario_names, set[str]()
        for pattern in ("*",) if self.scenarios is None else self.scenarios:
            matches = [name for name in names if fnmatchcase(name, pattern)]
            if not matches:
                raise UnknownNameError(
                    f"{option} {pattern!r} matches no scenario of {suite.name}."
                    f"{did_you_mean(pattern, names)}"
                )
            selection.update(matches)
        return [scenario for scenario in suite.file.scenario if scenario.name in selection]

    def override(self, suite: Suite) -> Protocol:
        """Return the suite's protocol with the options of the command.

        Raises
        ------
        SettingsError
            If the protocol does not allow a value.
        DataError
            If the corpus does not exist.
        """
        protocol = suite.file.protocol
        changes: dict[str, Any] = {
            name: getattr(self, name)
            for name in ("limit", "subset", "epochs", "precision", "head")
            if getattr(self, name) is not None
        }
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
            changes["corpus"] = resolve_corpus(str(self.corpus), Path(), "--corpus")
        values = {**protocol.model_dump(), **changes}
        try:
            protocol = Protocol.model_validate(values, strict=True)
        except ValidationError as error:
            start = "--" if error.errors()[0]["loc"] else "[protocol], with the options given: "
            raise SettingsError(sentence(f"{start}{describe_errors(error, values)[0]}")) from error
        if protocol.subset == "seed" and protocol.limit is None:
            raise SettingsError(
                "subset = 'seed' draws nothing without a limit. Give --limit N (key `limit` in "
                "[protocol])."
            )
        return protocol


def _looks(text: str) -> tuple[int, ...]:
    """Return the looks of ``until-settled`` or ``until-settled:5,10,20``."""
    name, colon, numbers = text.partition(":")
    parts = numbers.split(",") if colon else list(map(str, LOOKS))
    if name == UNTIL_SETTLED and all(re.fullmatch(r"\s*\d{1,4}\s*", part) for part in parts):
        looks = tuple(int(part) for part in parts)
        if looks[0] >= FEWEST and looks[-1] <= MOST_SEEDS and sorted(set(looks)) == list(looks):
            return looks
    raise SettingsError(
        f"--seeds {text!r}: must be until-settled, or until-settled:5,10,20 with growing numbers "
        f"from {FEWEST} to {MOST_SEEDS}."
    )


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
