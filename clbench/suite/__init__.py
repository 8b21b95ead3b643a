"""Suite and baseline files: reading, checking, and expanding them into cells."""
