"""The page of findings says what the kept cells say."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from statistics import fmean, median

import pytest
from helpers.report_runs import cells

from clbench.results.cell import CellResult
from clbench.results.comparisons import comparisons_frame, controls_frame
from clbench.results.overall import overall_frame
from clbench.results.statistics import Comparison
from clbench.results.store import Store
from clbench.suite.schema import Question
from tools import findings
from tools.findings import CLAIMS, REFERENCE, STUDIES, Claim, plain

MODELS = ("minilm", "tiny")
BOTH = ("p_o", "p_s")


@cache
def study(name: str = "tiny") -> Sequence[CellResult]:
    """Return the cells of a study."""
    return next(some for some in STUDIES if some.name == name).read()[0]


@cache
def all_answers(name: str) -> dict[tuple[Claim, str], Comparison]:
    """Return the comparisons of a study on the page."""
    return findings.answers(study(name), 0.01)


def answer(method: str, reference: str, score: str, name: str = "tiny") -> Comparison:
    """Return a comparison of the page."""
    return all_answers(name)[Claim(method, reference), score]


def interval(found: Comparison) -> str:
    """Return a comparison as the page writes it."""
    return findings.interval(found.difference, found.difference_low, found.difference_high)


def widest(found: Comparison) -> str:
    """Return the largest difference that an interval allows."""
    return plain(max(abs(found.difference_low), abs(found.difference_high)))


def mean(name: str, method: str, task: int, stage: int = -1) -> float:
    """Return a method's mean score over the scenarios and seeds of a study."""
    return fmean(c.R[stage][task] or 0.0 for c in study(name) if c.baseline == method)


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


@pytest.mark.parametrize(("name", "count"), [("minilm", 12), ("tiny", 14)])
def test_every_method_has_every_scenario_and_seed(name: str, count: int) -> None:
    methods = {cell.baseline for cell in study(name)}
    assert len(methods) == count
    assert len({cell.scenario for cell in study(name)}) == 6
    assert len({cell.key for cell in study(name)}) == len(study(name)) == count * 6 * 5
    claims = findings.claims_of(study(name))
    assert len(claims) == len(CLAIMS) - (name == "minilm")  # without ewc


def test_a_claim_is_the_mean_of_the_differences_of_its_cells() -> None:
    p_o = {(c.baseline, c.scenario, c.seed): c.R[-1][0] or 0.0 for c in study()}
    pairs = [(key[1:], value) for key, value in p_o.items() if key[0] == "recadam"]
    differences = [value - p_o["vanilla", *key] for key, value in pairs]
    assert len(differences) == 30
    assert answer("recadam", "vanilla", "p_o").difference == pytest.approx(fmean(differences))


def test_the_answer_on_layerwise_rates() -> None:
    new = answer("bertcl-combined", "low-rate", "p_s", "minilm")
    assert new.verdict == "worse"
    assert f"their geometric mean ({interval(new)}), and no difference" in text()
    assert (
        f"interval of that difference ends at {interval(new).split(', ')[1].rstrip(']')}." in text()
    )
    for name, score in (("minilm", "p_o"), ("tiny", "p_o"), ("tiny", "p_s")):
        found = answer("bertcl-combined", "low-rate", score, name)
        assert found.verdict == "no difference shown"
    published = {
        name: [answer("bertcl-published", "low-rate-published", s, name) for s in BOTH]
        for name in MODELS
    }
    for old, new in published.values():
        assert (old.verdict, new.verdict) == ("no difference shown", "equivalent")
    old_tasks = [widest(published[name][0]) for name in MODELS]
    assert f"at most {old_tasks[0]} (MiniLM) and {old_tasks[1]} on the old one" in text()


def test_the_answer_on_the_published_distribution() -> None:
    new = answer("bertcl-published", "vanilla", "p_s", "minilm")
    assert new.verdict == "worse"
    numbers = [plain(-x) for x in (new.difference, new.difference_high, new.difference_low)]
    shown = f"{numbers[0]} [{numbers[1]}, {numbers[2]}]"
    assert f"it learns {shown} less of the new task" in text()
    readme = " ".join((findings.ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"they learn {numbers[0]} less of the new task than plain fine-tuning, with no" in readme
    others = (("minilm", "p_o"), ("tiny", "p_o"), ("tiny", "p_s"))
    for name, score in others:
        found = answer("bertcl-published", "vanilla", score, name)
        assert found.verdict == "no difference shown"
    before = [
        plain(mean(name, method, 0, 0))
        for name in MODELS
        for method in ("bertcl-published", "vanilla")
    ]
    assert "scores {} against {} (MiniLM) and {} against {}.".format(*before) in text()
    without = [
        plain(
            fmean(
                c.R[0][0] or 0.0
                for c in study("minilm")
                if c.baseline == method and c.scenario != "sst2-length"
            )
        )
        for method in ("bertcl-published", "vanilla")
    ]
    assert "without it, {} against {}.".format(*without) in text()
    gaps = [
        [
            (c.R[0][0] or 0.0) * (1 if c.baseline == "vanilla" else -1)
            for c in study("minilm")
            if c.baseline in {"vanilla", "bertcl-published"}
            and (c.scenario == "sst2-length" or not only)
        ]
        for only in (True, False)
    ]
    assert 0.5 < sum(gaps[0]) / sum(gaps[1]) < 0.6  # "more than half of the first gap"


def test_what_the_page_says_of_changes_of_task_and_of_splits() -> None:
    def differs(method: str, splits: bool) -> str:
        ends = [
            fmean(
                c.R[-1][0] or 0.0
                for c in study("minilm")
                if c.baseline == name and (c.scenario in {"sst2-length", "sst2-cluster"}) == splits
            )
            for name in (method, "vanilla")
        ]
        return findings.signed(ends[0] - ends[1])

    shown = [
        differs(m, s) for m in ("bertcl-published", "recadam", "replay") for s in (False, True)
    ]
    assert (
        "fine-tuning by {} on the old task over the four and by {} over the two, RecAdam by {} and "
        "{}, and replay by {} and {}."
    ).format(*shown) in text()


def test_a_later_recall_is_not_shown_to_help() -> None:
    cells = Store(REFERENCE / "findings-minilm-late").read().cells
    late = [cell for cell in cells if cell.baseline == "recadam-late"]
    assert (len(cells), len(late)) == (20, 10)
    assert {cell.settings["method"]["t0"] for cell in late} == {1000.0}
    tuned = next(c for c in study("minilm") if c.baseline == "recadam").settings["method"]
    assert all(cell.settings["method"] == {**tuned, "t0": 1000.0} for cell in late)
    claim = Claim("recadam-late", "low-rate-recadam")
    found = findings.answers(cells, Question().margin, [claim])
    assert {each.verdict for each in found.values()} == {"no difference shown"}
    shown = [
        findings.interval(each.difference, each.difference_low, each.difference_high)
        for each in found.values()
    ]
    assert "is shown either: {} on the old task and {} on the new one".format(*shown) in text()


def test_the_tuned_recall_has_ended_early_in_a_stage() -> None:
    ends: dict[int, set[float]] = {}
    for cell in (cell for name in MODELS for cell in study(name) if cell.baseline == "recadam"):
        for stage in cell.stages:
            over = next(step for step, share in stage.curves["lambda"] if share > 1 - 1e-6)
            ends.setdefault(stage.steps, set()).add(over)
    assert ends.pop(189) == {7.0}
    assert (min(ends), max(ends), max(map(max, ends.values()))) == (57, 132, 10.0)
    assert "ended after 7 of the 189 steps of a stage, and within 10 of 57 to 132 on" in text()


def test_the_answers_on_the_pulls() -> None:
    verdicts = {
        (name, method, reference, score): answer(method, reference, score, name).verdict
        for name, method, reference in (
            ("minilm", "ewc-mlm", "vanilla"),
            ("minilm", "recadam", "vanilla"),
            ("minilm", "recadam", "low-rate-recadam"),
            ("tiny", "ewc-mlm", "vanilla"),
            ("tiny", "ewc", "vanilla"),
            ("tiny", "recadam", "vanilla"),
            ("tiny", "recadam", "low-rate-recadam"),
        )
        for score in BOTH
    }
    none = "no difference shown"
    assert list(verdicts.values()) == [
        *(none, "equivalent", none, none, "equivalent", "equivalent"),
        *(none, none, none, none, "better", none, none, "equivalent"),
    ]
    assert f"at most {widest(answer('recadam', 'low-rate-recadam', 'p_o'))} apart" in text()
    begin = interval(answer("recadam", "vanilla", "p_o")).split("[")[1].split(",")[0]
    assert f"its interval begins at {begin}." in text()


def test_the_page_says_how_wide_its_intervals_are() -> None:
    halves = [
        max(
            (found.difference_high - found.difference_low) / 2
            for (_, score), found in all_answers(name).items()
            if score == "p_o"
        )
        for name in MODELS
    ]
    shown = [f"±{half:.2f}".replace("0.", ".") for half in halves]
    assert f"intervals of up to {shown[0]} (MiniLM) and {shown[1]} on the old task" in text()


def test_an_end_next_to_zero_shows_its_sign_if_the_interval_excludes_zero() -> None:
    assert findings.interval(-0.0057, -0.0112, -0.00016) == "−.006 [−.011, −.0002]"
    assert findings.interval(0.0, -0.00016, 0.0112) == ".000 [.000, +.011]"
    assert findings.interval(-0.04, float("nan"), float("nan")) == "−.040"


def test_the_declared_questions() -> None:
    tables = []
    for name, count in (("minilm", 6), ("tiny", 48)):
        cells, question = next(some for some in STUDIES if some.name == name).read()
        table = comparisons_frame(cells, question)
        tables.append(table[table["primary"]])
        assert len(tables[-1]) == count
        assert f"{count} comparisons" in text()
    names = ["scenario", "method", "score", "verdict"]
    shown = [
        t.loc[t["verdict"] != "no difference shown", names].to_numpy().tolist() for t in tables
    ]
    assert shown == [
        [["mean over scenarios", "ewc-mlm", "p_s", "equivalent"]],
        [["sst2-length", "ewc", "p_s", "equivalent"]],
    ]


def test_the_page_says_what_is_kept_of_the_pretraining() -> None:
    cells = Store(findings.PRETRAINING).read().cells
    assert len(cells) == 5 * 2 * 5
    rows = {}
    for line in findings.kept_table(cells, Question()).splitlines()[2:]:
        name, *columns = (column.strip() for column in line.strip("| ").split(" | "))
        rows[name.strip("`")] = columns
    (before,) = {plain(cell.R[0][0] or 0.0) for cell in cells}
    assert f"The built-in pretrained model predicts {before} of" in text()
    difference = rows["ewc-mlm"][1].removesuffix(" better")
    shown = f"predicts {rows['ewc-mlm'][0]} of the masked tokens of held-out text, against "
    assert f"{shown}{rows['vanilla'][0]} after plain fine-tuning ({difference})" in text()
    assert rows["ewc-mlm-strong"][0] == before
    assert float(rows["half-rate"][0]) >= float(rows["recadam-half-rate"][0])
    for name in ("half-rate", "ewc-mlm", "ewc-mlm-strong", "recadam-half-rate"):
        assert rows[name][1].endswith("better")
        assert rows[name][3].endswith("]")
        assert rows[name][5].endswith("]")


@pytest.mark.parametrize("name", MODELS)
def test_no_method_beats_all_controls(name: str) -> None:
    table = controls_frame(study(name))
    assert {*table["control"]} >= {"low-rate-recadam", "wise-ft", "frozen"}
    assert ("early-stop" in {*table["control"]}) == (name == "tiny")
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


@pytest.mark.slow
def test_the_page_says_what_plain_fine_tuning_forgets() -> None:
    shown, rows = [], []
    for name in MODELS:
        vanilla = [c for c in study(name) if c.baseline == "vanilla"]
        for scenario in ("sst2-length", "sst2-cluster"):
            cell = next(c for c in vanilla if c.scenario == scenario)
            rows.append(cell.scenario_report["parts"][0]["validation"])
        table = findings.tables()[f"{name}-forgetting"]
        row = next(line for line in table.splitlines() if "`sst2-length`" in line)
        shown.append(row.split("|")[3].strip())
        assert shown[-1].startswith("−")  # ends above
    assert f"(forgetting {shown[0]} with MiniLM, {shown[1]} with the built-in model)" in text()
    assert f"Only {rows[0]} and {rows[2]} short sentences" in text()
    assert f"with {rows[1]} and {rows[3]} rows" in text()


def test_the_page_says_what_half_the_rate_is_worth() -> None:
    gains = {
        (name, task): mean(name, "low-rate-recadam", task) - mean(name, "vanilla", task)
        for name in MODELS
        for task in (0, 1)
    }
    assert f"rate scores {plain(gains['tiny', 0])} higher on the old task of" in text()
    old, new = plain(gains["minilm", 0]), plain(-gains["minilm", 1])
    assert f"scores {old} higher on the old task and {new} lower on the new one" in text()
    for task in (0, 1):
        methods = {c.baseline for c in study()}
        best = max(methods, key=lambda method: mean("tiny", method, task))
        assert best == "low-rate-recadam"


def test_the_page_states_the_critical_difference_of_ranks() -> None:
    critical = [overall_frame(study(name))["critical_difference"].max() for name in MODELS]
    shown = f"{critical[0]:.1f} with MiniLM, {critical[1]:.1f} with the built-in model"
    assert f"(critical difference {shown})" in text()


def test_claims_know_the_collapses_of_each_scenario() -> None:
    """On one of three scenarios ewc always collapses and recadam once: .25 / 3 in the mean."""
    steady = [(0.8, 0.8), (0.81, 0.8), (0.8, 0.8)]
    lost = [(p_o - 0.25, 0.8) for p_o, _ in steady]
    runs = cells("a", vanilla=steady, ewc=lost, recadam=[lost[0], *steady[1:]])
    runs += [c for s in "bc" for c in cells(s, vanilla=steady, ewc=steady, recadam=steady)]
    line = findings.claims_table(runs, Question()).splitlines()[2]
    assert line.startswith("| `ewc` − `vanilla` | −.083 | no verdict | ")
    assert "nan" not in line
