"""The page of findings with every method tuned alike says what the kept cells say."""

from __future__ import annotations

import json
from functools import cache

import pytest

from clbench.results.archive import read_archive
from clbench.results.statistics import Comparison
from clbench.suite.baselines import read_baseline
from clbench.suite.read import read_suite
from tools import findings_facts as page
from tools.findings import interval, plain


@cache
def text() -> str:
    """Return the page without line breaks."""
    return " ".join(page.PAGE.read_text(encoding="utf-8").split())


def ends_of(found: Comparison) -> str:
    return interval(found.difference, found.difference_low, found.difference_high)


def test_all_declared_methods_and_seeds_are_there() -> None:
    suite, frame = read_suite("findings-facts").file, page.kept()
    assert {*frame["baseline"]} == {*suite.methods}
    assert len(frame) == len(suite.methods) * frame["seed"].nunique()
    assert [*suite.seeds[: frame["seed"].nunique()]] == sorted(frame["seed"].unique())
    assert suite.question.scores == page.QUESTION  # the primary score first


def test_every_method_had_as_many_trials() -> None:
    tuned = {}
    for cell in map(json.loads, read_archive(page.STUDY.tuning).values()):
        assert cell["seed"] not in read_suite("findings-facts").file.seeds
        tuned.setdefault(cell["baseline"].partition("-t")[0], set()).add(cell["baseline"])
    for name in page.kept()["baseline"].unique():
        cost = read_baseline(str(page.STUDY.tuning / f"{name}.toml")).cost
        assert cost is not None
        assert cost.trials == 6, name


def test_scores_follow_from_the_files() -> None:
    frame = page.kept().set_index(["baseline", "seed"])
    for data in read_archive(page.STUDY.folder).values():
        cell = json.loads(data)
        row = frame.loc[cell["baseline"], cell["seed"]]
        assert (row["p_o"], row["p_s"]) == tuple(cell["R"][-1])
        assert row["average"] == pytest.approx(sum(cell["R"][-1]) / 2)
        assert [part["validation"] for part in cell["scenario_report"]["parts"]] == [144, 48]


def less(found: Comparison) -> str:
    """Return how much less is kept or learned, with its interval."""
    ends = (-found.difference, -found.difference_high, -found.difference_low)
    return "{} [{}, {}]".format(*map(plain, ends))


def more(found: Comparison) -> str:
    return "{} [{}, {}]".format(
        *map(plain, (found.difference, found.difference_low, found.difference_high))
    )


def test_the_answers_on_what_is_ahead() -> None:
    found, curve = page.against_vanilla(), page.on_curve()
    better = [n for (score, n), c in found.items() if (score, c.verdict) == ("average", "better")]
    assert better == ["replay"]
    words = f"by {more(found['average', 'replay'])} in the mean of both tasks: it keeps"
    assert f"{words} {more(found['p_o', 'replay'])} more of the old facts, with" in text()
    assert found["p_s", "replay"].verdict == "no difference shown"
    low = [found[score, "low-rate-long"] for score in page.QUESTION]
    none = "no difference shown"
    assert [each.verdict for each in low] == [none, "better", none]
    assert f"keeps {more(low[1])} more and is not shown to learn less;" in text()
    assert f"no lead is shown ({ends_of(low[0])})" in text()
    assert curve["low-rate-long"].verdict == "better"
    assert f"it keeps {more(curve['low-rate-long'])} more than plain" in text()
    general = [found[score, "generic-replay"] for score in page.QUESTION]
    assert [each.verdict for each in general] == [none, "better", none]
    words = f"keep {more(general[1])} more, with no lead shown in the mean ({ends_of(general[0])})"
    assert words in text()


def test_the_answers_on_what_is_not() -> None:
    found, curve, none = page.against_vanilla(), page.on_curve(), "no difference shown"
    some = [found["average", name] for name in ("ewc", "talr", "self-replay")]
    assert {each.verdict for each in some} == {none}
    assert "{}, {} and {}. Untuned,".format(*map(ends_of, some)) in text()
    for name in ("vanilla", "ewc", "talr", "self-replay"):
        assert "`lr_multiple` 0.5" in page.settings_of(name)
    before = page.untuned.on_curve()["p_o", "talr"]
    assert f"TALR keeps {plain(-before.difference)} less" in text()
    assert f"no difference is shown ({ends_of(curve['talr'])})." in text()
    dft, asft = curve["dft"], curve["asft"]
    assert {dft.verdict, asft.verdict} == {none}
    assert f"no difference is shown ({ends_of(dft)} and {ends_of(asft)})." in text()
    before = page.by_seed("p_o_before").mean()
    assert f"know {plain(before.min())} to {plain(before.max())} of the old" in text()
    learned = {name: plain(page.by_seed("p_s")[name].mean()) for name in ("dft", "asft", "eaft")}
    assert learned["dft"] == learned["asft"]
    assert f"both learn {learned['dft']} of the new facts and end" in text()
    behind = [found["average", name] for name in ("dft", "asft", "lora", "eaft", "self-sft")]
    assert {each.verdict for each in behind} == {"worse"}
    ends = [plain(-each.difference) for each in behind[:2]]
    assert "and end {} and {} behind in the mean".format(*ends) in text()
    assert page.by_seed("p_s").mean().idxmax() == page.by_seed("p_o").mean().idxmin() == "eaft"
    ends = learned["eaft"], plain(page.by_seed("p_o")["eaft"].mean())
    assert "new facts ({}) and the lowest on old ones ({}).".format(*ends) in text()
    assert f"LoRA ends {less(behind[2])} behind;" in text()
    for name in ("freeze-bottom", "wise-ft"):
        assert (found["p_s", name].verdict, found["p_o", name].verdict) == ("worse", none)


def test_dft_and_asft_do_best_where_they_hardly_learn() -> None:
    for name in ("dft", "asft"):
        scores: dict[float, list[float]] = {}
        for folder in (page.STUDY.tuning, page.MORE):
            for cell in map(json.loads, read_archive(folder).values()):
                if cell["baseline"].partition("-t")[0] == name:
                    rate = cell["settings"]["method"].get("lr_multiple", 1.0)
                    scores.setdefault(rate, []).append(sum(cell["R"][-1]) / 2)
        means = {rate: sum(values) / len(values) for rate, values in scores.items()}
        assert max(means, key=means.__getitem__) == 0.1
        assert min(means) < 0.1
