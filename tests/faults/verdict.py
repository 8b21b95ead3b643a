"""What counts as well answered."""

import hashlib
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from faults.sandbox import Outcome, command, stamp

LINES, WIDTH = 3, 2_500
"""Lines on stderr of a refused input, and characters of any line."""
CODES = (0, 1, 2, 130)
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
WARNING = re.compile(r"(?<!bad)\.py:\d+: \w*Warning")  # bad.py is a plug-in, which may warn
NUMBERS = re.compile(r"(^|,)(nan|-?inf(inity)?)(,|$)", re.IGNORECASE | re.MULTILINE)
SCRIPT = "<script>alert"
LEFT = ("out/.lock",)

Files = Mapping[str, str]


def snapshot(folder: Path) -> Files:
    """Return a digest of every file below `folder`; links and special files by their kind."""
    return {str(path.relative_to(folder)): _digest(path) for path in sorted(folder.rglob("*"))}


def _digest(path: Path) -> str:
    if path.is_symlink():
        return f"link to {path.readlink()}"
    if not path.is_file():
        return "folder" if path.is_dir() else "special"
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()


def faults(outcome: Outcome, *, trained: bool = False) -> Iterator[str]:
    """Yield what is wrong with how a command answered; lines of progress do not count."""
    if outcome.code is None:
        yield "no answer in time"
    elif outcome.code not in CODES:
        yield f"exit code {outcome.code}"
    for name, text in (("stdout", outcome.out), ("stderr", outcome.err)):
        # Python itself prints and drops a Ctrl-C that meets the finalizer of an object.
        if "Traceback" in text and not (outcome.interrupted and "KeyboardInterrupt" in text):
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


@dataclass(frozen=True)
class Templates:
    """Valid folders to copy: with a suite; with finished runs of it."""

    inputs: Path
    runs: Path


def fresh(template: Path, folder: Path) -> Path:
    """Return a new copy of a folder."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(template, folder)
    return folder


@dataclass
class Judge:
    """Tries commands in fresh copies of valid folders, and counts them."""

    templates: Templates
    folder: Path
    thorough: bool
    tried: int = 0

    def fresh(self, *, finished: bool = False) -> Path:
        """Return a valid folder to spoil; a `finished` one has two equal runs."""
        return fresh(self.templates.runs if finished else self.templates.inputs, self.folder)

    def answer(
        self,
        what: str,
        words: list[str],
        *,
        dry: bool = False,
        refused: bool = False,
        writes: Sequence[str] = ("out",),
    ) -> str | None:
        """Run a command in the folder, which must answer well; return what is on stderr.

        With `dry` it is run with ``--dry-run`` first, and only so unless the judge is `thorough`;
        None is returned then. A command that is not to be `refused` may be, or accept its input
        and write into the folders `writes`.
        """
        self.tried += 1
        before, begun = snapshot(self.folder), self.folder / "out" / "suite.json"
        earlier, rehearsal = stamp(begun), None
        if dry:
            rehearsal = command([*words, "--dry-run"], self.folder)
            problems = [*faults(rehearsal)]
            problems += file_faults(before, snapshot(self.folder), rehearsal.code, ())
            assert not problems, f"{what}: {problems}\n--dry-run: {rehearsal}"
            if not self.thorough:
                return None
        outcome, after = command(words, self.folder), snapshot(self.folder)
        problems = [*faults(outcome), *file_faults(before, after, outcome.code, writes)]
        problems += output_faults(self.folder, after)
        if rehearsal:
            problems += dry_faults(rehearsal, outcome, stamp(begun) != earlier)
        if refused and outcome.code in (0, 130):
            problems.append("accepted")
        assert not problems, f"{what}: {problems}\n{outcome}\n--dry-run: {rehearsal}"
        return outcome.err
