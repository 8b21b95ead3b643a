"""The context of a cell: what hooks see and may call in all of its stages."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clbench.core.errors import NonFiniteLossError
from clbench.core.shapes import few
from clbench.models.classifier import TaskModel
from clbench.tasks.task import IntArray
from clbench.training.batches import Batch, TaskData
from clbench.training.device import Precision, return_old_memory
from clbench.training.dropout import MaskStream
from clbench.training.protocol import Protocol

Snapshot = dict[str, Tensor]
Floats = np.typing.NDArray[np.float32]


@dataclass
class Context:
    """What stays the same throughout a cell.

    Attributes
    ----------
    model
        Backbone and heads, on `device`.
    model_name, revision
        The model as the user named it.
    protocol
        The suite's protocol.
    device, precision
        Device and number format of the forward pass.
    seed, scenario
        The cell's seed and the scenario's name, which name its random streams.
    stages
        Number of tasks.
    masks
        Stream that dropout draws from on the CPU; None where torch's own dropout is used.
    notes
        Lines for the reader of the result; see `note`.
    """

    model: TaskModel
    model_name: str
    revision: str | None
    protocol: Protocol
    device: torch.device
    precision: Precision
    seed: int
    scenario: str
    stages: int
    masks: MaskStream | None
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Add a line for the reader of the result, unless it is there already."""
        if text not in self.notes:
            self.notes.append(text)

    def snapshot(self, names: Sequence[str] | None = None) -> Snapshot:
        """Return a detached copy of weights by name; by default of the backbone's."""
        if names is None:
            names = list(self.model.backbone_parameters())
        by_name = dict(self.model.named_parameters())
        return {name: by_name[name].detach().clone() for name in names}

    @contextmanager
    def swapped(self, snapshot: Mapping[str, Tensor]) -> Iterator[None]:
        """Put the weights of `snapshot` into the model, and the present ones back at the end."""
        before = self.snapshot(list(snapshot))
        self.restore(snapshot)
        try:
            yield
        finally:
            self.restore(before)

    def restore(self, snapshot: Mapping[str, Tensor]) -> None:
        """Put the weights of `snapshot` into the model."""
        by_name = dict(self.model.named_parameters())
        for name, value in snapshot.items():
            by_name[name].data.copy_(value)

    def squared_distance(self, snapshot: Mapping[str, Tensor]) -> Tensor:
        """Return the sum of squared differences between weights and `snapshot`, a scalar."""
        current = dict(self.model.named_parameters())
        terms = [(current[name] - value).square().sum() for name, value in snapshot.items()]
        return torch.stack(terms).sum()

    def outputs(self, data: TaskData) -> Floats:
        """Return the outputs of the task's head for all rows, as `TaskModel.apply_head` does.

        Without dropout or gradients. Raises a NonFiniteLossError if an output is not finite.
        """
        return _finite(self._over(data, lambda batch: self.model(batch.inputs, batch.head)), data)

    def outputs_of(self, heads: Iterable[str], data: TaskData) -> dict[str, Tensor]:
        """Return the outputs of several heads for all rows, from one pass of the backbone.

        They are on `device`; else as `outputs`.
        """
        features = torch.from_numpy(self.features(data)).to(self.device)
        with torch.no_grad():
            outputs = {head: self.model.apply_head(features, head).float() for head in heads}
        for values in outputs.values():
            _finite(values.cpu().numpy(), data)
        return outputs

    def features(self, data: TaskData) -> Floats:
        """Return the pooled features of all rows, as `TaskModel.features` does: shape (n, h).

        Without dropout or gradients.
        """
        return self._over(data, lambda batch: self.model.features(batch.inputs))

    def _over(self, data: TaskData, compute: Callable[[Batch], Tensor]) -> Floats:
        """Return what `compute` gives for all rows, in their order."""
        self.model.eval()
        parts: list[tuple[IntArray, Floats]] = []
        with torch.inference_mode(), self.precision.autocast():
            for batch in few(data.longest_first(self.protocol.eval_batch_size, self.device)):
                parts.append((batch.positions, compute(batch).float().cpu().numpy()))
                return_old_memory()
        # Answers of language models have several tokens; shorter ones are filled up with zeros.
        shape = np.max([part.shape[1:] for _, part in parts], axis=0, initial=0)
        values = np.zeros((len(data.rows), *shape.astype(int)), dtype=np.float32)
        for rows, part in parts:
            at: tuple[Any, ...] = (rows, *map(slice, part.shape[1:]))
            values[at] = part
        return values


def _finite(outputs: Floats, data: TaskData) -> Floats:
    if not np.isfinite(outputs).all():
        raise NonFiniteLossError(
            f"the outputs for {data.name} are not finite: training diverged. Lower lr, set "
            "clip_norm, or train in float32."
        )
    return outputs
