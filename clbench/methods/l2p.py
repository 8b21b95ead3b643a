"""L2P: a pool of prompts, from which each row selects some by its content."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from clbench.core.errors import SettingsError
from clbench.core.seeds import torch_stream
from clbench.methods.base import should_record
from clbench.methods.prompts import Prompted
from clbench.methods.seq_star import classes_of

if TYPE_CHECKING:
    from clbench.models.classifier import Classifier
    from clbench.training.batches import Batch
    from clbench.training.stage import Context, Stage


class L2P(Prompted):
    """Learn a pool of prompts that rows select by their content, before a frozen backbone (L2P).

    The query q(x) of a row is its pooled vector ([CLS], by default) in the pretrained model. The
    `select` prompts whose keys k_i have the largest cosine similarity to it are put into the row,
    the most similar first, and ``weight·Σ_i (1 − cos(q(x), k_i))`` over them, averaged over the
    rows, is added to the loss (Wang et al. 2022, section 4). Keys, prompts and heads are
    trained by all tasks; the method is not told the task. In training, a row competes only
    among the classes of its task, so that a shared head does not learn to exclude those of
    earlier tasks; scoring is over all classes. The heads read the same vector as under
    other methods, where the paper averages the outputs at the prompts. Each row selects for
    itself, where the authors' code lets the rows of a batch vote. The paper's optional penalty on
    prompts that are selected often is left out. See `Prompted` for the place of the prompts.

    Attributes
    ----------
    pool, length, select
        Prompts in the pool, vectors in each, and prompts for each row.
    weight
        λ: weight of the distance of the selected keys.
    mask
        Whether the loss leaves out the classes that the stage's rows lack.
    """

    name: ClassVar[str] = "l2p"
    head_kinds: ClassVar[tuple[str, ...]] = ("classification",)
    pool: Annotated[int, Field(ge=1)] = 10
    length: Annotated[int, Field(ge=1)] = 5
    select: Annotated[int, Field(ge=1)] = 4
    weight: Annotated[float, Field(gt=0.0, le=1e6)] = 1.0
    mask: bool = True

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        if self.select > self.pool:
            raise SettingsError(
                f"method 'l2p': select {self.select} is more than the {self.pool} prompts of the "
                "pool. Lower select or raise pool."
            )

    def longest(self, tasks: int) -> int:
        """Return the vectors of the chosen prompts."""
        return self.select * self.length

    def setup(self, context: Context) -> None:
        """Freeze the backbone; add the pool to the model."""
        self.freeze(context)
        model = context.model
        width = model.backbone.get_input_embeddings().weight.shape[1]
        generator = torch_stream("method", "l2p", context.seed, context.scenario)
        sizes = {"prompts": (self.length, width), "keys": (model.config.hidden_size,)}
        for name, size in sizes.items():
            values = 0.01 * torch.rand(self.pool, *size, generator=generator)  # as in their code
            model.register_parameter(name, nn.Parameter(values.to(context.device)))
        self._distance: Tensor | None = None

    def before_stage(self, stage: Stage) -> None:
        """Find the classes that the loss leaves out."""
        has_classes = not stage.data.regression and not stage.data.rows.choices
        self._absent = ~classes_of(stage) if self.mask and has_classes else None

    def parameter_groups(self, stage: Stage) -> list[dict[str, Any]]:
        """Return one group: the pool and the stage's heads."""
        pool = [stage.model.get_parameter(name) for name in ("prompts", "keys")]
        return [{"params": [*pool, *stage.trainable()], "lr": stage.protocol.lr}]

    def prompts(self, model: Classifier, inputs: dict[str, Tensor]) -> Tensor:
        """Return the prompts that the rows select; keep the distance of their keys."""
        with torch.no_grad():
            query = model.pooled(inputs)
        keys = model.get_parameter("keys")
        # A product would be rounded to bfloat16 under autocast, and choose between equal numbers.
        similarity = nn.functional.cosine_similarity(query.float().unsqueeze(-2), keys, dim=-1)
        largest, chosen = similarity.topk(self.select, dim=-1)
        self._distance = (1.0 - largest).sum(-1).mean() if torch.is_grad_enabled() else None
        return model.get_parameter("prompts")[chosen].flatten(-3, -2)

    def loss(self, stage: Stage, batch: Batch) -> Tensor:
        """Return the loss among the classes of the stage."""
        outputs = stage.logits(batch)
        if self._absent is not None:
            outputs = outputs.masked_fill(self._absent[: outputs.shape[1]], -torch.inf)
        return stage.criterion(outputs, batch)

    def penalty(self, stage: Stage) -> Tensor | None:
        """Return the weighted distance of the keys that the batch selected."""
        distance, self._distance = self._distance, None
        if distance is not None and should_record(stage):
            stage.record("key_distance", distance)
        return None if distance is None else self.weight * distance
