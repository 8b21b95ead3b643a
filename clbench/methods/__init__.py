"""Methods: ways to fine-tune through a scenario, one file each."""
