"""Audits of logs that other harnesses have written; each format is one module of this package.

A module registers its reader with `clbench.audit.logs.formats.log_format`; it need not be named
anywhere else.
"""
