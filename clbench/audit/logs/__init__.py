"""Logs of other harnesses. A format is one module here, which need not be named anywhere else."""
