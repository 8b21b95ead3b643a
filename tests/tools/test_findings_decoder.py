"""The page of findings on decoders says what the kept cells say."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import cache
from itertools import combinations
from statistics import fmean

import numpy as np
import pandas as pd
import pytest

from clbench.results.archive import read_archive
from clbench.results.statistics import Comparison, summarise
from clbench.suite.read import read_suite
from tools import findings_decoder as page
from tools.equal_learning import OUTSIDE, changed_verdicts
from tools.findings import interval, more, plain, signed


@cache
def text() -> str:
    """Return the page without line breaks."""
    return " ".join(page.PAGE.read_text(encoding="utf-8").split())


def ends_of(found: Comparison) -> str:
    """Return a difference and its interval, without a sign before the difference."""
    ends = interval(found.difference, found.difference_low, found.difference_high)
    return ends.removeprefix("+") if found.difference_low < 0 else ends.replace("+", "")


def test_all_methods_of_the_suite_have_all_kept_seeds() -> None:
    frame = page.kept()
    by_baseline = {frozenset(own["seed"]) for _, own in frame.groupby("baseline")}
    assert len(by_baseline) == 1
    assert len(frame) == len(next(iter(by_baseline))) * frame["baseline"].nunique()
    assert {*frame["baseline"]} == {*read_suite("findings-decoder").file.methods} - page.LATER
    assert {*page.every()["baseline"]} == {*frame["baseline"]} | page.LATER


def test_scores_follow_from_the_files() -> None:
    frame = page.every().set_index(["baseline", "seed"])
    checked = 0
    for file, data in (read_archive(page.FOLDER) | read_archive(page.LATE)).items():
        cell = json.loads(data)
        row = frame.loc[cell["baseline"], cell["seed"]]
        assert (row["p_o"], row["p_s"]) == tuple(cell["R"][-1]), file
        first, *_, last = cell["capabilities"]
        assert row["text_loss_added"] == pytest.approx(last["text_loss"] - first["text_loss"])
        assert all(row[name] == last[name] for name in page.MEASURES if name != "p_s")
        checked += 1
    assert checked == len(frame)


def test_a_curve_is_a_share_of_what_vanilla_learned() -> None:
    curve, frame = page.curve("vanilla"), page.kept()
    names = sorted(name for name in frame["baseline"].unique() if name.startswith("vanilla"))
    own = curve[:, names.index("vanilla")]
    assert fmean(own[:, 0]) == pytest.approx(1.0)
    assert -own[:, 1].mean() == pytest.approx(frame.query("baseline == 'vanilla'")["p_o"].mean())


def test_the_answers_on_kl() -> None:
    def shown(measure: str, score: str) -> str:
        return str(page.r2(measure, score))

    assert f"explains R² {shown('forward_kl', 'p_o')} of the old facts kept" in text()
    assert f"learned of the new task explains {shown('p_s', 'p_o')}, and" in text()
    others = [page.r2(m, "p_o").value for m in page.MEASURES if "_kl" in m and m != "forward_kl"]
    assert f"other answers {plain(min(others), 2)} to {plain(max(others), 2)}, while" in text()
    own, other = page.r2("forward_kl"), page.r2("divergence")
    assert own.value > other.high
    unseen = page.r2("forward_kl", unseen=True)
    assert 0.0 < unseen.low < 0.2
    words = f"For methods that the fit has not seen it explains {unseen}, which is just above 0: R²"
    words = f"{words} is below 0 in {100 * unseen.below_zero:.1f} % of the draws of the bootstrap."
    assert words in text()
    assert f"KL on *unrelated text* {shown('divergence', 'p_o')}." in text()
    assert (
        f"almost by definition ({shown('divergence', 'text_loss_added')}), and less from forward "
        f"KL on the new task ({shown('forward_kl', 'text_loss_added')})."
    ) in text()
    slow = [page.r2(name, without=page.FAST).value for name in ("divergence", "forward_kl")]
    ends = [
        plain(slow[1] - slow[0], 2),
        *(plain(end, 2) for end in slow),
        plain(own.value - other.value, 2),
    ]
    words = "at double rate {} less ({} against {}), where with them it explains {} less;"
    assert words.format(*ends) in text()
    logs = [page.r2(name, logarithm=True) for name in ("divergence", "forward_kl")]
    far = [page.r2(name, unseen=True, logarithm=True) for name in ("divergence", "forward_kl")]
    ends = [*(plain(log.value, 2) for log in logs), *map(str, far)]
    words = "in the logarithm of KL ({} against {}; of methods that the fit has not seen {} against"
    assert f"explains more {words} {{}})".format(*ends) in text()
    frame = page.kept()
    ranks = frame[["divergence", "forward_kl", "p_o"]].corr("spearman")["p_o"]
    ends = [plain(ranks[name], 2) for name in ("divergence", "forward_kl")]
    assert "and by ranks ({} against {}), and without the four".format(*ends) in text()
    assert {n for n in frame["baseline"].unique() if n.endswith("double")} == page.FAST
    assert len(page.FAST) == 4
    others = frame[frame["method"] != "replay"]
    fit = np.polyfit(others["forward_kl"], others["p_o"], 2)
    own = frame[frame["baseline"] == "replay"]
    ends = [plain(own["p_o"].mean()), plain(np.polyval(fit, own["forward_kl"]).mean())]
    assert "`replay` keeps {} where a fit without it says {}".format(*ends) in text()


def test_what_earlier_readings_of_the_study_had() -> None:
    """The fourth was published on 27 November at 01:22, with 25 strengths on ten seeds."""
    started: dict[str, str] = {}
    for cell in map(json.loads, read_archive(page.FOLDER).values()):
        started[cell["baseline"]] = max(cell["started"], started.get(cell["baseline"], ""))
    assert {name for name, last in started.items() if last > "2026-11-27T01:22"} == page.LAST
    assert len(page.LAST) == 7
    assert len(started) - len(page.LAST) == 25
    first = page.r2("forward_kl", unseen=True, without=page.LAST)
    assert first.low < 0.0 < page.r2("forward_kl", unseen=True).low
    words = f"without them it is {first}, below 0 in {100 * first.below_zero:.0f} % of the draws."
    assert words in text()


def test_the_answers_on_methods() -> None:
    frame = page.kept()
    mean = frame.groupby("baseline")[["p_s", "p_o"]].mean()
    ours = mean.loc["self-sft-drop-half"]
    both = f"(`self-sft-drop-half`: {plain(ours['p_s'])} learned, {plain(ours['p_o'])} kept)"
    assert both in text()
    own = dict(iter(frame.groupby("baseline")))
    ends = [
        plain(own[name][score].mean())
        for score in ("p_o", "p_s")
        for name in ("vanilla-quarter", "vanilla")
    ]
    words = "rate alone keeps {} instead of {}, and learns {} instead of {}."
    assert words.format(*ends) in text()
    loss = frame.groupby("baseline")["text_loss_added"].mean()
    ends = [plain(loss[name]) for name in ("self-replay-tenth", "vanilla")]
    assert "double the loss added on text ({} instead of {})".format(*ends) in text()
    assert loss["self-replay-tenth"] == pytest.approx(2 * loss["vanilla"], rel=0.03)
    before = frame.groupby("baseline")["p_o_before"].mean()
    ends = [before[["dft", "asft", "talr", "freeze-bottom"]].min(), before["vanilla-quarter"]]
    ends.insert(1, before[["dft", "asft", "talr", "freeze-bottom"]].max())
    words = (
        "know {} to {} of the old facts, and plain fine-tuning at a quarter of the rate knows {}."
    )
    assert words.format(*map(plain, ends)) in text()
    assert not [f for m in page.ON_POLICY for v in page.LEVELS if (f := page.matched(m, v))]
    lost = frame["relearned"].dropna()
    assert f"{np.isfinite(lost).sum()} of the {len(lost)} cells that lost" in text()
    counts = frame["baseline"].nunique(), frame["method"].nunique()
    assert "Each of {} strengths of {} methods ran on ten seeds,".format(*counts) in text()
    assert f"ten seeds, {len(frame)} cells" in text()
    assert frame["seed"].nunique() == 10


def test_the_answers_on_rates() -> None:
    found = page.at_rates()

    def less(name: str, rate: str) -> str:
        other, new, old = found[name]
        assert (other, new.verdict, old.verdict) == (rate, "no difference shown", "worse")
        return plain(-old.difference)

    own, (_, new, old) = found["self-sft-drop-half"], found["self-replay-half"]
    assert less("self-sft-drop-half", "vanilla-tenth") == plain(-own[2].difference)
    ends = [plain(-x) for x in (own[2].difference, own[2].difference_high, own[2].difference_low)]
    assert "keeps {} [{}, {}] less".format(*ends) in text()
    assert {new.verdict, old.verdict} == {"no difference shown"}
    assert f"with the largest share of them +{ends_of(old)}," in text()
    other, new, old = found["sdft"]
    assert (other, new.verdict, old.verdict) == ("vanilla-tenth", "worse", "worse")
    learned = page.kept().groupby("baseline")["p_s"].mean()[["sdft", "sdft-half", "sdft-double"]]
    ends = [learned.min(), learned.max()]
    assert "rates ({} to {}, .125 by chance) and".format(*map(plain, ends)) in text()
    ends = [plain(-x) for x in (old.difference, old.difference_high, old.difference_low)]
    assert "at the full rate, {} [{}, {}] less".format(*ends) in text()
    assert f"All {2 * len(found)} intervals" in text()


def less(found: Comparison) -> str:
    """Return how much less is kept, with its interval."""
    ends = (found.difference, found.difference_high, found.difference_low)
    return "{} [{}, {}]".format(*(signed(-x).removeprefix("+") for x in ends))


def test_the_answers_at_equal_learning() -> None:
    found = page.on_curve()
    curve = {name: each for (score, name), each in found.items() if score == "p_o"}
    assert page.rates(page.LONG)[-1] == page.LONG
    assert curve["replay"].verdict == "better"
    assert f"it keeps {ends_of(curve['replay'])} more of the old facts. This" in text()
    known = ("freeze-bottom", "talr", "asft", "dft")
    names = (*known, "lora-fast", "self-replay-tenth")
    assert {curve[name].verdict for name in names} == {"worse"}
    shown = [less(curve[name]) for name in known]
    assert "keep *less*, by {}, {}, {} and {}, and".format(*shown) in text()
    assert f"so does `lora-fast`, by {less(curve['lora-fast']).partition(' ')[0]}." in text()
    assert f"smallest share they keep {less(curve['self-replay-tenth'])} less than" in text()
    some = [curve[name] for name in ("wise-ft", "wise-ft-most", "kl-anchor")]
    assert {each.verdict for each in some} == {"no difference shown"}
    ends = [interval(c.difference, c.difference_low, c.difference_high) for c in some]
    assert "is shown ({}, {} and {}), and".format(*ends) in text()
    assert curve["ewc"] == 1
    lost = [found["forgetting", name] for name in known]
    assert [each.verdict for each in lost] == ["no difference shown", *["worse"] * 3]
    assert f"lose more than the curve ({less(lost[0])})" in text()
    shown = [plain(-each.difference) for each in lost[1:]]
    assert "and `talr`, `asft` and `dft` lose {}, {} and {} more.".format(*shown) in text()


def names_of(found: Iterable[str]) -> str:
    """Return names as a list in words."""
    *others, end = (f"`{name}`" for name in found)
    return f"{', '.join(others)} and {end}" if others else end


def test_later_runs_with_more_steps_on_the_curve_change_the_verdicts_that_the_page_names() -> None:
    found = page.on_curve(*sorted(page.LATER))
    changed = changed_verdicts(page.on_curve(), found)
    none = "no difference shown"

    def of(score: str, before: str, after: str) -> list[str]:
        same = (pair == (before, after) and key[0] == score for key, pair in changed.items())
        return [key[1] for key, is_one in zip(changed, same, strict=True) if is_one]

    kept = [n for score, n in changed if score == "p_o"]
    gone = ["replay", "self-replay-tenth", "generic-replay-tenth", "kl-anchor-light", "talr"]
    assert of("p_o", "better", none) == ["replay"]
    assert {*of("p_o", "worse", none)} == {*gone[1:]}
    assert f"the verdicts of {names_of(gone)} are then not shown, `ewc-strong`" in text()
    assert of("p_o", none, "worse") == ["ewc-strong"]
    assert {*of("p_o", OUTSIDE, none)} == {"ewc", "generic-replay-half"}
    assert len(kept) == 8
    assert "of `ewc` and `generic-replay-half`, which can then be compared, no" in text()
    gone = ["replay", "self-replay-tenth", "kl-anchor-light", "talr"]
    assert of("forgetting", "better", none) == ["replay"]
    assert {*of("forgetting", "worse", none)} == {*gone[1:]}
    assert f"since the first stage, {names_of(gone)} lose their verdicts," in text()
    assert of("forgetting", none, "worse") == ["freeze-bottom"]
    assert of("forgetting", OUTSIDE, "worse") == ["generic-replay-half"]
    assert of("forgetting", OUTSIDE, none) == ["ewc"]
    assert len(changed) == 8 + 7
    assert (
        "`freeze-bottom` and `generic-replay-half` are shown to lose more, and of `ewc`" in text()
    )
    runs = ("vanilla-long", "low-rate-quarter-twice", page.STEADY, "low-rate-quarter-eightfold")
    assert {*runs} == page.LATER
    assert f"The four later runs with more steps ({names_of(runs)}) are not part" in text()


def test_whichever_later_runs_join_the_curve_no_lead_of_replay_is_shown() -> None:
    runs = sorted(page.LATER)
    choices = [some for n in range(1, 5) for some in combinations(runs, n)]
    found = [page.on_curve(*some) for some in choices]
    assert len(choices) == 15
    assert {each[s, "replay"].verdict for each in found for s in ("p_o", "forgetting")} == {
        "no difference shown"
    }
    words = "with none of the 15 is replay shown to keep more, and with each of them"
    less = ("self-sft-drop", "freeze-bottom", "dft", "asft", "lora-fast", "lora-faster")
    assert {each["p_o", name].verdict for each in found for name in less} == {"worse"}
    assert f"{words} {', '.join(f'`{n}`' for n in less[:4])} and the two strengths" in text()


def test_the_answers_on_a_low_rate_for_more_steps() -> None:
    found = {name: both for name, (_, *both) in page.at_steady().items()}
    assert not [name for name, (new, _) in found.items() if new.verdict == "better"]
    even = {name for name, (new, _) in found.items() if new.verdict != "worse"}
    assert {"vanilla", "ewc", "replay"} <= even
    keeps = {name for name, (_, old) in found.items() if old.verdict == "better"}
    assert keeps & even == {"replay"}
    assert max(found[name][0].difference for name in keeps - even) < -0.4  # learn far less
    assert f"than the full rate, and keeps {less(found['vanilla'][1])} more." in text()
    assert f"`ewc` keeps {less(found['ewc'][1])} less;" in text()
    assert f"`replay` keeps {ends_of(found['replay'][1])} more, and" in text()


def test_a_curve_of_rates_is_read_between_its_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    learned = {"a": (0.2, 0.8), "b": (0.4, 0.6), "c": (0.5, 0.3), page.LONG: (0.6, 0.4)}
    learned |= {"x": (0.5, 0.6), "y": (0.7, 0.9)}
    rows = [
        {"baseline": name, "method": "vanilla" if name in "abc" else name, "seed": seed}
        | {"p_s": new + seed / 100, "p_o": old, "forgetting": 1 - old}
        for name, (new, old) in learned.items()
        for seed in range(4)
    ]
    for name in ("kept", "every"):
        monkeypatch.setattr(page, name, lambda: pd.DataFrame(rows))
    monkeypatch.setattr(page, "at_rates", page.at_rates.__wrapped__)  # not the cached answers
    found = {name: each for (s, name), each in page.on_curve.__wrapped__().items() if s == "p_o"}
    # c is beaten, and the others are on a line, on which .5 is kept where x learned.
    assert found["x"].difference == pytest.approx(0.6 - 0.5)
    assert found["y"] == 4


def test_the_answer_on_relearning_at_a_low_rate() -> None:
    own = page.relearned_slowly(page.SLOW["a tenth"], "vanilla")
    assert [*own.index] == [*range(10)]
    assert [*own.columns] == ["lost", *page.TRIED]
    assert summarise([*own[8]]).low > 0.0  # the first rows destroy nothing
    found = summarise([*own[32]])
    ends = [plain(value) for value in (found.mean, found.low, found.high)]
    assert "back {} [{}, {}] of the {} that".format(*ends, plain(own["lost"].mean())) in text()


def test_the_answer_on_a_model_that_never_knew() -> None:
    never = page.relearned_slowly(page.NEVER_KNEW, "vanilla")
    assert [*never.index] == [*range(10)]
    found = summarise([*never[32]])
    ends = map(plain, (found.mean, found.low, found.high))
    assert "learns {} [{}, {}] from".format(*ends) in text()
    rest = page.remembered()
    assert {each.verdict for each in rest.values()} == {"no difference shown"}
    assert {each.level for each in rest.values()} == {0.975}  # one family of two
    full, half = (more(rest[name]) for name in ("vanilla", "vanilla-half"))
    assert f"is shown after the full rate, {full}, or after half of it, {half}." in text()
    readme = " ".join((page.ROOT / "README.md").read_text(encoding="utf-8").split())
    lost = page.relearned_slowly(page.SLOW["a tenth"], "vanilla")
    words = f"bring back {plain(lost[32].mean())} of the {plain(lost['lost'].mean())} lost; a model"
    words = f"{words} that never knew the facts gains {plain(found.mean)} from the same rows, and"
    assert f"{words} no difference between the two is shown." in readme


def test_what_is_remembered_is_paired_by_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    def frame(seeds: list[int]) -> pd.DataFrame:
        return pd.DataFrame({"lost": 0.5, **dict.fromkeys(page.TRIED, 0.1)}, index=seeds)

    seeds = {page.SLOW["a tenth"]: [0, 1, 2], page.NEVER_KNEW: [0, 1, 3]}
    monkeypatch.setattr(page, "relearned_slowly", lambda folder, _: frame(seeds[folder]))
    with pytest.raises(ValueError, match="the same seeds"):
        page.remembered.__wrapped__()


def test_steps_are_those_of_the_rows_that_are_scored() -> None:
    assert page.steps()["p_s"] == 1 / 48
    assert page.steps()["p_o"] == page.steps()["forgetting"] == 1 / 144


def test_what_the_cells_left_out_and_the_notes_say() -> None:
    cells = [json.loads(data) for data in read_archive(page.FOLDER).values()]
    late = len(read_archive(page.LATE))
    assert (
        f"The {len(cells)} cells of `results/reference/findings-decoder` and the {late} of"
        in text()
    )
    learned = [c["R"][-1][-1] for c in cells if c["method"] == "sdft"]
    assert f"({plain(min(learned))} to {plain(max(learned))} at three rates, .125" in text()
    again = [json.loads(data) for data in read_archive(page.TEACHER).values()]
    ends = [{c["seed"]: c["R"] for c in part if c["baseline"] == "sdft"} for part in (cells, again)]
    assert ends[0] == ends[1]
    taught = "sdft: synthetic/new-facts: "
    notes = [note for c in again for note in c["notes"] if note.startswith(taught)]
    counts = [[int(number) for number in re.findall(r"to (\d+)", note)] for note in notes]
    told, alone = (sum(column) for column in zip(*counts, strict=True))
    assert len(notes) == 10
    assert f"answers {told} times right with the answer in its context and {alone} times" in text()
    notes = [note for c in cells if c["method"] == "self-sft" for note in c["notes"]]
    right = [int(n.split()[2]) for n in notes if n.startswith("self-sft: synthetic/new-facts")]
    assert (
        f"{fmean(right) / 240:.0%}".replace("%", " %") + " of the new prompts had a right" in text()
    )
