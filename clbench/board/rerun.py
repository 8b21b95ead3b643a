"""Train cells of a submission again, and compare what they give.

Which cells are drawn follows from the content of the whole submission, so that its author cannot
choose them. Code that a submission brings along runs in a process without network, which can read
nothing but what it needs and write nothing but its result.
"""

import json
import os
import random
import shutil
import site
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from clbench.board.agreement import compare
from clbench.board.manifest import MANIFEST, sha256
from clbench.board.submission import Outcome, Submission
from clbench.core.errors import ClbenchError
from clbench.core.files import digest
from clbench.models.locate import resolve
from clbench.results.cell import CellResult, plain
from clbench.results.resume import first_difference
from clbench.results.store import Store
from clbench.suite.baselines import read_baseline
from clbench.suite.options import RunOptions
from clbench.suite.plan import RECIPE_VERSION, make_plan
from clbench.suite.plugins import load_plugins
from clbench.suite.read import Suite

LONGEST = 86_400.0
"""Most seconds that code in the sandbox may run."""
KILLED = (-9, -15, 137, 143)
"""Exit codes of a process that the system or another process ended."""


def draw(submission: Submission, number: int, salt: str = "") -> list[str]:
    """Return the keys of cells to train again, drawn by the content of the manifest and `salt`.

    The manifest holds the digest of every file, so no part of the submission can change without
    another draw.
    """
    keys = sorted(cell.key for cell in submission.cells)
    seed = digest(sha256(submission.folder / MANIFEST) + salt)
    return sorted(random.Random(seed).sample(keys, min(number, len(keys))))


class OtherRecipeError(ClbenchError):
    """A cell has another recipe here than in the submission: its key, and the recipe here."""

    def __init__(self, key: str, recipe: Mapping[str, Any]) -> None:
        super().__init__(f"{key} has another recipe here.")
        self.key, self.recipe = key, recipe


class FailedCodeError(ClbenchError):
    """The code of a submission failed in the sandbox."""


def train(submission: Submission, fingerprints: Mapping[str, str], out: Path) -> list[CellResult]:
    """Train cells of a submission in the folder `out`; imports its plug-ins.

    Needs no file of it but ``suite.json`` and the plug-ins. `fingerprints` are those of the cells,
    by key. Raises an OtherRecipeError if a cell would be another one here, and a ClbenchError if
    what it needs is not here.
    """
    from clbench.api import execute
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
    plan = make_plan(Suite(submission.base / "suite.json", submission.file), options)
    plan = replace(plan, cells=tuple(cell for cell in plan.cells if cell.key in fingerprints))
    for cell in plan.cells:
        if cell.fingerprint != fingerprints[cell.key]:
            raise OtherRecipeError(cell.key, plain(cell.recipe))
    return list(execute(read_run_state(plan)).cells)


def rerun(submission: Submission, number: int, salt: str, out: Path, *, trust: bool) -> Outcome:
    """Train `number` cells again in the folder `out`, and compare them with the submission.

    With `trust`, code of the submission runs in this process.
    """
    keys = draw(submission, number, salt)
    version = submission.cells[0].recipe.get("version")
    if version != RECIPE_VERSION:
        what = f"recipes of version {version}, and this clbench trains version {RECIPE_VERSION}"
        return Outcome(unchecked=[f"it has {what}"])
    if submission.has_code and not trust and not shutil.which("bwrap"):
        what = "it brings code of its own, and there is no bubblewrap (bwrap) here to run it in"
        return Outcome(unchecked=[f"{what}; install it, or use --trust in a container"])
    drawn = {cell.key: cell for cell in submission.cells if cell.key in keys}
    try:
        if submission.has_code and not trust:
            ours = _in_sandbox(submission, drawn, out)
        else:
            ours = train(submission, {key: cell.fingerprint for key, cell in drawn.items()}, out)
    except OtherRecipeError as error:
        difference = first_difference(drawn[error.key].recipe, error.recipe)
        return Outcome([f"{error.key} {difference or 'has another recipe'} here."])
    except FailedCodeError as error:
        return Outcome([str(error)])
    except ClbenchError as error:
        return Outcome(unchecked=[f"cells cannot be trained again here ({error})"])
    return compare(submission.cells, ours, keys)


def _in_sandbox(
    submission: Submission, drawn: Mapping[str, CellResult], out: Path
) -> list[CellResult]:
    """Do `train` in a process without network; what goes wrong there counts against it.

    What ends it from outside does not: a signal, or the end of ten times the time that the cells
    took, at least ten minutes and at most `LONGEST`.
    """
    told = sum(cell.train_seconds or 0.0 for cell in drawn.values())
    limit = min(max(600.0, 10 * told), LONGEST)
    work = {
        "folder": str(submission.folder.resolve()),
        "data": submission.data and str(submission.data.resolve()),
        "model": _model(submission),
        "corpus": submission.corpus and str(Path(submission.corpus).resolve()),
        "fingerprints": {key: cell.fingerprint for key, cell in drawn.items()},
        "out": str(out.resolve()),
    }
    words, environment = _sandbox(submission, out)
    command = [*words, sys.executable, "-m", __name__, json.dumps(work)]
    try:
        # bwrap keeps its own environment, which the code inside could read in /proc.
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=environment, timeout=limit
        )
    except subprocess.TimeoutExpired as error:
        raise ClbenchError(f"they were stopped after {limit:.0f} s") from error
    if done.returncode in KILLED:
        raise ClbenchError(f"they were ended from outside, by signal {abs(done.returncode) % 128}")
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        reason = lines[-1][:300] if lines else f"exit code {done.returncode}"
        raise FailedCodeError(f"its code failed in the sandbox: {reason}")
    return [cell for cell in Store(out).read().cells if cell.key in drawn]


def _sandbox(submission: Submission, out: Path) -> tuple[list[str], dict[str, str]]:
    """Return the words of bubblewrap, and the environment: what can be read, the folder to write.

    Of the submission that is what training needs: its cells would tell the code what to return.
    """
    from datasets.config import HF_DATASETS_CACHE
    from huggingface_hub.constants import HF_HUB_CACHE

    import clbench

    package = Path(str(clbench.__file__)).resolve().parents[1]
    model = _model(submission) or ""
    readable = [
        *("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/alternatives"),
        # Not all of sys.path: with `python -m`, the working folder is in it.
        *(sys.prefix, sys.base_prefix, *site.getsitepackages()),
        *(package / name for name in ("clbench", "scenarios", "baselines", "results/published")),
        *(submission.folder / name for name in ("suite.json", "plugins")),
        *(submission.data, model, submission.corpus),
        *(HF_HUB_CACHE, HF_DATASETS_CACHE),  # not the folder above them, which holds tokens
    ]
    words = ["bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--clearenv"]
    words += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
    for path in dict.fromkeys(Path(each).absolute() for each in readable if each):
        words += ["--ro-bind-try", str(path), str(path)]
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": "/tmp/home",
        "PYTHONPATH": str(package),
        "HF_HUB_CACHE": HF_HUB_CACHE,
        "HF_DATASETS_CACHE": str(HF_DATASETS_CACHE),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    if threads := os.environ.get("OMP_NUM_THREADS"):
        environment["OMP_NUM_THREADS"] = threads
    for name, value in environment.items():
        words += ["--setenv", name, value]
    folder = str(out.resolve())
    return [*words, "--bind", folder, folder, "--chdir", folder], environment


def _model(submission: Submission) -> str | None:
    """Return the model that is given for this machine, a folder by its whole path."""
    folder = submission.model and resolve(submission.model)
    return str(folder.resolve()) if folder else submission.model


def main(text: str) -> None:
    """Train the cells that the JSON `text` names; runs in the sandbox."""
    work: dict[str, Any] = json.loads(text)
    data = Path(work["data"]) if work["data"] else None
    submission = Submission(Path(work["folder"]), data, work["model"], work["corpus"])
    try:
        train(submission, work["fingerprints"], Path(work["out"]))
    except ClbenchError as error:
        raise SystemExit(str(error)) from error


if __name__ == "__main__":
    main(sys.argv[1])
