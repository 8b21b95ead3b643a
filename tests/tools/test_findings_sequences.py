"""The page of findings on sequences says what the kept cells say."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from helpers.wording import less, more

from clbench.results.score_tables import means, score_rows
from clbench.results.statistics import Comparison
from clbench.results.store import Store
from clbench.suite.baselines import read_baseline
from tools import findings_page
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


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.name)
def test_methods_have_their_seeds_the_declared_pooling_and_tuning_on_another(
    study: page.Study,
) -> None:
    cells, _ = study.read()
    by_method = {cell.baseline: set() for cell in cells}
    for cell in cells:
        by_method[cell.baseline].add(cell.seed)
    more = {}
    if study is page.ALL:
        six = ("prototypes", "klda", "seq-star", "frozen", "lora-shared", "o-lora")
        more = {"ranpac": range(9), **dict.fromkeys(six, range(10))}
    if study is page.WRITTEN:
        more = dict.fromkeys(("lora-shared", "o-lora", "o-lora-strong"), range(5))
    if study is page.STAGE:
        more = dict.fromkeys(("frozen", "lora-shared", "o-lora", "seq-star"), range(10))
    if study is page.FIFTEEN:
        more = {"ewc-lora": (0, 1, 2, 3, 4, 5, 8, 9)}
    fewest = range({page.FOUR: 10, page.FIFTEEN: 10}.get(study, 3))
    assert by_method == {name: {*more.get(name, fewest)} for name in by_method}
    pooling = "auto" if study is page.WRITTEN else "mean"  # a language model has none
    assert {cell.settings["protocol"]["pooling"] for cell in cells} == {pooling}
    heads = {cell.settings["protocol"].get("head_loss", "all") for cell in cells}
    assert heads == {"stage" if study is page.STAGE else "all"}
    trials = Store(study.tuning).read().cells
    assert {cell.seed for cell in trials} == {1000}
    assert {cell.settings["protocol"]["score_on"] for cell in trials} == {"tuning"}


def test_what_the_page_says_of_the_head() -> None:
    change = page.heads()[Claim("frozen (stage)", "frozen"), page.SCORE]
    assert change.verdict == "better"
    ends = average(0, "frozen"), average(1, "frozen"), shown(change)
    words = "if its loss is over all classes so far, and at {} if it is over the stage's alone: {}."
    assert f"ends at {{}} {words}".format(*ends) in text()
    ends = tuple(average(n, name) for name in ("o-lora", "vanilla") for n in (0, 1))
    assert "O-LoRA goes from {} to {}, plain fine-tuning from {} to {}.".format(*ends) in text()


def tried(folder: str, method: str) -> dict[tuple[float, Any], float]:
    """Return the averages of a method's trials by its rate, as a multiple, and weight."""
    settings = {}
    for cell in Store(page.REFERENCE / folder).read().cells:
        if cell.method == method:
            own = cell.settings["method"]
            settings[own["lr_multiple"], own.get("weight")] = cell.scores["average"]
    return settings


def test_higher_rates_of_a_head_on_frozen_features() -> None:
    parts = ("", "-frozen", "-frozen-higher")
    first, second, third = (tried(f"findings-clinc150-tune{part}", "frozen") for part in parts)
    assert first[200.0, None] == max(first.values())
    rates = (200, 500, 1000, 2000, 5000, 20000)
    known = {**first, **second, **third}
    *most, last = (plain(known[float(rate), None]) for rate in rates)
    assert f"score {', '.join(most)} and {last} on the tuning rows" in text()
    assert ".2, .5, 1, 2, 5 and 20 score" in text()  # times 1e-3, the baseline's rate
    (used,) = {
        tuple(cell.settings["method"][key] for key in ("lr", "lr_multiple"))
        for cell in page.ALL.read()[0]
        if cell.baseline == "frozen"
    }
    assert used == (1e-3, 20000.0)


def test_higher_rates_and_weights_of_o_lora() -> None:
    one, all_classes = (
        tried(f"findings-clinc150{part}tune-o-lora", "o-lora") for part in ("-stage-", "-")
    )
    order = ((20.0, 10.0), (10.0, 10.0), (10.0, 100.0), (50.0, 100.0))
    ends = [plain(one[key]) for key in order]
    words = (
        "scores {} instead of {} on the tuning rows, ten times the weight {}, and five times the"
    )
    assert words.format(*ends) in text()
    assert f"rate with ten times the weight {ends[-1]}." in text()
    ends = [plain(all_classes[key]) for key in order]
    words = "score {} at twice the rate, {} as first set, {} at ten times the weight and {} at five"
    assert words.format(*ends) in text()


def test_what_the_page_says_of_methods() -> None:
    told = plain(scores(0)["o-lora"]["told_mean"])
    assert f"It ends at {average(0, 'o-lora')}, and at {told} if told the domain" in text()
    ahead = found(1)[Claim("o-lora", "lora-shared"), page.SCORE]
    frozen = found(1)[Claim("o-lora", "frozen"), page.SCORE]
    assert (ahead.verdict, frozen.verdict) == ("better", "worse")
    assert f"ahead of the single adapter by {shown(ahead, plain)}, as its paper" in text()
    ends = -frozen.difference, -frozen.difference_high, -frozen.difference_low
    assert "behind a head on the frozen encoder by {} [{}, {}];".format(*map(plain, ends)) in text()
    less = found(0)[Claim("o-lora", "lora-shared"), page.SCORE]
    behind = found(0)[Claim("o-lora", "frozen"), page.SCORE]
    assert (less.verdict, behind.verdict) == ("better", "worse")
    ends = -behind.difference, -behind.difference_high, -behind.difference_low
    words = (
        "ahead of a single adapter by {} and behind a head on the frozen encoder by {} [{}, {}]."
    )
    assert words.format(shown(less, plain), *map(plain, ends)) in text()
    assert f"the single adapter is {shown(less, plain)} or {shown(ahead, plain)}," in text()
    readme = " ".join((page.ROOT / "README.md").read_text("utf-8").split())
    leads = [plain(ahead.difference), plain(less.difference)]
    words = "({} with the stage's classes, {} with all classes so far)".format(*leads)
    ends = [plain(-each.difference) for each in (frozen, behind)]
    assert f"{words}, and behind a head on the frozen encoder by {ends[0]} and {ends[1]}." in readme
    star = found(0)[Claim("seq-star", "frozen"), page.SCORE]
    assert star.verdict == "better"
    one, plainly = (found(1)[Claim("seq-star", name), page.SCORE] for name in ("frozen", "vanilla"))
    assert (one.verdict, plainly.verdict) == ("worse", "better")
    ends = -one.difference, -one.difference_high, -one.difference_low
    behind_it = "{} [{}, {}]".format(*map(plain, ends))
    words = f"the frozen encoder by {shown(star, plain)} with all classes, and behind it by"
    assert f"{words} {behind_it} with the stage's; O-LoRA's" in text()
    words = f"ahead of plain fine-tuning by {shown(plainly, plain)} and just behind a head on the"
    assert f"{words} frozen encoder, by {behind_it}, which three seeds had not shown." in text()
    assert one.difference_low > -0.010  # "less than the margin"
    tuned = read_baseline(str(page.STAGE.tuning / "seq-star.toml"))
    for rate in ("head_lr", "lr_multiple"):  # "the lowest of its sweep"
        assert tuned.settings[rate] == min(tuned.sweep[rate])
    rows = sorted(score_rows(Store(page.STAGE.folder).read().cells), key=lambda row: row["seed"])
    both = [
        [plain(row["average"]) for row in rows if row["method"] == name]
        for name in ("ewc-lora", "ewc-lora-delta")
    ]
    assert both[0][:2] == both[1]
    words = f"product alone (not in the table) score the same, {' and '.join(both[1])}."
    assert words in text()
    for number in (0, 1):
        assert found(number)[Claim("ewc-lora", "o-lora"), page.SCORE].verdict == (
            "no difference shown"
        )
    parts = [average(0, name) for name in ("ewc-lora", "ewc-lora-head", "ewc-lora-delta")]
    assert (
        "it ends at {}, with the head alone held at {}, with the product alone at {}.".format(
            *parts
        )
        in text()
    )
    for claim, words in (
        (Claim("ewc-lora", "lora-shared"), "EWC-LoRA is ahead of the plain adapter by"),
        (Claim("seq-star", "vanilla"), "ahead of plain fine-tuning by"),
    ):
        assert found(0)[claim, page.SCORE].verdict == "better"
        assert f"{words} {shown(found(0)[claim, page.SCORE], plain)}" in text()
    assert f"which the first study left out, it ends at {average(0, 'ewc')}" in text()


def test_what_the_page_says_of_class_means() -> None:
    rows = scores(0)
    best = sorted(rows, key=lambda name: -rows[name]["average_mean"])
    assert best[:3] == ["ranpac", "klda", "prototypes"]
    on_gpu = [cell for cell in page.ALL.read()[0] if cell.host["device"] == "cuda"]
    seconds = {r["method"]: r["train_seconds_mean"] for r in means(score_rows(on_gpu))}
    assert max(seconds[name] for name in best[:3]) <= 0.205 * seconds["vanilla"]
    assert (
        f"(`prototypes`; deep SLDA, Hayes & Kanan 2020) ends at {average(0, 'prototypes')}"
        in text()
    )
    lead = findings_page.comparisons()["lead prototypes seq-star average"]
    assert (lead.pairs, lead.verdict) == (10, "better")
    assert (
        f"ahead of SEQ\\*, the best method that trains, by {shown(lead, plain)}, a lead" in text()
    )
    for name, source in (
        ("klda", "KLDA (Momeni et al. 2025)"),
        ("ranpac", "RanPAC (McDonnell et al. 2023)"),
    ):
        gain = found(0)[Claim(name, "prototypes"), page.SCORE]
        assert gain.verdict == "better"
        assert f"{source} {shown(gain)}" in text()


def test_what_the_page_says_of_four_tasks() -> None:
    lead = {claim: found(2)[Claim(*claim), page.SCORE] for claim in (
        ("lora-shared", "vanilla"), ("ewc-lora", "lora-shared"), ("o-lora", "lora-shared"),
        ("ewc-lora", "o-lora"), ("o-lora", "frozen"), ("seq-star", "frozen"),
        ("prototypes", "replay"), ("wise-ft", "vanilla"), ("o-lora", "replay"),
        ("seq-star", "replay"),
    )}  # fmt: skip
    none = "no difference shown"
    expected = ["better"] * 3 + [none] * 3 + ["equivalent", "better", "worse", "worse"]
    assert [answer.verdict for answer in lead.values()] == expected
    one, ewc, o_lora, _, frozen, seq_star, means_, wise, *behind = lead.values()
    ends = average(2, "vanilla"), average(2, "lora-shared"), shown(one, plain)
    assert "ends at {}, one adapter at {} (+{}).".format(*ends) in text()
    ends = shown(ewc, plain), average(2, "o-lora"), shown(o_lora, plain)
    assert "EWC-LoRA is ahead of it by {}, O-LoRA, at {}, by {}, as their".format(*ends) in text()
    ends = average(2, "frozen"), shown(frozen), shown(seq_star)
    assert "ends at {}; O-LoRA differs from it by {}, SEQ\\* by {}.".format(*ends) in text()
    ends = average(2, "prototypes"), average(2, "replay"), shown(means_)
    assert "`prototypes` end at {}, equivalent to that replay with {} ({})".format(*ends) in text()
    assert f"ahead of plain fine-tuning by {shown(wise, plain)}, a lead" in text()
    ends = [
        "{} [{}, {}]".format(*map(plain, (-a.difference, -a.difference_high, -a.difference_low)))
        for a in behind
    ]
    assert f"behind replay of 200 rows, by {ends[0]} and {ends[1]}." in text()
    seconds = {name: row["train_seconds_mean"] for name, row in scores(2).items()}
    ends = tuple(seconds[name] / seconds["vanilla"] for name in ("prototypes", "replay"))
    assert "at {:.2f} against {:.2f} times the time of plain".format(*ends) in text()
    assert max(answer.difference_high - answer.difference for answer in lead.values()) < 0.05
    readme = " ".join((page.ROOT / "README.md").read_text("utf-8").split())
    assert f"({average(2, 'lora-shared')} and {average(2, 'vanilla')} on average)" in readme
    ends = plain(ewc.difference), plain(o_lora.difference)
    assert "is ahead of the adapter by {}, O-LoRA by {}. Neither".format(*ends) in readme
    assert f"to differ from a frozen encoder, which ends at {average(2, 'frozen')}." in readme


def test_what_the_page_says_of_fifteen_tasks() -> None:
    lead = {claim: found(3)[Claim(*claim), page.SCORE] for claim in (
        ("o-lora", "lora-shared"), ("o-lora", "frozen"), ("lora-shared", "vanilla"),
        ("seq-star", "vanilla"), ("seq-star", "frozen"),
    )}  # fmt: skip
    verdicts = [answer.verdict for answer in lead.values()]
    assert verdicts == ["better", "worse", "no difference shown", "better", "worse"]
    one, frozen, *_ = map(shown, lead.values())
    ahead, behind = more(lead["seq-star", "vanilla"]), less(lead["seq-star", "frozen"])
    words = f"It ends at {average(3, 'seq-star')}, ahead of plain fine-tuning by {ahead} and"
    assert f"{words} behind a head on frozen features by {behind}." in text()
    readme = " ".join((page.ROOT / "README.md").read_text("utf-8").split())
    leads = (plain(abs(lead["o-lora", other].difference)) for other in ("lora-shared", "frozen"))
    assert "ahead of one adapter by {} and behind a frozen encoder by {}.".format(*leads) in readme
    ends = average(3, "o-lora"), average(3, "lora-shared"), one, average(3, "frozen"), frozen
    words = "ends at {}, one adapter at {} ({}), a head on frozen features at {} ({} for O-LoRA)."
    assert words.format(*ends) in text()
    cells = page.FIFTEEN.read()[0]
    low, other, *rest = sorted(c.scores["average"] for c in cells if c.baseline == "lora-shared")
    ends = plain(low), plain(other), plain(rest[0]), plain(rest[-1])
    words = "with two of the ten seeds, where it ends at {} and {}, and otherwise at {} to {}."
    assert words.format(*ends) in text()
    known = {
        name: np.mean([np.diag(np.array(c.R, float)) for c in cells if c.baseline == name], axis=0)
        for name in sorted({c.baseline for c in cells})
    }
    ewc = [found(3)[Claim("ewc-lora", name), page.SCORE] for name in ("lora-shared", "o-lora")]
    ((_, ahead),) = page.unseen().items()
    assert {answer.verdict for answer in (*ewc, ahead)} == {"better"}
    words = f"ends at {average(3, 'ewc-lora')}, ahead of one adapter by {more(ewc[0])}"
    assert f"{words} and of O-LoRA by {more(ewc[1])}." in text()
    words = "for which it was then [declared](../scenarios/findings-sequence-15.toml), it is"
    assert f"{words} {more(ahead)}." in text()
    unseen = {c.seed for c in cells if c.baseline == "ewc-lora"} & {*page.UNSEEN}
    assert len(unseen) == 5
    assert "on five of the seven others, for which it was" in text()
    ends = plain(float(known["ewc-lora"].mean())), signed(scores(3)["ewc-lora"]["bwt_mean"])
    assert "a task stands at {} on average, so little is lost (BWT {}).".format(*ends) in text()
    words = "ahead of O-LoRA by {} and, on five seeds run after three had suggested it, of a frozen"
    ends = plain(ewc[1].difference), plain(ahead.difference)
    assert f"{words} encoder by {{}};".format(*ends) in readme
    first = [plain(float(known[name].mean())) for name in ("vanilla", "o-lora", "frozen")]
    words = "at {} with plain fine-tuning, at {} with O-LoRA and at {} with a head on frozen"
    assert words.format(*first) in text()
    ends = tuple(average(3, name) for name in ("vanilla", "o-lora", "frozen"))
    assert "after the last task, at {}, {} and {}.".format(*ends) in text()
    gains = np.mean([*known.values()], axis=0) - np.mean([c.floors for c in cells], axis=0)
    unlearned = {name for name, gain in zip(cells[0].tasks, gains, strict=True) if gain <= 0.01}
    assert unlearned == {
        "glue/mnli", "super_glue/wic", "super_glue/boolq", "glue/rte", "super_glue/multirc"
    }  # fmt: skip


def test_what_the_page_says_of_written_answers() -> None:
    answer = found(4)[Claim("o-lora", "lora-shared"), page.SCORE]
    assert answer.verdict == "worse"
    ends = average(4, "o-lora"), average(4, "lora-shared"), shown(answer)
    assert "It ends at {}, one adapter at {} ({}).".format(*ends) in text()
    low = scores(4)["o-lora-low"]["average_mean"]
    assert scores(4)["o-lora"]["average_mean"] < low < scores(4)["lora-shared"]["average_mean"]
    assert f"(`o-lora-low`) it ends at {plain(low)} with three seeds, below one" in text()
    lost = [signed(scores(4)[name]["bwt_mean"]) for name in ("o-lora", "lora-shared")]
    assert "loses far more (BWT {} and {}).".format(*lost) in text()
    cells = {(cell.baseline, cell.seed): cell for cell in page.WRITTEN.read()[0]}
    after = {key: cell.scores["average"] for key, cell in cells.items()}
    two = {key: sum(value or 0.0 for value in cell.R[1]) for key, cell in cells.items()}
    assert sum(two["o-lora", seed] > two["lora-shared", seed] for seed in range(5)) == 4
    assert "After the second task it is ahead with four of the five seeds, as" in text()
    assert all(after["o-lora-low", seed] < after["lora-shared", seed] for seed in range(3))
    listed, unlisted = (
        [cell for part in parts for cell in Store(page.WRITTEN.folder.with_name(part)).read().cells]
        for parts in (
            (page.WRITTEN.tuning.name, f"{page.WRITTEN.tuning.name}-more"),
            ("findings-sequence-4-text-unlisted",),
        )
    )
    rates = {
        (cell.method, cell.settings["method"]["lr_multiple"]): cell.scores["average"]
        for cell in listed
    }
    for method, best in (("o-lora", 8.0), ("lora", 1.0)):
        assert max((rates[key], key) for key in rates if key[0] == method)[1][1] == best
    tried = [plain(rates["o-lora", rate]) for rate in (8.0, 16.0, 4.0, 2.0, 1.0)]
    words = "O-LoRA {} at its rate (twice as much {}, half {}, a quarter {}, the adapter's rate {})"
    assert words.format(*tried) in text()
    tried = [plain(rates["lora", rate]) for rate in (1.0, 0.5, 2.0, 8.0)]
    assert "{} at its own (half of it {}, twice {}, eight times {})".format(*tried) in text()
    first: list[dict[tuple[str, float], float]] = [
        {(c.method, c.settings["method"]["lr_multiple"]): c.R[-1][0] or 0.0 for c in some}
        for some in (unlisted, listed)
    ]
    assert (len(first[0]), len(first[1])) == (6, 10)
    same = [[some[key] for key in first[0]] for some in first]
    ends = [plain(end, 2) for some in same for end in (min(some), max(some))]
    assert "ended at {} to {} [without".format(*ends[:2]) in text()
    assert "template, and at {} to {} [with the".format(*ends[2:]) in text()
    stood = sorted(cells["o-lora", seed].R[1][0] or 0.0 for seed in range(5))
    assert stood[1] > 0.1  # "with one of five seeds"
    assert f"O-LoRA's first task stood at {plain(stood[0])} after" in text()
    assert f"stands at {plain(stood[0])} to {plain(stood[-1])} after the second" in text()
    assert all(after["o-lora", seed] < after["lora-shared", seed] for seed in range(5))
    settings = [cell.settings["method"] for key, cell in cells.items() if key[0] == "o-lora"]
    assert {(own["weight"], own["norm"]) for own in settings} == {(0.5, "squared")}
    for some, is_listed in ((unlisted, False), (listed, True)):
        protocols = [cell.settings["protocol"] for cell in some]
        assert {each.get("list_answers", False) for each in protocols} == {is_listed}
        assert {each.get("chat") for each in protocols} == {False if is_listed else None}


def test_what_the_page_says_of_a_stronger_penalty() -> None:
    own, one = (page.later()[claim, page.SCORE] for claim in page.LATER)
    assert (own.verdict, one.verdict) == ("better", "no difference shown")
    words = f"ends at {average(4, 'o-lora-strong')}, {shown(own, plain)} above itself at .5, and no"
    assert f"{words} difference from one adapter is shown ({shown(one)})." in text()
    lost = {name: scores(4)[name]["bwt_mean"] for name in ("o-lora-strong", "lora-shared")}
    words = f"It still loses more (BWT {signed(lost['o-lora-strong'])}), and learns more, mostly of"
    over_time = {name: row["average_over_time_mean"] for name, row in scores(4).items()}
    assert max(over_time, key=over_time.__getitem__) == "o-lora-strong"
    ends = plain(over_time["o-lora-strong"]), plain(over_time["lora-shared"])
    rest = "so it is highest over time, which was not declared ({}, one adapter {}).".format(*ends)
    assert rest in text()
    assert lost["o-lora-strong"] < lost["lora-shared"]
    cells = page.WRITTEN.read()[0]
    learned = {
        name: np.mean([np.diag(np.array(c.R, float)) for c in cells if c.baseline == name], axis=0)
        for name in lost
    }
    more = learned["o-lora-strong"] - learned["lora-shared"]
    assert more[0] > 0.5 * more.sum() > 0.0
    ends = [plain(learned[name][0]) for name in lost]
    assert f"{words} the first task ({ends[0]} and {ends[1]}), where no penalty acts yet" in text()
    used = {
        c.baseline: [c.settings["method"].get(key) for key in ("weight", "lr_multiple")]
        for c in cells
    }
    assert used["o-lora-strong"] == [10.0, 8.0]
    assert used["lora-shared"][1] == 1.0


def test_a_higher_rate_of_the_heads_of_seq_star() -> None:
    first, later = (
        max(cell.scores["average"] for cell in Store(page.REFERENCE / folder).read().cells
            if cell.method == "seq-star")
        for folder in ("findings-sequence-4-tune", "findings-sequence-4-tune-seq-star")
    )  # fmt: skip
    assert f"at best {plain(later)} on the tuning rows, instead of {plain(first)}." in text()
