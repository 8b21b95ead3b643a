"""Run the tutorials, and write what their cells show into them.

    python -m tools.notebooks [--check] [NOTEBOOK…]

Runs the cells of each notebook, by default all of `docs/tutorials`, in an empty folder, as Jupyter
would: Python, ``!command``, ``%%writefile FILE`` and ``%matplotlib inline``. With ``--check``, the
notebooks stay as they are; a cell that fails, or that shows another kind of output than the one in
the file, ends the program with exit code 1.
"""

from __future__ import annotations

import argparse
import ast
import base64
import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import chdir, redirect_stdout
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[1]
TUTORIALS = ROOT / "docs" / "tutorials"
DPI = 80
"""Pictures are kept small."""

Cell = dict[str, Any]


def main() -> int:
    """Run what the command line says; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("notebooks", nargs="*", type=Path)
    parser.add_argument("--check", action="store_true", help="write nothing")
    args = parser.parse_args()
    for path in [p.resolve() for p in args.notebooks] or sorted(TUTORIALS.glob("*.ipynb")):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        before = [kinds(cell) for cell in code_cells(notebook)]
        with tempfile.TemporaryDirectory() as folder, chdir(folder):
            run(notebook)
        changed = [i for i, cell in enumerate(code_cells(notebook)) if kinds(cell) != before[i]]
        if args.check and changed and any(before):  # notebooks without outputs are not compared
            raise SystemExit(f"{path.name}: cells {changed} show something else than in the file.")
        if not args.check:
            text = json.dumps(notebook, indent=1, ensure_ascii=False)
            path.write_text(f"{text}\n", encoding="utf-8")
    return 0


def code_cells(notebook: dict[str, Any]) -> list[Cell]:
    """Return the cells that hold code."""
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def kinds(cell: Cell) -> list[str]:
    """Return what a cell shows: ``stream`` for text, else MIME types."""
    return [kind for each in cell["outputs"] for kind in each.get("data", ["stream"])]


def run(notebook: dict[str, Any]) -> None:
    """Run the code of a notebook in the working folder, and set its outputs."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(code_cells(notebook), 1):
        cell["execution_count"] = number
        cell["outputs"] = list(_outputs("".join(cell["source"]), names, number))


def _outputs(code: str, names: dict[str, Any], number: int) -> Iterator[dict[str, Any]]:
    first, _, rest = code.partition("\n")
    printed, value = io.StringIO(), None
    if first.startswith("%%writefile "):
        Path(first.split()[1]).write_text(f"{rest.rstrip()}\n", encoding="utf-8")
        print(f"Writing {first.split()[1]}", file=printed)
    elif first.startswith("!"):
        printed.write(_shell(code.removeprefix("!")))
    else:
        lines = ["" if line.startswith("%matplotlib") else line for line in code.splitlines()]
        with redirect_stdout(printed):
            value = _python("\n".join(lines), names, number)
    if text := printed.getvalue():
        yield {"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)}
    if value is not None:
        data = {"text/plain": repr(value).splitlines(keepends=True)}
        if isinstance(value, Figure):
            buffer = io.BytesIO()
            value.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
            data = {"image/png": base64.b64encode(buffer.getvalue()).decode()}  # type: ignore[dict-item]
        yield {
            "data": data,
            "execution_count": number,
            "metadata": {},
            "output_type": "execute_result",
        }


def _shell(command: str) -> str:
    """Return what a command prints; with the programs of this Python, and this clbench."""
    paths = {"PATH": Path(sys.executable).parent, "PYTHONPATH": ROOT}
    own = {k: os.pathsep.join([str(p), os.environ.get(k, "")]) for k, p in paths.items()}
    environment = {**os.environ, "COLUMNS": "100", **own}
    done = subprocess.run(command, shell=True, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{command}\n{done.stdout}{done.stderr}")
    return done.stdout


def _python(code: str, names: dict[str, Any], number: int) -> Any:
    """Run code; return the value of its last line if that is an expression."""
    tree, where = ast.parse(code), f"cell {number}"
    *body, last = tree.body
    if not isinstance(last, ast.Expr) or code.rstrip().endswith(";"):
        exec(compile(tree, where, "exec"), names)
        return None
    exec(compile(ast.Module(body, []), where, "exec"), names)
    return eval(compile(ast.Expression(last.value), where, "eval"), names)


if __name__ == "__main__":
    sys.exit(main())
