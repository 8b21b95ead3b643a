"""What is measured after a stage: rows of R, probes, language, capabilities."""
