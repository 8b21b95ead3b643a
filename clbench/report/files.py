"""The files of a report: figures in several formats, pages of templates, and tables."""

import base64
import io
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import PIL.Image
from jinja2 import Environment, PackageLoader, StrictUndefined
from joblib import Parallel, cpu_count, delayed
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from PIL import Image

from clbench.core.errors import visible
from clbench.core.files import as_folder_error, write_atomically
from clbench.figures.style import quiet

FORMATS = ("png", "svg", "pdf")
PNG, PAGE = 200, 110
"""Dots per inch of the PNG files and of the images on the page."""
COLOURS = 256
"""Number of colours in the images on the page; makes the files a third as large."""
MOST_PIXELS = 6e6
"""Most pixels of a PNG file; figures with many panels get fewer dots per inch."""
MOST_PROCESSES = 2
"""Most processes that draw at a time; each takes some 200 MB."""

NARROW = 480
"""Pixels up to which a figure shrinks to fit a phone; a wider one is scrolled."""

_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
        "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    }
)  # fmt: skip

Drawing = tuple[str, str, str, dict[str, bytes]]


def draw_all(
    figures: Iterable[tuple[str, str, Figure]], formats: Sequence[str]
) -> Iterator[Drawing]:
    """Draw figures, given with names and titles; drawing starts at once, in the background.

    On several cores, other processes draw, unless ``LOKY_MAX_CPU_COUNT=1`` is in the environment.
    Scripts need no ``if __name__ == "__main__"`` for this. Consume all results: processes that
    are stopped halfway print warnings.

    Yields
    ------
    tuple
        Name, title, caption and the result of `draw`, in the order of `figures`.
    """
    jobs = min(MOST_PROCESSES, cpu_count())
    work = Parallel(n_jobs=jobs, backend="loky", return_as="generator", batch_size=1)
    drawings: Iterator[Drawing] = work(delayed(_draw_one)(*each, formats) for each in figures)
    return drawings


def _draw_one(name: str, title: str, figure: Figure, formats: Sequence[str]) -> Drawing:
    return name, title, str(figure.get_label()), draw(figure, formats)


@quiet()
def draw(figure: Figure, formats: Sequence[str]) -> dict[str, bytes]:
    """Return the figure in each of `formats`, and as ``page``, a smaller PNG.

    ``Figure.savefig`` computes the layout for every file, which takes half of the time. Here it is
    computed once, since formats do not differ visibly.
    """
    if (engine := figure.get_layout_engine()) is not None:
        engine.execute(figure)
        figure.set_layout_engine("none")
    dpi = max(PAGE, min(PNG, int(math.sqrt(MOST_PIXELS / math.prod(figure.get_size_inches())))))
    figure.dpi = dpi
    canvas = FigureCanvasAgg(figure)
    canvas.draw()  # type: ignore[no-untyped-call]
    pixels = np.asarray(canvas.buffer_rgba())  # type: ignore[no-untyped-call]
    large = Image.fromarray(pixels).convert("RGB")
    del canvas, pixels
    width, height = (round(side * PAGE / dpi) for side in large.size)
    small = large.resize((width, height), Image.Resampling.LANCZOS)
    files = {"page": _png(small.quantize(COLOURS, dither=Image.Dither.NONE), PAGE)}
    if "png" in formats:
        files["png"] = _png(large, dpi)
    for kind, other in (("svg", FigureCanvasSVG), ("pdf", FigureCanvasPdf)):
        if kind in formats:
            buffer = io.BytesIO()
            getattr(other(figure), f"print_{kind}")(buffer)
            files[kind] = buffer.getvalue()
    return files


def _png(image: PIL.Image.Image, dpi: int) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "png", dpi=(dpi, dpi))
    return buffer.getvalue()


def write_figure(drawing: Drawing, folder: Path, formats: Sequence[str]) -> dict[str, Any]:
    """Write the files of a figure; return its values in the page."""
    name, title, caption, files = drawing
    for kind in formats:
        path = folder / f"{name}.{kind}"
        with as_folder_error(path):
            write_atomically(path, files[kind])
    image = f"data:image/png;base64,{base64.b64encode(files['page']).decode('ascii')}"
    narrow = int.from_bytes(files["page"][16:20], "big") <= NARROW  # the width in a PNG
    return {"title": title, "caption": caption, "image": image, "narrow": narrow}


def render(template: str, **values: Any) -> str:
    """Return the HTML of a page by its template, with every value escaped."""
    environment = Environment(
        loader=PackageLoader("clbench.report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: visible(value) if isinstance(value, str) else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "json": partial(json.dumps, indent=1),
        "score": _score,
        "signed": _signed,
        "amount": _amount,
        "share": _share,
        "p": _p,
    }
    return environment.get_template(template).render(**values)


def table_files(name: str, frame: pd.DataFrame) -> dict[str, str]:
    """Return the texts of ``NAME.csv``, with every digit, and of ``NAME.md`` and ``NAME.tex``.

    pandas would need tabulate for Markdown, and eight seconds for LaTeX of 10,000 rows.
    """
    header = [str(column) for column in frame.columns]
    rows = [header, *([_cell(value) for value in row] for row in frame.itertuples(index=False))]
    markdown = [" | ".join(cell.replace("|", r"\|") for cell in row) for row in rows]
    markdown.insert(1, " | ".join(["---"] * len(header)))
    latex = [" & ".join(cell.translate(_LATEX) for cell in row) + r" \\" for row in rows]
    begin = rf"\begin{{tabular}}{{{'l' * len(header)}}}"
    latex = [begin, r"\hline", latex[0], r"\hline", *latex[1:], r"\hline", r"\end{tabular}"]
    return {
        f"{name}.csv": str(frame.to_csv(index=False, lineterminator="\n")),
        f"{name}.md": "".join(f"| {line} |\n" for line in markdown),
        f"{name}.tex": "\n".join(latex) + "\n",
    }


def _cell(value: object) -> str:
    if value is None or value != value:  # NaN alone differs from itself
        return ""
    if isinstance(value, float):
        return f"{value:.0f}" if value == int(value) and abs(value) > 1 else f"{value:.3f}"
    return str(value)


def _score(value: float | None) -> str:
    return "–" if value is None else f"{round(value, 3) + 0.0:.3f}"


def _signed(value: float | None) -> str:
    return "–" if value is None else f"{round(value, 3) + 0.0:+.3f}"


def _amount(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}" if value < 10 and value % 1 else f"{value:,.0f}"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}".replace("%", " %")


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"
