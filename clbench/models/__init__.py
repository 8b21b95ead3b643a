"""Backbones, pooling, heads, learning-rate groups and the built-in tiny model."""
