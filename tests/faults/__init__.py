"""The campaign: malformed inputs and faults, each of which must be answered in one line.

`python -m faults` (with `tests/` on the path) runs all of it; `make faults` does the same.
"""
