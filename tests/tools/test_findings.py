"""The page of findings says what the kept cells say."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from statistics import fmean, median

import pytest

from clbench.results.cell import CellResult
from clbench.results.comparisons import comparisons_frame
from clbench.results.controls import controls_frame
from clbench.results.overall import overall_frame
from clbench.results.statistics import Comparison
from clbench.results.store import Store
from clbench.suite.baselines import read_baseline
from clbench.suite.question import Question
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
    shown = [
        findings.interval(found.difference, found.difference_low, found.difference_high)
        for found in (answer("bertcl-published", "vanilla", s) for s in ("p_o", "p_s"))
    ]
    assert f"shown: {shown[0]} on the old task, {shown[1]} on the new one" in page
    before = [
        plain(fmean(c.R[0][0] or 0.0 for c in study() if c.baseline == name))
        for name in ("bertcl-published", "vanilla")
    ]
    assert f"({before[0]} before the new task, against {before[1]})" in page
    assert all(answer("recadam", "vanilla", score).verdict == "better" for score in ("p_o", "p_s"))
    assert f"begins at {signed(answer('recadam', 'vanilla', 'p_s').difference_low)}" in page
    rate = [answer("recadam", "low-rate-recadam", score) for score in ("p_o", "p_s")]
    widest = max(abs(rate[0].difference_low), abs(rate[0].difference_high))
    assert f"at most {plain(widest)} apart on the old task" in page
    assert [a.verdict for a in rate] == ["no difference shown", "equivalent"]
    halves = [
        (found.difference_high - found.difference_low) / 2
        for (_, score), found in findings.answers(study(), 0.01).items()
        if score == "p_o"
    ]
    assert f"intervals of up to ±{max(halves):.2f}".replace("0.", ".") in page


def test_the_declared_question_shows_no_difference() -> None:
    cells, question = STUDIES[0].read()
    table = comparisons_frame(cells, question)
    table = table[table["primary"]]
    assert f"has {len(table)} comparisons" in text()
    assert set(table["verdict"]) == {"no difference shown"}


def test_the_page_says_what_is_kept_of_the_pretraining() -> None:
    cells = Store(findings.PRETRAINING).read().cells
    assert len(cells) == 5 * 2 * 5
    rows = {}
    for line in findings.kept_table(cells, Question()).splitlines()[2:]:
        name, *columns = (column.strip() for column in line.strip("| ").split(" | "))
        rows[name.strip("`")] = columns
    (before,) = {plain(cell.R[0][0] or 0.0) for cell in cells}
    assert f"The pretrained model predicts {before} of" in text()
    difference = rows["ewc-mlm"][1].removesuffix(" better")
    shown = f"predicts {rows['ewc-mlm'][0]} of the masked tokens of held-out text, against "
    assert f"{shown}{rows['vanilla'][0]} after plain fine-tuning ({difference})" in text()
    assert rows["ewc-mlm-strong"][0] == before
    assert float(rows["half-rate"][0]) >= float(rows["recadam-half-rate"][0])
    for name in ("half-rate", "ewc-mlm", "ewc-mlm-strong", "recadam-half-rate"):
        assert rows[name][1].endswith("better")
        assert rows[name][3].endswith("]")
        assert rows[name][5].endswith("]")


def test_no_method_beats_all_controls() -> None:
    table = controls_frame(study())
    assert {*table["control"]} >= {"low-rate-recadam", "early-stop", "wise-ft", "frozen"}
    for _, some in table.groupby(["scenario", "method"]):
        assert not (some["verdict"] == "better").all()


def test_the_page_says_how_much_one_cell_weighs() -> None:
    p_o = {(c.baseline, c.scenario, c.seed): c.R[-1][0] or 0.0 for c in study()}
    cell = ("mrpc-rte", 0)
    assert f"seed 0 falls to {plain(p_o['vanilla', *cell])}" in text()
    differences = {
        key[1:]: value - p_o["vanilla", *key[1:]]
        for key, value in p_o.items()
        if key[0] == "recadam"
    }
    rest = fmean(value for key, value in differences.items() if key != cell)
    everything = fmean(differences.values())
    assert f"is {plain(rest)} instead of {plain(everything)}" in text()
    assert f"the median is {plain(median(differences.values()))}" in text()


def test_the_page_says_what_plain_fine_tuning_forgets_and_what_its_rate_is_worth() -> None:
    vanilla = [c for c in study() if c.baseline == "vanilla"]
    length = [c for c in vanilla if c.scenario == "sst2-length"]
    gained = -fmean(c.scores["forgetting"] or 0.0 for c in length)
    assert f"ends {plain(gained)} *above*" in text()
    rows = length[0].scenario_report["parts"][0]["validation"]
    assert f"Only {rows} short sentences" in text()
    cluster = next(c for c in vanilla if c.scenario == "sst2-cluster")
    assert f"with {cluster.scenario_report['parts'][0]['validation']} rows" in text()
    tables = findings.tables()["tiny-forgetting"]
    row = next(line for line in tables.splitlines() if "`sst2-length`" in line)
    assert f"(forgetting {row.split('|')[3].strip()})" in text()
    half = [c.R[-1][0] or 0.0 for c in study() if c.baseline == "low-rate-recadam"]
    gain = fmean(half) - fmean(c.R[-1][0] or 0.0 for c in vanilla)
    assert f"rate scores {plain(gain)} higher" in text()
    for task in (0, 1):
        scores: dict[str, list[float]] = {}
        for c in study():
            scores.setdefault(c.baseline, []).append(c.R[-1][task] or 0.0)
        assert max(scores, key=lambda name: fmean(scores[name])) == "low-rate-recadam"


def test_the_page_states_the_critical_difference_of_ranks() -> None:
    frame = overall_frame(study())
    assert f"(critical difference {frame['critical_difference'].max():.1f})" in text()


def test_the_tuned_rates_are_as_the_page_says() -> None:
    tuning = STUDIES[0].tuning
    rates = {
        name: read_baseline(str(tuning / f"{name}.toml")).settings["lr_multiple"]
        for name in ("vanilla", "recadam", "low-rate-recadam", "bertcl-combined", "low-rate")
    }
    assert rates["recadam"] == rates["low-rate-recadam"] == rates["vanilla"] / 2
    assert rates["bertcl-combined"] == 10  # ten times the published rates
    assert rates["low-rate"] > rates["vanilla"]


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
