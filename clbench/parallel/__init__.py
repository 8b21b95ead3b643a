"""Cells side by side, in processes of this machine or of a Ray cluster."""
