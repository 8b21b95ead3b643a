"""`clbench.Resources` under its former name."""

from clbench.runner.resources import Resources as Resources
