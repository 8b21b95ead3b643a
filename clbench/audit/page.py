"""Write an audit, or a mended model with its card: pages, JSON and figures, in plain words."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from clbench.audit import figures
from clbench.audit.changes import Change, Word
from clbench.audit.mend import SWEEP_ROWS, TUNED, Mended
from clbench.audit.models import AuditedModel
from clbench.audit.outcome import Audit, Between, Comparison, LanguageChange, ModelAudit, TaskChange
from clbench.core import __version__
from clbench.core.errors import RunFolderError, SettingsError, printable
from clbench.core.files import as_folder_error, write_atomically
from clbench.figures.style import save_png
from clbench.models.checkpoint import quiet
from clbench.report.files import draw_all, render, write_figure

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
    write_atomically(out / FILE, json.dumps(audit.to_json(), indent=1) + "\n")
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
    write_atomically(path, page)
    return path


def write_mended(mended: Mended, model: AuditedModel, out: Path) -> None:
    """Write ``mend.json`` and the picture of the front; and the model, if it beats the tuned one.

    The model's folder has safetensors, tokenizer and a card that says how it was made.
    """
    with as_folder_error(out):
        out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / "mend.json", json.dumps(mended.to_json(), indent=1) + "\n")
    save_png(figures.mended_front(mended), out / "front.png")
    if mended.chosen == TUNED:
        return
    with as_folder_error(out), quiet():
        model.model.save_pretrained(str(out), safe_serialization=True)
        model.tokenizer.save_pretrained(str(out))
    write_atomically(out / "README.md", card(mended))


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


REMEDY = (
    "What to try: clbench mend BASE TUNED --keep TASK --learn TASK --out DIR averages the weights "
    "with those of the base model, without training. In one benchmark of the built-in model, such "
    "averaging (wise-ft) kept 0.055 more accuracy on the old task and cost 0.074 on the new one. "
    "Training again with old rows mixed in (replay) kept 0.132 more and cost 0.090."
)
"""From the README: ten seeds, differences from plain fine-tuning."""
PARTS = ("language", "features", "behaviour")
FailPart = Literal["language", "features", "behaviour"]


def title(change: TaskChange | LanguageChange) -> str:
    """Return what a change is about."""
    if isinstance(change, LanguageChange):
        return "language"
    return f"{change.task}, {change.part}"


@dataclass(frozen=True)
class Line:
    """A line of the verdict: the word for a change, what it is about, and its numbers."""

    word: Word
    about: str
    numbers: str


def verdict(comparison: Comparison) -> list[Line]:
    """Return a line for each change, losses first."""
    order: tuple[Word, ...] = ("forgot", "unclear", "gained", "kept")
    both: list[TaskChange | LanguageChange] = [comparison.language, *comparison.tasks]
    return [
        Line(each.change.word, title(each), _numbers(each))
        for word in order
        for each in both
        if each.change.word == word
    ]


def _numbers(change: TaskChange | LanguageChange) -> str:
    text = interval(change.change)
    if isinstance(change, LanguageChange):
        return f"{text} nats"
    flips = change.flips
    return f"{text}, {flips.lost} lost and {flips.gained} gained of {flips.n} items"


def interval(change: Change) -> str:
    """Return a change with its interval."""
    values = (round(v, 3) + 0.0 for v in (change.difference, change.low, change.high))
    return "{:+.3f} [{:+.3f}, {:+.3f}]".format(*values)


def headline(name: str, comparison: Comparison) -> str:
    """Return the verdict of a model in one line."""
    what = {
        "forgot": "forgot something",
        "unclear": "no loss is shown, but some changes are unclear",
        "gained": "no loss is shown, and a gain is",
        "kept": "all changes are within the margin",
    }
    return f"{printable(name)}: {what[comparison.word]}"


def between(pair: Between) -> str:
    """Return the title of a comparison of two tuned models."""
    return f"{printable(pair.second)} compared with {printable(pair.first)}:"


def certainty(audit: Audit) -> str:
    """Return what the words mean, and how sure they are."""
    number, margin = len(audit.models[0].comparison.changes), audit.settings["margin"]
    return (
        "Differences are tuned minus base in accuracy and, for language, base minus tuned in loss "
        f"(nats per token): negative is worse. Kept: the interval lies within ±{margin:g}. Forgot "
        "or gained: otherwise, if it excludes 0. Unclear: neither. Holm's correction covers the "
        f"{number} tests of each model (exact McNemar tests of flipped items, a paired t test of "
        "losses): if no measure truly differs, a model is said to have forgotten or gained "
        "something with a probability of at most 5 %."
    )


def failures(audit: Audit, conditions: Sequence[tuple[FailPart, float]]) -> list[str]:
    """Return a line for each change that fails a condition.

    A condition such as ``("features", -0.02)`` fails if a change of that part is below the number
    and its interval below 0.
    """
    return [
        f"--fail-if {part}:{least:g}: {printable(model.name)} fails on {title(each)}, "
        f"{interval(each.change)}."
        for model in audit.models
        for part, least in conditions
        for each in _of(model, part)
        if each.change.difference < least and each.change.high < 0
    ]


def _of(model: ModelAudit, part: FailPart) -> Sequence[TaskChange | LanguageChange]:
    if part == "language":
        return [model.comparison.language]
    return model.comparison.of(part)


def parse_condition(text: str) -> tuple[FailPart, float]:
    """Return part and number of a condition such as ``features:-0.02``.

    Raises
    ------
    SettingsError
        If it has another form, or the number is not below 0.
    """
    part, _, number = text.partition(":")
    try:
        least = float(number)
    except ValueError:
        least = 0.0
    for known in PARTS:
        if part.strip() == known and -100.0 <= least < 0.0:
            return known, least  # type: ignore[return-value]
    raise SettingsError(
        f"--fail-if {text!r}: must be PART:X. PART is one of {', '.join(PARTS)}, and X is a number "
        "from -100 to below 0, such as features:-0.02."
    )
