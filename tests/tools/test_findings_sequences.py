"""The page of findings on sequences says what the kept cells say."""

from __future__ import annotations

import json
from functools import cache
from statistics import fmean

import numpy as np
import pytest

from clbench.results.archive import read_archive
from clbench.results.score_tables import means, score_rows
from clbench.results.store import Store
from tools import findings_sequences as page
from tools.findings import Claim, answers, plain, signed


@cache
def text() -> str:
    """Return the page without line breaks."""
    return " ".join(page.PAGE.read_text(encoding="utf-8").split())


@cache
def scores(name: str) -> dict[str, dict[str, float]]:
    """Return the mean scores of a study's methods, over its scenarios."""
    rows = means(score_rows(Store(study(name).folder).read().cells))
    wanted = ("average_mean", "mean_forgetting_mean", "told_mean", "p_s_mean")
    return {
        method: {
            key: fmean(row[key] for row in rows if row["method"] == method)
            for key in wanted
            if rows[0].get(key) is not None
        }
        for method in {row["method"] for row in rows}
    }


def study(name: str) -> page.Study:
    return next(some for some in page.finished() if some.name == name)


def test_the_page_has_the_tables_of_the_cells() -> None:
    current = page.PAGE.read_text(encoding="utf-8")
    contents = page.tables()
    assert page.filled(current, contents) == current
    assert all(f"<!-- {name} -->" in current for name in contents)


@pytest.mark.parametrize("some", page.finished(), ids=lambda some: some.name)
def test_every_method_has_three_seeds_and_was_tuned_on_others(some: page.Study) -> None:
    cells, _ = some.read()
    by_block = {(cell.baseline, cell.scenario): set() for cell in cells}
    for cell in cells:
        by_block[cell.baseline, cell.scenario].add(cell.seed)
    assert {frozenset(seeds) for seeds in by_block.values()} == {frozenset({0, 1, 2})}
    assert len({cell.baseline for cell in cells}) >= 10
    tuned = json.loads((some.tuning / "tune.json").read_text(encoding="utf-8"))["methods"]
    trials = {"clinc150": {3}, "sequence-4": {5, 6}}.get(some.name, {5, 6})
    assert {len(method["proposals"]) for method in tuned.values()} == trials
    assert all(
        len(method["proposals"]) == max(trials) or list(method["sweep"]) == ["lr_multiple"]
        for method in tuned.values()
    )
    assert not {cell.seed for cell in Store(some.tuning).read().cells} & {0, 1, 2}


def test_the_answers_on_clinc150() -> None:
    mean = scores("clinc150")

    def average(method: str) -> str:
        return plain(mean[method]["average_mean"])

    ends = [average(name) for name in ("o-lora", "lora-shared", "frozen")]
    shown = (
        "It ends at {}; a single adapter trained on all domains in turn ends at {}, and a head on "
        "frozen features at {}."
    )
    assert shown.format(*ends) in text()
    assert f"O-LoRA scores {plain(mean['o-lora']['told_mean'])} if told the domain" in text()
    learned = [plain(mean[name]["p_s_mean"]) for name in ("ewc-lora", "vanilla")]
    assert "it reaches {} on the last domain, plain fine-tuning {}.".format(*learned) in text()
    assert f"Plain EWC ends at {average('ewc')}" in text()
    assert f"**SEQ\\* holds up**: it ends at {average('seq-star')}, ahead" in text()
    best = max(row["told_mean"] for name, row in mean.items() if name != "multitask")
    assert best == mean["seq-star"]["told_mean"]
    assert f"it scores {plain(best)}, the best of all methods in sequence" in text()
    assert max(mean, key=lambda name: mean[name]["average_mean"]) == "multitask"
    without = {name: row["average_mean"] for name, row in mean.items() if name != "multitask"}
    assert max(without, key=lambda name: without[name]) == "prototypes"
    assert f"It ends at {average('prototypes')}, in 0.12 times the time" in text()
    assert f"reaches {average('multitask')} (`multitask`, one seed)" in text()


def test_the_intervals_on_clinc150() -> None:
    cells, question = study("clinc150").read()
    found = answers(cells, question.margin, page.CLAIMS, (page.SCORE,))
    for method, other, words in (
        ("ewc-lora", "lora-shared", "far ahead of the plain adapter**, by"),
        ("seq-star", "vanilla", "ahead of plain fine-tuning by"),
    ):
        one = found[Claim(method, other), page.SCORE]
        assert one.verdict == "better"
        numbers = [plain(x) for x in (one.difference, one.difference_low, one.difference_high)]
        assert "{} {} [{}, {}]".format(words, *numbers) in text()
    assert found[Claim("seq-star", "replay"), page.SCORE].verdict == "no difference shown"


def test_the_answers_on_four_tasks() -> None:
    mean = scores("sequence-4")
    average = {name: plain(row["average_mean"]) for name, row in mean.items()}
    forgotten = {name: plain(row["mean_forgetting_mean"]) for name, row in mean.items()}
    ranked = sorted(mean, key=lambda name: mean[name]["average_mean"])
    assert (ranked[0], ranked[-2:]) == ("frozen", ["wise-ft", "replay"])
    assert f"end between {average['frozen']} (`frozen`) and {average['replay']}" in text()
    assert f"plain fine-tuning at {average['vanilla']}." in text()
    ends = forgotten["o-lora"], forgotten["vanilla"], average["o-lora"]
    assert "It forgets {}, plain fine-tuning {}, but it ends at {}.".format(*ends) in text()
    assert forgotten["ewc-lora"] == ".001"
    assert f"it ends at {average['ewc-lora']}, and the difference" in text()
    assert f"It ends at {average['seq-star']}; no difference is shown" in text()
    ends = average["wise-ft"], forgotten["wise-ft"]
    assert "`wise-ft` ends at {} and forgets {}.".format(*ends) in text()


def test_the_intervals_on_four_tasks() -> None:
    cells, question = study("sequence-4").read()
    found = answers(cells, question.margin, page.CLAIMS, (page.SCORE,))
    shown = {
        (claim.method, claim.reference): answer.verdict for (claim, _), answer in found.items()
    }
    differ = {pair: verdict for pair, verdict in shown.items() if not verdict.startswith("no ")}
    assert differ == {("o-lora", "replay"): "worse", ("seq-star", "frozen"): "better"}
    one = found[Claim("o-lora", "replay"), page.SCORE]
    numbers = (-one.difference, -one.difference_high, -one.difference_low)
    assert "replay is ahead by {} [{}, {}]".format(*map(plain, numbers)) in text()
    one = found[Claim("seq-star", "frozen"), page.SCORE]
    numbers = (one.difference, one.difference_low, one.difference_high)
    assert "beats a frozen encoder** by {} [{}, {}]".format(*map(plain, numbers)) in text()
    one = found[Claim("ewc-lora", "lora-shared"), page.SCORE]
    numbers = (one.difference, one.difference_low, one.difference_high)
    assert "the difference is {} [{}, {}].".format(*map(signed, numbers)) in text()


def test_the_answers_on_fifteen_tasks() -> None:
    mean = scores("sequence-15")
    average = {name: plain(row["average_mean"]) for name, row in mean.items()}
    forgotten = {name: plain(row["mean_forgetting_mean"]) for name, row in mean.items()}
    above = {name for name in mean if mean[name]["average_mean"] > mean["frozen"]["average_mean"]}
    assert above == {"seq-star", "replay"}
    ends = [average[name] for name in ("frozen", "vanilla", "seq-star", "replay")]
    shown = "ends at {}, plain fine-tuning at {}, and only SEQ\\* ({}) and `replay` ({})"
    assert shown.format(*ends) in text()
    least = sorted(mean, key=lambda name: mean[name]["mean_forgetting_mean"])
    assert set(least[:4]) == {"frozen", "seq-star", "ewc-lora", "o-lora"}
    ends = [forgotten[name] for name in ("o-lora", "ewc-lora", "vanilla")]
    assert "({} and {}, plain fine-tuning {})".format(*ends) in text()
    assert f"they end at {average['o-lora']} and {average['ewc-lora']}." in text()
    cells, question = study("sequence-15").read()
    found = answers(cells, question.margin, page.CLAIMS, (page.SCORE,))
    assert {answer.verdict for answer in found.values()} == {"no difference shown"}


def test_what_the_trials_of_ewc_and_seq_star_learned() -> None:
    learned: dict[str, list[list[float]]] = {"ewc": [], "seq-star": []}
    for cell in Store(study("clinc150").tuning).read().cells:
        name = cell.baseline.split("-t")[0] if cell.baseline != "seq-star" else "seq-star"
        if name in learned:
            learned[name].append([cell.R[i][i] or 0.0 for i in range(10)])
    assert sorted(fmean(row[3:]) < 0.1 for row in learned["ewc"]) == [False, False, True]
    assert sorted(fmean(row[1:]) < 0.1 for row in learned["seq-star"]) == [False, True, True]


@pytest.mark.parametrize("some", page.finished(), ids=lambda some: some.name)
def test_scores_follow_from_r_as_papers_define_them(some: page.Study) -> None:
    """Recompute with NumPy, from the files: Lopez-Paz & Ranzato 2017; Chaudhry et al. 2018."""
    rows = score_rows(Store(some.folder).read().cells)
    by_key = {(row["scenario"], row["method"], row["seed"]): row for row in rows}
    checked = 0
    for file, data in read_archive(some.folder).items():
        cell = json.loads(data)
        if cell["reference_of"] is not None:
            continue
        r = np.array(cell["R"], dtype=float)  # [stage, task], NaN above the diagonal
        last = len(r) - 1
        best = np.nanmax(r[:last, :last], axis=0)
        expected = {
            "average": r[last].mean(),
            "bwt": (r[last] - np.diag(r))[:last].mean(),
            "mean_forgetting": (best - r[last, :last]).mean(),
            "average_over_time": np.nanmean(r, axis=1).mean(),
        }
        row = by_key[cell["scenario"], cell["baseline"], cell["seed"]]
        for name, value in expected.items():
            assert row[name] == pytest.approx(value, abs=1e-12), (file, name)
        checked += 1
    assert checked == len(rows) >= 30


def test_the_page_has_the_scores_with_the_mean_of_the_tokens() -> None:
    folder = study("clinc150").folder
    cells = Store(folder.with_name(f"{folder.name}-mean")).read().cells
    assert {cell.settings["pooling"] for cell in cells} == {"mean"}
    assert len(cells) == 4
    for row in means(score_rows(cells)):
        first = plain(scores("clinc150")[row["method"]]["average_mean"])
        assert f"| `{row['method']}` | {first} | {plain(row['average_mean'])} |" in text()
