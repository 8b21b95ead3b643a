"""Carries models through scenarios, and scores what they remember."""
