"""The page of findings on SmolLM2 says what the kept cells say."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

import pytest
from helpers.wording import less, more

from clbench.results.archive import read_archive
from clbench.results.store import Store
from clbench.suite.read import read_suite
from tools import findings_smollm2 as page
from tools.findings import REFERENCE, interval, plain
from tools.findings_smollm2 import GENERAL


@cache
def text() -> str:
    """Return the page without line breaks."""
    return " ".join(page.PAGE.read_text(encoding="utf-8").split())


def mean(baseline: str, score: str) -> float:
    """Return the mean of a score over the seeds that are compared."""
    return float(page.by_seed(score)[baseline].mean())


def late_mean(baseline: str, score: str) -> float:
    """Return the mean of a score over the seeds of a baseline that was declared later."""
    frame = page.kept()
    return float(frame[frame["baseline"] == baseline][score].mean())


def test_what_the_page_says_of_verdicts() -> None:
    found = page.against_rates()
    texts = {rate: found["text_loss_added", rate, GENERAL] for rate in page.RATES}
    assert {each.verdict for each in texts.values()} == {"better"}
    assert f"by {less(texts['vanilla'])} nats a token against the full rate." in text()
    start = plain(mean(GENERAL, "text_loss_added"))
    assert f"below its start ({start}), so the model" in text()
    none = [found[score, "vanilla", GENERAL] for score in ("p_s", "p_o")]
    none += [c for (s, _, name), c in found.items() if s != "p_o" and name != GENERAL]
    assert {each.verdict for each in none} == {"no difference shown"}
    text_loss = {
        key: c for key, c in found.items() if key[0] == "text_loss_added" and key[2] != GENERAL
    }
    assert f"none of these {len(text_loss)} differences has a verdict" in text()
    halves = {key: (c.difference_high - c.difference_low) / 2 for key, c in text_loss.items()}
    least, most = min(halves, key=halves.__getitem__), max(halves, key=halves.__getitem__)
    assert (least[1:], most[2]) == (("vanilla", "ewc-fewer"), "lora-fast")
    ends = f"±{plain(halves[least])} (EWC against the full rate) to ±{plain(halves[most])} (LoRA)"
    assert ends in text()
    assert page.compared()["seed"].nunique() == 5
    assert all(isinstance(n, int) and n >= 1 for n in page.on_curve().values())
    ends = [plain(mean(rate, "p_s")) for rate in page.RATES]
    assert "sentiment by the means ({}, {} and {}), so the".format(*ends) in text()


def test_what_the_page_says_of_ewc_and_lora() -> None:
    found = page.against_rates()
    shown = [
        interval(c.difference, c.difference_low, c.difference_high)
        for c in (
            found[score, "vanilla", "ewc-fewer"] for score in ("text_loss_added", "p_s", "p_o")
        )
    ]
    words = "loss on text by {}, the sentiment by {} and the topics by {}."
    assert words.format(*shown) in text()
    fewer = [
        found["p_o", rate, name]
        for rate, name in (
            ("vanilla", "lora-fast"), ("vanilla-half", "lora-fast"), ("vanilla", "vanilla-quarter")
        )
    ]  # fmt: skip
    assert {each.verdict for each in fewer} == {"worse"}
    ends = [less(each) for each in fewer]
    assert f"by {ends[0]} than plain fine-tuning at the full rate and by {ends[1]} than" in text()
    assert f"and knows {ends[2]} fewer in the end than the full rate." in text()
    before = [
        plain(mean(name, "p_o_before"))
        for name in ("lora-fast", "vanilla", "vanilla-half", "vanilla-quarter")
    ]
    assert "({} right after them, against {} and {})".format(*before[:3]) in text()
    assert f"fewer topics, too ({before[3]})," in text()


def test_what_the_page_says_of_replay() -> None:
    quarter, *others = (page.against_rates()["p_o", rate, "replay"] for rate in page.RATES)
    assert quarter.verdict == "better"
    assert {each.verdict for each in others} == {"no difference shown"}
    words = f"highest mean on topics in the end** ({plain(mean('replay', 'p_o'))}), {more(quarter)}"
    assert f"{words} above a quarter of the rate, which" in text()
    shown = [interval(c.difference, c.difference_low, c.difference_high) for c in others]
    assert "half of the rate ({}) and the full one ({}) no difference".format(*shown) in text()
    assert f"in the loss on text ({plain(mean('replay', 'text_loss_added'))})." in text()
    assert page.by_seed("p_o").mean().idxmax() == "replay"


def test_what_the_page_says_of_means() -> None:
    names = ("vanilla-half", "vanilla", "replay", "lora-fast", "ewc-fewer", "wise-ft")
    ends = [plain(mean(name, "text_loss_added")) for name in names]
    words = "a token to the loss on text, the full rate {}, replay {}, LoRA {}, EWC {} and"
    least = plain(mean("vanilla-quarter", "text_loss_added"))
    assert f"A quarter of the rate adds only {least}, but learns fewer topics." in text()
    assert f"It adds {{}} nats {words} WiSE-FT {{}}, while".format(*ends) in text()
    assert max(names, key=lambda name: mean(name, "p_s")) == "vanilla-half"
    assert f"higher mean on the sentiment ({plain(mean('vanilla-half', 'p_s'))}) and" in text()
    half = mean("vanilla-half", "p_o")
    assert [name for name in names if mean(name, "p_o") > half] == ["replay", "wise-ft"]
    ends = [plain(mean("replay", "p_o")), plain(mean("wise-ft", "p_o")), plain(half)]
    assert "the topics in the end ({} and {}, half the rate {}).".format(*ends) in text()


def test_what_the_page_says_of_data_that_the_model_writes() -> None:
    found, own = page.against_later(), "self-replay-tenth"
    general = found["text_loss_added", GENERAL, own]
    assert general.verdict == "worse"
    assert f"adds {more(general)} nats a token more to the loss on text" in text()
    scores = (page.LEARNED, *page.LOST)
    none = {found[score, rate, own].verdict for score in scores for rate in page.RATES}
    assert none == {"no difference shown"}
    ends = {score: plain(late_mean(own, score)) for score in scores}
    assert f"in that loss ({ends['text_loss_added']}), the sentiment" in text()
    ends = {score: plain(late_mean("sdft", score)) for score in scores}
    assert {found[s, r, "sdft"].verdict for s in ("p_s", "p_o") for r in page.RATES} == {"worse"}
    slow = [found[score, "vanilla-quarter", "sdft"] for score in scores]
    words = f"has {ends['p_s']} of the sentiments right, {less(slow[0])} less than a quarter of the"
    assert f"{words} rate" in text()
    assert f"and knows {ends['p_o']} of the topics," in text()
    assert f"topics, {less(slow[2])} less. It adds {ends['text_loss_added']} to the" in text()
    assert slow[1].verdict == "no difference shown"
    shown = interval(slow[1].difference, slow[1].difference_low, slow[1].difference_high)
    assert f"that rate adds {plain(mean('vanilla-quarter', 'text_loss_added'))} ({shown}," in text()


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
    words = f"{topics} of 64 topics and {ends[0]} to {ends[-1]} of 64 sentiments."
    assert f"with the answer in its context {words}" in text()
    assert ends[-1] / 64 < min(mean(rate, "p_s") for rate in page.RATES)
    pilots = Store(page.FOLDER.with_name(f"{page.FOLDER.name}-pilot")).read().cells
    learned = {
        c.baseline: [plain(x or 0.0) for x in (c.R[0][0], c.R[1][1], added(c.capabilities))]
        for c in pilots
    }
    topics, sentiments, loss = learned["sdft-reverse-4"]
    words = f"{topics} of the topics right ({learned['sdft'][0]} at the rate used here) and"
    words = f"{words} {sentiments}"
    assert f"four times the rate had {words} of the sentiments, and added {loss} to" in text()
    words = "divergence, too, it had {} and {} right and added {}."
    assert words.format(*learned["sdft-forward-4"]) in text()


def test_self_distillation_ends_below_the_untrained_model() -> None:
    cells = [c for c in Store(page.FOLDER).read().cells if c.baseline in ("sdft", *page.RATES)]
    start = {round(cell.capabilities[0]["average"], 9) for cell in cells}
    ends = {name: late_mean(name, "average") for name in ("sdft", *page.RATES)}
    assert len(start) == 1
    assert max(c.scores["average"] or 0.0 for c in cells if c.baseline == "sdft") < min(start)
    words = f"ends at {plain(ends.pop('sdft'))}, below the untrained model ({plain(min(start))})"
    shown = [plain(end) for end in (min(ends.values()), max(ends.values()))]
    assert f"{words} with every seed; plain fine-tuning ends at {shown[0]} to {shown[1]}." in text()
    ends = {name: late_mean(name, "divergence") for name in ("self-replay-tenth", GENERAL)}
    assert "lower mean ({}, general ones {}).".format(*map(plain, ends.values())) in text()


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
    words = f"{start[0]} on BoolQ and {start[1]} on MMLU, which is below chance, and {start[2]} on"
    words = f"{words} IFEval, which fell to {end[2]}; COPA stayed ({start[3]} and {end[3]})."
    assert words in text()


def test_all_that_is_compared_has_all_seeds() -> None:
    suite = read_suite("findings-smollm2-short").file
    frame = page.compared()
    assert {*frame["baseline"]} == {*suite.methods} - {*page.LATER}
    assert page.kept().groupby("baseline")["seed"].nunique().loc[[*page.LATER]].eq(5).all()
    assert len(frame) == frame["baseline"].nunique() * frame["seed"].nunique()
    seeds = [*frame["seed"].unique()]
    assert seeds == suite.seeds[: len(seeds)]  # in order: none was chosen


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
