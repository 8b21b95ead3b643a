"""The primary question of a suite: which comparisons share one error rate and get a verdict."""

from fnmatch import fnmatchcase
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from clbench.suite.scores import SCORES

FEWEST = 3
"""Fewest common seeds for a verdict."""
MOST_SEEDS = 1000
"""Most seeds of a run, and most that are ever advised."""
LOOKS = (5, 10, 20)
"""Default numbers of seeds after which a run that adds seeds is looked at."""
UNTIL_SETTLED = "until-settled"
"""Value of ``--seeds`` for a run that adds seeds."""
MEAN = "mean over scenarios"
"""What stands for the scenario of a comparison of means over scenarios."""

Patterns = Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)]


def _has_step(name: str) -> str:
    """Return the name of a score that a question may ask for."""
    names = [repr(score.name) for score in SCORES if score.step]
    if repr(name) not in names:
        expected = {"expected": f"{', '.join(names[:-1])} or {names[-1]}"}
        raise PydanticCustomError("literal_error", "Input should be {expected}", expected)
    return name


def _distinct(scores: list[str]) -> list[str]:
    if len({*scores}) < len(scores):
        raise ValueError("must not name a score twice")
    return scores


ScoreName = Annotated[str, AfterValidator(_has_step)]


class Question(BaseModel):
    """The ``[question]`` table of a suite file.

    By default p_o and p_s against vanilla, or the average if all scenarios are longer sequences.

    Attributes
    ----------
    reference
        Baseline that the others are compared with.
    scores
        Scores that it covers.
    margin
        Largest difference that does not matter.
    methods, scenarios
        Patterns of the baselines and scenarios that it covers, such as ``sst2*``.
    mean_over_scenarios
        Whether each method gets one verdict per score, on its mean over these scenarios seed by
        seed, in place of one on each scenario.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    reference: Annotated[str, Field(min_length=1)] = "vanilla"
    scores: Annotated[list[ScoreName], Field(min_length=1), AfterValidator(_distinct)] = [
        *("p_o", "p_s"),
    ]
    margin: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.01
    methods: Patterns = ["*"]
    scenarios: Patterns = ["*"]
    mean_over_scenarios: bool = False

    def asks(self, scenario: str, score: str, method: str) -> bool:
        """Whether a comparison is one of the question's; `scenario` may be `MEAN`."""
        if self.mean_over_scenarios != (scenario == MEAN):
            return False
        return (
            score in self.scores
            and method != self.reference
            and any(fnmatchcase(method, pattern) for pattern in self.methods)
            and (scenario == MEAN or self.covers(scenario))
        )

    def covers(self, scenario: str) -> bool:
        """Whether an answer depends on a scenario."""
        return any(fnmatchcase(scenario, pattern) for pattern in self.scenarios)

    def depends_on(self, scenario: str, score: str, method: str) -> bool:
        """Whether an answer depends on a method's score on a scenario."""
        unit = MEAN if self.mean_over_scenarios else scenario
        return self.covers(scenario) and self.asks(unit, score, method)
