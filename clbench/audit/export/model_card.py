"""A section on forgetting for the card of a model on the Hugging Face hub, and its figure."""

from collections.abc import Iterator

from clbench.audit.export import folders
from clbench.audit.export.markdown import escaped, headline, table
from clbench.audit.record import Record


def export(record: Record) -> Iterator[tuple[str, str | bytes]]:
    """Yield ``MODEL/forgetting.md`` for each tuned model, and beside it the audit's figure."""
    content, figure = record.content, record.folder / "figures" / "changes.png"
    places = folders(model["model"] for model in content["models"])
    made = f"clbench audit {content.get('version', '')} {content.get('date', '')[:10]}".strip()
    picture = ["![Change of each measure, with its interval](forgetting.png)", ""]
    for model in content["models"]:
        base, line = escaped(content["base"]), headline(content, model)
        lines = ["## Forgetting", "", f"Compared item by item with {base} ({made}). {line}.", ""]
        if gate := model.get("gate"):
            lines += [f"{escaped(gate['headline'])}.", ""]
        lines += picture if figure.is_file() else []
        lines += [*table(content, model), ""]
        yield f"{places[model['model']]}/forgetting.md", "\n".join(lines)
        if figure.is_file():
            yield f"{places[model['model']]}/forgetting.png", figure.read_bytes()
