"""A summary for a pull request or a job on GitHub, in its Markdown; the verdict comes first."""

from collections.abc import Iterator

from clbench.audit.export.markdown import escaped, headline, table
from clbench.audit.record import Record

WORST_FIRST = ("fail", "not enough evidence", "pass")


def export(record: Record) -> Iterator[tuple[str, str]]:
    """Yield ``summary.md``, which begins with the verdicts on a gate, the worst first, if any."""
    content = record.content
    gates = [model["gate"] for model in content["models"] if model.get("gate")]
    gates.sort(key=lambda gate: WORST_FIRST.index(gate["verdict"]))
    lines = [text for gate in gates for text in (f"**{escaped(gate['headline'])}**", "")]
    for model in content["models"]:
        lines += [headline(content, model) if lines else f"**{headline(content, model)}**", ""]
        lines += [*table(content, model), ""]
    made = f"clbench {content.get('version', '')}".strip()
    lines += [f"Base model: {escaped(content['base'])}. Audited by {made}.", ""]
    yield "summary.md", "\n".join(lines)
