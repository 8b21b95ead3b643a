"""clbench inside the Trainer of transformers, and trainers made from it, such as TRL's."""

from clbench.hf.protect import protect
from clbench.hf.protection import Protection
from clbench.hf.watch import ForgettingCallback

__all__ = ["ForgettingCallback", "Protection", "protect"]
