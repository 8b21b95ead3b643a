"""Results of others: submissions of runs, what a machine can verify of them, and the board.

The names of the board stand in ``__init__.pyi`` and are imported on first use.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
