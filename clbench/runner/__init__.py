"""From a plan to results: prepare scenarios, run cells and their stages, here or on Ray."""
