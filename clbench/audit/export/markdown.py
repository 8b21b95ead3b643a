"""What the Markdown of several formats shares."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from clbench.audit.record import measures
from clbench.core.errors import printable

HEADER = ("measure", "base", "tuned", "change", "lost", "gained", "items", "verdict")


def escaped(text: str) -> str:
    """Return foreign text as one line without a meaning in Markdown."""
    return re.sub(r"([\\`*_\[\]<>|#~@])", r"\\\1", printable(text))


def headline(content: Mapping[str, Any], model: Mapping[str, Any]) -> str:
    """Return the verdict on a model in a line; version 1 has that of its first part."""
    old = f"{model['model']} compared with {content['base']}: {model['verdict']}"
    return escaped(model.get("headline", old))


def table(content: Mapping[str, Any], model: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a table of a model's changes, what it means, and the notes."""
    yield from (f"| {' | '.join(HEADER)} |", f"| --- {'| ---: ' * (len(HEADER) - 2)}| --- |")
    for each in measures(model):
        if each.primary:
            title = f"{each.title} (nats)" if each.is_loss else each.title
            counts = (each.numbers.get(key) for key in ("flips_lost", "flips_gained"))
            values = (f"{each.numbers[key]:.3f}" for key in ("base", "tuned"))
            cells = (escaped(title), *values, each, *("" if c is None else c for c in counts))
            cells += (each.numbers.get("n") or len(each.items.get("keys", ())) or "",)
            blind = " (cannot show forgetting)" * each.numbers.get("cannot_show_forgetting", False)
            yield f"| {' | '.join(map(str, cells))} | {each.numbers['verdict']}{blind} |"
    yield from ("", "- Changes are tuned minus base, and base minus tuned for losses: below 0 is")
    yield "  worse. Their intervals hold jointly at 95 %. *kept*: the interval lies within"
    yield f"  ±{content['settings']['margin']:g}; *forgot* and *gained*: it does not, and excludes"
    yield "  0; *unclear*: neither. *lost* and *gained* items are right in one model only."
    yield from (f"- {escaped(note)}" for note in (*content["notes"], *model["notes"]))
