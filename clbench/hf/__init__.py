"""clbench inside the Trainer of transformers, and trainers made from it, such as TRL's."""

from clbench.hf.protection import Protection, protect
from clbench.hf.watch import ForgettingCallback

__all__ = ["ForgettingCallback", "Protection", "protect"]
