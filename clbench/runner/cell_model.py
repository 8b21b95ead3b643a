"""The model of a cell: at its start, and what language models are measured on besides the tasks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from clbench.core.seeds import stream_seed
from clbench.measure.capabilities import Capabilities, HarnessScores, harness_scores
from clbench.measure.rows import PreparedScenario
from clbench.methods.base import Method
from clbench.models.answering import AnsweringModel, build_answering_model
from clbench.models.classifier import TaskModel, build_classifier
from clbench.suite.plan import Cell
from clbench.training.stage import Context


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


def capabilities_of(
    cell: Cell, scenario: PreparedScenario, context: Context, method: Method
) -> Capabilities | None:
    """Return the measures of a cell's language model; None where nothing is measured."""
    if scenario.capabilities is None or scenario.writer is None or cell.reference_of is not None:
        return None
    count = context.protocol.capability_rows
    few = [
        replace(task, rows=task.rows.take(np.arange(len(task.rows))[:count]))
        for task in scenario.curve
    ]
    return Capabilities(scenario.capabilities, context, few, scenario.writer, method.scoring)


def last_scores(cell: Cell, scenario: PreparedScenario, context: Context) -> HarnessScores:
    """Return the scores of the harness after the last stage; empty where none are asked for."""
    protocol, writer, model = context.protocol, scenario.writer, context.model
    if not protocol.lm_eval or writer is None or cell.reference_of is not None:
        return {}
    assert isinstance(model, AnsweringModel)
    model.eval()
    size = protocol.eval_batch_size
    return harness_scores(model, writer.tokenizer, protocol.lm_eval, batch_size=size)
