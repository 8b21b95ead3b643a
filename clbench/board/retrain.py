"""Train cells of a submission; as a program, in the sandbox that `clbench.board.sandbox` makes."""

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from clbench.board.submission import Submission
from clbench.core.errors import ClbenchError
from clbench.core.files import plain
from clbench.results.cell import CellResult
from clbench.suite.baselines import read_baseline
from clbench.suite.options import RunOptions
from clbench.suite.plan import make_plan
from clbench.suite.plugins import load_plugins
from clbench.suite.read import Suite


class OtherRecipeError(ClbenchError):
    """A cell has another recipe here than in the submission: its key, and the recipe here."""

    def __init__(self, key: str, recipe: Mapping[str, Any]) -> None:
        super().__init__(f"{key} has another recipe here.")
        self.key, self.recipe = key, recipe


def train(
    submission: Submission, fingerprints: Mapping[str, str], out: Path, threads: int | None = None
) -> list[CellResult]:
    """Train cells of a submission in the folder `out`; imports its plug-ins.

    Needs no file of it but ``suite.json`` and the plug-ins. `fingerprints` are those of the cells,
    by key; `threads` as in `clbench.board.rerun.rerun`. Raises an OtherRecipeError if a cell would
    be another one here, and a ClbenchError if what it needs is not here.
    """
    from clbench.api import execute
    from clbench.runner.resources import Resources
    from clbench.runner.run_state import read_run_state

    paths = [submission.folder / "plugins" / name for name in submission.suite.get("plugins", {})]
    load_plugins(paths)
    baselines = []
    for name in submission.file.methods:
        table = submission.suite["baseline"][name]
        settings, sources = table.get("settings", {}), table.get("sources", {})
        method = read_baseline(table["method"])
        baselines.append(replace(method, name=name, settings=settings, sources=sources))
    options = RunOptions(methods=baselines, data=submission.data, plugins=paths, out=out)
    # The suite is that of the last command; an earlier one may have trained references.
    file = submission.file.model_copy(update={"references": "all"})
    plan = make_plan(Suite(submission.base / "suite.json", file), options)
    plan = replace(plan, cells=tuple(cell for cell in plan.cells if cell.key in fingerprints))
    for cell in plan.cells:
        if cell.fingerprint != fingerprints[cell.key]:
            raise OtherRecipeError(cell.key, plain(cell.recipe))
    return list(execute(read_run_state(plan), Resources(threads=threads)).cells)


def main(text: str) -> None:
    """Train the cells that the JSON `text` names; runs in the sandbox."""
    work: dict[str, Any] = json.loads(text)
    data = Path(work["data"]) if work["data"] else None
    submission = Submission(Path(work["folder"]), data, work["model"], work["corpus"])
    try:
        train(submission, work["fingerprints"], Path(work["out"]), work["threads"])
    except ClbenchError as error:
        raise SystemExit(str(error)) from error


if __name__ == "__main__":
    main(sys.argv[1])
