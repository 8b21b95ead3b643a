"""Reports of runs: tables, statistics and figures on one page that works offline."""
