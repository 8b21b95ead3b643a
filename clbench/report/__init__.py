"""Reports of runs: tables, statistics and figures on one page that works offline."""

from clbench.report.comparisons import comparisons_frame
from clbench.report.write import Report, write_report

__all__ = ["Report", "comparisons_frame", "write_report"]
