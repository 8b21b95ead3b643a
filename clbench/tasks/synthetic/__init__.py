"""English tasks in GLUE's shapes out of a seeded grammar, without any data file.

For trying things out and for regression tests: claims are made on real data.
"""

from clbench.tasks.synthetic.generate import SPECS, SyntheticSpec, generate, unlabelled

__all__ = ["SPECS", "SyntheticSpec", "generate", "unlabelled"]
