"""Markdown: a section for the card of a model on the hub, and a summary for a pull request."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from clbench.audit.record import Record, measures
from clbench.core.errors import printable
from clbench.core.files import folders

HEADER = ("measure", "base", "tuned", "change", "lost", "gained", "items", "verdict")
WORST_FIRST = ("fail", "not enough evidence", "pass")


def model_card(record: Record) -> Iterator[tuple[str, str | bytes]]:
    """Yield ``MODEL/forgetting.md`` for each tuned model, and beside it the audit's figure."""
    content, figure = record.content, record.folder / "figures" / "changes.png"
    places = folders(model["model"] for model in content["models"])
    picture = ["![Change of each measure, with its interval](forgetting.png)", ""]
    base = escaped(content["base"])
    made = f"clbench audit {content['version']} {content['date'][:10]}"
    for model in content["models"]:
        line = escaped(model["headline"])
        lines = ["## Forgetting", "", f"Compared item by item with {base} ({made}). {line}.", ""]
        if gate := model.get("gate"):
            lines += [f"{escaped(gate['headline'])}.", ""]
        lines += picture if figure.is_file() else []
        place = f"{places[model['model']]}/forgetting"
        yield f"{place}.md", "\n".join([*lines, *table(content, model), ""])
        if figure.is_file():
            yield f"{place}.png", figure.read_bytes()


def github(record: Record) -> Iterator[tuple[str, str]]:
    """Yield ``summary.md``, which begins with the verdicts on a gate, the worst first, if any."""
    content = record.content
    gates = [model["gate"] for model in content["models"] if model.get("gate")]
    gates.sort(key=lambda gate: WORST_FIRST.index(gate["verdict"]))
    lines = [text for gate in gates for text in (f"**{escaped(gate['headline'])}**", "")]
    for model in content["models"]:
        line = escaped(model["headline"])
        lines += [line if lines else f"**{line}**", "", *table(content, model), ""]
    base, made = escaped(content["base"]), f"clbench {content['version']}"
    yield "summary.md", "\n".join([*lines, f"Base model: {base}. Audited by {made}.", ""])


def escaped(text: str) -> str:
    """Return foreign text as one line without a meaning in Markdown."""
    return re.sub(r"([\\`*_\[\]<>|#~@])", r"\\\1", printable(text))


def table(content: Mapping[str, Any], model: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a table of a model's changes, what it means, and the notes."""
    yield from (f"| {' | '.join(HEADER)} |", f"| --- {'| ---: ' * (len(HEADER) - 2)}| --- |")
    for each in measures(model):
        if each.primary:
            numbers = each.numbers
            title = f"{each.title} (nats)" if each.is_loss else each.title
            flips = ("" if (n := numbers.get(f"flips_{k}")) is None else n for k in HEADER[4:6])
            blind = " (cannot show forgetting)" * numbers.get("cannot_show_forgetting", False)
            cells = (
                *(escaped(title), f"{numbers['base']:.3f}", f"{numbers['tuned']:.3f}", each),
                *(*flips, len(each.items["keys"]), f"{numbers['verdict']}{blind}"),
            )
            yield f"| {' | '.join(map(str, cells))} |"
    yield from ("", "- Changes are tuned minus base; for losses and calibration, base minus tuned.")
    yield "  Below 0 is worse. Their intervals hold jointly at 95 %. *kept*: the interval lies"
    yield f"  within ±{content['settings']['margin']:g}; *forgot* and *gained*: it does not, and"
    yield "  excludes 0; *unclear*: neither. *lost* and *gained* items are right in one model only."
    yield from (f"- {escaped(note)}" for note in (*content["notes"], *model["notes"]))
