"""An input embedding table that holds only the tokens a scenario can meet.

Exact: without weight decay a row whose token never occurs gets no gradient and no update,
so leaving it out changes no score. It saves filling and updating a dense gradient of the
whole table at each step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from clbench.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def trim_embeddings(backbone: PreTrainedModel, vocabulary: npt.NDArray[np.int64]) -> torch.Tensor:
    """Cut the input table of `backbone`, in place, to the rows of `vocabulary`.

    Afterwards the model's ``input_ids`` are positions in `vocabulary`. The padding row
    stays the padding row. The configuration keeps describing the whole table.

    Parameters
    ----------
    backbone
        A model without a masked-language or other head that reads the table.
    vocabulary
        Shape (v,): original token numbers, ascending, each once; with those of padding
        and of the other special tokens.

    Returns
    -------
    Tensor
        `vocabulary` as int64.

    Raises
    ------
    ValueError
        If `vocabulary` is not strictly ascending.
    ModelError
        If it names a token that the table does not have.
    """
    table = backbone.get_input_embeddings()
    assert isinstance(table, nn.Embedding)
    kept = torch.from_numpy(np.ascontiguousarray(vocabulary, dtype=np.int64).copy())
    if kept.ndim != 1 or not len(kept) or bool((kept[1:] <= kept[:-1]).any()):
        raise ValueError("a vocabulary must be a non-empty, strictly ascending list of numbers")
    if int(kept[0]) < 0 or int(kept[-1]) >= table.num_embeddings:
        raise ModelError(
            f"token {int(kept[-1])} has no row in the model's table of {table.num_embeddings}. "
            "Tokenizer and weights do not belong together."
        )
    whole = table.weight
    weight = nn.Parameter(whole.detach()[kept].clone(), requires_grad=whole.requires_grad)
    # Every module that shares the table is cut, and the modules stay: some are subclasses
    # that scale what they look up.
    for module in backbone.modules():
        if isinstance(module, nn.Embedding) and module.weight is whole:
            module.weight = weight
            module.num_embeddings = len(kept)
            module.padding_idx = _position(kept, module.padding_idx)
    return kept


def _position(vocabulary: torch.Tensor, token: int | None) -> int | None:
    found = [] if token is None else torch.nonzero(vocabulary == token).flatten().tolist()
    return int(found[0]) if found else None
