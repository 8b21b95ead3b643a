"""The command line: one module for each verb."""

from clbench.cli.app import main as main
