"""The campaign: malformed inputs and faults, each of which must be answered in one line.

`make faults` runs all of it, and `make test` and `make testall` small parts.
"""
