"""Tables of how the methods of the studies of sequences were tuned, from the cells of trials."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from clbench.results.cell import CellResult
from clbench.results.store import Store
from clbench.suite.baselines import read_baseline
from tools.findings import Study, plain, setting, table

Tuned = Mapping[Study, Sequence[CellResult]]
"""The cells of each study that was tuned, those of its later settings among them."""


@cache
def later_trials(study: Study) -> tuple[CellResult, ...]:
    """Return the cells of a study's trials beyond the first ones."""
    folders = sorted(study.folder.parent.glob(f"{study.tuning.name}-*"))
    return tuple(cell for folder in folders for cell in Store(folder).read().cells)


@cache
def trials(study: Study) -> tuple[CellResult, ...]:
    """Return the cells of all trials of a study."""
    return (*Store(study.tuning).read().cells, *later_trials(study))


def settings_by_baseline(cells: Iterable[CellResult]) -> dict[str, dict[str, Any]]:
    """Return the settings of the method of each baseline."""
    return {cell.baseline: cell.settings["method"] for cell in cells}


def is_end(value: Any, tried: Iterable[Any]) -> bool:
    """Return whether a value is a number that none of those tried lies beyond, on either side."""
    if isinstance(value, str | bool) or value is None:
        return False
    tried = {each for each in tried if isinstance(each, int | float)}
    return bool(value <= min(tried) or value >= max(tried))


def tuned_settings(
    study: Study, cells: Sequence[CellResult]
) -> dict[str, dict[str, tuple[Any, bool]]]:
    """Return the settings of each baseline that a trial had other values of, and if it `is_end`.

    All trials of its method count, under whatever name and with whatever other settings. Parts of
    a method, such as EWC-LoRA's (``penalised``), have trials of their own.
    """
    found: dict[str, dict[str, tuple[Any, bool]]] = {}
    for cell in {cell.baseline: cell for cell in cells}.values():
        own = cell.settings["method"]
        part = cell.method, own.get("penalised")
        tried = [
            trial.settings["method"]
            for trial in trials(study)
            if (trial.method, trial.settings["method"].get("penalised")) == part
        ]
        values = {key: {each[key] for each in tried} for key in own}
        found[cell.baseline] = {
            key: (value, is_end(value, values[key]))
            for key, value in own.items()
            if values[key] - {value}
        }
    return found


def settings_table(tuned: Tuned) -> str:
    """Return a Markdown table of the tuned settings; * marks an end of what was tried."""
    by_study = {study: tuned_settings(study, cells) for study, cells in tuned.items()}
    names = {name for each in by_study.values() for name, own in each.items() if own}
    rows = [
        [f"`{name}`", *(settings_text(each.get(name, {})) for each in by_study.values())]
        for name in sorted(names)
    ]
    return table(["method", *(study.label for study in by_study)], rows)


def settings_text(settings: Mapping[str, tuple[Any, bool]]) -> str:
    """Return settings with a star at ends."""
    return ", ".join(
        f"`{key}` {setting(value)}{'*' * at_end}" for key, (value, at_end) in settings.items()
    )


def trials_table(tuned: Tuned, score: str) -> str:
    """Return a Markdown table of later trials; the scores of chosen settings are bold."""
    rows = []
    for study, cells in tuned.items():
        by_name: dict[str, list[CellResult]] = {}
        for cell in later_trials(study):
            by_name.setdefault(re.sub(r"-t\d+$", "", cell.baseline), []).append(cell)
        for name, own in by_name.items():
            few = trial_rows(own, chosen(study, cells, name), score)
            rows += [[study.label, f"`{name}`", *row] for row in few]
    return table(["study", "method", "trial", "score"], rows)


def chosen(study: Study, cells: Sequence[CellResult], name: str) -> dict[str, Any]:
    """Return the settings that were chosen for a baseline.

    They are those of its cells in the study, of its tuned file where it has no cells yet, or those
    of the baseline that it would replace where no trial was better.
    """
    used = settings_by_baseline(cells)
    if name not in used and (path := study.tuning / f"{name}.toml").exists():
        return {"lr_multiple": 1.0, **read_baseline(str(path)).settings}
    return used.get(name) or used[name.removesuffix("-high")]


def trial_rows(
    cells: Sequence[CellResult], chosen: Mapping[str, Any], score: str
) -> list[list[str]]:
    """Return what trials change of the chosen settings, and their scores, the lowest first.

    Trials with the same settings and the same score are one row.
    """
    settings = [cell.settings["method"] for cell in cells]
    keys = [key for key in chosen if any(own[key] != chosen[key] for own in settings)]
    found = dict.fromkeys(
        (round(value, 6), tuple(own[key] for key in keys))
        for own, cell in zip(settings, cells, strict=True)
        if (value := cell.scores[score]) is not None
    )
    return [
        [
            ", ".join(f"`{key}` {setting(value)}" for key, value in zip(keys, own, strict=True)),
            f"**{plain(value)}**" if list(own) == [chosen[key] for key in keys] else plain(value),
        ]
        for value, own in sorted(found, key=lambda row: row[0])
    ]
