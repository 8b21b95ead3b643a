"""Tasks: GLUE, a user's own files, and the built-in synthetic ones."""
