"""Measure how far two trainings of one cell differ between processors, threads and precisions.

    python benchmarks/reruns.py SUITE --table FILE [--precision bf16] [--kept RUN] [--run="OPTIONS"]
        [--variants "1 thread"]

Each variant of `VARIANTS` trains all cells anew in its own process, with instructions that other
processors lack switched off. Every pair of variants is compared cell by cell: the share of rows
that are right in one of the two alone, and the largest difference of a score. With --kept, the
cells of a run from another machine, such as one with a GPU, are one more variant.
"""

import argparse
import csv
import itertools
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from clbench.results.cell import CellResult, unpack_rows
from clbench.results.store import Store

VARIANTS = {
    "1 thread": {"threads": "1"},
    "2 threads": {"threads": "2"},
    "AVX2": {
        "threads": "1",
        "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
    },
    "SSE4": {
        "threads": "1",
        "ATEN_CPU_CAPABILITY": "default",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
    },
}
COLUMNS = ("suite", "precision", "cell", "one", "other", "rows", "flips", "net", "score")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("suite")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--kept", type=Path, help="a run of the same cells on another machine")
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--table", type=Path, required=True, help="CSV to append to")
    parser.add_argument("--run", default="", help="options of clbench run, in one word")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = {name: train(arguments, Path(folder) / name, name) for name in arguments.variants}
    if arguments.kept:
        runs["kept"] = read(arguments.kept)
    rows = [
        [arguments.suite, arguments.precision, key, one, other, *differences(a[key], b[key])]
        for (one, a), (other, b) in itertools.combinations(runs.items(), 2)
        for key in sorted(a.keys() & b.keys())
        if recipe(a[key]) == recipe(b[key])
    ]
    is_new = not arguments.table.exists()
    with arguments.table.open("a", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS] * is_new + rows)
    shares = sorted(row[6] / row[5] for row in rows if row[5])
    scores = sorted(row[8] for row in rows)
    print(f"{len(rows)} pairs; largest share of rows {shares[-1]:.4f}, of scores {scores[-1]:.4f}")


def train(arguments: argparse.Namespace, out: Path, name: str) -> dict[str, CellResult]:
    """Run the suite in a process of its own with the settings of a variant."""
    settings = dict(VARIANTS[name])
    threads = settings.pop("threads")
    environment = {**os.environ, **settings, "OMP_NUM_THREADS": threads}
    environment["CLBENCH_CACHE"] = str(out.with_name(f"{name} cache"))
    command = [*(sys.executable, "-m", "clbench", "run", arguments.suite), "--out", str(out)]
    command += [
        "--threads",
        threads,
        "--precision",
        arguments.precision,
        *shlex.split(arguments.run),
    ]
    subprocess.run(command, env=environment, check=True, stderr=subprocess.DEVNULL)
    return read(out)


def read(folder: Path) -> dict[str, CellResult]:
    return {cell.key: cell for cell in Store(folder).read().cells if cell.status == "ok"}


def recipe(cell: CellResult) -> object:
    """Return what decides the scores, with the precision that `auto` became."""
    protocol = {**cell.recipe["protocol"], "precision": cell.settings.get("precision")}
    return {**cell.recipe, "protocol": protocol}


def differences(one: CellResult, other: CellResult) -> tuple[int, int, int, float]:
    """Return rows, rows that are right in one alone, their balance, the largest score difference.

    Scores of whole matrices, also those without rows.
    """
    rows = flips = net = 0
    largest = 0.0
    for i, row in enumerate(one.R):
        for j, score in enumerate(row):
            if score is None:
                continue
            largest = max(largest, abs(score - float(other.R[i][j] or 0.0)))
            texts = [cell.correct[i][j] if cell.correct else None for cell in (one, other)]
            if None not in texts:
                a, b = (unpack_rows(str(text)) for text in texts)
                rows, flips = rows + len(a), flips + int((a != b).sum())
                net += int(a.sum()) - int(b.sum())
    return rows, flips, net, largest


if __name__ == "__main__":
    main()
