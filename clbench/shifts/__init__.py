"""Shifts: generators of scenarios."""
