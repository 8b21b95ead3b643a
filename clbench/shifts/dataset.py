"""Several tasks in a row: dataset shift, orders, and the shift from pretraining; shared heads."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from clbench.core.errors import ShiftError
from clbench.core.options import checks_arguments
from clbench.core.seeds import numpy_stream
from clbench.shifts.base import ColumnSpec, ScenarioTasks, Shift, ShiftContext
from clbench.tasks.task import Rows, Task

SHARED = "shared"
"""Name of the head that tasks share."""


class DatasetShift(Shift):
    """Different tasks one after another, each with its own head.

    A task that is named twice keeps its head. For the pairs of the paper see Kenneweg et al. 2022,
    section 4.1.

    Attributes
    ----------
    tasks
        Names of two or more tasks.
    """

    name = "dataset"
    short_name: ClassVar[str | None] = ""

    tasks: Annotated[list[str], Field(min_length=2)]

    def build(self, context: ShiftContext) -> ScenarioTasks:
        """Return the tasks in order."""
        loaded = {name: context.task(name) for name in self.tasks}
        return ScenarioTasks(
            tuple(replace(loaded[name], head=loaded[name].name) for name in self.tasks)
        )


class SequenceShift(DatasetShift):
    """Tasks one after another, in one order or in several.

    Attributes
    ----------
    tasks
        Names of two or more tasks, in training order.
    order
        Name of the order, if there are several: a suite gives ``orders = { a = [...], b = [...] }``
        instead of `tasks`, and has a scenario for each, called ``NAME-ORDER``.
    head
        ``own``: each task has a head, so the task of a row is told. ``shared``: one head for all
        classes, with which the model must find out (de Masson d'Autume et al. 2019). Tasks with
        equal lists of classes share these.
    growing
        Whether a shared head begins with the classes of the first task and grows with each other
        one, instead of having all classes from the start.
    """

    name = "sequence"

    order: str | None = None
    head: Literal["own", "shared"] = "own"
    growing: bool = False

    def build(self, context: ShiftContext) -> ScenarioTasks:
        """Return the tasks in order.

        Raises
        ------
        ShiftError
            If a task without classes would share a head, or a head that is not shared would grow.
        """
        if self.growing and self.head == "own":
            raise ShiftError("only a shared head can grow. Set head = 'shared', or remove growing.")
        separate = super().build(context)
        if self.head == "own":
            return separate
        return ScenarioTasks(share_head(separate.tasks, growing=self.growing))


class Pretraining(DatasetShift):
    """From the pretraining to one task, or to several one after another.

    D_o is the pretraining, which is scored but not trained on. R has a row and a column for it
    before those of the tasks, so that p_o is the masked-LM accuracy after all training and
    ``p_o_before`` that of the pretrained model. Chen et al. 2020 (section 4.3, figure 2b) infer
    this forgetting from the distance to the pretrained weights; here both are recorded.

    The texts are the held-out part of the protocol's corpus, which no method sees. In each text a
    fixed 15 % of the tokens are masked and predicted by the model's own language-model head. That
    head is not trained; one that is tied to the embeddings follows them. A decoder predicts every
    next token.

    Attributes
    ----------
    tasks
        Names of one or more tasks, in training order.
    texts
        Maximum number of held-out texts.
    text_length
        Maximum tokens of a text.
    head_steps
        Training steps for the head of a checkpoint without one, with the encoder frozen.
    """

    name = "pretraining"
    short_name = None

    tasks: Annotated[list[str], Field(min_length=1)]
    texts: Annotated[int, Field(ge=1)] = 500
    text_length: Annotated[int, Field(ge=4)] = 128
    head_steps: Annotated[int, Field(ge=1)] = 300

    def build(self, context: ShiftContext) -> ScenarioTasks:
        """Return the tasks in order, and the column of the pretraining."""
        texts = context.held_out_texts(self.texts)
        return replace(
            super().build(context),
            numbers={"pretraining_texts": len(texts)},
            columns=(pretraining_column(texts, self.text_length, self.head_steps),),
        )


@checks_arguments
def pretraining_column(
    texts: Sequence[str], text_length: int = 128, head_steps: int = 300
) -> ColumnSpec:
    """Return the column of R that scores what a model retains of its pretraining.

    No model may be trained on `texts`; the other parameters are settings of `Pretraining`.
    """
    settings = {"texts": texts, "text_length": text_length, "head_steps": head_steps}
    return ColumnSpec("pretraining", "accuracy", "pretraining", settings)


def share_head(tasks: Sequence[Task], *, growing: bool) -> tuple[Task, ...]:
    """Return the tasks with one head for all their classes, in order of arrival.

    Tasks with equal lists of classes share them; a class of another list that has the same name
    gets that of its task in front. The answer of a class is that of the first task that has it,
    for the rows of all tasks, or its new name if classes would have the same answer.
    """
    owners: dict[tuple[str, ...], Task] = {}
    for task in tasks:
        if not task.can_share_head:
            raise ShiftError(
                f"task {task.name!r} has no classes that other tasks could have, so it cannot "
                "share a head. Use head = 'own'."
            )
        owners.setdefault(task.labels, task)
    names = [name for labels in owners for name in labels]
    starts: dict[tuple[str, ...], int] = {}
    classes: list[str] = []
    for labels, task in owners.items():
        starts[labels] = len(classes)
        classes += [f"{task.name}: {name}" if names.count(name) > 1 else name for name in labels]
    if twice := [name for name in classes if classes.count(name) > 1]:
        raise ShiftError(f"two classes with one head would be named {twice[0]!r}. Rename one.")
    answers = [t.effective_template.answer(name) for labels, t in owners.items() for name in labels]
    pairs = zip(classes, answers, strict=True)
    answer_of = {name: answer for name, answer in pairs if answers.count(answer) == 1}
    shared, seen = [], 0
    for task in tasks:
        task = answering(task, answer_of)
        own = tuple(range(starts[task.labels], starts[task.labels] + len(task.labels)))
        seen = max(seen, own[-1] + 1)
        shared.append(renumbered(task, classes, own, own=own, seen=seen if growing else None))
    return tuple(shared)


def answering(task: Task, answers: Mapping[str, str]) -> Task:
    """Return the task with other answers, by class name."""
    return replace(task, template=replace(task.effective_template, answers=answers))


def default_prompt(task: Task) -> Task:
    """Return the task with the prompt of tasks without a template, and its own answers."""
    return answering(replace(task, template=None), task.effective_template.answers)


def renumbered(
    task: Task,
    classes: Sequence[str],
    numbers: Sequence[int],
    *,
    own: tuple[int, ...] = (),
    seen: int | None = None,
    head: str = SHARED,
) -> Task:
    """Return a task whose class i becomes number ``numbers[i]`` of `classes`.

    Rows of classes with the number -1 are left out. `own`, `seen` and `head` are those of `Task`.
    """
    new = np.asarray(numbers, dtype=np.int64)

    def change(rows: Rows) -> Rows:
        kept = rows.where(new[rows.labels] >= 0)
        return replace(kept, labels=new[kept.labels])

    changed = task.with_rows(change)
    return replace(changed, labels=tuple(classes), own=own, seen=seen, head=head)


def blurred(tasks: Sequence[Task], blur: float, seed: int, where: str) -> tuple[Task, ...]:
    """Return the tasks after a share of the training rows of each one went to its neighbours.

    Of each task, ``round(blur · rows)`` rows drawn by `seed` leave: half of them to the task
    before, half to the task after; all of them where there is only one neighbour. Every row stays
    in the stream once, and scored rows do not move. A growing head has the classes of the next
    task one stage earlier, as their first rows come then. Where the tasks' prompts differ, all
    get the default one, as a language model would be asked for classes of one task in the words of
    another.

    Tasks whose classes are mixed at a fixed share are known as a blurry setup (Bang et al. 2021,
    Rainbow Memory), where the rows go to all other tasks.

    Raises
    ------
    ShiftError
        If the tasks do not share a head, or their rows have different texts; `where` begins the
        message.
    """
    if len({task.head for task in tasks}) > 1 or len(tasks) < 2:
        raise ShiftError(
            f"{where}: blur moves rows between tasks that share a head; here each task has its "
            "own. Use head = 'shared', or no blur."
        )
    if len({task.is_pair for task in tasks}) > 1 or any(task.train.choices for task in tasks):
        raise ShiftError(
            f"{where}: blur cannot mix rows of one text with pairs or multiple choice. Leave it "
            "out, or use other tasks."
        )
    received: list[list[Rows]] = [[] for _ in tasks]
    for i, task in enumerate(tasks):
        order = numpy_stream("blur", task.name, seed).permutation(len(task.train))
        leaving, staying = np.split(order, [round(blur * len(order))])
        neighbours = [j for j in (i - 1, i + 1) if 0 <= j < len(tasks)]
        received[i].append(task.train.take(np.sort(staying)))
        for j, part in zip(neighbours, np.array_split(leaving, len(neighbours)), strict=True):
            received[j].append(task.train.take(np.sort(part)))
    seen = [task.seen for task in tasks]
    if len({task.effective_template.pieces for task in tasks}) > 1:
        tasks = [default_prompt(task) for task in tasks]
    return tuple(
        replace(task, train=Rows.joined(rows), seen=later)
        for task, rows, later in zip(tasks, received, [*seen[1:], seen[-1]], strict=True)
    )
