"""A summary for a pull request or a job on GitHub, in its Markdown; the verdict comes first."""

from collections.abc import Iterator

from clbench.audit.export.markdown import escaped, headline, table
from clbench.audit.record import Record


def export(record: Record) -> Iterator[tuple[str, str]]:
    """Yield ``summary.md``, whose first line is the gate's ``line``, if there was a gate."""
    content, lines = record.content, []
    if gate := content.get("gate"):
        lines += [f"**{escaped(gate['line'])}**", ""]
    for model in content["models"]:
        lines += [headline(content, model) if lines else f"**{headline(content, model)}**", ""]
        lines += [*table(content, model), ""]
    made = f"clbench {content.get('version', '')}".strip()
    lines += [f"Base model: {escaped(content['base'])}. Audited by {made}.", ""]
    yield "summary.md", "\n".join(lines)
