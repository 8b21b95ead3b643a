from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from helpers.report_runs import cell
from matplotlib.figure import Figure
from matplotlib.image import imread

from clbench.core.errors import ArgumentError
from clbench.report.drawing import MOST_PIXELS, PAGE, draw, draw_all
from clbench.report.files import _figures, attempt, table_files
from clbench.suite.schema import Question


def figure(height: float = 3.0) -> Figure:
    result = Figure(figsize=(4, height), layout="constrained")
    result.subplots().plot([1, 2, 1.5], label="a line")
    result.set_label("a caption")
    return result


def test_figures_come_in_their_order() -> None:
    names = [f"figure {i}" for i in range(5)]
    drawings = list(draw_all([(name, "title", figure) for name in names], ["png"]))
    assert [name for name, *_ in drawings] == names
    assert {caption for _, _, caption, _ in drawings} == {"a caption"}
    assert all(set(files) == {"page", "png"} for *_, files in drawings)


def test_figures_of_other_runs_scenarios_have_no_folder_in_their_names() -> None:
    plans = _figures([cell("s (b/quick)", "vanilla", 0, 0.5)], {}, Question())
    names = [name for name, *_ in plans]
    assert "costs-s (b-quick)" in names
    assert not any("/" in name for name in names)


def test_figures_with_nothing_to_show_are_left_out() -> None:
    plans = [("first", "title", lambda: None), ("second", "title", figure)]
    assert [name for name, *_ in draw_all(plans, [])] == ["second"]


UNGUARDED = """
import sys
import threading
from matplotlib.figure import Figure
from clbench.report.drawing import draw_all

ended = threading.Event()
if sys.argv[2] == "thread":
    threading.Thread(target=ended.wait).start()

def make(i):
    figure = Figure(figsize=(2, 2), layout="constrained")
    figure.subplots().plot([i, 1])
    return figure


plans = [(str(i), "title", lambda i=i: make(i)) for i in range(2)]
for name, *_, files in draw_all(plans, ["png"]):
    open(f"{sys.argv[1]}/{name}.png", "wb").write(files["png"])
print("main module", __name__)
ended.set()
"""


@pytest.mark.slow
def test_processes_draw_the_same_without_a_guard_of_the_main_module(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(UNGUARDED)
    pictures = {}
    # A process with other threads is not forked.
    for name, processors in (("alone", "1"), ("forks", "2"), ("thread", "2")):
        folder = tmp_path / name
        folder.mkdir()
        process = subprocess.run(
            [sys.executable, str(script), str(folder), name], capture_output=True, text=True,
            env={"LOKY_MAX_CPU_COUNT": processors, "PATH": ""}, check=True, timeout=120,
        )  # fmt: skip
        assert process.stdout == "main module __main__\n"
        assert process.stderr == ""
        pictures[name] = [path.read_bytes() for path in sorted(folder.iterdir())]
    assert len(pictures["alone"]) == 2
    assert pictures["alone"] == pictures["forks"] == pictures["thread"]


@pytest.mark.parametrize(("height", "dots"), [(3.0, 200), (100.0, 122), (150.0, PAGE)])
def test_tall_figures_get_fewer_dots_per_inch(tmp_path: Path, height: float, dots: int) -> None:
    target = tmp_path / "figure.png"
    target.write_bytes(draw(figure(height), ["png"])["png"])
    rows, columns = imread(target).shape[:2]
    assert columns == 4 * dots
    assert rows == pytest.approx(height * dots, abs=1)
    assert rows * columns <= MOST_PIXELS or dots == PAGE


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex")
def test_plain_latex_compiles_every_table(tmp_path: Path) -> None:
    names = ["[a] <b> |c|", "50 % & $x_1^2$ #~{}\\", "é ± − – … ▲ ▼ ○", "0.5 [−0.1, +1.0]"]
    frame = pd.DataFrame({"[first]": names, "p_o − vanilla": [1.0, float("nan"), -0.5, 3]})
    table = table_files("table", frame)["table.tex"]
    text = f"\\documentclass{{article}}\n\\begin{{document}}\n{table}\\end{{document}}\n"
    (tmp_path / "page.tex").write_text(text, encoding="utf-8")
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "page.tex"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:]


def test_what_plain_latex_would_misread_is_escaped() -> None:
    frame = pd.DataFrame({"[first]": ["[a] <b> |c|", "#~^_{}\\", "50 % & $ ▲ ▼ ○ ± −"]})
    assert table_files("table", frame)["table.tex"].splitlines()[2:-2] == [
        r"{[}first] \\",
        r"\hline",
        r"{[}a] $<$b$>$ $|$c$|$ \\",
        r"\#\textasciitilde{}\textasciicircum{}\_\{\}\textbackslash{} \\",
        r"50 \% \& \$ $\bigtriangleup$ $\bigtriangledown$ $\circ$ $\pm$ $-$ \\",
    ]


def test_only_a_figure_with_nothing_to_show_is_left_out() -> None:
    def refuse(error: ValueError) -> Figure:
        raise error

    assert attempt(refuse, ArgumentError("there is no finished cell to draw")) is None
    with pytest.raises(ValueError, match="different shapes"):
        attempt(refuse, ValueError("operands of different shapes"))
