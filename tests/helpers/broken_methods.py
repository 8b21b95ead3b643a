"""Methods that each break one promise."""

from __future__ import annotations

import copy
import random
import signal
import tempfile
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from clbench.methods.base import Method
from clbench.training.batches import Batch
from clbench.training.context import Context
from clbench.training.stage import Stage


class Untyped(Method):
    """Has a setting that accepts anything."""

    strength: Any = 1.0


class Swallows(Method):
    """Accepts settings that it does not have."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{k: v for k, v in settings.items() if k == "strength"})

    strength: float = 1.0


class OtherError(Method):
    """Refuses a wrong setting with a built-in error."""

    strength: float = 1.0

    def __init__(self, **settings: Any) -> None:
        if settings.get("strength", 1.0) < 0:
            raise ValueError("negative")
        super().__init__(**settings)


class Raises(Method):
    """Fails at its first step."""

    def loss(self, stage: Stage, batch: Batch) -> Tensor:
        raise KeyError("no_such_thing")


class _Pull(Method):
    """Pulls towards the weights at the start of each stage: a correct method."""

    def before_stage(self, stage: Stage) -> None:
        self.start = stage.snapshot()

    def penalty(self, stage: Stage) -> Tensor | None:
        return 10.0 * stage.squared_distance(self.start)


class Undescribed(_Pull):
    pass


class Unseeded(_Pull):
    """Draws random numbers without a seed."""

    def penalty(self, stage: Stage) -> Tensor | None:
        return random.random() * stage.squared_distance(self.start)


def draws_in(hook: str) -> type[Method]:
    """Return a method that draws from torch's own stream in `hook`, and trains by the number."""

    class Draws(Method):
        strength = 1.0

        def __getattribute__(self, name: str) -> Any:
            if name == hook:
                self.strength = float(torch.rand(()))
            return super().__getattribute__(name)

        def penalty(self, stage: Stage) -> Tensor | None:
            return sum(self.strength * w.square().sum() for w in stage.trainable())  # type: ignore[return-value]

    return Draws


class ChangesDefaults(Method):
    """Leaves the process in another state."""

    def after_stage(self, stage: Stage) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def penalty(self, stage: Stage) -> Tensor | None:
        return sum(w.square().sum() for w in stage.trainable())  # type: ignore[return-value]


class Forgetful(Method):
    """Stores state in an attribute with a leading underscore, which is not saved."""

    def before_stage(self, stage: Stage) -> None:
        if stage.index == 0:
            self._start = stage.snapshot()

    def penalty(self, stage: Stage) -> Tensor | None:
        start = getattr(self, "_start", None)
        return None if start is None else 10.0 * stage.squared_distance(start)


class Unstorable(_Pull):
    """Has a state that cannot be saved."""

    def after_stage(self, stage: Stage) -> None:
        self.thing = object()


class AlwaysZero(Method):
    """Adds a penalty that is always zero."""

    def before_stage(self, stage: Stage) -> None:
        self.start = stage.snapshot()

    def penalty(self, stage: Stage) -> Tensor | None:
        return 0.0 * stage.squared_distance(self.start)


class Idle(_Pull):
    """Would act, but denies it in `acts_in`, so its hooks are never called."""

    def acts_in(self, index: int) -> bool:
        return False


class Modest(Method):
    """Acts, but denies it in `acts_in`."""

    def acts_in(self, index: int) -> bool:
        return False

    def after_stage(self, stage: Stage) -> None:
        with torch.no_grad():
            for value in stage.model.backbone_parameters().values():
                value.mul_(0.99)


class TrainsSecretly(_Pull):
    """Acts in training, but declares that it only consolidates."""

    only_consolidates: ClassVar[bool] = True


class KeepsData(Method):
    """Keeps the batches of a stage."""

    def acts_in(self, index: int) -> bool:
        return index > 0

    def after_stage(self, stage: Stage) -> None:
        self._batches = list(stage.batches("old"))

    def loss(self, stage: Stage, batch: Batch) -> Tensor:
        return stage.loss(batch) + stage.loss(self._batches[stage.step % 2])


class KeepsReference(KeepsData):
    """Keeps a reference to the rows of a stage."""

    def after_stage(self, stage: Stage) -> None:
        self._data = stage.data

    def loss(self, stage: Stage, batch: Batch) -> Tensor:
        import numpy as np

        return stage.loss(batch) + stage.loss(self._data.batch(np.arange(4), stage.device))


class KeepsTokens(KeepsData):
    """Copies token numbers into lists of its state."""

    head_kinds = ("classification",)

    def after_stage(self, stage: Stage) -> None:
        batch = next(iter(stage.batches("old")))
        self.tokens = [ids.tolist() for ids in batch.inputs["input_ids"]]
        self.labels = batch.labels.tolist()
        self.mask = batch.inputs["attention_mask"].clone()
        self._head = batch.head

    def loss(self, stage: Stage, batch: Batch) -> Tensor:
        inputs = {"input_ids": torch.tensor(self.tokens), "attention_mask": self.mask}
        outputs = stage.model(inputs, self._head)
        old = torch.nn.functional.cross_entropy(outputs, torch.tensor(self.labels))
        return stage.loss(batch) + old


class KeepsFloats(KeepsTokens):
    """Copies token numbers as floats."""

    head_kinds = ("classification",)

    def after_stage(self, stage: Stage) -> None:
        super().after_stage(stage)
        self.tokens = torch.tensor(self.tokens).float()

    def loss(self, stage: Stage, batch: Batch) -> Tensor:
        inputs = {"input_ids": self.tokens.long(), "attention_mask": self.mask}
        return stage.loss(batch) + stage.model(inputs, self._head).square().mean()


class KeepsInClosure(KeepsData):
    """Copies batches into a closure."""

    def after_stage(self, stage: Stage) -> None:
        copies = copy.deepcopy(list(stage.batches("old")))
        self._batches = lambda number: copies[number]

    def loss(self, stage: Stage, batch: Batch) -> Tensor:
        return stage.loss(batch) + stage.loss(self._batches(stage.step % 2))


SHELF: dict[str, Any] = {}


class KeepsInModule(KeepsData):
    """Copies batches into the module."""

    def after_stage(self, stage: Stage) -> None:
        SHELF["old"] = copy.deepcopy(list(stage.batches("old")))

    def loss(self, stage: Stage, batch: Batch) -> Tensor:
        return stage.loss(batch) + stage.loss(SHELF["old"][stage.step % 2])


class KeepsInFile(Method):
    """Writes batches of the first stage to a file, and reads them in later ones."""

    file: ClassVar[tempfile.TemporaryDirectory[str]] = tempfile.TemporaryDirectory()

    def loss(self, stage: Stage, batch: Batch) -> Tensor:
        path = Path(self.file.name) / "batch.pt"
        if stage.index == 0:
            torch.save(batch, path)
            return stage.loss(batch)
        return stage.loss(batch) + stage.loss(torch.load(path, weights_only=False))


class KeepsModel(_Pull):
    """Leaves the model in a list of the class."""

    models: ClassVar[list[Any]] = []

    def setup(self, context: Context) -> None:
        self.models.append(context.model)


class KeepsTensors(_Pull):
    """Leaves weights in a list of the class."""

    anchors: ClassVar[list[Any]] = []

    def setup(self, context: Context) -> None:
        self.anchors.append(context.snapshot())


class Grows(_Pull):
    """Keeps the weights of every step."""

    def after_step(self, stage: Stage) -> None:
        if not hasattr(self, "steps"):
            self.steps: list[Any] = []
        self.steps.append(stage.snapshot())


class GrowsSlowly(_Pull):
    """Keeps a little of every step, far less than a copy of the model in a stage."""

    def after_step(self, stage: Stage) -> None:
        if not hasattr(self, "steps"):
            self.steps: list[Any] = []
        self.steps.append(torch.zeros(sum(p.numel() for p in stage.model.parameters()) // 50))


class BertOnly(_Pull):
    """Knows the layers of one architecture by name."""

    head_kinds = ("classification",)

    def setup(self, context: Context) -> None:
        context.model.backbone.encoder.layer[0].attention.self.query.weight.requires_grad_(True)


class NeedsHead(_Pull):
    """Reads the weights of a head, which a language model does not have."""

    def before_stage(self, stage: Stage) -> None:
        super().before_stage(stage)
        self.norm = stage.model.head(stage.data.head).weight.detach().norm()
