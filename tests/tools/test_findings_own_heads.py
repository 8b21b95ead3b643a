"""The page of findings on sequences says what the cells of tasks with own heads say."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from helpers.sequences_page import average, found, scores, shown, text

from clbench.results.score_tables import means, score_rows
from clbench.results.statistics import crossed_interval, t_quantile
from clbench.results.store import Store
from tools import findings_sequences as page
from tools.findings import Claim, answers, less, more, plain, signed

NONE = "no difference shown"


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
    words = "`prototypes` ends at {}, on these rows equivalent to that replay with {} ({};".format(
        *ends
    )
    other = map(signed, page.with_other_rows(page.FOUR, Claim("prototypes", "replay")))
    assert f"{words} for other rows, too, [{{}}, {{}}]), at".format(*other) in text()
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
    assert (
        "EWC-LoRA and O-LoRA are ahead of the adapter, by {} and {}. Neither".format(*ends)
        in readme
    )
    assert f"to differ from a frozen encoder, which ends at {average(2, 'frozen')}." in readme


def pairs_of_three() -> tuple[Claim, ...]:
    """Return the pairs of three methods that were chosen after the runs; in both studies all."""
    four, fifteen = page.EXPLORED[page.FOUR], page.EXPLORED[page.FIFTEEN]
    pairs = {frozenset(pair) for pair in combinations(("prototypes", "frozen", "ewc-lora"), 2)}
    assert {frozenset(claim) for claim in four} == {frozenset(claim) for claim in fifteen} == pairs
    return four


def test_what_the_page_says_of_pairs_of_three_methods() -> None:
    ewc, means_, head = (page.explored(page.FOUR)[claim, page.SCORE] for claim in pairs_of_three())
    assert [each.verdict for each in (ewc, means_, head)] == [NONE, "better", "better"]
    rows = [
        "[{}, {}]".format(*map(signed, page.with_other_rows(page.FOUR, claim)))
        for claim in pairs_of_three()[1:]
    ]
    words = f"ahead of that head by {more(head)} (for other rows, too, {rows[1]}) and of EWC-LoRA"
    words = f"{words} by {more(means_)} ({rows[0]}); no difference between these two is shown"
    assert f"{words} ({shown(ewc)})." in text()
    cells, question = page.FOUR.read()
    everyone = [Claim(*pair) for pair in combinations(sorted({c.baseline for c in cells}), 2)]
    each_pair = answers(cells, question.margin, everyone, (page.SCORE,))
    assert len(everyone) == 36
    assert each_pair[Claim("ewc-lora", "prototypes"), page.SCORE].verdict == NONE


def test_what_the_page_says_of_a_tuned_penalty_of_o_lora() -> None:
    four, fifteen = page.retuned(page.FOUR), page.retuned(page.FIFTEEN)
    itself, one, *others = (four[claim, page.SCORE] for claim in page.STRONG)
    assert (itself.verdict, one.verdict) == ("equivalent", "better")
    assert {each.verdict for each in others} == {"no difference shown"}
    words = "No difference is shown from EWC-LoRA ({}) or from a head on frozen features ({})."
    assert words.format(*map(shown, others)) in text()
    rows = {row["method"]: row for row in means(score_rows(page.with_retuned(page.FOUR)))}
    ends = plain(rows["o-lora-strong"]["average_mean"]), shown(itself)
    lost = (signed(rows[name]["bwt_mean"]) for name in ("o-lora-strong", "o-lora"))
    words = "ends at {}, equivalent to itself at .5 ({}), with less lost by the means"
    words = f"{words} (BWT {{}} and {{}}), and ahead of"
    assert f"{words} one adapter by {more(one)}.".format(*ends, *lost) in text()
    itself, one, ewc, frozen = (fifteen[claim, page.SCORE] for claim in page.STRONG)
    verdicts = [each.verdict for each in (itself, one, ewc, frozen)]
    assert verdicts == ["better", "better", "worse", "no difference shown"]
    rows = {row["method"]: row for row in means(score_rows(page.with_retuned(page.FIFTEEN)))}
    end = plain(rows["o-lora-strong"]["average_mean"])
    words = f"(`o-lora-strong`, 500 instead of .5) it ends at {end}: {more(itself)} above itself,"
    words = f"{words} {more(one)} above one adapter and {less(ewc)} behind EWC-LoRA, and no"
    assert f"{words} difference from that head is shown ({shown(frozen)})." in text()
    readme = " ".join((page.ROOT / "README.md").read_text("utf-8").split())
    words = f"it is still behind EWC-LoRA, by {plain(-ewc.difference)}, and ends"
    words = f"{words} {plain(-frozen.difference)} below the frozen encoder, which is not shown"
    class_means = page.explored(page.FIFTEEN)[Claim("ewc-lora", "prototypes"), page.SCORE]
    ends = f"Class means end {plain(class_means.difference)} behind EWC-LoRA there"
    assert f"{words} to be a difference. {ends} (compared after the runs)." in readme
    for study in (page.FOUR, page.FIFTEEN):
        cells = [c for c in page.with_retuned(study) if c.baseline == "o-lora-strong"]
        assert sorted(cell.seed for cell in cells) == [*range(10)]
        (used,) = {tuple(c.settings["method"][k] for k in ("weight", "lr_multiple")) for c in cells}
        assert used == (500.0, 5.0)


def test_what_the_page_says_of_a_higher_rate_of_ewc_lora() -> None:
    found = [page.retuned(page.FOUR)[claim, page.SCORE] for claim in page.FAST]
    assert {each.verdict for each in found} == {"no difference shown"}
    rows = {row["method"]: row for row in means(score_rows(page.with_retuned(page.FOUR)))}
    words = f"(`ewc-lora-fast`) ends at {plain(rows['ewc-lora-fast']['average_mean'])}. No"
    words = f"{words} difference is shown from its first setting ({{}}), from the head on frozen"
    words = f"{words} features ({{}}) or from class means ({{}})."
    assert words.format(*map(shown, found)) in text()
    found = [page.retuned(page.FIFTEEN)[claim, page.SCORE] for claim in page.FAST]
    assert {each.verdict for each in found} == {"no difference shown"}
    words = "No difference is shown from its first setting ({}), from the head on frozen features"
    assert f"{words} ({{}}) or from class means ({{}}).".format(*map(shown, found)) in text()
    for study in (page.FOUR, page.FIFTEEN):
        cells = [c for c in page.with_retuned(study) if c.baseline == "ewc-lora-fast"]
        assert sorted(cell.seed for cell in cells) == [*range(10)]
    ends = sorted(float(cell.scores["average"] or 0.0) for cell in cells)
    words = f"ends at {plain(np.mean(ends))}: one of its ten seeds ends at {plain(ends[0])}, the"
    assert f"{words} others at {plain(ends[1])} to {plain(ends[-1])}." in text()


def test_what_the_page_says_of_fifteen_tasks() -> None:
    lead = {claim: found(3)[Claim(*claim), page.SCORE] for claim in (
        ("o-lora", "lora-shared"), ("o-lora", "frozen"), ("lora-shared", "vanilla"),
        ("seq-star", "vanilla"), ("seq-star", "frozen"), ("wise-ft", "vanilla"),
    )}  # fmt: skip
    none = "no difference shown"
    verdicts = [answer.verdict for answer in lead.values()]
    assert verdicts == ["better", "worse", none, "better", "worse", none]
    one, frozen, *_, wise = map(shown, lead.values())
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
    assert max(cell.scenario_report["parts"][0]["validation"] for cell in cells) == 100
    low, other, *rest = sorted(c.scores["average"] for c in cells if c.baseline == "wise-ft")
    ends = plain(low), plain(other), plain(rest[0]), plain(rest[-1])
    words = f"It ends at {average(3, 'wise-ft')} ({wise}); it collapses with two of the ten seeds"
    assert (
        f"{words} ({{}} and {{}}), and otherwise ends at {{}} to {{}}, on".format(*ends) in text()
    )
    low, other, *rest = sorted(c.scores["average"] for c in cells if c.baseline == "lora-shared")
    ends = plain(low), plain(other), plain(rest[0]), plain(rest[-1])
    words = "with two of the ten seeds, where it ends at {} and {}, and otherwise at {} to {};"
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
    assert len(unseen) == 7
    low, high = page.with_other_rows(page.FIFTEEN, page.AHEAD, page.UNSEEN)
    words = f"taken as independent), reaches from {plain(low)} to {plain(high)}."
    assert low > 0.0
    assert words in text()
    ends = plain(float(known["ewc-lora"].mean())), signed(scores(3)["ewc-lora"]["bwt_mean"])
    assert "a task stands at {} on average, so little is lost (BWT {}).".format(*ends) in text()
    ends = plain(ewc[1].difference), plain(ahead.difference)
    words = "ahead of O-LoRA by {} and, on seven seeds run after three had suggested it, of a"
    assert f"{words} frozen encoder by {{}};".format(*ends) in readme
    whole, one, other = page.explored(page.FIFTEEN).items()
    assert [each.verdict for _, each in (whole, one, other)] == ["better", "better", "worse"]
    ends = average(3, "prototypes"), more(one[1])
    words = "`prototypes` ends at {}, behind EWC-LoRA by {} (for other rows, too, [{}, {}]) and"
    words = words.format(*ends, *map(plain, page.with_other_rows(page.FIFTEEN, one[0][0])))
    words = f"{words} behind a head on the same features by {less(other[1])} (for other rows, too,"
    low, high = page.with_other_rows(page.FIFTEEN, other[0][0])
    assert f"{words} [{plain(-high)}, {plain(-low)}])." in text()
    ends = [scores(2)[name]["average_mean"] for name in ("prototypes", "ewc-lora", "frozen")]
    assert max(ends) == ends[0]  # "On the four tasks class means ended highest of the three"
    ends_of = {(cell.baseline, cell.seed): cell.scores["average"] for cell in cells}
    for method, reference, low, words in (
        ("o-lora", "lora-shared", "lora-shared", "eight seeds O-LoRA is {} ahead on average."),
        ("wise-ft", "vanilla", "wise-ft", "on average {} above plain fine-tuning on the same"),
    ):
        calm = [seed for seed in range(10) if ends_of[low, seed] > 0.42]
        assert len(calm) == 8
        gains = [ends_of[method, seed] - ends_of[reference, seed] for seed in calm]
        assert words.format(plain(float(np.mean(gains)))) in text()
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


def test_intervals_over_rows_count_each_task_equally() -> None:
    apart = [np.ones((3, 2)), np.zeros((3, 6))]
    low, high = page.over_rows(apart)
    assert (low + high) / 2 == pytest.approx(0.5)
    step = 1 / 4  # of a row of the smaller task; nothing else varies
    assert (high - low) / 2 == pytest.approx(t_quantile(0.95, 2) * step / 3**0.5)
    rng = np.random.default_rng(0)
    even = [rng.integers(-1, 2, (4, 50)).astype(float) for _ in range(2)]
    whole = np.concatenate([table - table.mean() for table in even], axis=1)
    whole += np.mean([table.mean() for table in even])
    assert page.over_rows(even) == crossed_interval(whole, step=1 / 100)


def test_what_the_page_says_of_written_answers() -> None:
    answer = found(4)[Claim("o-lora", "lora-shared"), page.SCORE]
    assert answer.verdict == "worse"
    assert answer.p_family < 0.025  # "shown at half the error rate, too"
    cells, question = page.WRITTEN.read()
    first = [cell for cell in cells if cell.seed in range(3)]
    ((_, look),) = answers(first, question.margin, page.CLAIMS, (page.SCORE,)).items()
    assert look.verdict == "no difference shown"  # "after three, when no difference was shown"
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
    cells, question = page.WRITTEN.read()
    strong = {cell.seed: cell for cell in cells if cell.baseline == "o-lora-strong"}
    declared = "2026-11-29T06:51:33"
    finished = {seed for seed, cell in strong.items() if cell.finished > declared}
    assert finished == {*page.LATER_SEEDS} == {2, 3, 4}
    assert (own.pairs, one.pairs) == (3, 3)
    words = f"it is {shown(own, plain)} above itself at .5, and no difference from one adapter is"
    words = f"{words} shown ({shown(one)}); on all five, the differences are"
    five = answers(cells, question.margin, page.LATER, (page.SCORE,))
    ends = [signed(five[claim, page.SCORE].difference) for claim in page.LATER]
    assert f"{words} {ends[0]} and {ends[1]}." in text()
    assert f"(`o-lora-strong`) ends at {average(4, 'o-lora-strong')}. On the three" in text()
    lost = {name: scores(4)[name]["bwt_mean"] for name in ("o-lora-strong", "lora-shared")}
    words = f"It still loses more (BWT {signed(lost['o-lora-strong'])}), and learns more, mostly of"
    over_time = {name: row["average_over_time_mean"] for name, row in scores(4).items()}
    assert max(over_time, key=over_time.__getitem__) == "o-lora-strong"
    ends = plain(over_time["o-lora-strong"]), plain(over_time["lora-shared"])
    rest = "so it is highest over time, which was not declared ({}, one adapter {}).".format(*ends)
    assert rest in text()
    assert lost["o-lora-strong"] < lost["lora-shared"]
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
