"""What counts as well answered."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from faults.cases import Case, Trial
from faults.sandbox import LIMIT, TRAINING, Outcome, command

LINES, WIDTH = 3, 2_500
"""Lines on stderr of a refused input, and characters of any line."""
CODES = (0, 1, 2, 130)
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
WARNING = re.compile(r"(?<!bad)\.py:\d+: \w*Warning")  # bad.py is a plug-in, which may warn
NUMBERS = re.compile(r"(^|,)(nan|-?inf(inity)?)(,|$)", re.IGNORECASE | re.MULTILINE)
SCRIPT = "<script>alert"

Files = Mapping[str, str]


def snapshot(folder: Path) -> Files:
    """Return a digest of every file below `folder`; links and special files by their kind."""
    return {str(path.relative_to(folder)): _digest(path) for path in sorted(folder.rglob("*"))}


def faults(outcome: Outcome, *, trained: bool = False) -> Iterator[str]:
    """Yield what is wrong with how a command answered; lines of progress do not count."""
    if outcome.code is None:
        yield "no answer in time"
    elif outcome.code not in CODES:
        yield f"exit code {outcome.code}"
    for name, text in (("stdout", outcome.out), ("stderr", outcome.err)):
        # Python itself prints and drops a Ctrl-C that meets the finalizer of an object.
        if "Traceback" in text and not (outcome.stopped and "KeyboardInterrupt" in text):
            yield f"a traceback on {name}"
        if match := CONTROL.search(text):
            place = text[max(0, match.start() - 30) : match.end() + 60]
            yield f"control character on {name}: {place!a}"
        if max(map(len, text.splitlines()), default=0) > WIDTH:
            yield f"a line of more than {WIDTH} characters on {name}"
        if match := WARNING.search(text):
            yield f"a warning of Python on {name}: {match[0]}"
    lines = outcome.err.splitlines()
    if outcome.code == 2 and not trained and not 0 < len(lines) <= LINES:
        yield f"{len(lines)} lines on stderr"
    if outcome.code == 2 and lines and not lines[-1].startswith("error: "):
        yield "the last line is no error"


def file_faults(
    before: Files, after: Files, code: int | None, writes: Sequence[str]
) -> Iterator[str]:
    """Yield files that a command changed, although it was refused or they are the user's.

    `writes` are the folders in which an accepted command works.
    """
    if halves := [name for name in after if name.endswith(".part")]:
        yield f"half-written file {halves[0]}"
    for name in sorted({*before, *after}):
        own = any(name == place or name.startswith(f"{place}/") for place in writes)
        # The lock of a folder that exists already stays in it; locks have no content of value.
        if before.get(name) != after.get(name) and not (own and (code != 2 or name in LEFT)):
            action = "changed" if name in before and name in after else "left"
            yield f"{name} {'removed' if name not in after else action}"
            return


LEFT = ("out/.lock",)


def output_faults(folder: Path, files: Files) -> Iterator[str]:
    """Yield what is wrong in the tables and pages that commands wrote."""
    for name in files:
        path = folder / name
        if path.suffix not in (".csv", ".html") or "out" not in path.parts or not path.is_file():
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        if match := CONTROL.search(text):
            yield f"control character {match[0]!a} in {name}"
        if path.name == "scores.csv" and (match := NUMBERS.search(text)):
            yield f"{match[2]} in {name}"
        if path.suffix == ".html" and SCRIPT in text:
            yield f"a foreign script in {name}"


def dry_faults(dry: Outcome, real: Outcome, begun: bool) -> Iterator[str]:
    """Yield if `--dry-run` does not refuse what the run refuses before it trains."""
    lines = [outcome.err.splitlines()[-1:] for outcome in (dry, real)]
    if real.code == 2 and not begun and dry.code != 2:
        yield "--dry-run accepts what run refuses"
    elif dry.code == 2 and real.code != 2:
        yield "--dry-run refuses what run accepts"
    elif dry.code == real.code == 2 and lines[0] != lines[1]:
        yield "--dry-run and run refuse with other words"


def try_case(case: Case, folder: Path, undisturbed: Path) -> Trial:
    """Run the command of a case, with ``--dry-run`` first if it has one, and judge the answers.

    `undisturbed` is a folder with a finished run.
    """
    outputs: list[str] = []
    problems = dict.fromkeys(_problems(case, folder, undisturbed, outputs))
    return Trial(1, case.what, "; ".join(problems), "\n".join(outputs))


def _problems(case: Case, folder: Path, undisturbed: Path, outputs: list[str]) -> Iterator[str]:
    before, begun = snapshot(folder), folder / "out" / "suite.json"
    dry = None
    if case.dry:
        dry = command([*case.words, "--dry-run"], folder)
        outputs.append(f"--dry-run: {dry}")
        yield from faults(dry)
        yield from file_faults(before, snapshot(folder), dry.code, ())
        if dry.code is None:  # nor would the run answer
            return
    earlier = begun.exists() and begun.stat().st_mtime_ns
    outcome = command(case.words, folder, training=LIMIT if case.refused else TRAINING)
    outputs.append(str(outcome))
    after = snapshot(folder)
    yield from faults(outcome)
    yield from file_faults(before, after, outcome.code, case.writes)
    yield from output_faults(folder, after)
    if dry is not None:
        now = begun.exists() and begun.stat().st_mtime_ns
        yield from dry_faults(dry, outcome, now != earlier)
    if case.refused and outcome.code in (0, 130):
        yield f"accepted (exit code {outcome.code})"
    if case.seen and case.seen not in outcome.err:
        yield f"{case.seen} is not named"
    yield from case.checks(folder, undisturbed)


def _digest(path: Path) -> str:
    if path.is_symlink():
        return f"link to {path.readlink()}"
    if not path.is_file():
        return "folder" if path.is_dir() else "special"
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
