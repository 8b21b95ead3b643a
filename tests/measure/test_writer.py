"""What a language model writes for each row of a task."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from helpers.checkpoints import save_generator

from clbench.measure.writer import Writer
from clbench.models.answering import build_answering_model
from clbench.models.checkpoint import load_tokenizer
from clbench.models.prompts import PromptEncoder
from clbench.tasks.task import Rows, Task
from clbench.tasks.template import Template
from clbench.training.batches import TaskData
from clbench.training.context import Context
from clbench.training.device import Precision
from clbench.training.protocol import Protocol


def test_a_row_is_written_as_if_it_were_alone(tmp_path: Path) -> None:
    folder = str(save_generator("gpt2", tmp_path / "model"))
    tokenizer, protocol = load_tokenizer(folder, plain=True), Protocol(head="language-model")
    context = Context(
        build_answering_model(folder),
        folder,
        None,
        protocol,
        torch.device("cpu"),
        Precision("float32", "cpu"),
        *(0, "s", 1, None),
    )
    writer = Writer(tokenizer, (1,), 20, "likelihood")

    def written(texts: list[str]) -> list[str]:
        labels = np.zeros(len(texts), np.int64)
        rows = Rows(texts, None, labels, np.arange(len(texts)), targets=["x"] * len(texts))
        task = Task("t", (), ("exact",), rows, rows, head="t", template=Template("{text}:"))
        encoded = PromptEncoder(tokenizer, 128, 4).encode(task, rows, to_train=False)
        return writer.texts(context, TaskData(0, "t", "t", False, encoded, 0))

    texts = ["short", "middle " * 5, "l" * 121, "m" * 110]  # of 128 positions
    alone = [written([text])[0] for text in texts]
    assert written(texts) == alone
    assert len({*alone}) > 1
