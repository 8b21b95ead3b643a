"""Scripts that made what the package carries."""
