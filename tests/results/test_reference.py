"""The runs behind the figures of the README and the documentation."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pandas as pd
import pytest
import torch
from scipy.stats import ttest_rel

from clbench.results.cell import CellResult
from clbench.results.comparisons import comparisons_frame
from clbench.results.store import Store
from clbench.suite.question import Question

ROOT = Path(__file__).parents[2]
RUNS = sorted(path for path in (ROOT / "results" / "reference").iterdir() if path.is_dir())


def reference_cells(folder: str) -> list[CellResult]:
    """Return the cells of a kept run."""
    return Store(ROOT / "results" / "reference" / folder).read().cells


def by_scenario_and_method(folder: str) -> dict[tuple[str, str], list[CellResult]]:
    """Return the cells of a kept run by scenario and method."""
    groups: dict[tuple[str, str], list[CellResult]] = {}
    for cell in reference_cells(folder):
        groups.setdefault((cell.scenario, cell.baseline), []).append(cell)
    return groups


def page(name: str) -> str:
    """Return the text of a page without line breaks."""
    return " ".join((ROOT / name).read_text(encoding="utf-8").split())


def plain(value: float) -> str:
    """Return ``.512``."""
    return f"{value:.3f}".replace("0.", ".", 1)


@pytest.mark.parametrize("folder", RUNS, ids=lambda path: path.name)
def test_reference_runs_hold_only_cells_without_machine_paths(folder: Path) -> None:
    content = Store(folder).read()
    assert not content.broken
    assert content.cells
    assert all(cell.status == "ok" for cell in content.cells)
    assert Store(folder).read_suite()["name"]
    ignored = {folder / "scores.csv"}  # `clbench report` writes it; git ignores it
    for path in folder.rglob("*"):
        if path.is_file() and path not in ignored and folder / "report" not in path.parents:
            assert path.suffix in (".json", ".toml")
            text = path.read_text(encoding="utf-8")
            assert len(text) < 200_000
            assert not re.search(r'"/[a-z]+/', text), path


@pytest.mark.parametrize(
    ("folder", "methods", "scenarios"),
    [
        (
            "recadam-glue-minilm",
            ["vanilla", "recadam-ri", "recadam-pi"],
            {"mrpc": "MRPC", "rte": "RTE"},
        ),
        (
            "recadam-tiny",
            ["vanilla", "recadam", "recadam-ri", "ewc-mlm"],
            {
                "cola": "CoLA (Matthews)",
                "stsb": "STS-B (Pearson)",
                "mrpc": "MRPC",
                "rte": "RTE",
            },
        ),
    ],
)
def test_the_documentation_states_the_scores_of_recadam(
    folder: str, methods: list[str], scenarios: dict[str, str]
) -> None:
    cells = reference_cells(folder)
    for scenario, label in scenarios.items():
        row = [f"| {label} "]
        for method in methods:
            some = [c for c in cells if (c.scenario, c.baseline) == (scenario, method)]
            assert len(some) == 3
            means = [fmean(float(c.scores[name] or 0) for c in some) for name in ("p_o", "p_s")]
            row.append(" / ".join(plain(mean) for mean in means))
        assert row[0] + "| " + " | ".join(row[1:]) + " |" in page("docs/reproduce.md")


def verdicts(folder: str) -> pd.DataFrame:
    """Return the primary comparisons by scenario, method and score that have a verdict."""
    table = comparisons_frame(reference_cells(folder), Question())
    table = table[table["primary"]].set_index(["scenario", "method", "score"])
    return table[table["verdict"] != "no difference shown"]


def test_the_documentation_states_the_verdicts_of_recadam() -> None:
    text = page("docs/reproduce.md")
    tiny = verdicts("recadam-tiny")
    assert list(tiny.index) == [("mrpc", "ewc-mlm", "p_o"), ("rte", "ewc-mlm", "p_o")]
    by = " and ".join(plain(value) for value in tiny["difference"])
    assert f"(better than vanilla by {by}), and no other difference" in text
    means = {
        key: fmean(float(c.scores["p_o"] or 0) for c in cells)
        for key, cells in by_scenario_and_method("recadam-tiny").items()
    }
    more = [means[s, "recadam"] - means[s, "vanilla"] for s in ("cola", "stsb", "mrpc", "rte")]
    assert f"kept {plain(min(more))} to {plain(max(more))} more" in text
    minilm = verdicts("recadam-glue-minilm")
    assert set(minilm.index) == {
        (scenario, method, score)
        for scenario, score in (("rte", "p_o"), ("mrpc", "p_s"))
        for method in ("recadam-ri", "recadam-pi")
    }
    better, worse = minilm.loc["rte"], minilm.loc["mrpc"]
    assert (
        f"(better by {plain(better['difference'].min())}, at least "
        f"{plain(better['difference_low'].min())})"
    ) in text
    assert f"(worse by {plain(-worse['difference'].max())})" in text


def test_the_documentation_states_the_range_over_k() -> None:
    cells = reference_cells("recadam-k-tiny") + reference_cells("recadam-k-tiny-large-k")
    assert len(cells) == 6
    kept = [float(c.scores["p_o"] or 0) for c in cells]
    accuracy = [(c.metrics[-1][-1] or {})["accuracy"] for c in cells]
    text = page("docs/reproduce.md")
    assert (
        f"p_o ({plain(min(kept))} to {plain(max(kept))} of {plain(cells[0].R[0][0] or 0)})" in text
    )
    assert max(kept) - min(kept) < 0.003
    assert f"on CoLA ({plain(min(accuracy))} to {plain(max(accuracy))})" in text
    assert max(accuracy) - min(accuracy) < 0.007


def test_the_findings_state_the_scores_of_the_minilm() -> None:
    cells = Store(ROOT / "results" / "reference" / "sst2-mrpc-minilm").read().cells
    mean = {
        (name, score): fmean(float(c.scores[score] or 0) for c in cells if c.baseline == name)
        for name in ("vanilla", "ewc", "bertcl-combined", "frozen")
        for score in ("p_o_before", "p_o", "p_s", "forgetting")
    }
    text = " ".join((ROOT / "docs" / "findings.md").read_text(encoding="utf-8").split())
    first = f"{mean['vanilla', 'p_o_before']:.3f} to {mean['vanilla', 'p_o']:.3f}"
    assert f"lost {mean['vanilla', 'forgetting']:.3f}".replace("0.", ".") in text
    assert first.replace("0.", ".") in text
    assert round(mean["ewc", "p_o"] - mean["vanilla", "p_o"], 2) == 0.07
    low, floor, plain = (mean[n, "p_s"] for n in ("bertcl-combined", "frozen", "vanilla"))
    majority = max(cells[0].scenario_report["parts"][1]["validation_labels"].values())
    assert (
        f"{low:.3f} on MRPC, where frozen features score {floor:.3f}, the larger class alone "
        f"{majority:.3f} and plain fine-tuning {plain:.3f}. That is "
        f"{100 * (low - floor) / (plain - floor):.1f} % of"
    ).replace("0.", ".") in text
    assert len({cell.seed for cell in cells}) == 3


def quick_scores(folder: str, score: str) -> dict[str, dict[int, float]]:
    """Return a score by method and seed."""
    scores: dict[str, dict[int, float]] = {}
    for cell in Store(ROOT / "results" / "reference" / folder).read().cells:
        scores.setdefault(cell.baseline, {})[cell.seed] = float(cell.scores[score] or 0)
    return scores


def test_the_readme_states_what_ewc_keeps_in_quick() -> None:
    forgetting = quick_scores("quick-ewc", "forgetting")
    vanilla, ewc = (forgetting[name] for name in ("vanilla", "ewc"))
    assert sorted(vanilla) == sorted(ewc) == list(range(20, 37))
    differences = [vanilla[seed] - ewc[seed] for seed in sorted(ewc)]
    p = ttest_rel([vanilla[seed] for seed in sorted(ewc)], [ewc[seed] for seed in sorted(ewc)])
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert (
        f"forgets {fmean(vanilla.values()):.3f} and `ewc` {fmean(ewc.values()):.3f}, a difference "
        f"of {fmean(differences):.3f} ± {stdev(differences):.3f} (paired t-test, p = "
        f"{p.pvalue:.3f};"
    ).replace("0.", ".") in text


def test_the_readme_states_what_methods_retain_in_quick() -> None:
    cells = Store(ROOT / "results" / "reference" / "quick-retention").read().cells
    question = Question(methods=["ewc", "replay", "wise-ft"])
    table = comparisons_frame(cells, question).set_index(["method", "score"])
    assert sorted({cell.seed for cell in cells}) == list(range(20, 30))
    assert table["primary"].sum() == 6
    row = table.loc["vanilla", "forgetting"]
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"`vanilla` loses {row['mean']:.3f} of it".replace("0.", ".") in text
    for method, score, before, after in (
        ("wise-ft", "p_o", "keeps ", " of that (± {}, the interval"),
        ("wise-ft", "p_s", "pays for it with ", " on the new task (± {})"),
        ("replay", "p_o", "ends ", " above `vanilla` on sentiment (± {})"),
        ("replay", "p_s", "and ", " below it on grammar (± {})"),
    ):
        row = table.loc[method, score]
        half = row["difference_high"] - row["difference"]
        words = f"{before}{abs(row['difference']):.3f}{after.format(f'{half:.3f}')}"
        assert words.replace("0.", ".") in text
        assert row["verdict"] == ("better" if score == "p_o" else "worse")
    assert table.loc["ewc", "p_o"]["verdict"] == "no difference shown"


def test_the_documentation_states_the_controls_of_quick() -> None:
    p_o, p_s = (quick_scores("quick-controls", score) for score in ("p_o", "p_s"))
    text = " ".join((ROOT / "docs" / "methods.md").read_text(encoding="utf-8").split())
    low = [f"{fmean(scores['low-rate'].values()):.3f}" for scores in (p_o, p_s)]
    assert " and ".join(low).replace("0.", ".") in text
    code = f"{fmean(p_s['ewc-mlm-code'].values()):.3f}"
    assert f"p_s of {code}".replace("0.", ".") in text


@pytest.mark.slow
def test_the_documentation_states_the_ratios_of_fisher_estimators() -> None:
    from clbench.fisher.pretrained import Recipe, pretrained_fisher
    from clbench.training.device import Precision

    def mean(**settings: Any) -> float:
        _, facts = pretrained_fisher(
            "tiny",
            None,
            "built-in",
            Recipe(**{"mode": "batched", **settings}),
            device=torch.device("cpu"),
            precision=Precision("float32", "cpu"),
        )
        return float(facts["mean"])

    batched, sampled = mean(), mean(mode="sampled")
    code = mean(masking="any-position", text_length=256)
    text = page("docs/methods.md")
    assert f"about {sampled / batched:.0f} times that of means over batches of 16" in text
    assert f"makes its own Fisher {code / batched:.1f} times as large" in text
    assert f"pulls about {1000 * code / (675 * batched):.0f} times as hard as the 675" in text


@pytest.mark.parametrize("name", ["ewc", "mas", "lwf", "si", "smart", "l2-sp", "mixout", "der++"])
def test_packaged_strengths_are_those_of_the_best_trial(name: str) -> None:
    """The sources of a tuned strength say how its trials scored."""
    from clbench.suite.baselines import read_baseline

    scores: dict[str, list[float]] = {}
    settings: dict[str, dict[str, Any]] = {}
    for cell in Store(ROOT / "results" / "reference" / "strengths-tune").read().cells:
        if cell.baseline == name or cell.baseline.startswith(f"{name}-t"):
            last = [score for score in cell.R[-1] if score is not None]
            scores.setdefault(cell.baseline, []).append(sum(last) / len(last))
            settings[cell.baseline] = cell.settings["method"]
    means = {point: sum(values) / len(values) for point, values in scores.items()}
    best = max(means, key=lambda point: means[point])
    baseline = read_baseline(name)
    swept = list(baseline.sweep)
    assert {key: baseline.settings[key] for key in swept} == {
        key: settings[best][key] for key in swept
    }
    source = baseline.sources[swept[0]]
    assert all(len(values) == 2 for values in scores.values())
    assert f"of {len(means)} trials" in source
    assert f"mean score {means[best]:.4f}" in source
    if best != name:
        assert f"{means[name]:.4f} with the paper's" in source
        assert baseline.cost is not None
        assert baseline.cost.trials == len(means)
