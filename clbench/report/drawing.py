"""Draw figures into the bytes of files, in several processes where that is possible."""

import io
import math
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from multiprocessing import get_context

import numpy as np
import PIL.Image
from joblib import cpu_count
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from PIL import Image

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

Plan = tuple[str, str, Callable[[], Figure | None]]
"""Name, title, and what makes a figure, or returns None if there is nothing to show."""
Drawing = tuple[str, str, str, dict[str, bytes]]

_plans: Sequence[Plan] = ()  # of a fork, which inherits them


def draw_all(plans: Sequence[Plan], formats: Sequence[str]) -> Iterator[Drawing]:
    """Make and draw figures.

    On several cores of Linux, forks draw in the background, at once, unless the process has other
    threads, whose locks they would copy, or ``LOKY_MAX_CPU_COUNT=1`` is in the environment. Yields
    name, title, caption and the result of `draw`, in the order of `plans`.
    """
    jobs = min(MOST_PROCESSES, cpu_count())
    has_threads = threading.active_count() > 1 or "torch" in sys.modules
    if jobs == 1 or has_threads or sys.platform != "linux":
        return filter(None, (_draw_one(plan, formats) for plan in plans))
    pool = ProcessPoolExecutor(jobs, get_context("fork"), _inherit, (plans,))
    drawings = pool.map(_draw_inherited, range(len(plans)), repeat(formats))
    pool.shutdown(wait=False)  # after the last figure
    return filter(None, drawings)


def _inherit(plans: Sequence[Plan]) -> None:
    global _plans
    _plans = plans


def _draw_inherited(number: int, formats: Sequence[str]) -> Drawing | None:
    return _draw_one(_plans[number], formats)


def _draw_one(plan: Plan, formats: Sequence[str]) -> Drawing | None:
    name, title, make = plan
    figure = make()
    return None if figure is None else (name, title, str(figure.get_label()), draw(figure, formats))


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
    small = large.resize((width, height), Image.Resampling.BILINEAR)
    method, dither = Image.Quantize.FASTOCTREE, Image.Dither.NONE  # an eighth of the others' time
    files = {"page": _png(small.quantize(COLOURS, method, dither=dither), PAGE)}
    if "png" in formats:
        files["png"] = _png(large, dpi)
    for kind, other, unsaid in (
        ("svg", FigureCanvasSVG, ("Date", "Creator")),
        ("pdf", FigureCanvasPdf, ("CreationDate", "Creator", "Producer")),
    ):
        if kind in formats:
            buffer = io.BytesIO()
            getattr(other(figure), f"print_{kind}")(buffer, metadata=dict.fromkeys(unsaid))
            files[kind] = buffer.getvalue()
    return files


def _png(image: PIL.Image.Image, dpi: int) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "png", dpi=(dpi, dpi), compress_level=3)
    return buffer.getvalue()
