"""A figure in several formats, laid out once."""

from __future__ import annotations

import io
from collections.abc import Sequence
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


def draw(figure: Figure, formats: Sequence[str]) -> dict[str, bytes]:
    """The figure in each of `formats`, and as ``page``, a smaller PNG.

    ``Figure.savefig`` draws twice for every file, once to lay out; here that is done once for
    all of them, as what differs between formats does not show.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_pdf import FigureCanvasPdf
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from PIL import Image

    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    figure.dpi = PNG
    canvas = FigureCanvasAgg(figure)
    canvas.draw()  # type: ignore[no-untyped-call]
    pixels = np.asarray(canvas.buffer_rgba())  # type: ignore[no-untyped-call]
    large = Image.fromarray(pixels).convert("RGB")
    width, height = (round(side * PAGE / PNG) for side in large.size)
    small = large.resize((width, height), Image.Resampling.LANCZOS)
    found = {"page": _png(small.quantize(COLOURS, dither=Image.Dither.NONE), PAGE)}
    if "png" in formats:
        found["png"] = _png(large, PNG)
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
