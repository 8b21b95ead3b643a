"""Adapters that stay adapters: a LoRA whose product is scaled, so that nothing is merged."""

import re
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from clbench.audit.models import AuditedModel, load_tuned
from clbench.audit.weights import Mixer, Mixture
from clbench.core.errors import ModelError
from clbench.models import locate
from clbench.models.folder import ADAPTER, ADAPTER_WEIGHTS

FACTOR = re.compile(r"\.lora_(embedding_)?([AB])(\.weight)?$")
"""What stands behind the name of a module for each factor of the product B · A."""
TOLERANCE = 1e-4
"""Largest relative difference between scaled and mixed weights, which round differently."""


def is_scalable(folder: Path, merged: AuditedModel) -> bool:
    """Whether an adapter adds products of two matrices to weights, and else has whole weights."""
    weights = dict(merged.model.named_parameters())
    keys = load_file(folder / ADAPTER_WEIGHTS).keys()
    return any(map(FACTOR.search, keys)) and all(_weight(key) in weights for key in keys)


def _weight(key: str) -> str:
    """Return the name of the weight that a tensor of an adapter changes or replaces."""
    return FACTOR.sub(".weight", key.removeprefix("base_model.model."))


def write_scaled(
    name: str, base: AuditedModel, mixer: Mixer, mixture: Mixture, model: AuditedModel, out: Path
) -> None:
    """Write the adapter `name` with the shares of a mixture, which `model` has merged, into `out`.

    base + α · (tuned − base) is the adapter with α times its product, and with whole weights, such
    as those of a head, as mixed. It is read again. Raises a ModelError if that is not the mixture.
    """
    folder = locate.adapter_folder(name)
    assert folder is not None
    mixed = dict(model.model.named_parameters())
    tensors = load_file(folder / ADAPTER_WEIGHTS)
    for key, value in tensors.items():
        weight = mixed[_weight(key)]
        factor = FACTOR.search(key)
        if factor is None:
            tensors[key] = weight.detach().cpu().clone()
        elif factor[2] == "B":
            tensors[key] = value.float() * mixer.share(weight, mixture)
    save_file(tensors, out / ADAPTER_WEIGHTS, {"format": "pt"})
    shutil.copyfile(folder / ADAPTER, out / ADAPTER)
    again = load_tuned(str(out), base).model.state_dict()
    for key, value in model.model.state_dict().items():
        if not torch.allclose(again[key], value.cpu(), rtol=TOLERANCE, atol=TOLERANCE / 10):
            raise ModelError(
                f"model {name!r}: its adapter, scaled, is not the mixture that was scored ({key} "
                "differs). Use --merge."
            )
