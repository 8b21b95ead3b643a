"""The page of findings says what the kept cells say."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from statistics import fmean, median

import pytest

from clbench.results.cell import CellResult
from clbench.results.statistics import Comparison
from clbench.results.store import Store
from tools import findings
from tools.findings import CLAIMS, REFERENCE, STUDIES, Claim, plain, signed


@cache
def study(name: str = "tiny") -> Sequence[CellResult]:
    """Return the cells of a study."""
    return next(some for some in STUDIES if some.name == name).read()[0]


def answer(method: str, reference: str, score: str) -> Comparison:
    """Return a comparison of the page."""
    return findings.answers(study(), 0.01)[Claim(method, reference), score]


def text() -> str:
    """Return the first page without line breaks."""
    return " ".join(findings.PAGES[0].read_text(encoding="utf-8").split())


def test_the_pages_have_the_tables_of_the_cells() -> None:
    contents, names = findings.tables(), []
    for path in findings.PAGES:
        page = path.read_text(encoding="utf-8")
        assert findings.filled(page, contents) == page
        names += [name for name in contents if f"<!-- {name} -->" in page]
    assert sorted(names) == sorted(contents)


def test_every_method_has_every_scenario_and_seed() -> None:
    methods = {cell.baseline for cell in study()}
    scenarios = {cell.scenario for cell in study()}
    assert (len(methods), len(scenarios)) == (14, 6)
    assert len(study()) == 14 * 6 * 5
    assert {claim.method for claim in CLAIMS} | {claim.reference for claim in CLAIMS} <= methods


def test_a_claim_is_the_mean_of_the_differences_of_its_cells() -> None:
    p_o = {(c.baseline, c.scenario, c.seed): c.R[-1][0] or 0.0 for c in study()}
    pairs = [(key[1:], value) for key, value in p_o.items() if key[0] == "recadam"]
    differences = [value - p_o["vanilla", *key] for key, value in pairs]
    assert len(differences) == 30
    assert answer("recadam", "vanilla", "p_o").difference == pytest.approx(fmean(differences))


def test_the_answers_are_those_of_the_comparisons() -> None:
    page = text()
    published = [answer("bertcl-published", "low-rate-published", s) for s in ("p_o", "p_s")]
    widest = max(abs(published[0].difference_low), abs(published[0].difference_high))
    assert f"differ by at most {plain(widest)} on the old task" in page
    assert published[1].verdict == "equivalent"
    for method, reference in (
        ("bertcl-combined", "low-rate"),
        ("bertcl-published", "vanilla"),
        ("ewc-mlm", "vanilla"),
        ("ewc", "vanilla"),
    ):
        for score in ("p_o", "p_s"):
            assert answer(method, reference, score).verdict == "no difference shown"
    shown = [signed(answer("bertcl-published", "vanilla", s).difference) for s in ("p_o", "p_s")]
    assert f"shown: {shown[0]} on the old task, {shown[1]} on the new one" in page
    assert f"{signed(answer('ewc-mlm', 'vanilla', 'p_o').difference)} on the old task" in page
    assert f"The {signed(answer('ewc', 'vanilla', 'p_o').difference)} of EWC" in page
    assert all(answer("recadam", "vanilla", score).verdict == "better" for score in ("p_o", "p_s"))
    rate = [answer("recadam", "low-rate-recadam", score) for score in ("p_o", "p_s")]
    widest = max(abs(rate[0].difference_low), abs(rate[0].difference_high))
    assert f"at most {plain(widest)} apart on the old task" in page
    assert [a.verdict for a in rate] == ["no difference shown", "equivalent"]


def test_the_page_says_what_plain_fine_tuning_forgets_and_what_its_rate_is_worth() -> None:
    vanilla = [c for c in study() if c.baseline == "vanilla"]
    length = [c for c in vanilla if c.scenario == "sst2-length"]
    gained = -fmean(c.scores["forgetting"] or 0.0 for c in length)
    assert f"ends {plain(gained)} *above*" in text()
    assert length[0].scenario_report["parts"][0]["validation"] == 50
    cluster = next(c for c in vanilla if c.scenario == "sst2-cluster")
    assert cluster.scenario_report["parts"][0]["validation"] == 406
    half = [c.R[-1][0] or 0.0 for c in study() if c.baseline == "low-rate-recadam"]
    gain = fmean(half) - fmean(c.R[-1][0] or 0.0 for c in vanilla)
    assert f"half of it ended {plain(gain)} higher" in text()
    assert "No method ended above plain fine-tuning at that rate, on either task." in text()
    for task in (0, 1):
        scores: dict[str, list[float]] = {}
        for c in study():
            scores.setdefault(c.baseline, []).append(c.R[-1][task] or 0.0)
        assert max(scores, key=lambda name: fmean(scores[name])) == "low-rate-recadam"


def test_the_page_says_what_methods_cost() -> None:
    cells = Store(REFERENCE / "findings-costs").read().cells
    by_name = {(c.baseline, c.seed): c for c in cells}
    assert len({c.seed for c in cells}) == 3

    def ratio(method: str, field: str) -> float:
        pairs = [(c, by_name["vanilla", c.seed]) for c in cells if c.baseline == method]
        return median(getattr(c, field) / getattr(vanilla, field) for c, vanilla in pairs)

    recadam, replay = (
        [f"{ratio(method, field):.2f}" for field in ("train_seconds", "training_memory_mb")]
        for method in ("recadam", "replay")
    )
    assert (
        f"RecAdam takes {recadam[0]} times the time of plain fine-tuning and {recadam[1]} times "
        f"its memory, replay {replay[0]} and {replay[1]} times."
    ) in text()
