"""The page of findings answers its questions with what the kept cells say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import fmean

import matplotlib
import pandas as pd
import pytest

from clbench.results.archive import read_archive
from clbench.results.matched import LEVELS
from clbench.results.store import Store
from clbench.suite.read import read_suite
from tools import findings_answers as answers
from tools import findings_page as page
from tools import findings_smollm2
from tools import findings_studies as studies
from tools.equal_learning import OUTSIDE, changed_verdicts
from tools.findings import REFERENCE, plain

NONE = "no difference shown"
VERDICTS = {  # what the sentences on encoders say in words
    "minilm bertcl-combined low-rate": (NONE, "worse"),
    "tiny bertcl-combined low-rate": (NONE, NONE),
    "minilm bertcl-published low-rate-published": (NONE, "equivalent"),
    "tiny bertcl-published low-rate-published": (NONE, "equivalent"),
    "minilm bertcl-published vanilla": (NONE, "worse"),
    "minilm ewc-mlm vanilla": (NONE, "equivalent"),
    "minilm recadam low-rate-recadam": ("equivalent", "equivalent"),
    "tiny recadam low-rate-recadam": (NONE, "equivalent"),
    "minilm recadam vanilla": (NONE, NONE),
    "tiny recadam vanilla": ("better", NONE),
}
OTHERS = {
    "masked LM ewc-mlm": "better",
    "masked LM half-rate": "better",
    "old task ewc-mlm": NONE,
    "minilm replay low-rate-recadam p": NONE,
    "tiny replay low-rate-recadam p": "worse",
    "head frozen": "better",
    "head o-lora": "better",
    "head seq-star": "worse",
    "stage o-lora lora-shared average": "better",
    "stage o-lora frozen average": "worse",
    "all o-lora lora-shared average": "better",
    "all o-lora frozen average": "worse",
    "all seq-star frozen average": "better",
    "stage seq-star frozen average": "worse",
    "lead prototypes o-lora average": "better",
    "lead prototypes seq-star average": "better",
    "lead prototypes seq-star-low average": "better",
    "retuned clinc150 seq-star-low prototypes": "worse",
    "all klda prototypes average": "better",
    "four lora-shared vanilla average": "better",
    "four ewc-lora lora-shared average": "better",
    "four o-lora lora-shared average": "better",
    "four o-lora frozen average": NONE,
    "four seq-star frozen average": NONE,
    "four prototypes replay average": "equivalent",
    "explored four-tasks ewc-lora frozen": NONE,
    "explored four-tasks prototypes ewc-lora": "better",
    "explored four-tasks prototypes frozen": "better",
    "explored fifteen-tasks ewc-lora prototypes": "better",
    "explored facts average": "better",
    "explored facts p_o": "better",
    "minilm recadam low-rate-recadam p": "equivalent",
    "tiny recadam low-rate-recadam p": NONE,
    "fifteen o-lora lora-shared average": "better",
    "fifteen o-lora frozen average": "worse",
    "fifteen ewc-lora o-lora average": "better",
    "retuned fifteen-tasks o-lora-strong frozen": NONE,
    "retuned clinc150-stage seq-star-low frozen": "better",
    "retuned fifteen-tasks o-lora-strong ewc-lora": "worse",
    "unseen ewc-lora frozen": "better",
    "written o-lora lora-shared average": "worse",
    "later o-lora-strong lora-shared": NONE,
    "glue equal": NONE,
    **{f"drawn {n} p_o": "worse" for n in answers.grpo.SELDOM.others},
    "able grpo-quarter p_o": NONE,
    "glue lora-shared vanilla-quarter learned": "worse",
    "glue lora-double vanilla-half average": "worse",
    "smollm2 lora-tuned vanilla-half p_o": "worse",
    "smollm2 lora-tuned vanilla-half text_loss_added": "worse",
    "smollm2 vanilla-half vanilla p_s": NONE,
    "smollm2 replay vanilla text_loss_added": NONE,
    "smollm2 sdft untrained p_s": "worse",
    "smollm2 self-replay-tenth generic-replay-tenth text_loss_added": "worse",
    "all ranpac prototypes average": "better",
    "curve dft p_o": "worse",
    "curve asft p_o": "worse",
    "curve talr p_o": "worse",
    "curve freeze-bottom p_o": "worse",
    "curve freeze-bottom forgetting": NONE,
    "curve replay p_o": "better",
    "steady vanilla p_o": "worse",
    "steady vanilla p_s": NONE,
    "steady ewc p_o": "worse",
    "steady ewc p_s": NONE,
    "steady replay p_o": "better",
    "steady replay p_s": NONE,
    "equal dft": NONE,
    "equal asft": NONE,
    "equal talr": NONE,
    "equal freeze-bottom": "worse",
    "equal low-rate-long": "better",
    "equal replay": "better",
    "tuned replay average": "better",
    "tuned low-rate-long average": "better",
    "tuned generic-replay average": "better",
}


def text() -> str:
    return page.PAGE.read_text(encoding="utf-8")


def mean(folder: str, baseline: str, task: int | None) -> float:
    """Return a mean score from the files; over all tasks, too, if `task` is None."""
    cells = [json.loads(data) for data in read_archive(REFERENCE / folder).values()]
    own = [cell for cell in cells if cell["baseline"] == baseline]
    if folder == "findings-decoder":
        own = [cell for cell in own if cell["seed"] in {*answers.decoder.kept()["seed"]}]
    return fmean(fmean(c["R"][-1]) if task is None else c["R"][-1][task] for c in own)


@pytest.mark.slow
def test_the_page_has_the_values_of_the_cells() -> None:
    assert page.filled(text()) == text()
    assert "\n<!--=" not in text()  # it would end the paragraph


@pytest.mark.slow
def test_the_figures_are_those_of_the_cells(tmp_path: Path) -> None:
    page.draw_all(tmp_path)
    drawn = sorted(path.name for path in tmp_path.iterdir())
    assert len(drawn) == 12
    for name in drawn:
        kept = (page.FIGURES / name).read_text(encoding="utf-8")
        if f"Matplotlib v{matplotlib.__version__}," not in kept:
            pytest.skip("the figures were drawn by another version of matplotlib")
        assert (tmp_path / name).read_text(encoding="utf-8") == kept, name


def test_what_is_said_to_be_ahead_is_shown_to_be() -> None:
    _, short, *_ = re.split(r"^## ", text(), flags=re.MULTILINE)
    assert short.startswith("In short\n")
    names = re.findall(r"<!--=(.+?)-->", short)
    found = [answers.comparisons()[name] for name in names if name in answers.comparisons()]
    assert len(found) == 10
    assert {each.verdict for each in found} == {"better"}


def test_each_question_has_a_figure_three_sentences_and_what_would_change_it() -> None:
    _, _, *parts, _ = re.split(r"^## ", text(), flags=re.MULTILINE)
    names = [re.findall(r"\(figures/findings-([\w-]+)\.svg\)", part) for part in parts]
    assert sorted(name for (name,) in names) == sorted([*page.panels(), "kl", "relearning"])
    assert all(page.comparison_figure(each).axes for each in page.panels().values())
    assert all((page.FIGURES / f"findings-{name}.svg").exists() for (name,) in names)
    for part in parts:
        title, known, _, answer, scale, change, *_ = re.split(r"\n\n", part)
        assert title.endswith("?")
        assert known.startswith("*Known:* ")
        assert scale.startswith("*Scale:* ")
        assert change.startswith("*Would change it:* ")
        words = re.sub(r"<!--=[^>]+-->.*?<!--/-->", "", answer, flags=re.DOTALL)
        assert set(re.findall(r"\d+", words)) <= {"1", "8", "32"}  # lost .1, rows of relearning
        _, verdict, sentences = re.split(r"\*\*", answer)
        assert verdict
        assert len(re.findall(r"\.(?=\s[A-Z<]|$)", sentences.strip())) == 3, answer


def test_the_words_are_those_of_the_verdicts() -> None:
    found = {name: answer.verdict for name, answer in answers.comparisons().items()}
    expected = {f"{n} {s}": v for n, both in VERDICTS.items() for s, v in zip(
        page.SCORES, both, strict=True)} | OTHERS  # fmt: skip
    assert {name: found[name] for name in expected} == expected
    assert {answers.strongest(study) for study in answers.pairs.STUDIES} == {"low-rate-recadam"}
    from_half = {v for k, v in found.items() if k.endswith(" low-rate-recadam p")}
    assert from_half == {NONE, "equivalent", "worse"}  # none is better
    *_, best = (n for n in answers.averages(answers.sequences.ALL) if n not in answers.CLASS_MEANS)
    assert best == "seq-star-low"
    counts = [answers.count_better(answers.matching(p)) for p in ("head (.+)", answers.LEADS)]
    assert counts == ["4 of 7", "11 of 11"]


def test_no_rate_is_shown_to_lose_more_of_mrpc_than_lora_or_less() -> None:
    found = {k: v.verdict for k, v in answers.comparisons().items() if k.startswith("glue lora")}
    assert {v for k, v in found.items() if k.endswith((" lost", " bwt"))} == {NONE}
    assert [*found.values()].count("worse") == 3  # none is better
    assert {*found.values()} == {NONE, "worse"}


def test_the_words_on_the_decoder_are_those_of_the_cells() -> None:
    decoder = answers.decoder
    own, *others = (decoder.r2(name) for name in ("forward_kl", "p_s", "divergence"))
    assert own.low > max(other.high for other in others)  # "better than KL on other text"
    names = ("divergence", "forward_kl")
    for unseen in (False, True):  # "for unseen methods"
        logs = [decoder.r2(n, unseen=unseen, logarithm=True).value for n in names]
        assert logs[0] > logs[1]
    new, other = (decoder.r2(n, unseen=True) for n in ("forward_kl", "divergence"))
    assert other.low < 0.0 < new.low < 0.2  # "just so for methods that the fit has not seen"
    assert 0.0 < new.below_zero < 0.025
    first = decoder.r2("forward_kl", unseen=True, without=decoder.LAST)
    assert first.low < 0.0  # "no interval allows for these looks"
    assert decoder.rank_correlation("divergence") < decoder.rank_correlation("forward_kl") < 0.0
    changes = {n: answers.comparisons()[f"change {n} p_o"].verdict for n in answers.CHANGES}
    assert {n for n, verdict in changes.items() if verdict == "better"} == {
        "vanilla-half",
        "vanilla-quarter",
    }
    for method in decoder.ON_POLICY:  # "nothing can be compared at the levels … fixed beforehand"
        assert all(decoder.matched(method, level) is None for level in LEVELS)
    rest = {each.verdict for each in decoder.remembered().values()}
    assert rest == {NONE}  # "no remainder is shown"
    back = re.findall(r"\.\d+", answers.relearning_values()["again back"])
    assert max(map(float, back)) < 0.5  # "Little"


def test_the_words_on_a_curve_with_more_steps_are_those_of_the_cells() -> None:
    later = sorted(answers.decoder.LATER)
    tuned = answers.facts.on_curve(), answers.facts.on_curve(*later)
    assert changed_verdicts(*tuned) == {
        **dict.fromkeys(("replay", "low-rate-long"), ("better", NONE)),
        **dict.fromkeys(("freeze-bottom", "kl-anchor"), ("worse", NONE)),
        **dict.fromkeys(("dft", "asft"), (NONE, "worse")),
        "eaft": (OUTSIDE, "worse"),
    }
    untuned = changed_verdicts(answers.decoder.on_curve(), answers.decoder.on_curve(*later))
    lost = {name for (score, name), (_, now) in untuned.items() if (score, now) == ("p_o", NONE)}
    lost -= {name for (_, name), (before, _) in untuned.items() if before == OUTSIDE}
    shares = {"self-replay-tenth", "generic-replay-tenth"}
    assert lost == {"replay", "talr", "kl-anchor-light", *shares}
    assert untuned["p_o", "ewc-strong"] == (NONE, "worse")
    on_policy = text().partition("## On-policy data")[2].partition("\n## ")[0]
    words = "<!--/-->, which is not shown if the four later runs with more steps join that curve;"
    own = f"<!--=curve self-replay-tenth p_o-->{answers.values()['curve self-replay-tenth p_o']}"
    assert f"{own}{words}" in " ".join(on_policy.split())


@pytest.mark.parametrize(
    ("name", "folder", "method", "reference", "task"),
    [
        ("minilm bertcl-combined low-rate p_s", "findings-minilm", *answers.pairs.CLAIMS[0], -1),
        ("tiny recadam vanilla p_o", "findings", "recadam", "vanilla", 0),
        ("masked LM ewc-mlm", "findings-pretraining", "ewc-mlm", "vanilla", 0),
        ("all klda prototypes average", "findings-clinc150", "klda", "prototypes", None),
        ("four o-lora frozen average", "findings-sequence-4", "o-lora", "frozen", None),
        ("fifteen o-lora frozen average", "findings-sequence-15", "o-lora", "frozen", None),
        ("change vanilla-half p_o", "findings-decoder", "vanilla-half", "vanilla", 0),
        ("change self-sft-drop p_s", "findings-decoder", "self-sft-drop", "vanilla", 1),
    ],
)
def test_differences_follow_from_the_files(
    name: str, folder: str, method: str, reference: str, task: int | None
) -> None:
    difference = mean(folder, method, task) - mean(folder, reference, task)
    assert answers.comparisons()[name].difference == pytest.approx(difference)


def test_the_lost_facts_that_come_back_follow_from_the_files() -> None:
    lost = answers.relearned()
    tries = lost[list(answers.TRIES)]
    assert len(lost) == answers.decoder.kept()["relearned"].notna().sum()
    assert (tries.iloc[:, 0] - tries.iloc[:, 1]).min() >= answers.decoder.FORGOT - 1e-9
    by_seed = lost.groupby("seed")[list(answers.TRIES)].mean().to_numpy()
    back = (by_seed[:, 4] - by_seed[:, 1]) / (by_seed[:, 0] - by_seed[:, 1])
    assert answers.relearning_values()["again back"].startswith(f"{plain(back.mean(), 2)} [")


def test_hours_count_cells_that_run_at_once_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    spans = [(0, 7200), (3600, 5400), (3600, 10800), (14400, 18000)]
    cells = pd.DataFrame(spans, columns=["start", "end"])
    monkeypatch.setattr(studies, "runs", lambda folder: cells + 7200 * (folder == "two"))
    assert studies.hours(["one"]) == pytest.approx(4.0)
    assert studies.hours(["one", "two"]) == pytest.approx(6.0)


def test_the_table_of_studies_counts_all_kept_cells_of_findings() -> None:
    known = {f"{name}-{kind}" for name in studies.STUDIES for kind in studies.KINDS}
    folders = {path.name for path in REFERENCE.glob("findings*")} - known - studies.STUDIES.keys()
    of_no_study = {"glue-sequence", "glue-sequence-pilot"}
    of_no_study |= {f"smollm2-pilot{rows}" for rows in ("", "-120", "-150", "-240")}
    of_no_study |= {"smollm2-first", "smollm2"}  # the latter until it has five seeds
    assert folders == {f"findings-{name}" for name in of_no_study}


def test_what_is_still_to_run_follows_from_suites_and_cells() -> None:
    def left(name: str) -> tuple[int, int, int]:
        """Return how many cells a study has, and how many methods and seeds it lacks."""
        cells = Store(REFERENCE / name).read().cells
        suite = read_suite(name).file
        methods, seeds = {cell.baseline for cell in cells}, {cell.seed for cell in cells}
        return len(cells), len({*suite.methods} - methods), len({*suite.seeds} - seeds)

    text = " ".join(page.PAGE.read_text("utf-8").split())
    (pilot,) = Store(REFERENCE / "findings-smollm2-pilot-240").read().cells
    size = len(read_suite("findings-smollm2").file.methods) * 5
    hours = size * sum(stage.train_seconds for stage in pilot.stages) / 3600
    words = f"cells, not compared yet; by its pilot {hours:.0f} core-hours of training alone)"
    cells = left("findings-smollm2")[0]
    assert f"`findings-smollm2` ({cells} of {size} {words}" in text
    words = f"{cells} of its {size} cells have been run."
    assert words in " ".join(findings_smollm2.PAGE.read_text("utf-8").split())
    assert left("findings-sequence-15")[1:] == (1, 0)
    assert "- `replay` in `findings-sequence-15` - the further seeds" in text
    assert left("findings-sequence-4-text")[1:] == (0, 0)
    assert len(read_suite("findings-clinc150").file.seeds) == 10
    assert len(read_suite("findings-clinc150-stage").file.seeds) == 10
    assert left("findings-clinc150-stage")[1] == 3
    words = (
        "the further seeds of `findings-clinc150` and `findings-clinc150-stage`, which declare ten,"
    )
    assert f"{words} with three methods of the latter" in text
