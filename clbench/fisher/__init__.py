"""The diagonal Fisher information of transformers models, usable on its own."""

from clbench.fisher.diagonal import diagonal_fisher
from clbench.fisher.losses import mask_tokens, text_batches

__all__ = ["diagonal_fisher", "mask_tokens", "text_batches"]
