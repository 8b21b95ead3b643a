"""A scenario of three tiny tasks, tiny checkpoints to train on it, and ways to spoil its rows."""

import itertools
import os
import sys
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from clbench.core.seeds import numpy_stream
from clbench.measure.rows import PreparedScenario
from clbench.methods.base import Method
from clbench.models.checkpoint import quiet
from clbench.runner.cell_stages import ComputeSettings
from clbench.runner.prepare import ScenarioPreparer
from clbench.shifts.scenario import Scenario, ScenarioReport
from clbench.suite.baselines import Baseline
from clbench.suite.plan import Cell
from clbench.suite.schema import ScenarioSpec
from clbench.tasks.task import IntArray, Rows, Task
from clbench.tasks.template import Template
from clbench.training.batches import Batch, TaskData
from clbench.training.device import Precision
from clbench.training.memory import walk
from clbench.training.protocol import Protocol
from clbench.training.stage import Stage

ARCHITECTURES = ("bert", "roberta", "albert", "distilbert", "gpt2")
GENERATORS = ("llama", "gpt2")
"""Architectures of language models that answer in words."""
SPECIAL_TOKENS = {f"{n}_token": f"[{n.upper()}]" for n in ("pad", "unk", "cls", "sep", "mask")}
WORDS = (
    *("the", "a", "film", "plot", "story", "was", "is", "good", "bad", "not", "very", "dull"),
    *("bright", "and", "of", "it", "long", "short", "old", "new", "seen", "heard", "told"),
)
CPU = torch.device("cpu")
COMPUTE = ComputeSettings(CPU, Precision("float32", "cpu"), {})
_CHECKPOINTS = tempfile.TemporaryDirectory(prefix="clbench-checkpoints-")


@dataclass(frozen=True)
class ToyScenario:
    """Three tiny tasks, a short protocol, and a folder for trained stages.

    The third task shares the head of the first and contradicts its labels.
    """

    scenario: PreparedScenario
    protocol: Protocol
    folder: Path

    def cell(self, baseline: Baseline) -> Cell:
        """Return the cell of a baseline."""
        spec = ScenarioSpec(name=self.scenario.scenario.name, shift="dataset")
        recipe = {"model": self.protocol.model, "method": baseline.name}
        return Cell(spec, baseline, 0, self.protocol, None, recipe, fingerprint=baseline.name)

    def copy_train(self) -> tuple[TaskData, ...]:
        """Return copies of the training rows, which may be overwritten."""
        copies = []
        for data in self.scenario.train:
            ids, labels = np.array(data.rows.ids), np.array(data.rows.labels)
            copies.append(replace(data, rows=replace(data.rows, ids=ids, labels=labels)))
        return tuple(copies)


def make_toy_scenario(
    model: str, folder: Path, *, rows: int = 24, **protocol_settings: Any
) -> ToyScenario:
    """Return the toy scenario, with `rows` training rows for each task."""
    settings: dict[str, Any] = {"epochs": 1, "lr": 1e-4, **protocol_settings}
    protocol = Protocol(
        model=model, batch_size=4, max_length=16, precision="float32", curve_points=1,
        curve_rows=4, **settings,
    )  # fmt: skip
    preparer = ScenarioPreparer(protocol, data=None, base=folder, own={}, device=CPU, output=None)
    tasks = (
        _make_task("first", rows, {"good": 0, "bad": 1}, head="first"),
        _make_task("second", rows, {"film": 0, "plot": 1, "story": 2}, head="second"),
        _make_task("third", rows, {"bad": 0, "good": 1}, head="first"),
    )
    scenario = Scenario("check", "dataset", tasks, {}, None, ScenarioReport(()))
    return ToyScenario(preparer.tokenise(scenario), protocol, folder)


def _make_task(name: str, rows: int, labels: Mapping[str, int], *, head: str) -> Task:
    """Return a task of sentences of 6 to 10 words, one of which decides the label."""
    rng = numpy_stream("check", name)
    fill = [word for word in WORDS if word not in labels]

    def draw(count: int) -> Rows:
        keys = [list(labels)[i % len(labels)] for i in range(count)]
        texts = []
        for key in keys:
            text = [str(word) for word in rng.choice(fill, int(rng.integers(5, 10)))]
            text.insert(int(rng.integers(len(text) + 1)), key)
            texts.append(" ".join(text))
        return Rows.of(texts, None, [labels[key] for key in keys])

    names = tuple(str(number) for number in range(len(labels)))
    answers = dict(zip(names, ("long", "short old", "new"), strict=False))
    template = Template("{text} is", answers)
    return Task(name, names, ("accuracy",), draw(rows), draw(12), head, template=template)


@contextmanager
def temporary_cache() -> Iterator[Path]:
    """Replace the user's cache by a temporary folder."""
    folder = tempfile.TemporaryDirectory(prefix="clbench-check-")
    with folder as path, mock.patch.dict(os.environ, CLBENCH_CACHE=path):
        yield Path(path)


@cache
def checkpoint(architecture: str, *, writes: bool = False) -> str:
    """Return the folder of a tiny random checkpoint, written once and removed at exit."""
    folder = Path(_CHECKPOINTS.name) / f"{architecture}{'-lm' if writes else ''}"
    make_checkpoint(architecture, folder, writes=writes)
    return str(folder)


def make_checkpoint(
    architecture: str, folder: Path, *, layers: int = 2, writes: bool = False
) -> None:
    """Save a tiny random model of a transformers architecture, with a tokenizer of `WORDS`.

    With `writes`, a decoder gets its language-model head, and rows do not end with a separator.

    `architecture` is a ``model_type``, such as ``bert``. The weights depend on the version of
    torch only, and are well away from zero.
    """
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    vocabulary = {token: i for i, token in enumerate((*SPECIAL_TOKENS.values(), *WORDS))}
    start, end = vocabulary["[CLS]"], vocabulary["[SEP]"]
    config = transformers.AutoConfig.for_model(
        architecture,
        vocab_size=40,
        hidden_size=32,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=48,
        max_position_embeddings=40,
        embedding_size=16,  # ALBERT, ELECTRA
        hidden_dim=48,  # DistilBERT
        n_inner=48,  # GPT-2
        pad_token_id=0,
        **dict.fromkeys(("cls_token_id", "bos_token_id"), start),
        **dict.fromkeys(("sep_token_id", "eos_token_id"), end),
    )
    with torch.random.fork_rng(devices=[]), quiet():
        torch.manual_seed(7)
        kind = transformers.AutoModelForCausalLM if writes else transformers.AutoModel
        model = kind.from_config(config)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn(parameter.shape))
        model.save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A" if writes else "[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[("[CLS]", start), ("[SEP]", end)],
    )
    special = SPECIAL_TOKENS | ({"eos_token": "[SEP]"} if writes else {})
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)
    fast.save_pretrained(folder)


BatchTensors = list[tuple[int, "weakref.ref[Tensor]"]]


@dataclass(frozen=True)
class TracedData(TaskData):
    """Rows that remember the tensors of their batches, by task."""

    tensors: BatchTensors = field(default_factory=list, compare=False, repr=False)

    def batch(self, positions: IntArray, device: torch.device) -> Batch:
        """Return a batch and remember its tensors."""
        batch = super().batch(positions, device)
        for tensor in (*batch.inputs.values(), batch.labels):
            self.tensors.append((self.task, weakref.ref(tensor)))
        return batch


class RowCorrupter:
    """Overwrites the rows of each task when its stage is over.

    Overwrites the training rows themselves, every batch of them that is still alive, and all
    arrays in the method's attributes, class, module or closures that hold the tokens of one of
    their rows. A method that reads none of these trains on unchanged.
    """

    def __init__(self, train: Sequence[TaskData]) -> None:
        self._tensors: BatchTensors = []
        self.train = tuple(TracedData(**vars(data), tensors=self._tensors) for data in train)

    def __call__(self, method: Method, stage: Stage) -> None:
        """Overwrite the rows of the stage's task."""
        rows = stage.data.rows
        ids = rows.ids.astype(np.int64)
        tokens = [ids[a:b].tobytes() for a, b in itertools.pairwise(rows.offsets)]
        for array in walk(_roots(method)):
            if _contains(array, tokens):
                reverse(array)
        for task, reference in self._tensors:
            tensor = reference()
            if task == stage.index and tensor is not None:
                reverse(tensor)
        reverse(rows.ids)
        reverse(rows.labels)


def reverse(array: Any) -> None:
    """Reverse an array, tensor or list in place, which gives other but valid rows."""
    if isinstance(array, list):
        array.reverse()
    elif isinstance(array, Tensor):
        with torch.no_grad():
            array.copy_(array.detach().flatten().flip(0).view(array.shape))
    elif array.flags.writeable:
        array[...] = array.ravel()[::-1].reshape(array.shape).copy()


def _roots(method: Method) -> list[Any]:
    """Return the attributes of a method, of its classes and of the modules that define them."""
    kinds = type(method).__mro__
    roots = list(vars(method).values())
    for kind in kinds[: kinds.index(Method)]:
        if issubclass(kind, Method):
            roots += vars(kind).values()
            roots += vars(sys.modules.get(kind.__module__, object)).values()
    return roots


def _contains(array: Any, tokens: Sequence[bytes]) -> bool:
    """Whether an array holds one of these rows, as whole numbers of any type."""
    if isinstance(array, Tensor):
        array = array.detach().cpu()
        array = (array.double() if array.dtype.is_floating_point else array).numpy()
    values = np.asarray(array)
    if values.dtype.kind not in "iuf":
        return False
    if values.dtype.kind == "f" and not (np.isfinite(values) & (values == np.rint(values))).all():
        return False
    text = np.ascontiguousarray(values, dtype=np.int64).tobytes()
    return any(row in text for row in tokens)
