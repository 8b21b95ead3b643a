"""`clbench submit`, `verify` and `board`: results to publish, and how far to trust them."""

import shlex
from pathlib import Path
from typing import Annotated

from clbench.cli.arguments import Only, argument, command
from clbench.cli.console import note, say, show_rows, working
from clbench.core.errors import MOST_NAMES, SettingsError, named
from clbench.core.options import Option, where
from clbench.runner.resources import Resources
from clbench.suite.options import RunOptions


@command
def submit(
    run: Annotated[Path, argument("RUN", "Folder of a finished run.")],
    name: Annotated[str, Option("Title of the submission.", "NAME")],
    out: Annotated[Path, where("Folder to write, such as results/community/NAME.", "DIR")],
    url: Annotated[str, Option("Page that says more.", "URL")] = "",
    contact: Annotated[str, Option("Whom to ask.", "TEXT")] = "",
) -> int:
    """Write a run as one folder for a pull request, with nothing of this machine or its user.

    It is refused unless it passes the checks of the first grade; see clbench verify.
    """
    from clbench.board.submit import submit as write

    note(*write(run, name, out, url=url, contact=contact))
    command = shlex.join(["clbench", "verify", str(out), "--rerun", "2"])
    say(f"Submission: {out}. Check it as others will: {command}")
    return 0


@command
def verify(
    folder: Annotated[Path, argument("DIR", "Folder of a submission.")],
    options: Annotated[RunOptions, Only("data model corpus")],
    resources: Annotated[
        Resources, Only("threads", threads="PyTorch's: all cores, or OMP_NUM_THREADS")
    ],
    rerun: Annotated[int, Option("Train N of its cells again.", "N")] = 0,
    salt: Annotated[
        str,
        Option("Text that also decides the draw, so that nobody foresees it.", "TEXT"),
    ] = "",
    trust: Annotated[
        bool, Option("Run code that it brings along without a sandbox, as in a container.")
    ] = False,
    write: Annotated[bool, Option("Write the grade to verified.json in the folder.")] = False,
) -> int:
    """Check a submission: reported, recomputed, or trained again.

    reported: whole, of one recipe, no seed or setting chosen by the scores. recomputed: scores from
    R, R from rows, and model and rows are the named ones. rerun: cells that were drawn by the
    content of the submission give the same here. Exit code 1 unless everything that was checked
    holds; what could not be checked is named, and lowers the grade.
    """
    from clbench.board.verify import verify as check
    from clbench.board.verify import write_verification

    if rerun < 0:
        raise SettingsError(f"{named('rerun')} {rerun}: must be at least 0.")
    if not folder.is_dir():
        raise SettingsError(f"{folder}: there is no such folder. Give that of a submission.")
    with working("reading") as tell:
        found = check(
            folder,
            again=rerun,
            data=options.data_folder(),
            model=options.model,
            corpus=options.corpus,
            salt=salt,
            trust=trust,
            threads=resources.threads,
            tell=tell,
        )
    rows = []
    for _, name, outcome in found.checks:
        lines = [f"fails: {line}" for line in outcome.wrong[:MOST_NAMES]]
        if more := len(outcome.wrong) - len(lines):
            lines.append(f"fails {more} times more")
        lines += [f"not checked: {line}" for line in outcome.unchecked[:MOST_NAMES]]
        first, *rest = lines or [f"holds: {outcome.says}".removesuffix(": ")]
        rows += [(name, first), *(("", line) for line in rest)]
    show_rows(rows)
    if write:
        note(f"Written: {write_verification(found)}")
    if not found.holds:
        note("If the submission is yours, mend what fails in the run, and submit it again.")
    say(f"Grade: {found.grade or 'none'}")
    return 0 if found.holds else 1


@command
def board(
    folders: Annotated[
        list[Path], argument("FOLDERS", "Submissions or runs, or folders that contain some.")
    ],
    out: Annotated[Path, where("Folder of the board.", "DIR")] = Path("site"),
) -> int:
    """Write the board: offline pages of suites, submissions and methods.

    Methods are ranked under equal conditions only, by the ranges of ranks that the data allow. A
    bad submission is reported in a line and left out; then the exit code is 1.
    """
    from clbench.board.site import write_board  # imports pandas and matplotlib

    page, problems = write_board([*folders], out)
    note(*problems)
    say(f"Board: {page}")
    return 1 if problems else 0
