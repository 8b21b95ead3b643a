"""Draw figures in several formats, in up to two processes."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from clbench.figures.style import quiet

if TYPE_CHECKING:
    import PIL.Image
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf")
PNG, PAGE = 200, 110
"""Dots per inch of the PNG files and of the images on the page."""
COLOURS = 256
"""Number of colours in the images on the page; makes the files a third as large."""
MOST_PIXELS = 6e6
"""Most pixels of a PNG file; figures with many panels get fewer dots per inch."""
MOST_PROCESSES = 2
"""Most processes that draw at a time; each takes some 200 MB."""

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
    from joblib import Parallel, cpu_count, delayed

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
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_pdf import FigureCanvasPdf
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from PIL import Image

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
