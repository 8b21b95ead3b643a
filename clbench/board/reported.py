"""The checks of the grade `reported`: a submission is whole, and nothing in it was chosen."""

import json
from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

from clbench.board.manifest import MANIFEST, facts, files_of
from clbench.board.submission import Find, Lines, Submission, missing
from clbench.core.errors import count, join_names
from clbench.core.files import digest, plain
from clbench.methods.base import METHODS
from clbench.models.locate import MODELS
from clbench.results.archive import ARCHIVE, CELL, strange_members
from clbench.results.cell import CellResult
from clbench.results.resume import first_difference
from clbench.suite.baselines import read_baseline
from clbench.suite.read import packaged_files, read_suite
from clbench.suite.recipe import protocol_of, protocol_section
from clbench.tasks.registry import TASKS
from clbench.training.protocol import BY_TASK

FILES = ("suite.json", "scores.csv", ARCHIVE)
"""Files of a submission besides its manifest, cells and plug-ins."""


def is_well_formed(submission: Submission) -> Lines:
    """Yield each file that is missing, changed or not listed."""
    listed, here = submission.manifest.files, files_of(submission.folder)
    for name in sorted({*listed, *here}):
        if name not in here:
            yield missing(submission.folder / name)
        elif name not in listed:
            yield f"{name} is not listed in {MANIFEST}."
        elif listed[name] != here[name]:
            yield f"{name} is not the file that {MANIFEST} lists: its SHA-256 differs."
    for path in sorted(submission.folder.rglob("*")):
        if path.is_symlink():
            yield f"{path.relative_to(submission.folder)} is a link, not a file."
    for line in strange_members(submission.folder):
        yield f"{ARCHIVE}: {line}"
    plugins = submission.suite.get("plugins", {})
    for name, mark in plugins.items():
        path = submission.folder / "plugins" / name
        if Path(name).name != name or not path.is_file() or digest(path) != mark:
            yield f"plugins/{name} is not the plug-in that suite.json lists: its digest differs."
    for name in here:
        if name.startswith("plugins/"):
            if name.removeprefix("plugins/") not in plugins:
                yield f"{name} is no plug-in of the run."
        elif name not in FILES and not CELL.fullmatch(name):
            yield f"{name} is no file of a run."
    if submission.manifest.suite != submission.suite.get("name"):
        yield f"{MANIFEST} names the suite {submission.manifest.suite!r}, suite.json another."


def has_whole_matrix(submission: Submission) -> Lines:
    """Yield the cells that are missing, failed, or not declared."""
    file, cells = submission.file, submission.cells
    stages = {c.scenario: len(c.stages) for c in cells if c.stages and c.reference_of is None}
    last = {scenario: number - 1 for scenario, number in stages.items()}
    needed, allowed = set[str](), set[str]()
    for scenario in (spec.name for spec in file.scenario):
        references = range(1, last.get(scenario, 0) + 1)
        wanted = references if file.references == "all" else references[-1:]
        for seed in file.seeds:
            needed |= {f"{scenario}--{method}--seed{seed}" for method in file.methods}
            names = {f"{scenario}--reference{task}--seed{seed}" for task in references}
            allowed |= names
            if file.references:
                needed |= {f"{scenario}--reference{task}--seed{seed}" for task in wanted}
    keys = {cell.key for cell in cells}
    if missing := sorted(needed - keys):
        yield f"{count(len(missing), 'declared cell')} missing: {join_names(missing)}."
    if extra := sorted(keys - needed - allowed):
        yield f"{count(len(extra), 'cell')} not declared: {join_names(extra)}."
    if failed := [cell.key for cell in cells if cell.status != "ok"]:
        yield (
            f"{count(len(failed), 'cell')} failed: {join_names(failed)}. Run them again, or leave "
            "out their method or scenario."
        )
    for cell in cells:
        if cell.key != f"{cell.scenario}--{cell.baseline}--seed{cell.seed}":
            yield f"{cell.key} holds {cell.scenario}, {cell.baseline}, seed {cell.seed}."


def chooses_no_seed(submission: Submission) -> Lines:
    """Yield gaps in the seeds, and seeds that only some methods have."""
    seeds = sorted(submission.file.seeds)
    if len({*seeds}) < len(seeds):
        yield f"suite.json: seeds {', '.join(map(str, seeds))} are not all different."
    declared = None
    if (name := submission.suite["name"]) in packaged_files("scenarios"):
        declared = sorted(read_suite(name).file.seeds)
    gaps = [(a + 1, b - 1) for a, b in pairwise([-1, *seeds]) if b > a + 1]
    if seeds != declared and gaps:
        left = ", ".join(f"{a}-{b}" if b > a else str(a) for a, b in gaps)
        yield (
            f"seeds {_numbers(seeds)} leave out {left}: seeds run from 0 without gaps, "
            "or are those of the packaged suite."
        )
    if (looks := submission.store.looks()) and len(seeds) not in looks:
        yield f"{count(len(seeds), 'seed')}, but the run is looked at after {_numbers(looks)}."


def has_one_recipe(submission: Submission) -> Lines:
    """Yield cells whose recipes differ from the suite, or from those of others."""
    baselines = submission.suite.get("baseline", {})
    plugins = {*submission.suite.get("plugins", {}).values()}
    scenarios = {spec.name: spec for spec in submission.file.scenario}
    alone = {"method": "vanilla", "settings": read_baseline("vanilla").settings}
    common: dict[str, Any] = {}
    for cell in submission.cells:
        spec = scenarios.get(cell.scenario)
        method = alone if cell.reference_of else baselines.get(cell.baseline)
        if not cell.recipe or spec is None or method is None:
            yield f"{cell.key} has no recipe, or one of a scenario or baseline not in suite.json."
            continue
        used = cell.recipe["method"]
        declared: dict[str, Any] = {
            "scenario": {"name": spec.name, "shift": spec.shift, **spec.settings},
            "protocol": protocol_section(spec, protocol_of(spec, submission.file.protocol)),
            "method": {
                "name": method["method"],
                "settings": method.get("settings", {}),
                "source": used.get("source"),
                **({"version": used["version"]} if "version" in used else {}),
            },
            "seed": cell.seed,
            "reference_of": cell.reference_of,
        }
        # Protocols of earlier versions lack keys that came later.
        found = {**cell.recipe, "protocol": declared["protocol"] | cell.recipe["protocol"]}
        if difference := first_difference(found, plain(declared), sections=[*declared]):
            yield f"{cell.key} {difference} in suite.json."
        if (cell.method, cell.shift) != (method["method"], spec.shift):
            yield f"{cell.key} names the method {cell.method} and the shift {cell.shift}."
        if absent := {name.partition("[")[0] for name in spec.task_names} - {
            *cell.recipe.get("tasks", {})
        }:
            yield f"{cell.key}: its recipe has no rows of {join_names(sorted(absent))}."
        known = plugins if cell.method not in METHODS else {None, *plugins}
        if used.get("source") not in known and ":" not in method["method"]:
            yield f"{cell.key}: the code of {cell.method} is not among the plug-ins."
        yield from _shown_otherwise(cell, submission.suite["protocol"]["model"])
        same = {name: cell.recipe.get(name) for name in ("version", "model", "corpus")}
        same |= {f"rows of {name}": rows for name, rows in cell.recipe.get("tasks", {}).items()}
        if cell.status == "ok":
            of = f"of {cell.scenario}, seed {cell.seed}"
            same |= {f"tasks {of}": cell.tasks, f"chance levels {of}": cell.floors}
        for name, value in same.items():
            if common.setdefault(name, value) != value:
                yield f"{cell.key} and other cells differ in: {name}."


def _shown_otherwise(cell: CellResult, model: str) -> Lines:
    """Yield what a cell shows of itself that is not in its recipe; `model` is the protocol's."""
    used = cell.recipe["method"]
    if not _fits_recipe(cell):
        names = join_names(cell.tasks)
        yield f"{cell.key}: the tasks of R ({names}) are not those of its recipe and stages."
    hub = cell.recipe.get("model", {}).get("hub")
    if cell.model != (true := hub or (model if model in MODELS else cell.model)):
        yield f"{cell.key} names the model {cell.model}, but was run with {true}."
    if used.get("source") is None and cell.method in METHODS:
        for name in ("keeps_rows", "needs_task_id"):
            # A property follows from the settings, which other versions may lack.
            value = getattr(METHODS.get(cell.method), name)
            if isinstance(value, bool) and value != getattr(cell, name):
                yield f"{cell.key} has {name} = {getattr(cell, name)}, its method {value}."
    own = {k: v for k, v in cell.recipe["protocol"].items() if k not in BY_TASK}
    for section, values in (("method", used.get("settings", {})), ("protocol", own)):
        shown = plain(cell.settings.get(section, {}))
        for key, value in plain(values).items():
            if shown.get(key, value) != value:
                yield f"{cell.key} shows {key} = {shown[key]}, but was run with {value}."
    asked = str(own.get("precision", "auto"))
    precision = str(cell.settings.get("precision", asked))
    if asked not in ("auto", precision):
        yield f"{cell.key} was run in {precision}, but its recipe has {asked}."


def _fits_recipe(cell: CellResult) -> bool:
    """Whether the tasks of R are those of the recipe, and all but the pretraining have a stage.

    The columns of a shift that a plug-in brings are its own.
    """
    if cell.status != "ok" or cell.recipe.get("shift") is not None:
        return True
    tasks = cell.tasks[cell.shift == "pretraining" :]
    names = {name.partition("[")[0] for name in cell.recipe.get("tasks", {})}
    bases = [name.partition("[")[0] for name in tasks]
    parts = {part for base in bases for part in ([base] if base in names else base.split("+"))}
    return parts == names and (cell.reference_of is not None or len(cell.stages) == len(tasks))


def is_not_tuned_on_reported_rows(submission: Submission) -> Lines:
    """Yield what was tuned on reported rows or seeds, or scored on rows that were tuned on."""
    protocol = submission.file.protocol
    if protocol.score_on != "validation":
        yield f"suite.json: score_on = {protocol.score_on!r}: scores are on the rows for tuning."
    if protocol.smoke:
        yield "suite.json: smoke = true: a smoke run says nothing."
    searched: dict[str, set[int]] = {}
    for cell in submission.cells:
        searched.setdefault(cell.baseline, set()).update(cell.search.get("seeds", []))
    cells = [cell for cell in submission.cells if cell.search.get("on_reported_rows")]
    for name in dict.fromkeys(cell.baseline for cell in cells):
        yield f"{name} was tuned on the reported rows."
    for name, seeds in searched.items():
        if both := sorted(seeds & {*submission.file.seeds}):
            yield f"{name} was tuned with the reported seeds {_numbers(both)}."
    for name, spec in submission.file.task.items():
        if name in TASKS:
            yield f"task {name} is defined anew, under the name of a packaged task."
        table = spec.model_dump()
        splits = table.get("splits") or [table.get("train"), table.get("validation")]
        if isinstance(splits, dict):
            splits = [*splits.values()]
        if len(splits) > 1 and splits[0] is not None and splits[0] == splits[1]:
            yield f"task {name} is scored on its training rows ({splits[0]})."
    for name, identity in submission.manifest.tasks.items():
        for kind in ("rows", "files"):
            marks = [*identity.get(kind, {}).values()] if isinstance(identity, dict) else []
            if len({*map(str, marks)}) < len(marks):
                yield f"task {name} has the same rows for training and scoring."


def repeats_no_cell(submission: Submission) -> Lines:
    """Yield cells of different seeds that are one training: equal curves to the last digit."""
    groups: dict[Any, list[CellResult]] = defaultdict(list)
    for cell in submission.cells:
        losses = [value for stage in cell.stages for value in stage.curves.get("loss", [])]
        if any(losses):
            what = json.dumps([cell.R, losses, cell.correct])
            groups[cell.scenario, cell.baseline, what].append(cell)
    for cells in groups.values():
        if len({cell.seed for cell in cells}) > 1:
            keys = join_names([cell.key for cell in cells])
            yield f"{keys} are the same training under different seeds."


def describes_its_cells(submission: Submission) -> Lines:
    """Yield what the manifest says of models, rows, machines and versions that cells do not."""
    manifest = submission.manifest
    about = facts(submission.cells)
    about["models"] = [model.model_dump(exclude={"sha256"}) for model in about["models"]]
    said = manifest.model_dump(exclude={"models": {"__all__": {"sha256"}}})
    about["hardware"] = [machine.model_dump() for machine in about["hardware"]]
    for name, value in about.items():
        if said[name] != value:
            yield f"{MANIFEST}: {name} are not those of the cells."


def _numbers(values: Iterable[int]) -> str:
    """Return sorted whole numbers as text, with ranges: ``0-4, 7``."""
    runs: list[list[int]] = []
    for value in values:
        if runs and value == runs[-1][1] + 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    return ", ".join(f"{a}-{b}" if b > a else str(a) for a, b in runs)


REPORTED: dict[str, Find] = {
    "files": is_well_formed,
    "whole matrix": has_whole_matrix,
    "no seed chosen": chooses_no_seed,
    "one recipe": has_one_recipe,
    "not tuned on what is reported": is_not_tuned_on_reported_rows,
    "no cell twice": repeats_no_cell,
    "manifest": describes_its_cells,
}
