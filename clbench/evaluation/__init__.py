"""Train models through scenarios, and score what they retain."""
