"""Cells on disk, and the table made of them."""
