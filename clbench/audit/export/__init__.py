"""Formats in which an audit is published: each is a function, which `EXPORTS` names."""

from collections.abc import Callable, Iterator
from pathlib import Path

from clbench.core.errors import RunFolderError, named
from clbench.core.files import as_folder_error, read_file, write_atomically
from clbench.core.registry import Registry

EXPORTS: Registry[Callable[..., Iterator[tuple[str, str | bytes]]]] = Registry(
    "export", group="clbench.exports"
)
"""Functions of a `clbench.audit.record.Record` that yield paths and contents, by format."""
EXPORTS.add("every-eval-ever", "clbench.audit.export.every_eval_ever:export")
EXPORTS.add("eval-results", "clbench.audit.export.eval_results:export")
EXPORTS.add("model-card", "clbench.audit.export.markdown:model_card")
EXPORTS.add("github", "clbench.audit.export.markdown:github")


def write_export(audit: Path, name: str, out: Path | None = None) -> list[Path]:
    """Write an audit in a format into a folder, and return the files.

    Raises a DataError if there is no such audit, and a RunFolderError if a file cannot be written,
    or is in the way: one that does not name clbench is the user's, and of bytes, one beside which
    no text of this export does.
    """
    from clbench.audit.record import Record, checked  # --help need not wait for numpy

    record = Record.read(audit)
    folder = out or record.folder / name
    with checked(audit):
        files = {folder / path: content for path, content in EXPORTS.get(name)(record)}
    texts = [path for path, content in files.items() if isinstance(content, str)]
    for path in files:
        with as_folder_error(path):
            beside = (t for t in texts if t.parent == path.parent and t.exists())
            signed = [path] if path in texts else beside
            if path.exists() and not any(b"clbench" in read_file(each) for each in signed):
                raise RunFolderError(f"{path} is another file. Choose another {named('out')}.")
    for path, content in files.items():
        write_atomically(path, content)
    return [*files]
