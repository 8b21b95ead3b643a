"""`clbench submit`: a run as one folder to publish, with nothing of its user or machine in it."""

import getpass
import json
import re
import shutil
import socket
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from clbench.board.manifest import MANIFEST, Manifest, facts, files_of, weights, without_paths
from clbench.board.reported import REPORTED
from clbench.board.submission import Submission, make_checks
from clbench.core import __version__
from clbench.core.errors import RunFolderError, SettingsError, describe_errors, named
from clbench.core.files import LOCK, digest, read_file, user_path, whole_folder, write_atomically
from clbench.results.archive import compress
from clbench.results.cell import CellResult
from clbench.results.score_tables import scores_frame, to_csv
from clbench.results.store import Store

TEXTS = ("model", "reason", "settings", "versions", "host", "scenario_report", "notes")
"""Fields of a cell that may hold paths."""
SHORTEST = 4
"""Characters of a user's or machine's name that are looked for; shorter ones are words, too."""
COMMON = {"root", "user", "admin", "local", "localhost", "home"}
"""Names that tell nothing of anybody."""


def submit(
    run: str | Path, name: str, out: str | Path, *, url: str = "", contact: str = ""
) -> list[str]:
    """Write the folder of a submission from a finished run; return notes for its author.

    Paths of this machine keep only their last part. The submission must pass all checks of the
    grade `reported`, else nothing is written.

    Parameters
    ----------
    run
        Folder of the run.
    name
        Title of the submission.
    out
        Folder to write, which must not exist or be empty.
    url, contact
        Where to read more, and whom to ask.

    Raises
    ------
    RunFolderError
        If the folder holds no run, the run is damaged or does not pass the checks, a plug-in has
        changed since, or something still names this machine or its user.
    SettingsError
        If `name`, `url` or `contact` cannot be written.
    """
    store, out = Store(Path(run)), user_path(out, named("out"))
    store.require()
    if out.resolve().is_relative_to(store.out.resolve()):
        raise RunFolderError(f"{named('out')} {out}: is in the run's folder. Give one outside it.")
    content = store.read()
    if content.broken:
        raise RunFolderError(content.broken[0].line("Run the suite again."))
    if content.missing:
        raise RunFolderError(f"{run}: {content.broken_lines(())[0]}")
    suite = store.read_suite()
    if not suite:
        raise RunFolderError(f"{store.suite_path} is missing or damaged. Run the suite again.")
    if not content.cells:
        raise RunFolderError(f"{run} has no cells. Give the folder of a run.")
    plugins = {file: _plugin(file, mark, suite) for file, mark in suite.get("plugins", {}).items()}
    notes: list[str] = []
    with whole_folder(out) as part:
        for cell in content.cells:
            write_atomically(part / "cells" / f"{cell.key}.json", published(cell).to_json())
        text = json.loads(read_file(store.suite_path))
        write_atomically(part / "suite.json", json.dumps(without_paths(text), indent=1) + "\n")
        reference = store.questions()[-1].reference
        Store(part).write_scores(to_csv(scores_frame(Store(part).read().cells, reference)))
        for file, path in plugins.items():
            (part / "plugins").mkdir(exist_ok=True)
            shutil.copyfile(path, part / "plugins" / file)
        notes += _named_here(part)
        compress(part)
        protocol = suite.get("protocol", {})
        hashes = weights(str(protocol.get("model", "")), protocol.get("revision"))
        if not hashes:
            notes.append(
                f"The weights of {content.cells[0].model} are not here, so the manifest has no "
                "SHA-256 of them, only the digests of the recipes."
            )
        about = facts(Store(part).read().cells)
        about["models"] = [m.model_copy(update={"sha256": hashes}) for m in about["models"]]
        fields = {"name": name, "url": url, "contact": contact}
        manifest = _manifest(fields, suite=suite["name"], files=files_of(part), **about)
        write_atomically(part / MANIFEST, manifest.to_json())
        submission = Submission(part)
        if wrong := [
            line for _, outcome in make_checks(REPORTED, submission) for line in outcome.wrong
        ]:
            more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
            first = wrong[0].replace(str(part), str(run))
            raise RunFolderError(f"{run} cannot be submitted: {first}{more}")
    return notes


def published(cell: CellResult) -> CellResult:
    """Return a cell whose texts hold no paths; the recipe must stay as it is.

    Raises a RunFolderError if the recipe names a path.
    """
    if cell.recipe != without_paths(cell.recipe):
        (path,) = list(_absolute(cell.recipe))[:1] or ["?"]
        raise RunFolderError(
            f"{cell.key}: a setting is a path of this machine ({path}), and results depend on it. "
            "Put its content into the settings, or the file beside the suite."
        )
    fields = json.loads(cell.to_json())
    fields |= {name: without_paths(fields[name]) for name in TEXTS}
    return CellResult.model_validate_json(json.dumps(fields))


def _absolute(value: Any) -> Iterator[str]:
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if isinstance(value, str) and value != without_paths(value):
        yield value
    for item in items:
        yield from _absolute(item)


def _plugin(file: str, mark: str, suite: dict[str, Any]) -> Path:
    """Return the path of a plug-in of the run, from its commands or the working folder."""
    words = [word for command in suite.get("commands", []) for word in command]
    places = dict.fromkeys(Path(word) for word in [*words, file] if Path(word).name == file)
    for path in places:
        with suppress(OSError):
            if digest(path) == mark:
                return path
    is_changed = any(path.is_file() for path in places)
    problem = "has changed since the run" if is_changed else "is not found from this folder"
    raise RunFolderError(
        f"plug-in {file}: {problem}. Call clbench submit where the run was started, with the file "
        "as it was."
    )


def _manifest(fields: dict[str, str], **others: Any) -> Manifest:
    for key, text in fields.items():
        if text != without_paths(text):
            raise SettingsError(
                f"{named(key)} {text!r}: names a folder of this machine. Leave it out."
            )
    content = {"created": f"{datetime.now(UTC):%Y-%m-%d}", "clbench": __version__}
    try:
        return Manifest.model_validate(content | fields | others)
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0])
        if key not in fields:
            raise RunFolderError(f"{MANIFEST}: {describe_errors(error)[0]}") from error
        expected = (
            "must begin with http:// or https://"
            if key == "url"
            else "is empty or no text. Give one"
        )
        if first["type"] in ("too_long", "string_too_long"):
            most = first["ctx"]["max_length"]
            raise SettingsError(f"{named(key)}: has more than {most} characters.") from error
        raise SettingsError(f"{named(key)} {fields[key]!r}: {expected}.") from error


def _named_here(folder: Path) -> list[str]:
    """Return notes on plug-ins that name this machine or its user.

    Raises a RunFolderError if any other text in the folder does.
    """
    host = socket.gethostname()
    known: Iterable[str] = {host, host.partition(".")[0], _user()}
    names = [n for n in known if len(n) >= SHORTEST and n.lower() not in COMMON]
    found = re.compile(
        "|".join(rf"(?<![\w-]){re.escape(name)}(?![\w-])" for name in names) or "(?!)"
    )
    notes = []
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and p.name != LOCK):
        if match := found.search(read_file(path).decode("utf-8", "replace")):
            line = f"{path.relative_to(folder)} names this machine or its user ({match[0]!r})."
            if path.parent.name != "plugins":  # code may name its author, and must stay as it is
                raise RunFolderError(f"{line} Remove it from names of models, files and settings.")
            notes.append(line)
    return notes


def _user() -> str:
    with suppress(OSError, KeyError, ImportError):
        return getpass.getuser()
    return ""
