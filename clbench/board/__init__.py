"""Results of others: submissions of runs, what a machine can verify of them, and the board."""
