"""The runs behind the figures of the README and the documentation."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd
import pytest
import torch

from clbench.results.archive import ARCHIVE, read_archive
from clbench.results.cell import CellResult
from clbench.results.comparisons import comparisons_frame
from clbench.results.score_tables import load_run, means, score_rows, to_csv
from clbench.results.store import Store
from clbench.suite.schema import Question
from tools.findings import compared, plain

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


@pytest.mark.parametrize("folder", RUNS, ids=lambda path: path.name)
def test_reference_runs_hold_only_cells_without_machine_paths(folder: Path) -> None:
    content = Store(folder).read()
    assert not content.broken
    assert content.cells
    assert all(cell.status == "ok" for cell in content.cells)
    assert Store(folder).read_suite()["name"]
    models = {cell.model for cell in content.cells}
    assert models <= {
        "tiny",
        "all-MiniLM-L6-v2",
        "SmolLM2-135M-Instruct",
        "facts-able",
        "facts-gpt",  # of tools.teach_facts
        "others-gpt",
    }  # names, no placeholders of a command
    assert {*pd.read_csv(folder / "scores.csv")["model"]} == models
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert {"suite.json", "scores.csv", ARCHIVE} <= files.keys()
    del files[ARCHIVE]
    files.pop(".lock", None)  # of a command that ran here; git ignores it
    for name, data in (files | read_archive(folder)).items():
        text = data.decode("utf-8")
        assert Path(name).suffix in (".json", ".toml", ".csv")
        assert len(text) < 200_000
        prose = re.sub(r'"\d+:[\w+/=]+"', "", text)  # without packed rows, in base64
        assert not re.search(r"(?<![\w./])/\w+/", prose), name


@pytest.mark.parametrize("folder", RUNS, ids=lambda path: path.name)
def test_kept_scores_are_those_of_the_cells(folder: Path) -> None:
    assert (folder / "scores.csv").read_text(encoding="utf-8") == to_csv(load_run(folder).frame)


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
    assert verdicts("recadam-tiny").empty
    assert "24 comparisons the report shows no difference" in text
    means = {
        key: fmean(float(c.scores["p_o"] or 0) for c in cells)
        for key, cells in by_scenario_and_method("recadam-tiny").items()
    }
    names = ("cola", "stsb", "mrpc", "rte")
    kept = [means[name, "ewc-mlm"] - means[name, "vanilla"] for name in names]
    assert f"({plain(min(kept))} to {plain(max(kept))} more than vanilla)" in text
    more = [means[name, "recadam"] - means[name, "vanilla"] for name in names]
    assert f"kept {plain(min(more))} to {plain(max(more))} more" in text
    minilm = verdicts("recadam-glue-minilm")
    assert set(minilm.index) == {
        ("rte", "recadam-pi", "p_o"),
        ("mrpc", "recadam-ri", "p_s"),
        ("mrpc", "recadam-pi", "p_s"),
    }
    better, worse = minilm.loc["rte"], minilm.loc["mrpc"]
    (gain, least) = (plain(better[key].iloc[0]) for key in ("difference", "difference_low"))
    assert f"(better by {gain}, at least {least})" in text
    everything = comparisons_frame(reference_cells("recadam-glue-minilm"), Question())
    everything = everything.set_index(["scenario", "method", "score"])
    unclear = everything.loc[("rte", "recadam-ri", "p_o"), "difference"]
    assert f"as large ({plain(unclear)}) but varies more, and is not shown" in text
    assert f"(worse by {plain(-worse['difference'].max())})" in text
    cells = reference_cells("recadam-glue-minilm")
    assert {plain(cell.R[0][0] or 0.0) for cell in cells} == {".082"}
    assert "p_o (.082 before) / p_s" in text
    assert all("always the most frequent one: 0.063" in cell.notes[0] for cell in cells)
    assert "than the most frequent token does (.063)" in text
    assert {stage.steps for cell in cells for stage in cell.stages} == {630}
    assert "since 630 steps leave little time" in text


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
        for name in ("vanilla", "ewc", "bertcl-combined", "frozen", "recadam")
        for score in ("p_o_before", "p_o", "p_s", "forgetting")
    }
    text = " ".join((ROOT / "docs" / "findings-pairs.md").read_text(encoding="utf-8").split())
    first = f"{mean['vanilla', 'p_o_before']:.3f} to {mean['vanilla', 'p_o']:.3f}"
    assert f"lost {mean['vanilla', 'forgetting']:.3f}".replace("0.", ".") in text
    assert first.replace("0.", ".") in text
    kept = f"{mean['ewc', 'p_o'] - mean['vanilla', 'p_o']:.2f}".replace("0.", ".")
    assert f"EWC lost {kept} less" in text
    assert f"ends at {mean['recadam', 'p_o']:.3f} on SST-2, at".replace("0.", ".") in text
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


def test_the_readme_and_the_documentation_show_the_table_of_quick() -> None:
    rows = means(score_rows(reference_cells("quick")))
    assert len(rows) == 8
    text, readme = (
        (ROOT / name).read_text(encoding="utf-8") for name in ("docs/quick.md", "README.md")
    )
    for row in rows:
        p_o, p_s, forgetting = (
            f"{row[f'{name}_mean']:.3f} ±{row[f'{name}_std']:.3f}"
            for name in ("p_o", "p_s", "forgetting")
        )
        words = f"{row['method']} {p_o} {p_s} {forgetting}"
        for page_text in (text, readme):
            lines = (line.replace(" * ", " ") for line in page_text.splitlines())
            assert any(" ".join(line.split()).endswith(words) for line in lines)


def test_the_demo_shows_better_and_worse() -> None:
    table = comparisons_frame(reference_cells("quick"), Question())
    asked = table[table["score"].isin(["p_o", "p_s"])]
    text = (ROOT / "docs" / "quick.md").read_text(encoding="utf-8")
    assert {"better", "worse"} <= {*asked["verdict"]}
    shown = asked[asked["verdict"].isin(["better", "worse"])]
    for row in shown.to_dict("records"):
        name = row["method"] + ("`*" if row["method"] == "replay" else "`")
        assert f"| {row['scenario']} | `{name} | {row['score']} | {compared(row)} |" in text


def test_the_documentation_shows_both_losses_of_a_shared_head() -> None:
    text = (ROOT / "docs" / "run.md").read_text(encoding="utf-8")
    for folder, column in (("head-loss", 2), ("head-loss-stage", 3)):
        for cell in reference_cells(folder):
            row = next(x for x in text.splitlines() if x.startswith(f"| `{cell.baseline}`"))
            values = row.split("|")[column].split(",")
            assert plain(fmean(x or 0.0 for x in cell.R[-1])) == values[cell.seed].strip()


def own_comparisons(folder: str) -> pd.DataFrame:
    """Return the comparisons of a kept run, by its own question, by method and score."""
    store = Store(ROOT / "results" / "reference" / folder)
    cells, question = store.read().cells, store.questions()[-1]
    return comparisons_frame(cells, question).set_index(["method", "score"])


def test_the_documentation_states_what_methods_keep_in_quick() -> None:
    table = own_comparisons("quick-retention")
    assert set(table["pairs"].dropna()) == {10.0}
    assert sorted({cell.seed for cell in reference_cells("quick-retention")}) == [*range(20, 30)]
    text = (ROOT / "docs" / "quick.md").read_text(encoding="utf-8")
    assert f"`vanilla` loses {plain(table.loc[('vanilla', 'forgetting'), 'mean'])} of it" in text
    for method in ("wise-ft", "replay", "ewc", "lwf"):
        columns = [compared(table.loc[(method, score)]) for score in ("p_o", "p_s")]
        mark = "*" if method == "replay" else ""
        assert f"| `{method}`{mark} | {columns[0]} | {columns[1]} |" in text


def test_the_documentation_states_what_ewc_keeps_in_quick() -> None:
    assert sorted({cell.seed for cell in reference_cells("quick-ewc")}) == [*range(20, 37)]
    table = own_comparisons("quick-ewc")
    ewc, forgotten = table.loc[("ewc", "p_o")], table.loc[("vanilla", "forgetting"), "mean"]
    assert (ewc["pairs"], ewc["verdict"]) == (17, "better")
    assert ewc["difference"] / forgotten == pytest.approx(1 / 3, abs=0.03)
    words = f"a third of the {plain(forgotten)} that `vanilla` forgets there: {compared(ewc)}"
    assert f"{words.removesuffix(' better')}." in page("docs/quick.md")


def test_the_documentation_states_the_controls_of_quick() -> None:
    p_o, p_s = (quick_scores("quick-controls", score) for score in ("p_o", "p_s"))
    text = page("docs/methods.md")
    mean = {
        name: [plain(fmean(scores[name].values())) for scores in (p_o, p_s)]
        for name in ("ewc-mlm", "ewc-mlm-code", "bertcl-combined", "low-rate")
    }
    assert f"near chance (p_s {mean['ewc-mlm'][1]})" in text
    assert f"`ewc-mlm-code` reaches {mean['ewc-mlm-code'][1]} in as many steps" in text
    assert f"p_o and p_s are {' and '.join(mean['bertcl-combined'])}, and" in text
    assert f"{' and '.join(mean['low-rate'])} at one rate as low as their mean" in text


def test_the_documentation_states_the_strengths_that_beat_published_ones() -> None:
    scores: dict[str, list[float]] = {}
    settings: dict[str, dict[str, Any]] = {}
    for cell in reference_cells("strengths-tune"):
        scores.setdefault(cell.baseline, []).append(fmean(x or 0.0 for x in cell.R[-1]))
        settings[cell.baseline] = cell.settings["method"]
    text = page("docs/methods.md")
    for name, key, words in (
        ("ewc-mlm", "importance", "{0} at an importance of {1:.1f} ({2} at {3:.0f})"),
        ("recadam", "gamma", "of {0} at γ = {1:.0f} ({2} at {3:,.0f};"),
    ):
        points = [point for point in scores if point == name or point.startswith(f"{name}-t")]
        best = max(points, key=lambda point: fmean(scores[point]))
        found, before = (
            [plain(fmean(scores[point])), settings[point][key]] for point in (best, name)
        )
        assert words.format(*found, *before) in text


@pytest.mark.slow
def test_the_documentation_states_the_ratios_of_fisher_estimators() -> None:
    from clbench.fisher.language import Recipe, pretrained_fisher
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
