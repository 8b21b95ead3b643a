"""Train cells of a submission in bubblewrap, where its code can do no harm.

The process has no network, reads nothing but what training needs, and writes nothing but its
result.
"""

import json
import os
import site
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from clbench.board.submission import Submission
from clbench.core.errors import ClbenchError
from clbench.models.locate import resolve
from clbench.results.archive import ARCHIVE, cell_files
from clbench.results.cell import CellResult
from clbench.results.store import Store

LONGEST = 86_400.0
"""Most seconds that code in the sandbox may run."""
LARGEST_RESULT = 1 << 27
"""Most bytes that the cells trained in the sandbox may have; one has ten thousand."""
LAST_WORDS = 10_000
"""Bytes at the end of what the sandbox prints, which are searched for its error."""
KILLED = (-9, -15, 137, 143)
"""Exit codes of a process that the system or another process ended."""


class FailedCodeError(ClbenchError):
    """The code of a submission failed in the sandbox."""


def train_in_sandbox(
    submission: Submission,
    drawn: Mapping[str, CellResult],
    out: Path,
    threads: int | None = None,
) -> list[CellResult]:
    """Do what `clbench.board.retrain.train` does, in a process without network.

    What goes wrong there counts against the submission. What ends it from outside does not: a
    signal, or the end of ten times the time that the cells took, at least ten minutes and at most
    `LONGEST`.
    """
    # The paths in the command must be those that are bound.
    submission = replace(
        submission,
        folder=submission.folder.resolve(),
        data=submission.data and submission.data.resolve(),
        model=_model(submission),
        corpus=submission.corpus and str(Path(submission.corpus).resolve()),
    )
    told = sum(cell.train_seconds or 0.0 for cell in drawn.values())
    limit = min(max(600.0, 10 * told), LONGEST)
    work = {
        "folder": str(submission.folder),
        "data": submission.data and str(submission.data),
        "model": submission.model,
        "corpus": submission.corpus,
        "fingerprints": {key: cell.fingerprint for key, cell in drawn.items()},
        "out": str(out.resolve()),
        "threads": threads,
    }
    words, environment = _sandbox(submission, out)
    command = [*words, sys.executable, "-m", "clbench.board.retrain", json.dumps(work)]
    try:
        # bwrap keeps its own environment, which the code inside could read in /proc.
        with tempfile.TemporaryFile() as printed:  # a pipe would be read into memory
            done = subprocess.run(
                command,
                stdout=subprocess.DEVNULL,
                stderr=printed,
                check=False,
                env=environment,
                timeout=limit,
            )
            printed.seek(max(0, printed.seek(0, os.SEEK_END) - LAST_WORDS))
            text = printed.read().decode("utf-8", "replace")
    except subprocess.TimeoutExpired as error:
        raise ClbenchError(f"they were stopped after {limit:.0f} s") from error
    if done.returncode in KILLED:
        raise ClbenchError(f"they were ended from outside, by signal {abs(done.returncode) % 128}")
    if done.returncode:
        lines = [line for line in text.splitlines() if line.strip()]
        reason = lines[-1][:300] if lines else f"exit code {done.returncode}"
        if reason.startswith("bwrap: "):
            raise ClbenchError(f"the sandbox did not start: {reason}")
        raise FailedCodeError(f"its code failed in the sandbox: {reason}")
    store = Store(out)
    files = [*cell_files(out), store.suite_path, store.scores_path, out / ARCHIVE]
    if sum(path.stat().st_size for path in files if path.is_file()) > LARGEST_RESULT:
        raise FailedCodeError(f"its code wrote more than {LARGEST_RESULT:,} bytes of results")
    return [cell for cell in store.read().cells if cell.key in drawn]


def _sandbox(submission: Submission, out: Path) -> tuple[list[str], dict[str, str]]:
    """Return the words of bubblewrap, and the environment: what can be read, the folder to write.

    Of the submission that is what training needs: its cells would tell the code what to return.
    """
    from datasets.config import HF_DATASETS_CACHE
    from huggingface_hub.constants import HF_HUB_CACHE

    import clbench

    package = Path(str(clbench.__file__)).resolve().parents[1]
    readable = [
        *("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/alternatives"),
        # Not all of sys.path: with `python -m`, the working folder is in it.
        *(sys.prefix, sys.base_prefix, *site.getsitepackages()),
        *(package / name for name in ("clbench", "scenarios", "baselines", "results/published")),
        *(submission.folder / name for name in ("suite.json", "plugins")),
        *(submission.data, submission.model, submission.corpus),
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
