"""Write an audit, or a mended model with its card: pages, JSON and figures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from clbench.audit import figures
from clbench.audit.mend import SWEEP_ROWS, Mended
from clbench.audit.mixtures import TUNED
from clbench.audit.models import AuditedModel
from clbench.audit.outcome import Audit
from clbench.audit.words import REMEDY, certainty, headline, title, verdict
from clbench.core import __version__
from clbench.core.errors import RunFolderError
from clbench.core.files import as_folder_error, write_text
from clbench.figures.style import save_png
from clbench.models.checkpoint import quiet
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
        version=__version__,
    )
    path = out / "index.html"
    write_text(path, page)
    return path


def write_mended(mended: Mended, model: AuditedModel, out: Path) -> None:
    """Write ``mend.json`` and the picture of the front; and the model, if it beats the tuned one.

    The model's folder has safetensors, tokenizer and a card that says how it was made.
    """
    with as_folder_error(out):
        out.mkdir(parents=True, exist_ok=True)
    write_text(out / "mend.json", json.dumps(mended.to_json(), indent=1) + "\n")
    save_png(figures.mended_front(mended), out / "front.png")
    if mended.chosen == TUNED:
        return
    with as_folder_error(out), quiet():
        model.model.save_pretrained(str(out), safe_serialization=True)
        model.tokenizer.save_pretrained(str(out))
    write_text(out / "README.md", card(mended))


def card(mended: Mended) -> str:
    """Return the card of a mended model, in Markdown."""
    lines = [
        f"# {Path(mended.tuned).name}, mended",
        "",
        f"Weights between `{mended.base}` and `{mended.tuned}`: {mended.chosen}, chosen by clbench "
        f"on at most {SWEEP_ROWS} rows of each task, by the mean of accuracy kept "
        f"({', '.join(mended.keep)}) and accuracy learned ({mended.learn}).",
        "",
        "Accuracy on rows not used to choose the mixture:",
        "",
        "| task | tuned | mended | difference | verdict |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, change in mended.changes.items():
        values = f"{change.difference:+.3f} [{change.low:+.3f}, {change.high:+.3f}]"
        lines.append(
            f"| {name} | {mended.before[name]:.3f} | {mended.after[name]:.3f} | {values} | "
            f"{MENDED[change.word]} |"
        )
    return "\n".join(lines) + "\n"


MENDED = {
    "forgot": "worse",
    "gained": "better",
    "kept": "equivalent",
    "unclear": "no difference shown",
}
"""Labels for a mended model compared with the tuned one, by the word for each change."""
