"""`clbench verify`: the grade of a submission, from what a machine checked."""

import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from clbench.board.manifest import GRADES, MANIFEST, VERIFIED, read_manifest, sha256, without_paths
from clbench.board.recomputed import RECOMPUTED
from clbench.board.reported import REPORTED
from clbench.board.rerun import draw, rerun
from clbench.board.submission import Find, Outcome, Submission, make_checks
from clbench.core import __version__
from clbench.core.errors import join_names
from clbench.core.files import write_atomically


class Checked(NamedTuple):
    """What a check found, and the grade that needs it."""

    grade: str
    check: str
    outcome: Outcome


@dataclass(frozen=True)
class Verification:
    """What was checked of a submission, in order."""

    folder: Path
    checks: tuple[Checked, ...]

    @property
    def grade(self) -> str | None:
        """The highest grade of which all checks were made and hold; None if `reported` fails."""
        reached = None
        for grade in GRADES:
            own = [each.outcome for each in self.checks if each.grade == grade]
            if not own or any(outcome.wrong or outcome.unchecked for outcome in own):
                break
            reached = grade
        return reached

    @property
    def holds(self) -> bool:
        """Whether everything that was checked holds."""
        return not any(each.outcome.wrong for each in self.checks)

    def to_json(self) -> str:
        """Return the text of ``verified.json``."""
        checked = [
            {"check": check, "grade": grade, "holds": not outcome.wrong}
            | {name: value for name, value in vars(outcome).items() if value}
            for grade, check, outcome in self.checks
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
    threads: int | None = None,
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
    threads
        CPU threads to train with; by default those of PyTorch, which ``OMP_NUM_THREADS`` limits.
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
    found: list[Checked] = []

    def make(grade: str, checks: Mapping[str, Find]) -> None:
        """Make the checks of a grade, unless something is wrong already."""
        if not any(each.outcome.wrong for each in found):
            made = make_checks(checks, submission)
            found.extend(Checked(grade, name, outcome) for name, outcome in made)

    make(GRADES[0], REPORTED)
    make(GRADES[1], RECOMPUTED)
    if again:
        with tempfile.TemporaryDirectory(
            prefix="clbench-verify-", ignore_cleanup_errors=True
        ) as out:

            def train_again(submission: Submission) -> Outcome:
                needs = ("model", "rows")  # with others here, all cells would differ
                if without := [c for _, c, o in found if c in needs and o.unchecked]:
                    return Outcome(unchecked=[f"see {join_names(without)}"])
                keys = draw(submission, again, salt)
                drawn = [cell for cell in submission.cells if cell.key in keys]
                seconds = sum(cell.train_seconds or 0.0 for cell in drawn)
                tell(
                    f"training {len(keys)} of {len(submission.cells)} cells again, which took "
                    f"{seconds:.0f} s there: {join_names(keys)}"
                )
                return rerun(submission, keys, Path(out), trust=trust, threads=threads)

            make(GRADES[2], {"trained again": train_again})
    return Verification(Path(folder), tuple(found))


def write_verification(found: Verification) -> Path:
    """Write ``verified.json`` beside the manifest, and return its path."""
    path = found.folder / VERIFIED
    write_atomically(path, found.to_json())
    return path
