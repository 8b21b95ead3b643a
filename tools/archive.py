"""Pack the cells of runs into an archive each, with `scores.csv` beside it, or unpack them.

Models and data from folders of this machine keep only the folder's name.

python -m tools.archive [--unpack] results/reference/quick ...
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from clbench.board.manifest import without_paths
from clbench.board.submit import published
from clbench.results.archive import pack, unpack
from clbench.results.score_tables import load_run, to_csv
from clbench.results.store import Store


def main() -> None:
    """Pack or unpack the folders of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--unpack", action="store_true", help="back to a file for each cell")
    parser.add_argument("run", nargs="+", type=Path, help="a run's folder")
    arguments = parser.parse_args()
    for folder in arguments.run:
        if arguments.unpack:
            unpack(folder)
            continue
        store = Store(folder)
        for cell in store.read().cells:
            store.write_cell(published(cell))
        suite = json.loads(store.suite_path.read_text("utf-8"))
        store.suite_path.write_text(json.dumps(without_paths(suite), indent=1) + "\n", "utf-8")
        store.write_scores(to_csv(load_run(folder).frame))
        pack(folder)


if __name__ == "__main__":
    main()
