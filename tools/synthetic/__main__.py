"""Write the rows of the built-in tasks: ``python -m tools.synthetic --out FILE``."""

from __future__ import annotations

import argparse
from pathlib import Path

from clbench.tasks.synthetic import FILE
from tools.synthetic.generate import write_file

parser = argparse.ArgumentParser(prog="python -m tools.synthetic", description=__doc__)
parser.add_argument("--out", type=Path, default=FILE, help="default: the file in the package")
if __name__ == "__main__":
    write_file(parser.parse_args().out)
