"""Pack the cells of runs into an archive each, with `scores.csv` beside it, or unpack them.

Models and data from folders of this machine keep only the folder's name.

python -m tools.archive [--unpack] results/reference/quick ...
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from clbench.results.archive import pack, unpack
from clbench.results.score_tables import load_run, to_csv
from clbench.results.store import Store

FOLDER = re.compile(r'"/(?:[^"/\n]+/)+([^"/\n]+)"')
"""An absolute path in JSON; its group is the last part."""


def main() -> None:
    """Pack or unpack the folders of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--unpack", action="store_true", help="back to a file for each cell")
    parser.add_argument("run", nargs="+", type=Path, help="a run's folder")
    arguments = parser.parse_args()
    for folder in arguments.run:
        if arguments.unpack:
            unpack(folder)
        else:
            for path in folder.rglob("*.json"):
                path.write_text(FOLDER.sub(r'"\1"', path.read_text("utf-8")), "utf-8")
            Store(folder).write_scores(to_csv(load_run(folder).frame))
            pack(folder)


if __name__ == "__main__":
    main()
