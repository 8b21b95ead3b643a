"""The page of findings with every method tuned alike says what the kept cells say."""

from __future__ import annotations

import json
from functools import cache

import pytest

from clbench.results.archive import read_archive
from clbench.results.statistics import Comparison, Differences, compare
from clbench.suite.baselines import read_baseline
from clbench.suite.read import read_suite
from tools import findings_facts as page
from tools.findings import interval, less, more, plain


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
    tuned: dict[str, set[str]] = {}
    for cell in map(json.loads, read_archive(page.STUDY.tuning).values()):
        assert cell["seed"] not in read_suite("findings-facts").file.seeds
        tuned.setdefault(cell["baseline"].partition("-t")[0], set()).add(cell["baseline"])
    names = page.kept()["baseline"].unique()
    assert {name: len(trials) for name, trials in tuned.items()} == dict.fromkeys(names, 6)
    for name in names:
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


def test_the_answers_on_what_is_ahead() -> None:
    found, curve, none = page.against_vanilla(), page.on_curve(), "no difference shown"
    ahead = [n for (score, n), c in found.items() if (score, c.verdict) == ("average", "better")]
    assert ahead == ["replay", "low-rate-long", "generic-replay"]
    for name in ahead:
        verdicts = [found[score, name].verdict for score in page.QUESTION]
        assert verdicts == ["better", "better", none]
        lead, kept = more(found["average", name]), more(found["p_o", name])
        many = name == "generic-replay"
        assert f"{'lead' if many else 'leads'} by {lead}" in text()
        assert f"{'they keep' if many else 'it keeps'} {kept} more" in text()
    assert curve["generic-replay"].verdict == none
    before = page.by_seed("p_o_before").mean()
    ends = plain(before["generic-replay"]), plain(before["vanilla"])
    assert "known before the new task ({} against {} of `vanilla`".format(*ends) in text()
    assert curve["low-rate-long"].verdict == "better"
    assert f"it keeps {more(curve['low-rate-long'])} more than plain" in text()


def test_what_is_said_of_learning_less_and_of_replay_beside_a_low_rate() -> None:
    new = page.by_seed("p_s")
    for name, words in (
        (
            "replay",
            "It learned {} less of the new ones on average, on {} of 20 seeds, a difference",
        ),
        ("low-rate-long", "is not shown to learn less (by {} on average, on {} of 20 seeds)."),
    ):
        differences = new[name] - new["vanilla"]
        ends = plain(-differences.mean()), (differences < 0).sum()
        assert words.format(*ends) in text()
    assert f"that this family of {len(page.against_vanilla())} comparisons does not show." in text()
    found = page.explored()
    words = (
        f"is ahead of `low-rate-long` by {more(found['average'])}, and keeps {more(found['p_o'])}"
    )
    new = found["p_s"]
    assert new.verdict == "no difference shown"
    assert f"{words} more, with no difference in learning shown ({ends_of(new)})." in text()


def test_the_readme_says_what_the_page_says() -> None:
    readme = " ".join((page.ROOT / "README.md").read_text(encoding="utf-8").split())
    found = {name: c for (score, name), c in page.against_vanilla().items() if score == "average"}
    names = ("replay", "low-rate-long", "generic-replay")
    ends = [plain(found[name].difference) for name in names]
    replay, slow, general = (page.times()[name] for name in names)
    assert round(replay) == 2
    words = f"replay of old rows ({ends[0]}, twice the time), a tenth of the rate for ten times the"
    words = f"{words} steps ({ends[1]}, {slow:.1f} times) and general texts ({ends[2]},"
    assert f"{words} {general:.0f} times). The last two are shown only once" in readme
    words = f"at {general:.0f} times the time of plain fine-tuning (`low-rate-long` {slow:.1f},"
    seconds = page.by_seed("seconds")
    each = [seconds[name] / seconds["vanilla"] for name in reversed(names)]
    ends = [f"{x.min():.{d}f} to {x.max():.{d}f}" for x, d in zip(each, (0, 0, 1), strict=True)]
    ends = ", ".join(ends[:2]) + f" and {ends[2]}"
    words = f"{words} replay {replay:.1f}; medians over seeds beside other work, which reach from"
    assert f"{words} {ends}):" in text()
    reach = f"{each[0].min():.0f} to {each[0].max():.0f}."
    assert f"beside other work: for general texts they reach from {reach}" in readme
    behind = ("dft", "asft", "eaft", "lora", "kl-anchor", "freeze-bottom", "wise-ft", "self-sft")
    assert {n for n, c in found.items() if c.verdict == "worse"} == {*behind}
    verdicts = {
        name: [page.against_vanilla()[score, name].verdict for score in ("p_o", "p_s")]
        for name in behind
    }
    cautious = {name for name, both in verdicts.items() if both == ["better", "worse"]}
    assert cautious == {"dft", "asft", "wise-ft", "self-sft"}
    words = "DFT, ASFT, WiSE-FT and own answers know more old facts than plain fine-tuning and"
    assert f"{words} fewer new ones." in readme
    words = (
        "behind tuned plain fine-tuning in the mean of old and new facts: DFT, ASFT, EAFT, LoRA,"
    )
    words = f"{words} WiSE-FT, anchored outputs, frozen lower layers, and training on the model's"
    short = (page.ROOT / "docs" / "findings.md").read_text(encoding="utf-8")
    words = f"{words} own right answers (WiSE-FT, anchored outputs and frozen layers only once ten"
    assert f"{words} seeds that were added after a look are counted)." in " ".join(short.split())
    words = "end behind; WiSE-FT, anchored outputs and frozen layers only with those ten seeds."
    assert words in readme
    assert page.kept()["seed"].nunique() == 20


def test_with_the_seeds_declared_first_replay_alone_is_ahead() -> None:
    values = page.by_seed("average").loc[:9]
    step = page.steps()["average"]
    first = {
        name: Differences(tuple(values[name] - values[page.REFERENCE_METHOD]), step)
        for name in page.methods()
    }
    found = compare({"average": first}, family=len(page.against_vanilla()))
    assert [n for (_, n), c in found.items() if c.verdict == "better"] == ["replay"]
    with_all = page.against_vanilla()
    now = {n for n in page.methods() if with_all["average", n].verdict == "worse"}
    then = {n for (_, n), c in found.items() if c.verdict == "worse"}
    assert now - then == {"wise-ft", "kl-anchor", "freeze-bottom"}
    words = "so do the deficits of `wise-ft`, `kl-anchor` and `freeze-bottom` in the mean"
    assert words in text()
    half = [(c.difference_high - c.difference_low) / 2 for c in found.values()]
    assert (sum(width > 0.05 for width in half), len(half)) == (11, 14)
    assert "wider than .05 on either side for eleven of the fourteen methods" in text()


def test_later_runs_with_more_steps_on_the_curve() -> None:
    found = page.on_curve(*sorted(page.untuned.LATER))
    none = "no difference shown"
    ahead = [n for n, c in found.items() if isinstance(c, Comparison) and c.verdict == "better"]
    assert ahead == []
    assert {found[name].verdict for name in ("freeze-bottom", "kl-anchor")} == {none}
    dft, asft, eaft = (less(found[name]) for name in ("dft", "asft", "eaft"))
    assert {found[name].verdict for name in ("dft", "asft", "eaft")} == {"worse"}
    assert not isinstance(page.on_curve()["eaft"], Comparison)
    assert f"are shown to be, by {dft}, {asft} and {eaft}." in text()


def test_the_verdicts_are_the_same_at_the_level_of_a_second_look() -> None:
    groups: dict[str, dict[str, Differences]] = {}
    for score, name in page.against_vanilla():
        values = page.by_seed(score)
        differences = tuple(values[name] - values[page.REFERENCE_METHOD])
        groups.setdefault(score, {})[name] = Differences(differences, page.steps()[score])
    strict = compare(groups, alpha=0.025)
    verdicts = {key: each.verdict for key, each in strict.items()}
    assert verdicts == {key: each.verdict for key, each in page.against_vanilla().items()}
    assert "at 97.5 % the verdicts are the same." in text()


def test_the_answers_on_what_is_not() -> None:
    found, curve, none = page.against_vanilla(), page.on_curve(), "no difference shown"
    some = [found["average", name] for name in ("ewc", "talr", "self-replay")]
    assert {each.verdict for each in some} == {none}
    assert "{}, {} and {}. EWC keeps".format(*map(ends_of, some)) in text()
    assert found["p_o", "ewc"].verdict == "better"
    assert f"EWC keeps {more(found['p_o', 'ewc'])} more of the old facts." in text()
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
    assert f"learn {learned['dft']} and {learned['asft']} of the new facts and end" in text()
    names = ("dft", "asft", "lora", "kl-anchor", "freeze-bottom", "eaft", "self-sft")
    behind = [found["average", name] for name in names]
    assert {each.verdict for each in behind} == {"worse"}
    ends = [plain(-each.difference) for each in behind[:2]]
    assert "and end {} and {} behind in the mean".format(*ends) in text()
    assert page.by_seed("p_s").mean().idxmax() == page.by_seed("p_o").mean().idxmin() == "eaft"
    ends = learned["eaft"], plain(page.by_seed("p_o")["eaft"].mean())
    assert "new facts ({}) and the lowest on old ones ({}).".format(*ends) in text()
    words = (
        "LoRA ends {} behind**, the anchor of the outputs (`kl-anchor`) {} and frozen lower layers"
    )
    assert f"{words} {{}}.".format(*map(less, behind[2:5])) in text()
    wise = [found[score, "wise-ft"] for score in page.QUESTION]
    assert [each.verdict for each in wise] == ["worse", "better", "worse"]
    words = f"WiSE-FT learns {less(wise[2])} less and keeps {more(wise[1])} more, and ends"
    assert f"{words} {less(wise[0])} behind in the mean." in text()


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
