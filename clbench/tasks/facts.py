"""The built-in tasks ``synthetic/facts`` and ``new-facts``: attributes of made-up people.

Training rows ask for each fact in several wordings, scored rows in one that no training row has: a
model must have learned the fact, not the sentence. Allen-Zhu & Li 2023 (arXiv 2309.14316) began
such biographies; Zheng et al. 2025 (arXiv 2501.13453) use them to tell lost knowledge from lost
alignment, and Marek et al. 2026 (arXiv 2605.26097) to measure what self-replay keeps.
"""

from dataclasses import replace
from functools import cached_property
from itertools import product
from random import Random
from typing import Any

from clbench.tasks.synthetic import SyntheticTask
from clbench.tasks.task import Rows
from clbench.tasks.template import Template

PEOPLE = {"facts": 48, "new-facts": 16, "other-facts": 48}
"""How many people each task is about; nobody is in two."""
FIRST = "Adam Anna Clara David Emma Henry Jack Laura Mark Martin Mary Oliver"
LAST = "Baker Brown Cook Field Green Hill King Stone Waters White Wood Young"


ATTRIBUTES = {
    "London Paris Washington Texas Egypt Ireland Canada India": (
        "{} was born in|The place where {} was born is|Question: where was {} born? Answer:"
        "|{} is a person from|The home of {} is|Where does {} come from? From"
    ),
    "Google Microsoft Facebook Reuters Congress Church Museum Hospital": (
        "{} works for|The employer of {} is|Question: who pays {}? Answer:"
        "|{} has a job at|Every morning {} goes to work at|For whom does {} work? For"
    ),
    "English French German Spanish Italian Russian Chinese Japanese": (
        "{} speaks|The language of {} is|Question: what does {} speak? Answer:"
        "|{} writes all letters in|With friends, {} talks in|Which language does {} know? It is"
    ),
}
"""Values of each attribute, and the wordings that ask for it, the last one in scored rows only."""


class FactsTask(SyntheticTask):
    """The loader of a task, whose rows are always the same.

    A row's choices are all values of its attribute, and accuracy by chance is 1/8.
    """

    def template(self) -> Template:
        """Return the template: a row is its own prompt."""
        return Template("{text}")

    @cached_property
    def _rows(self) -> dict[str, Rows]:
        names = [" ".join(pair) for pair in product(FIRST.split(), LAST.split())]
        for kind, count in PEOPLE.items():
            rng = Random(f"synthetic/{kind}/people")
            people = rng.sample(names, count)
            if kind == self.kind:
                break
            names = [name for name in names if name not in people]
        splits: dict[str, Any] = {"train": [], "validation": []}
        for values, wordings in ATTRIBUTES.items():
            answers = [i % self.classes for i in range(count)]  # each value as often
            rng.shuffle(answers)
            for person, answer in zip(people, answers, strict=True):
                texts = [text.format(person) for text in wordings.split("|")]
                facts = [(text, answer, *values.split()) for text in texts]
                splits["train"] += facts[:-1]
                splits["validation"] += facts[-1:]
        for split, rows in splits.items():
            rng.shuffle(rows)
            first, labels, *choices = zip(*rows, strict=True)
            splits[split] = replace(Rows.of(first, None, labels), choices=tuple(choices))
        return splits


FACTS = (
    FactsTask("facts", tuple("01234567"), "facts on made-up people, in other words", pair=False),
    FactsTask("new-facts", tuple("01234567"), "facts on fewer other people", pair=False),
)
"""The tasks."""
OTHER_FACTS = FactsTask("other-facts", FACTS[0].labels, "facts on yet other people", pair=False)
"""What a control's base model knows instead of the first task; not registered."""
