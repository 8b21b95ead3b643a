"""Draw cells of a submission, have them trained again, and compare what they give.

Which cells are drawn follows from the content of the whole submission, so that its author cannot
choose them.
"""

import random
import shutil
from collections.abc import Sequence
from pathlib import Path

from clbench.board.agreement import compare
from clbench.board.manifest import MANIFEST, sha256
from clbench.board.retrain import OtherRecipeError, train
from clbench.board.sandbox import FailedCodeError, train_in_sandbox
from clbench.board.submission import Outcome, Submission
from clbench.core.errors import ClbenchError, named
from clbench.core.files import digest
from clbench.results.resume import first_difference
from clbench.suite.recipe import RECIPE_VERSION


def draw(submission: Submission, number: int, salt: str = "") -> list[str]:
    """Return the keys of cells to train again, drawn by the content of the manifest and `salt`.

    The manifest holds the digest of every file, so no part of the submission can change without
    another draw.
    """
    keys = sorted(cell.key for cell in submission.cells)
    seed = digest(sha256(submission.folder / MANIFEST) + salt)
    return sorted(random.Random(seed).sample(keys, min(number, len(keys))))


def rerun(
    submission: Submission,
    keys: Sequence[str],
    out: Path,
    *,
    trust: bool = False,
    threads: int | None = None,
) -> Outcome:
    """Train cells again in the folder `out`, and compare them with the submission.

    With `trust`, code of the submission runs in this process. `threads` are those of PyTorch; None
    leaves their number unchanged.
    """
    version, writer = submission.cells[0].recipe.get("version"), submission.manifest.clbench
    if version != RECIPE_VERSION:
        what = f"recipes of version {version}, and this clbench trains version {RECIPE_VERSION}"
        return Outcome(unchecked=[f"it has {what}; use clbench {writer}, which wrote it"])
    if submission.has_code and not trust and not shutil.which("bwrap"):
        what = "it brings code of its own, and there is no bubblewrap (bwrap) here to run it in"
        remedy = f"install it, or use {named('trust', True)} in a container"
        return Outcome(unchecked=[f"{what}; {remedy}"])
    drawn = {cell.key: cell for cell in submission.cells if cell.key in keys}
    try:
        if submission.has_code and not trust:
            ours = train_in_sandbox(submission, drawn, out, threads)
        else:
            fingerprints = {key: cell.fingerprint for key, cell in drawn.items()}
            ours = train(submission, fingerprints, out, threads)
    except OtherRecipeError as error:
        theirs, ours = (
            r["method"].get("version", 1) for r in (drawn[error.key].recipe, error.recipe)
        )
        if theirs != ours:
            what = f"{error.key} has version {theirs} of its method, and this clbench {ours}"
            return Outcome(unchecked=[f"{what}; use clbench {writer}, which wrote it"])
        difference = first_difference(drawn[error.key].recipe, error.recipe)
        return Outcome([f"{error.key} {difference or 'has another recipe'} here."])
    except FailedCodeError as error:
        return Outcome([str(error)])
    except ClbenchError as error:
        return Outcome(unchecked=[f"cells cannot be trained again here ({error})"])
    return compare(submission.cells, ours, keys)
