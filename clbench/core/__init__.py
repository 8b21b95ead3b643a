"""What everything else stands on: errors, registry and settings, files, user code, seeds."""

__version__ = "1.0.0rc1"
