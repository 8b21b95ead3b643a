"""Figures in several formats, each laid out once, on all processors."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import PIL.Image
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf")
PNG, PAGE = 200, 110
"""Dots an inch of the PNG beside the page, and of the image in it."""
COLOURS = 256
"""Of the image in the page, which is a third as large as with all of them."""


MOST_PIXELS = 6e6
"""Of the PNG beside the page: figures of many panels get fewer dots an inch."""
MOST_PROCESSES = 2
"""That draw at a time: each takes some 200 MB."""


def draw_all(
    figures: Iterable[tuple[str, str, Figure]], formats: Sequence[str]
) -> Iterator[tuple[str, str, str, dict[str, bytes]]]:
    """`draw` of figures with a name and a title; begins at once, and goes on while others work.

    On a machine of several processors the drawing is done in processes of its own, which need
    no guard of the main module. ``LOKY_MAX_CPU_COUNT=1`` in the environment draws here. Take
    all: given up halfway, the processes complain.

    Yields
    ------
    tuple
        Name, title, caption and what `draw` gives, in the order of `figures`.
    """
    from joblib import Parallel, cpu_count, delayed

    work = Parallel(
        n_jobs=min(MOST_PROCESSES, cpu_count()),
        backend="loky",
        return_as="generator",
        batch_size=1,
    )
    found: Iterator[tuple[str, str, str, dict[str, bytes]]] = work(
        delayed(_drawn)(*each, formats) for each in figures
    )
    return found


def _drawn(
    name: str, title: str, figure: Figure, formats: Sequence[str]
) -> tuple[str, str, str, dict[str, bytes]]:
    return name, title, str(figure.get_label()), draw(figure, formats)


def draw(figure: Figure, formats: Sequence[str]) -> dict[str, bytes]:
    """The figure in each of `formats`, and as ``page``, a smaller PNG.

    ``Figure.savefig`` draws twice for every file, once to lay out; here that is done once for
    all of them, as what differs between formats does not show.
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
    found = {"page": _png(small.quantize(COLOURS, dither=Image.Dither.NONE), PAGE)}
    if "png" in formats:
        found["png"] = _png(large, dpi)
    for kind, other in (("svg", FigureCanvasSVG), ("pdf", FigureCanvasPdf)):
        if kind in formats:
            buffer = io.BytesIO()
            getattr(other(figure), f"print_{kind}")(buffer)
            found[kind] = buffer.getvalue()
    return found


def _png(image: PIL.Image.Image, dpi: int) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "png", dpi=(dpi, dpi))
    return buffer.getvalue()
