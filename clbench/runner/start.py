"""The model with which a cell starts."""

from typing import Any

from clbench.core.seeds import stream_seed
from clbench.measure.rows import PreparedScenario
from clbench.models.answering import build_answering_model
from clbench.models.classifier import TaskModel, build_classifier
from clbench.suite.plan import Cell


def start_model(cell: Cell, scenario: PreparedScenario) -> TaskModel:
    """Return the pretrained model with the cell's heads, before any training; on the CPU."""
    protocol = cell.protocol
    if protocol.is_language_model:
        model = build_answering_model(
            protocol.model,
            revision=protocol.revision,
            answer_score=protocol.answer_score,
            pad_id=scenario.train[0].pad_id,
            packs=protocol.packing,
        )
        if protocol.weights == "bf16":
            model.bfloat16()
        if protocol.gradient_checkpointing:
            backbone: Any = model.backbone
            older = backbone.gradient_checkpointing_enable  # until transformers 6
            getattr(backbone, "activation_checkpointing_enable", older)()
        return model
    return build_classifier(
        protocol.model,
        revision=protocol.revision,
        heads={task.head: task.outputs for task in scenario.scenario.tasks},
        head_seed=lambda head: stream_seed("head", head, cell.seed, cell.scenario.series),
        pooling=protocol.pooling,
        head_dropout=protocol.head_dropout,
        vocabulary=scenario.vocabulary,
    )
