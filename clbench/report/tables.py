"""Tables of a report as CSV, Markdown and LaTeX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
}  # fmt: skip


def table_files(name: str, frame: pd.DataFrame) -> dict[str, str]:
    """The texts of ``NAME.csv``, ``NAME.md`` and ``NAME.tex``.

    CSV holds every digit; the other two, which are for readers, three decimals.
    """
    header = [str(column) for column in frame.columns]
    rows = [[_cell(value) for value in row] for row in frame.itertuples(index=False)]
    return {
        f"{name}.csv": str(frame.to_csv(index=False, lineterminator="\n")),
        f"{name}.md": _markdown(header, rows),
        f"{name}.tex": _latex(header, rows),
    }


def _cell(value: object) -> str:
    if value is None or value != value:  # NaN alone differs from itself
        return ""
    if isinstance(value, float):
        return f"{value:.0f}" if value == int(value) and abs(value) > 1 else f"{value:.3f}"
    return str(value)


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines
    )


def _latex(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def line(cells: Sequence[str]) -> str:
        escaped = ("".join(_LATEX.get(sign, sign) for sign in cell) for cell in cells)
        return " & ".join(escaped) + r" \\"

    body = [
        rf"\begin{{tabular}}{{{'l' * len(header)}}}",
        r"\hline",
        line(header),
        r"\hline",
        *map(line, rows),
        r"\hline",
        r"\end{tabular}",
    ]
    return "\n".join(body) + "\n"
