"""Continual-learning benchmarks for transformers on text.

The public names stand in ``__init__.pyi``. They are imported on first use: ``import clbench`` loads
neither torch nor transformers.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
