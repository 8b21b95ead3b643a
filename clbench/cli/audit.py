"""`clbench audit` and `clbench mend`: what fine-tuned models forgot, and how to get it back."""

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clbench.audit.scores import PARTS
from clbench.audit.settings import AuditSettings
from clbench.cli.arguments import Only, argument, command
from clbench.cli.console import duration, megabytes, note, say, show_rows, working
from clbench.core.errors import SettingsError, join_names, named, printable
from clbench.core.files import locked, whole_folder
from clbench.core.options import Option, where
from clbench.suite.options import RunOptions
from clbench.suite.plugins import load_plugins

if TYPE_CHECKING:
    from clbench.audit.comparison import Comparison
    from clbench.audit.gate import Gate
    from clbench.audit.result import Audit

EMPTY = 3
"""Exit code of a gate that has nothing to check, or not enough evidence."""

Base = Annotated[str, argument("BASE", "Base model: built-in, a folder, or a hub name.")]
Common = Annotated[RunOptions, Only("plugins data device")]


def print_template(wanted: bool) -> None:
    """Print a gate file and end the program, if that is wanted."""
    if wanted:
        from clbench.audit.gate import TEMPLATE

        say(TEMPLATE.rstrip())
        raise typer.Exit


@command
def audit(
    options: Annotated[RunOptions, Only("plugins device")],
    base: Base,
    tuned: Annotated[
        list[str],
        argument("TUNED", "Models tuned from it, or folders of their PEFT adapters."),
    ],
    settings: Annotated[
        AuditSettings,
        Only(
            "tasks data corpus rows questions rephrase texts margin detect until_settled localise "
            "relearn relearn_rate"
        ),
    ],
    logs: Annotated[
        bool,
        Option(
            "BASE and TUNED are folders or files of logs: of lm-eval, lighteval, inspect or Every "
            "Eval Ever, or tables. No model is loaded."
        ),
    ] = False,
    fail_if: Annotated[
        Sequence[str],
        Option(
            "Exit with code 1 if a change in PART, such as behaviour, features, language or "
            "knowledge, is below X and its interval below 0: features:-0.02.",
            "PART:X",
        ),
    ] = (),
    require: Annotated[
        Sequence[str],
        Option("Exit with code 1 unless all changes (in PART) are kept or gained.", "[PART:]kept"),
    ] = (),
    gate: Annotated[
        Path | None,
        Option("Decide by what this file requires: exit code 0, 1 or 3.", "GATE.toml"),
    ] = None,
    gate_template: Annotated[
        bool,
        typer.Option(
            "--gate-template",
            help="Print a file for --gate, and exit.",
            is_eager=True,
            callback=print_template,
        ),
    ] = False,
    with_texts: Annotated[
        bool, Option("Write the texts of all items into audit.json, beside their digests.")
    ] = False,
    dry_run: Annotated[
        bool,
        Option("Print models, tasks, rows and the memory needed; load no weights, write nothing."),
    ] = False,
    out: Annotated[
        Path | None,
        where("Folder of the page and audit.json.", "DIR", default="audit/MODELS-DIGEST"),
    ] = None,
) -> int:
    """Find out what fine-tuned models forgot of their base model.

    Compares language, features and behaviour item by item, and shows where the models moved. Writes
    a page and audit.json. Exit code 1 if --fail-if applies, --require does not hold or --gate
    fails, and 3 if one of them names a part that was not measured, or the gate lacks evidence.

    For example:

      clbench audit bert-base-uncased my-tuned-model
      clbench audit DIR/base DIR/tuned --tasks mine.toml --require features:kept
      clbench audit --logs lm-eval/base lm-eval/tuned --fail-if arithmetic:-0.02
      clbench audit --gate-template > gate.toml
    """
    from clbench.audit import page as pages
    from clbench.audit.gate import read_gate
    from clbench.audit.record import FILE

    requirements = None if gate is None else read_gate(gate)
    gates = [*map(parse_condition, fail_if or ()), *map(parse_requirement, require or ())]
    load_plugins(options.plugins)
    start = time.monotonic()
    if dry_run and not logs:
        say(*preview_lines(base, tuned, settings, options.device, requirements))
        return 0
    if logs:
        has_device = options.device != RunOptions().device
        check_needs_no_model(settings, device=has_device, with_texts=with_texts, dry_run=dry_run)
        from clbench.audit.logs.audit import audit_logs

        with working("reading logs") as tell:
            tasks, margin = settings.tasks, settings.margin
            audited = audit_logs(
                base, tuned, tasks=tasks, margin=margin, gate=requirements, tell=tell
            )
        identity = audited.identity
    else:  # these import torch, for which --help and logs should not wait
        from clbench.audit import audit as auditing

        settings = auditing.with_tasks(settings, base)
        identity = auditing.identify(base, tuned, settings)
    out = out or pages.default_folder(base, tuned, identity)
    pages.check_folder(out, identity)
    with locked(out, marker=out / FILE), working("writing the page") as tell:
        if not logs:
            tell("loading models")
            own = {**vars(settings), "gate": requirements, "device": options.device}
            audited = auditing.audit(base, tuned, **own, tell=tell, note=note)
        tell("writing the page")
        page = pages.write_audit(audited, out, with_texts=with_texts)
    show(audited)
    say(f"Page: {page} ({duration(time.monotonic() - start)})")
    return exit_code(audited, gates)


def check_needs_no_model(settings: AuditSettings, **flags: bool) -> None:
    """Raise a SettingsError if a setting or flag was given that needs models."""
    given = [f.name for f in fields(settings) if getattr(settings, f.name) != f.default]
    wrong = [name for name in given if name not in ("tasks", "data", "margin")]
    if wrong := wrong + [name for name, is_given in flags.items() if is_given]:
        raise SettingsError(f"{named(wrong[0])} needs models. Leave it out with --logs.")


def show(audited: "Audit") -> None:
    """Print what an audit found."""
    from clbench.audit import page as pages

    say(*pages.decisions(audited), *map(printable, audited.notes))
    for model in audited.models:
        say(pages.headline(model, audited.base))
        _show_measures(model.comparison)
        say(*(f"  {printable(str(line))}" for line in (*model.relearned, *model.notes)))
    for pair in audited.between:
        same = " the same weights" if pair.comparison.identical else ""
        say(f"{printable(pair.second)} compared with {printable(pair.first)}:{same}")
        _show_measures(pair.comparison, between=True)
    say(*filter(None, (*pages.explanation(audited), pages.remedy(audited))))


def exit_code(audited: "Audit", gates: Sequence[tuple[str, float | None]]) -> int:
    """Print what fails, or was not measured, and return the exit code for it."""
    from clbench.audit.gate import CODES

    failed = [line for gate in gates for line in failures(audited, *gate)]
    empty = [
        f"error: {part} of {printable(model.name)} was not measured, so no gate can check it."
        for model in audited.models
        for part in sorted({part for part, _ in gates} - {"", *model.comparison.words})
    ]
    note(*failed, *empty)
    codes = {CODES[model.decision.word] for model in audited.models if model.decision}
    return 1 if failed or 1 in codes else EMPTY if empty or EMPTY in codes else 0


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
    merge: Annotated[
        bool, Option("Merge a LoRA adapter into its base; default: scale it, and keep it one.")
    ] = False,
    force: Annotated[bool, Option("Write the model even if it makes a task worse.")] = False,
) -> int:
    """Mix a tuned model's weights with its base model's, to get back what was forgotten.

    Tries mixtures on some rows, chooses the best by what it keeps and has learned, and scores it on
    others. Writes the model as safetensors with a card, unless no mixture beats the tuned model; of
    a LoRA adapter, the scaled adapter.
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
                merge=merge,
                device=options.device,
                tell=tell,
            )
            if force or not mended.worse:
                tell("writing the model")
                write_mended(mended, model, folder)
    front = out / "front.png"
    say(*map(printable, mended.notes))
    merged = []
    if mended.merged is not None:
        mixture, changes = mended.merged
        differences = "; ".join(f"{name} {change}" for name, change in changes.items())
        merged = [f"A merged model ({mixture}; --merge) minus this adapter: {differences}."]
    if mended.chosen == TUNED:
        number, which = len(mended.points) - 1, "mixtures"
        if mended.write_adapter is not None:
            number, which = number - len(mending.TRIMS), "mixtures that stay an adapter"
        say(
            f"None of the {number} {which} has a better mean of accuracy kept and accuracy learned "
            f"than the tuned model, so no model is written. Plot: {front}",
            *merged,
        )
        return 0
    numbers = ("tuned", "mended", "difference")
    lines = [
        (name, f"{before:.3f}", f"{after:.3f}", str(change), change.verdict)
        for name, before, after, change in mended.unseen
    ]
    show_rows(lines, ("task", *numbers, ""), right=numbers, unbroken=0)
    if alpha is None:
        say(f"Chosen: {mended.chosen}. The accuracies are on rows not used to choose it.")
    say(*merged)
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


def preview_lines(
    base: str, tuned: Sequence[str], settings: AuditSettings, device: str, gate: "Gate | None"
) -> Iterator[str]:
    """Yield what an audit would load and compare, and whether it fits into memory."""
    from clbench.audit.preview import preview
    from clbench.runner.fit import room_mb, total_mb
    from clbench.runner.resources import Resources
    from clbench.training.device import resolve_device

    room = room_mb(resolve_device(device), Resources()) or 0.0
    plan = preview(base, tuned, settings, gate)
    for name, size in plan.weights_mb.items():
        yield f"{printable(name)}: {megabytes(size)} of weights in float32"
    tasks = [f"{name} ({size:,})" for name, size in plan.sizes.items()]
    yield f"Items: {', '.join(tasks)}; {plan.texts} texts for the language loss"
    peak, need = plan.peak_mb, total_mb(plan.peak_mb)
    yield f"Memory: up to {megabytes(peak)} of tensors, {megabytes(need)} with all that runs them."
    if settings.relearn is not None or settings.localise:
        yield "Not included: relearning and localising keep copies of weights."
    if need > room:
        advice = "Use a larger machine."
        if len(tuned) > 1:
            alone = max(total_mb(preview(base, [name], settings).peak_mb) for name in tuned)
            advice = f"One tuned model at a time needs {megabytes(alone)}, which is enough."
            if alone > room:
                advice = f"One at a time needs {megabytes(alone)}: use a larger machine."
        yield f"There are {megabytes(room)}, which is too little. {advice}"


def parse_condition(text: str) -> tuple[str, float]:
    """Return part and number of a condition such as ``features:-0.02``."""
    part, _, number = text.partition(":")
    with suppress(ValueError):
        if part.strip() in PARTS and -100.0 <= float(number) < 0.0:
            return part.strip(), float(number)
    raise SettingsError(
        f"--fail-if {text!r}: must be PART:X. PART is one of {', '.join(PARTS)}, and X is a number "
        "from -100 to below 0, such as features:-0.02."
    )


def parse_requirement(text: str) -> tuple[str, None]:
    """Return the part of a requirement such as ``features:kept``, empty for ``kept``, and None."""
    for part in ("", *PARTS):
        if text.replace(" ", "") == f"{part}:kept".lstrip(":"):
            return part, None
    raise SettingsError(
        f"--require {text!r}: must be kept or PART:kept. PART is one of {', '.join(PARTS)}."
    )


def failures(audit: "Audit", part: str, least: float | None) -> Iterator[str]:
    """Yield a line for each change of `part`, or of all if it is empty, that fails a gate.

    That is below `least` with its interval below 0; or, without `least`, neither kept nor gained,
    or kept where nothing can show forgetting.
    """
    gate = f"--require {part}:kept".replace(" :", " ")
    if least is not None:
        gate = f"--fail-if {part}:{least:g}"
    for model in audit.models:
        for each in model.comparison.measures:
            change = each.change
            is_kept = change.word == "kept" and not each.cannot_show_forgetting
            fails = change.word != "gained" and not is_kept
            if least is not None:
                fails = change.difference < least and change.high < 0
            if fails and part in ("", each.part):
                name = printable(model.name)
                yield f"{gate}: {name} fails on {each.title}, {change.word}: {each}."


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
