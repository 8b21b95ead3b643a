"""Write an audit: ``index.html``, ``audit.json`` and figures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import clbench
from clbench.audit import figures
from clbench.audit.outcome import Audit
from clbench.audit.words import REMEDY, certainty, headline, title, verdict
from clbench.core.errors import RunFolderError
from clbench.core.files import as_folder_error, write_text
from clbench.report.drawing import draw_all
from clbench.report.write import render, write_figure

FILE = "audit.json"


def check_folder(out: Path) -> None:
    """Make the folder of an audit.

    Raises
    ------
    RunFolderError
        If it cannot be made, or holds a page that no audit wrote.
    """
    with as_folder_error(out):
        out.mkdir(parents=True, exist_ok=True)
    if (out / "index.html").exists() and not (out / FILE).exists():
        raise RunFolderError(
            f"{out} has an index.html that no audit wrote. Give another folder with --out."
        )


def write_audit(audit: Audit, out: Path, formats: Sequence[str] = ("png", "svg")) -> Path:
    """Write an audit into a folder, and return the path of its page.

    Raises
    ------
    RunFolderError
        If something cannot be written.
    """
    check_folder(out)
    write_text(out / FILE, json.dumps(audit.to_json(), indent=1) + "\n")
    drawn = [
        ("changes", "What changed", figures.changes(audit)),
        ("layers", "Where it moved", figures.layers(audit)),
    ]
    pictures = [write_figure(each, out / "figures", formats) for each in draw_all(drawn, formats)]
    page = render(
        "audit.html",
        audit=audit,
        models=[
            {
                "audit": model,
                "headline": headline(model.name, model.comparison),
                "lines": verdict(model.comparison),
                "changes": [
                    ("language", model.comparison.language),
                    *((title(task), task) for task in model.comparison.tasks),
                ],
            }
            for model in audit.models
        ],
        between=[
            {
                "title": f"{pair.second} compared with {pair.first}",
                "lines": verdict(pair.comparison),
            }
            for pair in audit.between
        ],
        certainty=certainty(audit),
        remedy=REMEDY if any(m.comparison.word == "forgot" for m in audit.models) else "",
        figures=pictures,
        version=clbench.__version__,
    )
    path = out / "index.html"
    write_text(path, page)
    return path
