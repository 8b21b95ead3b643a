"""Ranks that the data allow: every two methods of a table are compared, as one family of tests."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from clbench.results import statistics
from clbench.results.cell import CellResult, steps_by_scenario
from clbench.results.comparisons import differences, means_over_scenarios
from clbench.results.score_tables import scores_to_compare
from clbench.suite.schema import FEWEST, MEAN, Question
from clbench.suite.scores import SCORE

Pair = tuple[str, str]


class Ranking(NamedTuple):
    """Scores of methods, comparisons of the first of two with the second, ranges of ranks.

    `family` is the number of pairs with enough common seeds, which share the error rate.
    """

    summaries: Mapping[str, statistics.Summary]
    comparisons: Mapping[Pair, statistics.Comparison]
    ranges: Mapping[str, tuple[int, int]]
    family: int


def rank_ranges(
    methods: Sequence[str], verdicts: Mapping[Pair, statistics.Verdict]
) -> dict[str, tuple[int, int]]:
    """Return the best and the worst rank of each method that the verdicts on all pairs allow.

    The best is 1 + the number of methods that beat it, the worst n − the number that it beats. A
    range misses a method's true rank only if a verdict on it is wrong, so all ranges of a table
    hold jointly at 1 − the error rate of its family, or more, as with Tukey's test in Al Mohamad,
    Goeman & van Zwet 2022 (Biometrics 78). Each pair has verdicts in both orders.
    """
    better = [pair for pair, verdict in verdicts.items() if verdict == "better"]
    beaten, beats = [b for _, b in better], [a for a, _ in better]
    return {name: (1 + beaten.count(name), len(methods) - beats.count(name)) for name in methods}


def rank_methods(
    cells: Sequence[CellResult], score: str, *, alpha: float = statistics.ALPHA, margin: float = 0.0
) -> Ranking:
    """Compare every two baselines seed by seed, with `statistics.compare`, and rank them.

    With several scenarios, scores are means over all of them. `margin` is the largest difference
    that does not matter. Single-task references have no rank; they give scores such as
    intransigence.
    """
    question = Question(scores=[score], mean_over_scenarios=True)
    values, steps = scores_to_compare(cells, question), steps_by_scenario(cells)
    scenarios = list(dict.fromkeys(c.scenario for c in cells if c.reference_of is None))

    def samples(scenario: str) -> dict[Pair, statistics.Differences]:
        some, step = values.get((scenario, score), {}), steps.get(scenario, {}).get(score, 0.0)
        pairs = ((a, b, d) for b in some for a, d in differences(some, b, step).items())
        return {(a, b): sample for a, b, sample in pairs}

    group, gaps = (scenarios[0], score), {}
    if len(scenarios) > 1:
        group = (MEAN, score)
        apart = [sample for name in scenarios for sample in samples(name).values()]
        gaps[group] = statistics.hidden_gap(apart, len(scenarios))
        values, steps[MEAN] = means_over_scenarios(values, steps, question, scenarios)
    pairs, by_method = samples(group[0]), values.get(group, {})
    family = sum(len(sample.values) >= FEWEST for sample in pairs.values()) // 2
    answers = statistics.compare(
        {group: pairs}, alpha=alpha, family=max(1, family), margin=margin, known_gaps=gaps,
        lower_is_better=[] if SCORE[score].higher_is_better else [group],
    )  # fmt: skip
    comparisons = {pair: answer for (_, pair), answer in answers.items()}
    step = steps.get(group[0], {}).get(score, 0.0)
    return Ranking(
        {name: statistics.summarise([*some.values()], step) for name, some in by_method.items()},
        comparisons,
        rank_ranges([*by_method], {pair: answer.verdict for pair, answer in comparisons.items()}),
        family,
    )
