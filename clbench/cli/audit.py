"""`clbench audit` and `clbench mend`: what fine-tuned models forgot, and how to get it back."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from clbench.cli.arguments import Only, argument, command
from clbench.cli.console import duration, note, say, show_rows, working
from clbench.core.errors import SettingsError, join_names, printable
from clbench.core.files import whole_folder
from clbench.core.options import Option, where
from clbench.suite.options import RunOptions
from clbench.suite.plugins import load_plugins

if TYPE_CHECKING:
    from clbench.audit.audit import Audit
    from clbench.audit.changes import Comparison

PARTS = ("language", "features", "behaviour")

Base = Annotated[str, argument("BASE", "Base model: built-in, a folder, or a hub name.")]
Common = Annotated[RunOptions, Only("plugins data device")]


@command
def audit(
    options: Common,
    base: Base,
    tuned: Annotated[
        list[str],
        argument("TUNED", "Models tuned from it, or folders of their PEFT adapters."),
    ],
    tasks: Annotated[
        Sequence[str] | None,
        Option(
            "Tasks to audit, or suite files that define tasks.",
            "A,B",
            default="four built-in tasks",
        ),
    ] = None,
    corpus: Annotated[
        str, Option("Text for the language loss: one text per line, or wiki40b/en.", "FILE|NAME")
    ] = "built-in",
    rows: Annotated[int, Option("Maximum rows per task.", "ROWS")] = 500,
    margin: Annotated[
        float,
        Option("A change counts as kept if its interval lies within ±X (accuracy, nats).", "X"),
    ] = 0.02,
    localise: Annotated[
        bool, Option("Restore one layer at a time to find where the loss arises; slower.")
    ] = False,
    fail_if: Annotated[
        Sequence[str],
        Option(
            "Exit with code 1 if a change in language, features or behaviour is below X and its "
            "interval below 0, such as features:-0.02.",
            "PART:X",
        ),
    ] = (),
    out: Annotated[Path, where("Folder of the page and audit.json.", "DIR")] = Path("audit"),
) -> int:
    """Find out what fine-tuned models forgot of their base model.

    Compares language, features and behaviour item by item, and shows where the models moved. Writes
    a page and audit.json. Exit code 1 if --fail-if applies.

    For example:

      clbench audit bert-base-uncased my-tuned-model
      clbench audit DIR/base DIR/tuned --tasks mine.toml --fail-if features:-0.02
    """
    # These import torch, for which --help should not wait.
    from clbench.audit import audit as auditing
    from clbench.audit.items import DEFAULT_TASKS
    from clbench.audit.page import check_folder, explanation, headline, remedy, write_audit

    conditions = [parse_condition(text) for text in fail_if or ()]
    check_folder(out)
    load_plugins(options.plugins)
    start = time.monotonic()
    with working("loading models") as tell:
        audited = auditing.audit(
            base,
            tuned,
            tasks=tasks or DEFAULT_TASKS,
            data=options.data,
            corpus=corpus,
            rows=rows,
            margin=margin,
            localise=localise,
            device=options.device,
            tell=tell,
        )
        tell("writing the page")
        page = write_audit(audited, out)
    say(*map(printable, audited.notes))
    for model in audited.models:
        say(headline(model))
        _show_measures(model.comparison)
        say(*(f"  {printable(line)}" for line in model.notes))
    for pair in audited.between:
        say(f"{printable(pair.second)} compared with {printable(pair.first)}:")
        _show_measures(pair.comparison, between=True)
    say(*filter(None, (*explanation(audited), remedy(audited))))
    say(f"Page: {page} ({duration(time.monotonic() - start)})")
    failed = [line for condition in conditions for line in failures(audited, *condition)]
    note(*failed)
    return 1 if failed else 0


@command
def mend(
    options: Common,
    base: Base,
    tuned: Annotated[str, argument("TUNED", "Model tuned from it, or a PEFT adapter.")],
    keep: Annotated[Sequence[str], Option("Tasks that the base model can do.", "A,B")],
    learn: Annotated[str, Option("Task that the model was tuned on.", "TASK")],
    out: Annotated[Path, where("Folder of the mended model.", "DIR")],
    rows: Annotated[int, Option("Maximum rows per task for the final scores.", "ROWS")] = 500,
    alpha: Annotated[
        float | None,
        Option("Take base + A · (tuned − base); default: the best of some mixtures.", "A"),
    ] = None,
    force: Annotated[bool, Option("Write the model even if it makes a task worse.")] = False,
) -> int:
    """Mix a tuned model's weights with its base model's, to get back what was forgotten.

    Tries mixtures on some rows, chooses the best by what it keeps and has learned, and scores it on
    others. Writes the model as safetensors with a card, unless no mixture beats the tuned model.
    Writes nothing, and exits with code 1, if a task to keep is worse on the other rows, or the task
    learned is worse and none to keep is better.
    """
    from clbench.audit import mend as mending
    from clbench.audit.page import write_mended
    from clbench.audit.weights import TUNED

    with whole_folder(out) as folder:
        load_plugins(options.plugins)
        with working("loading models") as tell:
            mended, model = mending.mend(
                base,
                tuned,
                keep=keep,
                learn=learn,
                data=options.data,
                rows=rows,
                alpha=alpha,
                device=options.device,
                tell=tell,
            )
            if force or not mended.worse:
                tell("writing the model")
                write_mended(mended, model, folder)
    front = out / "front.png"
    if mended.chosen == TUNED:
        say(
            f"None of the {len(mended.points) - 1} mixtures has a better mean of accuracy kept and "
            f"accuracy learned than the tuned model, so no model is written. Plot: {front}"
        )
        return 0
    numbers = ("tuned", "mended", "difference")
    lines = [
        (
            name,
            f"{mended.before[name]:.3f}",
            f"{mended.after[name]:.3f}",
            str(change),
            change.verdict,
        )
        for name, change in mended.changes.items()
    ]
    show_rows(lines, ("task", *numbers, ""), right=numbers, unbroken=0)
    if alpha is None:
        say(f"Chosen: {mended.chosen}. The accuracies are on rows not used to choose it.")
    if mended.worse:
        note(f"This mixture makes {join_names(mended.worse)} worse.")
        if not force:
            note("Nothing is written; --force writes it all the same.")
            if mended.instead is not None:
                note(
                    f"--alpha {mended.instead.alpha:g} writes a mixture that is not shown to be "
                    "worse. It was picked on the same rows: audit it on others."
                )
            return 1
    elif not any(change.verdict == "better" for change in mended.changes.values()):
        say("On these rows no task is shown to be better.")
    say(f"Model: {out}, plot: {front}")
    return 0


def parse_condition(text: str) -> tuple[str, float]:
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
    if part.strip() in PARTS and -100.0 <= least < 0.0:
        return part.strip(), least
    raise SettingsError(
        f"--fail-if {text!r}: must be PART:X. PART is one of {', '.join(PARTS)}, and X is a number "
        "from -100 to below 0, such as features:-0.02."
    )


def failures(audit: "Audit", part: str, least: float) -> Iterator[str]:
    """Yield a line for each change of `part` that is below `least`, and its interval below 0."""
    for model in audit.models:
        for each in model.comparison.measures:
            if each.part == part and each.change.difference < least and each.change.high < 0:
                yield (
                    f"--fail-if {part}:{least:g}: {printable(model.name)} fails on {each.title}, "
                    f"{each.change}."
                )


def _show_measures(comparison: "Comparison", *, between: bool = False) -> None:
    """Print a line for each measure; `between` tuned models, one for all without a difference."""
    rows, rest = [], []
    for each in comparison.measures:
        if between and each.change.verdict == "no difference shown":
            rest.append(each.title)
        else:
            word = each.change.verdict if between else each.change.word
            rows.append((f"  {word}", each.title, str(each)))
    if rows:
        show_rows(rows, unbroken=0)
    if rest:
        say(f"  no difference shown  {'; '.join(rest)}")
