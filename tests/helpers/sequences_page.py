"""What the kept cells of the studies of sequences say, as their page writes it."""

from __future__ import annotations

from functools import cache

from clbench.results.score_tables import means, score_rows
from clbench.results.statistics import Comparison
from tools import findings_sequences as page
from tools.findings import Claim, answers, plain, signed

STUDIES = page.STUDIES


@cache
def text() -> str:
    """Return the page without line breaks."""
    return " ".join(page.PAGE.read_text(encoding="utf-8").split())


@cache
def scores(number: int) -> dict[str, dict[str, float]]:
    """Return the mean scores of the methods of a study."""
    return {row["method"]: row for row in means(score_rows(STUDIES[number].read()[0]))}


@cache
def found(number: int) -> dict[tuple[Claim, str], Comparison]:
    """Return the claims of a study with their answers."""
    cells, question = STUDIES[number].read()
    return answers(cells, question.margin, page.CLAIMS, (page.SCORE,))


def average(number: int, method: str) -> str:
    return plain(scores(number)[method]["average_mean"])


def shown(answer: Comparison, digits: object = signed) -> str:
    ends = answer.difference, answer.difference_low, answer.difference_high
    return "{} [{}, {}]".format(*map(digits, ends))  # type: ignore[call-overload]
