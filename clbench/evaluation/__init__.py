"""The former name of `clbench.runner`, for imports that were documented."""
