"""Pretrain the small BERT that travels inside the package: ``python -m tools.pretrain_tiny``."""
