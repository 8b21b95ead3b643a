"""`clbench verify`: the grade of a submission, from what a machine checked."""

import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from clbench.board.manifest import (
    GRADES,
    MANIFEST,
    VERIFIED,
    read_manifest,
    sha256,
    without_paths,
)
from clbench.board.recomputed import RECOMPUTED
from clbench.board.reported import REPORTED
from clbench.board.rerun import rerun
from clbench.board.submission import Check, Outcome, Submission
from clbench.core import __version__
from clbench.core.files import write_atomically


@dataclass(frozen=True)
class Verification:
    """What was checked of a submission.

    Attributes
    ----------
    outcomes
        What each check found, in the order in which they ran.
    """

    folder: Path
    outcomes: tuple[tuple[Check, Outcome], ...]

    @property
    def grade(self) -> str | None:
        """The highest grade of which all checks were made and hold; None if `reported` fails."""
        reached = None
        for grade in GRADES:
            own = [outcome for check, outcome in self.outcomes if check.grade == grade]
            if not own or any(o.wrong or o.unchecked for o in own):
                break
            reached = grade
        return reached

    @property
    def holds(self) -> bool:
        """Whether everything that was checked holds."""
        return not any(outcome.wrong for _, outcome in self.outcomes)

    def to_json(self) -> str:
        """Return the text of ``verified.json``."""
        checked = [
            {"check": check.name, "grade": check.grade, "holds": not outcome.wrong}
            | {name: value for name, value in vars(outcome).items() if value}
            for check, outcome in self.outcomes
        ]
        content = {
            "grade": self.grade,
            "date": f"{datetime.now(UTC):%Y-%m-%d}",
            "clbench": __version__,
            "manifest": sha256(self.folder / MANIFEST),
            "checked": checked,
        }
        return json.dumps(without_paths(content), indent=1, ensure_ascii=False) + "\n"


def verify(
    folder: str | Path,
    *,
    again: int = 0,
    data: str | Path | None = None,
    model: str | None = None,
    corpus: str | Path | None = None,
    salt: str = "",
    trust: bool = False,
    tell: Callable[[str], None] = lambda text: None,
) -> Verification:
    """Check a submission as far as this machine can.

    Parameters
    ----------
    folder
        The submission's folder.
    again
        Number of cells to train again.
    data, model, corpus
        Folder with copies of hub repositories, the model and the corpus of the run, where its suite
        names them by a folder or file.
    salt
        Text that also decides which cells are drawn, so that nobody can foresee them.
    trust
        Whether code of the submission may run in this process.
    tell
        Called with what is done next, where it takes long.

    Returns
    -------
    Verification
        With the checks of higher grades only if the lower ones hold.

    Raises
    ------
    RunFolderError
        If the folder has no valid manifest.
    """
    submission = Submission(
        Path(folder), Path(data) if data else None, model, str(corpus) if corpus else None
    )
    read_manifest(submission.folder)  # without one, it is no submission
    outcomes: list[tuple[Check, Outcome]] = []
    for check in (*REPORTED, *RECOMPUTED):
        if check.grade != GRADES[0] and any(o.wrong for _, o in outcomes):
            break
        outcomes.append((check, check.run(submission)))
    if again and not any(outcome.wrong for _, outcome in outcomes):
        tell(f"training {again} of {len(submission.cells)} cells again")
        out = Path(tempfile.mkdtemp(prefix="clbench-verify-"))
        try:
            find = lambda s: rerun(s, again, salt, out, trust=trust)  # noqa: E731
            check = Check(GRADES[2], "trained again", find)
            outcomes.append((check, check.run(submission)))
        finally:
            shutil.rmtree(out, ignore_errors=True)
    return Verification(Path(folder), tuple(outcomes))


def write_verification(found: Verification) -> Path:
    """Write ``verified.json`` beside the manifest, and return its path."""
    path = found.folder / VERIFIED
    write_atomically(path, found.to_json())
    return path
