"""What everything else stands on: errors, registry and settings, files, user code, seeds."""
