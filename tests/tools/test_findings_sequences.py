"""The page of findings on sequences says what the kept cells say."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from helpers.sequences_page import STUDIES, average, found, scores, shown, text

from clbench.results.score_tables import means, score_rows
from clbench.results.store import Store
from clbench.suite.baselines import read_baseline
from tools import findings_answers
from tools import findings_sequences as page
from tools.findings import Claim, less, more, plain


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
        ten = ("prototypes", "klda", "ranpac", "seq-star", "frozen", "lora-shared", "o-lora")
        more = dict.fromkeys(("vanilla", "ewc-lora", "icarl", *ten), range(10))
    if study is page.WRITTEN:
        more = dict.fromkeys(("lora-shared", "o-lora", "o-lora-strong"), range(5))
    if study is page.STAGE:
        more = dict.fromkeys(("frozen", "lora-shared", "o-lora", "seq-star"), range(10))
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
    made = [claim.reference for claim, _ in page.heads()]
    assert len(page.HEADS) == 12  # "the intervals are those of a family of twelve"
    assert change.level == pytest.approx(1 - 0.05 / 12)
    assert {*page.HEADS} - {*made} == {"ewc", "osf", "replay", "ewc-lora-delta"}
    cells = [cell.baseline for cell in Store(page.STAGE.folder).read().cells]
    assert [cells.count(name) for name in ("ewc", "osf", "replay")] == [0, 0, 0]
    assert cells.count("ewc-lora-delta") == 2


def tried(folder: str, method: str) -> dict[tuple[float, Any], float]:
    """Return the averages of a method's trials by its rate, as a multiple, and weight."""
    settings = {}
    for cell in Store(page.REFERENCE / folder).read().cells:
        if cell.method == method:
            own = cell.settings["method"]
            settings[own["lr_multiple"], own.get("weight")] = cell.scores["average"]
    return settings


def rates_tried(folders: Iterable[str]) -> dict[tuple[float, float], float]:
    """Return the averages of SEQ*'s trials by the rates of its encoder and of its head."""
    found = {}
    for cell in (c for f in folders for c in Store(page.REFERENCE / f).read().cells):
        own = cell.settings["method"]
        found[own["lr_multiple"], own["head_lr"]] = cell.scores["average"] or 0.0
    return found


def test_higher_rates_of_a_head_on_frozen_features() -> None:
    first, last = (
        tried(f"findings-clinc150-tune{part}", "frozen") for part in ("", "-frozen-higher")
    )
    assert first[200.0, None] == max(first.values())
    assert max(last, key=last.__getitem__) == (20000.0, None)
    (used,) = {
        tuple(cell.settings["method"][key] for key in ("lr", "lr_multiple"))
        for cell in page.ALL.read()[0]
        if cell.baseline == "frozen"
    }
    assert used == (1e-3, 20000.0)
    ends = [plain(scores(n)["frozen"]["told_mean"]) for n in (0, 1)]
    assert "Told the domain it gets {}, and {} with the stage's loss, so".format(*ends) in text()


def test_higher_rates_and_weights_of_o_lora() -> None:
    one, all_classes = (
        tried(f"findings-clinc150{part}tune-o-lora", "o-lora") for part in ("-stage-", "-")
    )
    assert max(one, key=one.__getitem__) == (20.0, 10.0)
    assert max(all_classes, key=all_classes.__getitem__) == (20.0, 10.0)
    used = [read_baseline(str(s.tuning / "o-lora.toml")).settings for s in (page.STAGE, page.ALL)]
    assert [own["lr_multiple"] for own in used] == [20.0, 10.0]
    words = "twice the rate did best, and the cells were run again with it;"
    assert f"with the stage's classes, {words}" in text()


def test_what_the_page_says_of_methods() -> None:
    told = plain(scores(0)["o-lora"]["told_mean"])
    assert f"It ends at {average(0, 'o-lora')}, and at {told} if told the domain" in text()
    ahead = found(1)[Claim("o-lora", "lora-shared"), page.SCORE]
    frozen = found(1)[Claim("o-lora", "frozen"), page.SCORE]
    assert (ahead.verdict, frozen.verdict) == ("better", "worse")
    assert f"ahead of the single adapter by {shown(ahead, plain)}, as its paper" in text()
    ends = -frozen.difference, -frozen.difference_high, -frozen.difference_low
    assert "behind a head on the frozen encoder by {} [{}, {}];".format(*map(plain, ends)) in text()
    smaller = found(0)[Claim("o-lora", "lora-shared"), page.SCORE]
    behind = found(0)[Claim("o-lora", "frozen"), page.SCORE]
    assert (smaller.verdict, behind.verdict) == ("better", "worse")
    ends = -behind.difference, -behind.difference_high, -behind.difference_low
    words = (
        "ahead of a single adapter by {} and behind a head on the frozen encoder by {} [{}, {}]."
    )
    assert words.format(shown(smaller, plain), *map(plain, ends)) in text()
    assert f"the single adapter is {shown(smaller, plain)} or {shown(ahead, plain)};" in text()
    readme = " ".join((page.ROOT / "README.md").read_text("utf-8").split())
    leads = [plain(ahead.difference), plain(smaller.difference)]
    words = "({} with the stage's classes, {} with all classes so far)".format(*leads)
    ends = [plain(-each.difference) for each in (frozen, behind)]
    assert f"{words}, and behind a head on the frozen encoder by {ends[0]} and {ends[1]}." in readme
    lead = plain(found(0)[Claim("ewc-lora", "o-lora"), page.SCORE].difference)
    assert f"With all classes so far EWC-LoRA is ahead of O-LoRA by {lead}." in readme
    star = found(0)[Claim("seq-star", "frozen"), page.SCORE]
    assert star.verdict == "better"
    one, plainly = (found(1)[Claim("seq-star", name), page.SCORE] for name in ("frozen", "vanilla"))
    assert (one.verdict, plainly.verdict) == ("worse", "better")
    ends = -one.difference, -one.difference_high, -one.difference_low
    behind_it = "{} [{}, {}]".format(*map(plain, ends))
    itself, ahead = (page.retuned(page.STAGE)[claim, page.SCORE] for claim in page.LOW)
    assert {itself.verdict, ahead.verdict} == {"better"}
    words = (
        f"the frozen encoder by {shown(star, plain)} with all classes, and, as first tuned, behind"
    )
    words = f"{words} it by {behind_it} with the stage's (better tuned, ahead by"
    assert f"{words} {plain(ahead.difference)}); O-LoRA's" in text()
    low, end = (plain(findings_answers.averages(s)["seq-star-low"]) for s in (page.STAGE, page.ALL))
    words = (
        f"(`seq-star-low`), it ends at {low}: {more(itself)} above its first setting, and ahead of"
    )
    assert f"{words} that head by {more(ahead)}." in text()
    retuned = page.retuned(page.ALL).items()
    lower = {c.reference: answer for (c, _), answer in retuned if c.method == "seq-star-low"}
    assert [each.verdict for each in lower.values()] == ["better", "better", "worse"]
    words = (
        f"ends at {end}: {more(lower['seq-star'])} above its first setting, ahead of that head by"
    )
    words = (
        f"{words} {more(lower['frozen'])}, and behind class means by {less(lower['prototypes'])}."
    )
    assert words in text()
    words = f"(`seq-star-low`) it scores {low} with the stage's and {end} with all classes."
    assert words in text()
    words = f"ahead of plain fine-tuning by {shown(plainly, plain)} and just behind a head on the"
    assert f"{words} frozen encoder, by {behind_it}, which three seeds had not shown." in text()
    tuned = read_baseline(str(page.STAGE.tuning / "seq-star.toml"))
    for rate in ("head_lr", "lr_multiple"):  # "the lowest of its sweep"
        assert tuned.settings[rate] == min(tuned.sweep[rate])
    rows = sorted(score_rows(Store(page.STAGE.folder).read().cells), key=lambda row: row["seed"])
    both = [
        [plain(row["average"]) for row in rows if row["method"] == name]
        for name in ("ewc-lora", "ewc-lora-delta")
    ]
    assert both[0][:2] == both[1]
    words = f"on the product alone (not in the table) score the same, {' and '.join(both[1])}."
    assert words in text()
    assert found(1)[Claim("ewc-lora", "o-lora"), page.SCORE].verdict == "no difference shown"
    whole, head, product = (f"ewc-lora{part}" for part in ("", "-head", "-delta"))
    assert f"in the loss it ends at {average(0, whole)}, ahead of the plain adapter" in text()
    rest = [found(0)[Claim(whole, part), page.SCORE] for part in (product, head)]
    assert [(each.pairs, each.verdict) for each in rest] == [
        (3, "better"),
        (3, "no difference shown"),
    ]
    words = (
        f"product alone it ends at {average(0, product)}, {more(rest[0])} behind the whole method,"
    )
    words = f"{words} and with that on the head's weights alone at {average(0, head)}, which is"
    assert f"{words} not shown to be behind it ({shown(rest[1]).removeprefix('+')})." in text()
    for claim, words in (
        (Claim("ewc-lora", "lora-shared"), "ahead of the plain adapter by"),
        (Claim("ewc-lora", "o-lora"), "and of O-LoRA by"),
        (Claim("seq-star", "vanilla"), "ahead of plain fine-tuning by"),
    ):
        assert found(0)[claim, page.SCORE].verdict == "better"
        assert f"{words} {shown(found(0)[claim, page.SCORE], plain)}" in text()


def test_what_the_page_says_of_class_means() -> None:
    rows = scores(0)
    best = sorted(rows, key=lambda name: -rows[name]["average_mean"])
    assert best[:3] == ["ranpac", "klda", "prototypes"]
    on_gpu = [cell for cell in page.ALL.read()[0] if cell.host["device"] == "cuda"]
    seconds = {r["method"]: r["train_seconds_mean"] for r in means(score_rows(on_gpu))}
    assert max(seconds[name] for name in best[:3]) <= 0.205 * seconds["vanilla"]
    on_cpu = [c for c in page.ALL.read()[0] if c.host["device"] == "cpu" and c.method == "vanilla"]
    assert len(on_cpu) == 7  # "other work ran beside plain fine-tuning"
    assert all(any(page.UNTIMED in note for note in cell.notes) for cell in on_cpu)
    assert (
        f"(`prototypes`; deep SLDA, Hayes & Kanan 2020) ends at {average(0, 'prototypes')}"
        in text()
    )
    over = found(0)[Claim("prototypes", "replay"), page.SCORE]
    assert (over.pairs, over.verdict) == (3, "better")
    words = f"replay, which ends at {average(0, 'replay')}, is {more(over)} on three seeds."
    assert f"The lead over {words}" in text()
    lead = findings_answers.comparisons()["lead prototypes seq-star average"]
    assert (lead.pairs, lead.verdict) == (10, "better")
    (low,) = (
        answer for (c, _), answer in page.retuned(page.ALL).items() if c.reference == "prototypes"
    )
    words = (
        f"ahead of SEQ\\*, the best method that trains, by {less(low)} at the lower rate that was"
    )
    assert f"{words} tuned later (declared), and by {shown(lead, plain)} as first tuned" in text()
    for name, source in (
        ("klda", "KLDA (Momeni et al. 2025)"),
        ("ranpac", "RanPAC (McDonnell et al. 2023)"),
    ):
        gain = found(0)[Claim(name, "prototypes"), page.SCORE]
        assert gain.verdict == "better"
        assert f"{source} {shown(gain)}" in text()
    time = page.multiples(page.ALL.read()[0], "vanilla")["prototypes"][0]
    readme = " ".join((page.ROOT / "README.md").read_text("utf-8").split())
    words = f"get {average(0, 'prototypes')} of the intents right, in about {plain(time, 2)} of the"
    words = (
        f"{words} time of plain fine-tuning. That is {plain(-low.difference)} more than SEQ\\* at a"
    )
    words = (
        f"{words} rate that was tuned later ({plain(lead.difference)} more than as first tuned),"
    )
    words = f"{words} by the mean the best method that trains. RanPAC adds {plain(gain.difference)}"
    assert f"{words} to class means." in readme


def test_lower_rates_of_seq_star_with_the_stages_classes() -> None:
    folders = (f"findings-clinc150-stage-tune-seq-star{part}" for part in ("", "-fifth", "-tenth"))
    found = rates_tried(folders)
    assert [len({key[n] for key in found}) for n in (0, 1)] == [4, 2]
    assert max(found, key=found.__getitem__) == (0.05, 0.01)
    used = read_baseline(str(page.STAGE.tuning / "seq-star-low.toml")).settings
    assert (used["lr_multiple"], used["head_lr"]) == (0.05, 0.01)


def test_higher_weights_of_o_lora_on_four_tasks() -> None:
    folders = (f"findings-sequence-4-tune{part}" for part in ("", "-o-lora", "-o-lora-higher"))
    best: dict[float, float] = {}
    for (_, weight), score in (each for f in folders for each in tried(f, "o-lora").items()):
        best[weight] = max(score, best.get(weight, 0.0))
    assert f"Its best trial with .5 scores {plain(best[0.5])}." in text()
    assert best[0.5] < best[5.0] < best[50.0] < best[500.0]  # the rule: the best of the nine, and
    assert best[5000.0] < best[500.0] < best[50000.0]  # not beaten by the next; "50,000 … one more"
    assert best[50000.0] - best[500.0] == pytest.approx(1 / 640)
    used = read_baseline(str(page.FOUR.tuning / "o-lora-strong.toml")).settings
    assert (used["weight"], used["lr_multiple"]) == (500.0, 5.0)


def test_higher_rates_of_ewc_lora_on_four_tasks() -> None:
    cells = Store(page.REFERENCE / "findings-sequence-4-tune-ewc-lora").read().cells
    own = ((c.settings["method"], c.scores["average"]) for c in cells)
    found = {(each["importance"], each["lr_multiple"]): score for each, score in own}
    rates = (5.0, 10.0, 20.0)
    assert {*found} == {(strength, rate) for strength in (1e4, 1e5) for rate in rates}
    five, ten, twenty = (plain(found[1e4, rate]) for rate in rates)
    words = f"ten times the rate at the same strength scores {ten}, 5 {five} and 20 {twenty}, so"
    assert words in text()
    assert all(found[1e5, rate] <= found[1e4, rate] for rate in rates)  # "helps at none"
    used = read_baseline(str(page.FOUR.tuning / "ewc-lora-fast.toml")).settings
    assert (used["importance"], used["lr_multiple"]) == max(found, key=found.__getitem__)


def test_a_higher_rate_of_the_heads_of_seq_star() -> None:
    first, later = (
        max(cell.scores["average"] for cell in Store(page.REFERENCE / folder).read().cells
            if cell.method == "seq-star")
        for folder in ("findings-sequence-4-tune", "findings-sequence-4-tune-seq-star")
    )  # fmt: skip
    assert 0 < later - first < 0.002  # "hardly helped"


def test_icarl_was_run_again_without_the_error() -> None:
    cells = [cell for cell in page.ALL.read()[0] if cell.baseline == "icarl"]
    assert all(stage.examples == 3 * stage.rows for cell in cells for stage in cell.stages)
    assert [cell.recipe["method"]["version"] for cell in cells] == [2] * 10


def test_lower_rates_of_seq_star_with_all_classes() -> None:
    folders = (f"findings-clinc150-tune-seq-star{part}" for part in ("", "-lower", "-lower-head"))
    found = rates_tried(folders)
    assert max(found, key=found.__getitem__) == (0.02, 0.03)
    assert found[0.02, 0.03] - found[0.01, 0.03] == pytest.approx(1 / 1500)
    assert found[0.02, 0.01] < found[0.02, 0.03] - 0.1
    used = read_baseline(str(page.ALL.tuning / "seq-star-low.toml")).settings
    assert (used["lr_multiple"], used["head_lr"]) == (0.02, 0.03)
    heads = tried("findings-clinc150-tune-ewc-lora-head", "ewc-lora")
    assert [*heads] == [(5.0, None), (10.0, None)]
    assert heads[5.0, None] > heads[10.0, None]


def test_later_trials_of_the_product_of_ewc_lora_and_of_ties() -> None:
    product = tried("findings-clinc150-tune-ewc-lora-delta", "ewc-lora")
    ten, five, twenty = (plain(product[rate, None]) for rate in (10.0, 5.0, 20.0))
    words = f"10 scores {ten}, 5, which the cells of three seeds have, {five}, and 20 {twenty}."
    assert words in text()
    ties: dict[tuple[float, float], set[float]] = {}
    for part in ("", "-rate", "-higher", "-whole"):
        for cell in Store(page.REFERENCE / f"findings-clinc150-tune-ties{part}").read().cells:
            own = cell.settings["method"]
            ties.setdefault((own["scale"], own["lr_multiple"]), set()).add(cell.scores["average"])
    (best,), (first,) = ties[0.5, 4.0], ties[1.0, 1.0]
    assert best == max(score for scores in ties.values() for score in scores)
    around = {(scale, 4.0) for scale in (0.25, 1.0)} | {(0.5, rate) for rate in (2.0, 8.0)}
    assert around < {*ties}
    words = f"a scale of .5 at four times the rate scores {plain(best)}, the setting of the first"
    assert f"{words} cells {plain(first)}, so it was a bad one." in text()
    used = read_baseline(str(page.ALL.tuning / "ties-retuned.toml")).settings
    assert (used["scale"], used["lr_multiple"]) == (0.5, 4.0)


def test_what_the_page_says_of_ties() -> None:
    itself, plainly = (page.retuned(page.ALL)[claim, page.SCORE] for claim in page.TIES)
    assert {itself.verdict, plainly.verdict} == {"better"}
    firsts = [found(i)[Claim("ties", "vanilla"), page.SCORE] for i in (0, 1)]
    assert {each.verdict for each in firsts} == {"no difference shown"}
    end = plain(findings_answers.averages(page.ALL)["ties-retuned"])
    words = f"it ends at {end}: {more(plainly)} above plain fine-tuning and, on the three seeds"
    assert f"{words} that both have, {more(itself)} above its first setting, of which" in text()
    assert (plainly.pairs, itself.pairs) == (10, 3)
    cells = [c for c in page.with_retuned(page.ALL) if c.baseline == "ties-retuned"]
    assert sorted(cell.seed for cell in cells) == [*range(10)]
    assert not any(cell.keeps_rows for cell in cells)
