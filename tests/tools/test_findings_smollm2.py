"""The page of findings on SmolLM2 says what the kept cells say."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

import pytest

from clbench.results.archive import read_archive
from clbench.results.store import Store
from clbench.suite.read import read_suite
from tools import findings_smollm2 as page
from tools.findings import REFERENCE, filled, plain
from tools.findings_answers import comparisons
from tools.findings_smollm2 import GENERAL, RATES

NONE = "no difference shown"


@cache
def text() -> str:
    """Return the page without line breaks and the marks of its values."""
    return " ".join(re.sub("<!--.*?-->", "", page.PAGE.read_text(encoding="utf-8")).split())


def mean(baseline: str, score: str) -> float:
    """Return the mean of a score over the seeds of a baseline that are read."""
    frame = page.kept()
    return float(frame[frame["baseline"] == baseline][score].mean())


def verdicts(score: str, *names: str) -> set[str]:
    """Return the verdicts on methods against any rate of plain fine-tuning."""
    found = (page.against_rates() | page.against_later()).items()
    return {c.verdict for (s, rate, n), c in found if s == score and rate in RATES and n in names}


def test_the_page_has_the_values_of_the_cells() -> None:
    current = page.PAGE.read_text(encoding="utf-8")
    assert filled(current, page.tables(), page.values()) == current
    assert all(f"<!-- {name} -->" in current for name in page.tables())
    answers = re.search("## Answers.*?## ", re.sub("<!--=.*?<!--/-->", "", current), re.DOTALL)
    assert answers is not None
    by_hand = {*re.findall(r"\.\d{3}", answers[0])}  # each is checked by a test below
    checked = ".003 .039 .070 .010 .507 .677 .743 .841 .667 .500 .560 .317 .640 .513 .413"
    assert sorted(by_hand) == sorted(checked.split())


def test_what_the_page_says_of_the_loss_on_text() -> None:
    found = page.against_rates()
    assert verdicts("text_loss_added", GENERAL) == {"better"}
    assert mean(GENERAL, "text_loss_added") < 0
    none = {found[score, "vanilla", GENERAL].verdict for score in ("p_s", "p_o")}
    none |= {c.verdict for (s, _, name), c in found.items() if s == "p_s"}
    assert none == {NONE}
    text_loss = {key[1:]: c for key, c in found.items() if key[0] == "text_loss_added"}
    less = {
        name for (rate, name), c in text_loss.items() if (rate, c.verdict) == ("vanilla", "better")
    }
    assert less == {GENERAL, "vanilla-half", "vanilla-quarter", "wise-ft"}
    four = ("wise-ft", "ewc-fewer", "lora-fast", "replay")
    assert verdicts("text_loss_added", *four[1:]) == {NONE, "worse"}
    lower = {(rate, name): text_loss[rate, name] for rate in RATES[:2] for name in four}
    assert {each.verdict for each in lower.values()} == {"worse"}
    half = {name: lower["vanilla-half", name].difference for name in four}
    ends = min(half, key=half.__getitem__), max(half, key=half.__getitem__)
    assert ends == ("wise-ft", "ewc-fewer")
    assert min(mean(name, "text_loss_added") for name in ("sdft", "lora-tuned")) > mean(
        "vanilla-half", "text_loss_added"
    )
    halves = {key: (c.difference_high - c.difference_low) / 2 for key, c in text_loss.items()}
    least, most = min(halves, key=halves.__getitem__), max(halves, key=halves.__getitem__)
    assert (least, most) == (("vanilla", "ewc-fewer"), ("vanilla-quarter", GENERAL))
    words = f"from ±{plain(halves[least])} (EWC against the full rate) to ±{plain(halves[most])}"
    words = f"{words} (general texts against a quarter), as {len(found)} comparisons hold jointly."
    assert words in text()
    widest = max(
        (c.difference_high - c.difference_low) / 2 for (s, *_), c in found.items() if s == "p_s"
    )
    words = "No difference in the sentiment is shown among these, with intervals of up to"
    assert f"{words} ±{plain(widest)}" in text()
    assert halves[most] < 0.05
    shared = page.kept().pivot(index="seed", columns="baseline", values="text_loss_before")
    for name in ("wise-ft", "ewc-fewer", "replay"):  # "share the first one with plain fine-tuning"
        assert shared[name].equals(shared["vanilla"])
    assert page.compared()["seed"].nunique() == 10
    assert {each.level for each in found.values()} == {1 - page.ALPHA / len(found)}
    outside = {n for n in page.on_curve().values() if isinstance(n, int)}
    assert len(page.on_curve()) == 10
    assert outside == {4, 5, 6}  # "four to six of the ten seeds"
    assert page.FOLDER.joinpath("suite.json").read_text("utf-8").count('"margin": 0.01') == 1
    learned = page.by_seed(page.LEARNED).mean()
    assert learned[page.others()].max() <= learned[[*RATES]].max()


def test_what_the_readme_says_of_smollm2() -> None:
    readme = " ".join((page.ROOT / "README.md").read_text(encoding="utf-8").split())
    names = [*page.others(), *page.LATER]
    found = page.against_rates()
    assert [n for n in names if "better" in verdicts("text_loss_added", n)] == ["wise-ft", GENERAL]
    leads = [
        plain(-found["text_loss_added", "vanilla", name].difference)
        for name in (GENERAL, "vanilla-half", "wise-ft")
    ]
    words = (
        "With general texts mixed into training, the loss on general text rises by {} nats a token"
    )
    assert f"{words} less than with plain fine-tuning".format(leads[0]) in readme
    words = "With half the rate alone it rises by {} less, with WiSE-FT by {}; with WiSE-FT,"
    assert words.format(*leads[1:]) in readme
    more = [plain(found["p_o", rate, "replay"].difference) for rate in ("vanilla", "vanilla-half")]
    words = (
        "knows {} more of the old topics in the end than plain fine-tuning, and {} more than half"
    )
    words = f"Replay of old rows, many of them new, {words} the rate, at {{}} times the time (five"
    assert f"{words} seeds).".format(*more, page.values()["time replay"]) in readme
    timed = page.kept()[page.kept()["baseline"] == "replay"]["seconds"]
    assert timed.notna().sum() == 5
    written = comparisons()["written o-lora lora-shared average"]
    assert written.verdict == "worse"
    words = f"With five seeds, O-LoRA at a weight of .5 ends {plain(-written.difference)} behind"
    assert f"{words} one adapter on the four tasks" in readme


def test_what_the_page_says_of_topics() -> None:
    found = page.against_rates()
    assert {found[score, "vanilla", "ewc-fewer"].verdict for score in page.STEPS} == {NONE}
    pairs = (
        ("vanilla", "lora-fast"), ("vanilla-half", "lora-fast"), ("vanilla", "vanilla-quarter")
    )  # fmt: skip
    assert {found["p_o", *pair].verdict for pair in pairs} == {"worse"}
    taught = page.against_untrained()
    names = ("lora-fast", "vanilla-quarter", "vanilla")
    learned = [taught["p_o_before", "untrained", name].verdict for name in names]
    assert learned == ["worse", NONE, "better"]
    replay = [found["p_o", rate, "replay"].verdict for rate in RATES]
    assert replay == ["better", "better", "better"]
    assert page.by_seed("p_o").mean().idxmax() == "replay"
    assert found["text_loss_added", "vanilla", "replay"].verdict == NONE
    lower = [found[s, "vanilla", "vanilla-half"].verdict for s in ("p_s", "p_o")]
    assert lower == [NONE, NONE]
    ends = page.against_untrained()
    assert [ends["p_o", "untrained", n].verdict for n in names[:2]] == ["worse", NONE]


def test_what_the_page_says_of_tuning() -> None:
    cells = Store(page.FOLDER.with_name(f"{page.FOLDER.name}-tune")).read().cells
    assert {cell.settings["protocol"]["score_on"] for cell in cells} == {"tuning"}
    ends = {cell.baseline: cell.scores["average"] or 0.0 for cell in cells}
    rates = [plain(ends[f"lora-{rate}"]) for rate in ("2e-3", "5e-3", "1e-2", "2e-2")]
    words = "LoRA at 2e-3, 5e-3, 1e-2 and 2e-2 ends at {}, {}, {} and {} in the mean of both tasks,"
    words = f"{words.format(*rates)} plain fine-tuning at {plain(ends['vanilla'])}."
    pulls = [ends[f"ewc-{times}"] for times in (10, 100, 1000)]
    assert f"{words} EWC with ten, a hundred and a thousand times its strength ends at" in text()
    assert "its strength ends at {}, {} and {};".format(*map(plain, pulls)) in text()
    assert max(abs(pull - ends["vanilla"]) for pull in pulls) < 0.010
    (forgotten,) = {c.scores["forgetting"] or 0.0 for c in cells if c.baseline == "vanilla"}
    assert forgotten < 0
    best = max((name for name in ends if "lora" in name), key=ends.__getitem__)
    tuned = read_suite("findings-smollm2-short").file.baseline["lora-tuned"]
    assert f"lora-{tuned.settings['lr']}" == best.replace("5e-3", "0.005")


def test_what_the_page_says_of_lora_at_a_tuned_rate() -> None:
    found, start = page.against_tuned(), page.against_untrained()
    verdicts = {s: [found[s, rate, "lora-tuned"].verdict for rate in RATES] for s in page.STEPS}
    assert verdicts == {
        "p_s": [NONE, NONE, NONE],
        "text_loss_added": ["worse", "worse", NONE],
        "p_o": [NONE, "worse", "worse"],
    }
    learned = [start[score, "untrained", "lora-tuned"].verdict for score in ("p_o_before", "p_o")]
    assert learned == ["better", NONE]


def test_what_the_page_says_of_data_that_the_model_writes() -> None:
    found, own = page.against_later(), "self-replay-tenth"
    assert found["text_loss_added", GENERAL, own].verdict == "worse"
    assert set.union(*(verdicts(score, own) for score in page.STEPS)) == {NONE}
    means = page.beside(page.LATER).groupby("baseline")["divergence"].mean()
    assert means[own] < means[GENERAL]
    start = page.against_untrained()
    assert {start[score, "untrained", "sdft"].verdict for score in ("p_s", "p_o")} == {"worse"}
    assert found["text_loss_added", "vanilla-quarter", "sdft"].verdict == NONE


def test_what_the_page_says_of_the_teacher_and_the_pilots() -> None:
    cells = [c for c in Store(page.FOLDER).read().cells if c.baseline == "sdft"]
    least = cells[0].floors[-1] or 0.0
    assert sum(cell.R[-1][-1] == least for cell in cells) == 4
    words = f"(on four of five seeds exactly {plain(least)}, the share of the more frequent one)"
    assert words in text()
    counts = [
        [re.findall(r"to (\d+)", note) for cell in cells for note in cell.notes if task in note]
        for task in ("sdft: ag_news", "sdft: glue/sst2")
    ]
    assert {alone for some in counts for _, alone in some} == {"0"}
    (topics,) = {told for told, _ in counts[0]}
    ends = sorted(int(told) for told, _ in counts[1])
    words = f"{topics} of 64 topics and {ends[0]} to {ends[-1]} of 64 sentiments;"
    assert f"with the answer in its context {words}" in text()
    assert ends[-1] / 64 < min(mean(rate, "p_s") for rate in RATES)
    pilots = Store(page.FOLDER.with_name(f"{page.FOLDER.name}-pilot")).read().cells
    learned = {
        c.baseline: [plain(x or 0.0) for x in (c.R[0][0], c.R[1][1], added(c.capabilities))]
        for c in pilots
    }
    topics, sentiments, loss = learned["sdft-reverse-4"]
    words = (
        f"{topics} of the topics right just after them ({learned['sdft'][0]} at the rate used here)"
    )
    words = f"{words} and {sentiments} of the sentiments in the end, and added {loss} to"
    assert f"four times the rate had {words}" in text()
    words = "divergence at that rate {} and {} were right and {} was added."
    assert words.format(*learned["sdft-forward-4"]) in text()


def test_self_distillation_ends_below_the_untrained_model() -> None:
    cells = [c for c in Store(page.FOLDER).read().cells if c.baseline in ("sdft", *RATES)]
    start = {round(cell.capabilities[0]["average"], 9) for cell in cells}
    (once,) = Store(page.UNTRAINED).read().cells
    start.add(round(once.capabilities[0]["average"], 9))
    assert len(start) == 1
    assert max(c.scores["average"] or 0.0 for c in cells if c.baseline == "sdft") < min(start)
    means = page.beside(page.LATER).groupby("baseline")["average"].mean()
    ends = sorted(means[[*RATES]])
    words = "below the untrained model ({}) with every seed; plain fine-tuning ends at {} to {} on"
    assert words.format(*map(plain, (*start, ends[0], ends[-1]))) in text()


def added(capabilities: list[dict[str, Any]]) -> float:
    """Return the loss on text that was added."""
    return float(capabilities[-1]["text_loss"] - capabilities[0]["text_loss"])


def test_what_little_the_sequence_of_smollm2_has_learned() -> None:
    cells = Store(REFERENCE / "findings-smollm2-first").read().cells
    boolq, titles = (sorted(float(c.R[task][task] or 0) for c in cells) for task in (1, 2))
    assert {c.floors[1] for c in cells} == {0.62}
    words = (
        "BoolQ scores {} to {} just after its stage, where the most frequent answer has .620, and"
    )
    assert words.format(plain(boolq[0]), plain(boolq[-1])) in text()
    assert f"reviews end at a token F1 of {plain(titles[0])} to {plain(titles[-1])}." in text()
    names = ("findings-smollm2-pilot", "findings-smollm2-pilot-120", "findings-smollm2-pilot-150")
    pilots = [Store(REFERENCE / name).read().cells[0] for name in names]
    assert [pilot.stages[0].examples for pilot in pilots] == [480, 960, 1200]
    words = "FOMC scored {}, {} and {} just after"
    assert words.format(*(plain(float(p.R[0][0] or 0)) for p in pilots)) in text()
    ends = [plain(float(p.R[-1][-1] or 0)) for p in pilots]
    assert "titles of articles a token F1 of {}, {} and {}.".format(*ends) in text()
    ends = [plain(float(p.R[-1][0] or 0)) for p in pilots[1:]]
    assert "After the titles FOMC scores {} and {} in the last two,".format(*ends) in text()
    before, between, after = pilots[1].capabilities
    rises = [plain(each["text_loss"] - before["text_loss"]) for each in (between, after)]
    assert "rose by {} nats a token, and ended at +{}.".format(*rises) in text()
    names = ("boolq", "mmlu-cloze", "ifeval", "copa")
    start, end = ([plain(each[f"zero_shot: {name}"]) for name in names] for each in (before, after))
    words = f"{start[0]} on BoolQ, where chance is .5, {start[1]} on MMLU (.25) and {start[2]} on"
    words = f"{words} IFEval, which fell to {end[2]}; COPA stayed ({start[3]} and {end[3]})."
    assert words in text()
    (now,) = Store(REFERENCE / "findings-smollm2-pilot-240").read().cells
    declared = read_suite("findings-smollm2").file.protocol.task_steps
    assert [stage.steps for stage in now.stages] == [*declared.values()]
    (one, _, _), (lost, two, _), (end, _, three) = ([plain(x or 0.0) for x in row] for row in now.R)
    words = (
        f"the three tasks score {one}, {two} and {three} right after each; FOMC scores {lost} after"
    )
    words = f"{words} BoolQ and {end} after the titles, and the loss on text ends at"
    assert f"{words} +{plain(added(now.capabilities))}." in text()


def test_all_that_is_compared_has_all_seeds() -> None:
    suite = read_suite("findings-smollm2-short").file
    frame = page.compared()
    assert {*frame["baseline"]} == {*suite.methods} - {*page.LATER, *page.TUNED}
    later = [*page.LATER, *page.TUNED]
    assert page.kept().groupby("baseline")["seed"].nunique().loc[later].eq(5).all()
    assert len(frame) == frame["baseline"].nunique() * frame["seed"].nunique()
    assert [*frame["seed"].unique()] == [*range(10)]  # the declared ones
    assert suite.seeds == [*range(5)]


def test_scores_follow_from_the_files() -> None:
    frame = page.kept().set_index(["baseline", "seed"])
    for data in read_archive(page.FOLDER).values():
        cell = json.loads(data)
        row = frame.loc[cell["baseline"], cell["seed"]]
        assert (row["p_o"], row["p_s"]) == tuple(cell["R"][-1])
        first, *_, last = cell["capabilities"]
        assert row["text_loss_added"] == pytest.approx(last["text_loss"] - first["text_loss"])
        assert cell["settings"]["protocol"]["precision"] == "float32"
        assert [part["train"] for part in cell["scenario_report"]["parts"]] == [640, 640]
        assert cell["scenario_report"]["parts"][0]["validation"] == page.SCORED
