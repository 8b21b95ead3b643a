"""The page of an audit, and the card of a mended model: verdicts in words, numbers and figures."""

import json
import math
import re
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from clbench.audit.changes import Change
from clbench.audit.comparison import MeasureChange
from clbench.audit.gate import CODES
from clbench.audit.record import FILE, FORMAT
from clbench.audit.result import Audit, ModelAudit
from clbench.core import __version__, files
from clbench.core.errors import ModelError, RunFolderError, named, printable
from clbench.core.files import as_folder_error, write_atomically
from clbench.figures import style
from clbench.report.drawing import FORMATS, draw_all
from clbench.report.files import render, write_figure

if TYPE_CHECKING:  # these need torch, which audits of logs do without
    from clbench.audit.mend import Mended
    from clbench.audit.models import AuditedModel


def default_folder(base: str, tuned: Sequence[str], identity: str) -> Path:
    """Return the folder of an audit by its models' names and its identity (`audit.identify`)."""
    names = "-".join(Path(name).name for name in (base, *tuned))
    safe = re.sub(r"[^\w.-]+", "-", names)[:60].strip(".-")
    return Path("audit") / f"{safe}-{identity[:8]}"


def check_folder(out: Path, identity: str) -> None:
    """Raise a RunFolderError if the audit with this identity cannot be written into a folder.

    This includes that another audit or the user wrote a file in it. Writes nothing.
    """
    files.check_folder(out)
    figures = (f"figures/{name}.{kind}" for name in ("changes", "layers") for kind in FORMATS)
    written = (file for file in (FILE, "index.html", *figures) if (out / file).exists())
    if (file := next(written, None)) is None:
        return
    other = f"a file {file}"
    with suppress(OSError, ValueError, KeyError, TypeError):  # of a file that is no audit
        found = json.loads(files.read_file(out / FILE))
        if found["format"] == FORMAT and found.get("identity") == identity:
            return
        names = ", ".join(model["model"] for model in found["models"])
        other = f"the audit of {names} against {found['base']} with other settings"
    raise RunFolderError(f"{out} already has {other}. Choose another {named('out')}.")


def content_of(audit: Audit, with_texts: bool = False) -> dict[str, Any]:
    """Return the content of ``audit.json``, with the texts of the items if asked for."""
    made = {"version": __version__, "date": datetime.now(UTC).isoformat(timespec="seconds")}
    content = {**audit.to_json(), **made}
    for entry, model in zip(content["models"], audit.models, strict=True):
        changes = (*model.comparison.changes, *model.comparison.exploratory)
        entry["headline"] = headline(model, audit.base)
        entry["items"] = [each.item_table(with_texts) for each in changes]
    return content


def write_audit(
    audit: Audit, out: Path, formats: Sequence[str] = ("png", "svg"), with_texts: bool = False
) -> Path:
    """Write an audit into a folder, and return the path of its page; errors as `check_folder`.

    ``audit.json`` holds the texts of the items only `with_texts`.
    """
    check_folder(out, audit.identity)
    text = json.dumps(content_of(audit, with_texts), indent=1)
    text = re.sub(r"\[[^\[\]{}]*\]", lambda plain: re.sub(r"\n *", "", plain[0]), text)
    write_atomically(out / FILE, f"{text}\n")
    drawn = [("changes", "What changed", partial(draw_changes, audit))]
    if audit.models[0].layers:
        drawn.append(("layers", "Where it moved", partial(draw_layers, audit)))
    page = render(
        "audit.html",
        audit=audit,
        headline=headline,
        decisions=decisions(audit),
        explanation=explanation(audit),
        remedy=remedy(audit),
        figures=[write_figure(each, out / "figures", formats) for each in draw_all(drawn, formats)],
        version=__version__,
    )
    path = out / "index.html"
    write_atomically(path, page)
    return path


def write_mended(mended: "Mended", model: "AuditedModel", out: Path) -> None:
    """Write ``mend.json`` and the front into a folder; and the model, if it beats the tuned one.

    The model, or the scaled adapter, is written as safetensors with the tokenizer of its source and
    a card that says how it was made, and read again. Raises a RunFolderError if something cannot be
    written.
    """
    from transformers import AutoTokenizer

    from clbench.audit.models import digest_of, load_base
    from clbench.audit.weights import TUNED
    from clbench.models.checkpoint import quiet

    write_atomically(out / "mend.json", json.dumps(mended.to_json(), indent=1) + "\n")
    write_atomically(out / "front.png", partial(style.save_png, draw_front(mended)))
    if mended.chosen == TUNED:
        return
    write_atomically(out / "README.md", card(mended))
    with as_folder_error(out), quiet():
        try:
            tokenizer = AutoTokenizer.from_pretrained(  # model.tokenizer may add a start token
                model.tokenizer_folder or model.tokenizer.name_or_path,
                trust_remote_code=False,
                local_files_only=True,
            )
            tokenizer.chat_template = model.tokenizer.chat_template
            tokenizer.save_pretrained(str(out))
            if mended.write_adapter is not None:
                mended.write_adapter(out)
                return
            model.model.save_pretrained(str(out), safe_serialization=True)
        except ModelError:
            raise
        except Exception as error:  # safetensors and tokenizers have their own for a full disk
            raise error if isinstance(error, OSError) else OSError(str(error)) from error
        if digest_of(load_base(str(out)).model) != digest_of(model.model):
            raise OSError("the weights that were read again are others")


def card(mended: "Mended") -> str:
    """Return the card of a mended model, in Markdown."""
    from clbench.audit.mend import SWEEP_ROWS

    how, rows = "as asked for", ""
    if mended.settings.get("alpha") is None:
        how = (
            f"chosen by clbench on at most {SWEEP_ROWS} rows of each task, by the mean of accuracy "
            f"kept ({', '.join(mended.keep)}) and accuracy learned ({mended.learn})"
        )
        rows = " on rows not used to choose the mixture"
    what = f"Weights between `{mended.base}` and `{mended.tuned}`"
    if mended.write_adapter is not None:
        what = f"An adapter of `{mended.base}`: `{mended.tuned}`, scaled"
    lines = [
        f"# {Path(mended.tuned).name}, mended",
        "",
        f"{what}: {mended.chosen}, {how}.",
        "",
        f"Accuracy{rows}:",
        "",
        "| task | tuned | mended | difference | verdict |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, tuned, own, change in mended.unseen:
        lines.append(f"| {name} | {tuned:.3f} | {own:.3f} | {change} | {change.verdict} |")
    lines += [text for each in mended.notes for text in ("", each)]
    return "\n".join(lines) + "\n"


REMEDY = (
    "What to try: clbench mend BASE TUNED --keep TASK --learn TASK --out DIR averages the weights "
    "with those of the base model, without training. In one benchmark of the built-in model, such "
    "averaging (wise-ft) kept 0.055 more accuracy on the old task and cost 0.074 on the new one. "
    "Training again with old rows mixed in (replay) kept 0.132 more and cost 0.090."
)
"""From ``docs/quick.md``: ten seeds, differences from plain fine-tuning."""


def decisions(audit: Audit) -> list[str]:
    """Return a line for each model on whether it passes the gate, the worst first; none without."""
    made = [(each.decision, each.name) for each in audit.models if each.decision is not None]
    made.sort(key=lambda pair: list(CODES).index(pair[0].word))
    return [decision.headline(name) for decision, name in made]


def headline(model: ModelAudit, base: str) -> str:
    """Return the verdict on what a model is used for in one line, and the words of the rest."""
    if model.comparison.identical:
        return f"{printable(model.name)} has the same weights as {printable(base)}"
    (part, word), *rest = model.comparison.words.items()
    verdicts = {
        "forgot": f"forgot something in {part}",
        "unclear": f"no loss in {part} is shown, but some changes are unclear",
        "gained": f"no loss in {part} is shown, and a gain is",
        "kept": f"all changes in {part} are within the margin",
    }
    by_word = {word: [name for name, each in rest if each == word] for word in verdicts}
    others = "".join(f"; {', '.join(names)}: {w}" for w, names in by_word.items() if names)
    return f"{printable(model.name)}: {verdicts[word]}{others}"


def explanation(audit: Audit) -> list[str]:
    """Return sentences on what the numbers and words mean, and how sure they are."""
    loss = any(model.comparison.language for model in audit.models)
    looks = audit.settings.get("looks", ())
    times = [f"{look / looks[0]:g}" for look in looks]
    return [
        "Below 0 is worse: differences are tuned minus base in accuracy"
        + (
            ", base minus tuned in loss (nats per token) and calibration." if loss else " or score."
        ),
        f"kept: the interval lies within ±{audit.settings['margin']:g}. forgot or gained: it does "
        "not, and excludes 0. unclear: neither.",
        "All intervals of a model hold jointly at 95 % or more, so the risk of even one false "
        "forgot, gained or kept is at most 5 %.",
        *(
            [
                f"Looks were planned at {', '.join(times)} times as many items. This one, at "
                f"{audit.settings['rows'] / looks[0]:g} times, spends "
                f"{audit.settings['alpha']:.4f} of the error rate, so these risks are those of all "
                "looks together."
            ]
            if len(looks) > 1
            else []
        ),
    ]


def remedy(audit: Audit) -> str:
    """Return what to try if a model forgot something; else nothing."""
    words = {each.change.word for model in audit.models for each in model.comparison.measures}
    return REMEDY if "forgot" in words else ""


ROW = 0.28
"""Height of a row in inches."""


def draw_changes(audit: Audit) -> Figure:
    """Draw the change of each measure with its interval, for every tuned model."""
    looks = style.looks_of([model.name for model in audit.models])
    names = list(
        dict.fromkeys(_label(task) for each in audit.models for task in each.comparison.tasks)
    )
    height = 1.1 + ROW * max(2, len(names)) * (0.6 + 0.4 * len(audit.models))
    loss = any(model.comparison.language for model in audit.models)
    panels = bool(names) + loss
    figure, grid = style.panels(panels, width=8.4 / panels, height=height, columns=panels)
    rest = grid[bool(names) :]
    places = {name: len(names) - 1 - i for i, name in enumerate(names)}
    for number, model in enumerate(audit.models):
        look = looks[model.name]
        shift = 0.5 * ((number + 0.5) / len(audit.models) - 0.5)
        for task in model.comparison.tasks:
            _draw(grid[0], task.change, places[_label(task)] - shift, look)
        if rest and model.comparison.language is not None:
            _draw(rest[0], model.comparison.language.change, -shift, look)
    margin = audit.settings["margin"]
    rows = [{places[n]: n for n in names}] * bool(names) + [{0: "language"}] * loss
    for axes, ticks in zip(grid, rows, strict=True):
        axes.axvspan(-margin, margin, color=style.LIGHT, lw=0, alpha=0.6)
        axes.axvline(0, color=style.GREY, lw=0.8)
        axes.set_yticks(list(ticks), list(style.short_labels(ticks.values()).values()))
        axes.set_ylim(min(ticks) - 0.6, max(ticks) + 0.6)
    if names:
        grid[0].set_xlabel("change in accuracy" if rest else "change in score")
    for axes in rest:
        axes.set_xlabel("change in nats of loss, sign turned")
    style.legend(figure, looks)
    return style.captioned(
        figure,
        f"Change from {audit.base}"
        + (", by probes of the features where no part is named" if rest else "")
        + "; left of 0 is worse. All intervals of a model hold jointly at 95 %. Filled marks: a "
        f"loss or gain is shown. Changes inside the grey band, ±{margin:g}, do not matter.",
    )


def _label(task: MeasureChange) -> str:
    return task.task if task.part == "features" else f"{task.task}, {task.part}"


def _draw(axes: Axes, change: Change, place: float, look: style.Look) -> None:
    axes.plot([change.low, change.high], [place, place], color=look.color, lw=1.5)
    is_shown = change.verdict in ("worse", "better")
    axes.plot(
        *(change.difference, place, look.mark),
        ms=6 * look.scale,
        color=look.color,
        mfc=look.color if is_shown else "white",
        mew=1.2,
    )


MOST_LABELS = 14
"""Most layers that are named below a figure."""


def draw_layers(audit: Audit) -> Figure:
    """Draw how far each group of layers moved, and what putting it back regains."""
    looks = style.looks_of([model.name for model in audit.models])
    names = [
        layer.name.replace("layer.", "").replace("embeddings", "emb.")
        for layer in audit.models[0].layers
    ]
    back = any(each.features is not None for model in audit.models for each in model.put_back)
    figure, grid = style.panels(3 if back else 2, width=3.6, height=2.8)
    for model in audit.models:
        color, mark, scale, line = looks[model.name]
        series = [[layer.weights for layer in model.layers]]
        series.append([layer.similarity for layer in model.layers])
        if back:
            gains = (each.features for each in model.put_back)
            series.append([math.nan if gain is None else gain for gain in gains])
        for axes, values in zip(grid, series, strict=True):
            axes.plot(names, values, marker=mark, ms=4 * scale, ls=line, lw=1.5, color=color)
    texts = ("relative change of weights", "CKA of hidden states", "accuracy regained if restored")
    for axes, text in zip(grid, texts, strict=False):
        axes.set_ylabel(text)
        axes.set_xlabel("layer")
        axes.grid(axis="y", lw=0.4, alpha=0.6)
        every = math.ceil(len(names) / MOST_LABELS)
        axes.set_xticks(range(0, len(names), every), names[::every])
        axes.tick_params(axis="x", rotation=45 if len(names) > 8 else 0)
    style.legend(figure, looks)
    caption = (
        "Left: distance of the weights of each group of layers from the base model’s, as a share "
        "of their norm. Then: linear CKA of the hidden states behind it with the base model’s at "
        "the same tokens; 1 is equal."
    )
    if back:
        parts = {each.part for model in audit.models for each in model.comparison.tasks}
        what = "probes’ mean accuracy" if "features" in parts else "mean accuracy on general tasks"
        caption += (
            f" Right: change of the {what} if this group alone gets the base model’s weights back; "
            "above 0, restoring it helps."
        )
    return style.captioned(figure, caption)


def draw_front(mended: "Mended") -> Figure:
    """Draw what each mixture keeps against what it has learned, with the front and the choice."""
    from clbench.audit.weights import BASE, TUNED

    figure, (axes,) = style.panels(1, width=5.0, height=4.0)
    plain = [p for p in mended.points if not p.mixture.groups]
    one, two, three, *_ = style.PALETTE
    for name, mark, line, color, points in (
        ("one α", "o", "-", one, [p for p in plain if p.mixture.largest == 1.0]),
        ("α by layer group", "v", "none", two, [p for p in mended.points if p.mixture.groups]),
        ("largest changes alone", "^", "none", three, [p for p in plain if p.mixture.largest < 1]),
        ("front", "", "-", style.GREY, mended.front),
    ):
        x, y = [p.learned for p in points], [p.kept for p in points]
        axes.plot(x, y, marker=mark, ls=line, lw=0.8, ms=5, color=color, alpha=0.7, label=name)
    places = {p.mixture: (p.learned, p.kept) for p in mended.points}
    for name, mixture in (("base", BASE), ("tuned", TUNED)):
        at = places[mixture]
        axes.annotate(name, at, xytext=(5, 5), textcoords="offset points", fontsize="small")
    axes.plot(*places[mended.chosen], "o", ms=12, mfc="none", color=style.BLACK, label="chosen")
    axes.set_xlabel(f"accuracy on {mended.learn}")
    axes.set_ylabel("mean accuracy on the tasks to keep")
    axes.legend(frameon=False, fontsize="small")
    return style.captioned(
        figure,
        "What mixtures of base and tuned weights keep and have learned, on the rows on which the "
        "choice was made.",
    )
