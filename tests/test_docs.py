"""The code in the documentation is run, and its numbers are recomputed."""

from __future__ import annotations

import re
from math import ceil, cos, floor, pi
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd
import pytest

import clbench
from clbench.audit.items import load_items
from clbench.audit.planning import plan
from clbench.suite.read import read_suite
from clbench.tasks.registry import TASKS, load_task
from clbench.training.protocol import Protocol

ROOT = Path(__file__).parents[1]
MOODS = (("good", "up"), ("bad", "down"))
SUITE = """
name = "docs"
methods = ["vanilla"]

[protocol]
epochs = 1
limit = 40
curve_points = 0

[[scenario]]
name = "pair"
shift = "dataset"
tasks = ["synthetic/sentiment", "synthetic/paraphrase"]
"""


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text("utf-8"), re.DOTALL)


def rounded_up(share: float, digits: int = 3) -> str:
    """Return an error rate as pages show it, such as .052 for .0515."""
    return f"{ceil(round(share * 10**digits, 6)) / 10**digits:.{digits}f}".removeprefix("0")


def rounded_down(share: float, digits: int = 3) -> str:
    """Return a coverage as pages show it."""
    return f"{floor(round(share * 10**digits, 6)) / 10**digits:.{digits}f}".removeprefix("0")


def suite(tmp_path: Path, extra: str = "") -> Path:
    path = tmp_path / "docs.toml"
    path.write_text(SUITE + extra, encoding="utf-8")
    return path


def plugin(tmp_path: Path, page: str, word: str) -> Path:
    (code,) = [block for block in blocks(page, "python") if word in block]
    path = tmp_path / f"{word.replace('-', '_').replace('/', '_')}.py"
    path.write_text(code, encoding="utf-8")
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "name", "lines"), [("README.md", "slower", 6), ("docs/extend.md", "l2-start", 15)]
)
def test_the_example_method_runs(tmp_path: Path, page: str, name: str, lines: int) -> None:
    file = plugin(tmp_path, page, name)
    code = [line for line in file.read_text().splitlines() if line.strip()]
    assert len(code) <= lines
    methods = ["vanilla", name]
    run = clbench.run(suite(tmp_path), out=tmp_path / "out", plugins=[file], methods=methods)
    vanilla, own, _ = run.cells  # the last one is the single-task reference
    assert (vanilla.status, own.status) == ("ok", "ok"), own.reason
    assert vanilla.stages[1].curves["loss"] != own.stages[1].curves["loss"]


def test_the_example_baseline_runs(tmp_path: Path) -> None:
    file = plugin(tmp_path, "docs/extend.md", "l2-start")
    (toml,) = [block for block in blocks("docs/extend.md", "toml") if "strength" in block]
    strong = tmp_path / "strong.toml"
    strong.write_text(toml, encoding="utf-8")
    run = clbench.run(suite(tmp_path), out=tmp_path / "out", plugins=[file], methods=[str(strong)])
    assert run.cells[0].status == "ok", run.cells[0].reason
    assert run.cells[0].settings["method"]["strength"] == 0.1


def test_the_example_shift_and_task_run(tmp_path: Path) -> None:
    plugins = [
        plugin(tmp_path, "docs/extend.md", "label-flip"),
        plugin(tmp_path, "docs/extend.md", "mine/parity"),
    ]
    extra = """
[[scenario]]
name = "flipped"
shift = "label-flip"
task = "synthetic/sentiment"

[[scenario]]
name = "own"
shift = "dataset"
tasks = ["mine/parity", "synthetic/sentiment"]
"""
    run = clbench.run(
        suite(tmp_path, extra), out=tmp_path / "out", plugins=plugins, scenarios=["flipped", "own"]
    )
    assert [cell.reason for cell in run.cells] == [None] * 4  # with single-task references
    flipped = run.cells[0]
    # One head and one set of texts: a row is right in exactly one of the two tasks.
    assert flipped.scores["p"] == pytest.approx(1.0)
    assert flipped.scenario_report["severity"] == 0.5


def test_every_hook_is_in_the_table() -> None:
    text = (ROOT / "docs" / "extend.md").read_text(encoding="utf-8")
    hooks = {
        name
        for name, value in vars(clbench.Method).items()
        if callable(value) and not name.startswith("_")
    }
    assert hooks
    missing = {hook for hook in hooks if f"`{hook}(" not in text}
    assert not missing


def test_the_documentation_counts_the_steps_of_the_papers_pairs() -> None:
    suite = read_suite("paper-dataset-shift").file
    text = " ".join((ROOT / "docs" / "reproduce.md").read_text(encoding="utf-8").split())
    for tasks in (("sst2", "mrpc"), ("qqp", "mrpc")):
        names = [f"glue/{task}" for task in tasks]
        rows = [TASKS.get(name).spec.rows[0] for name in names]  # type: ignore[attr-defined]
        steps = sum(suite.protocol.stage_length(n, r)[0] for n, r in zip(names, rows, strict=True))
        assert f"| {round(steps, -2):,} |" in text


def test_the_documentation_compares_the_two_schedules() -> None:
    steps = 10_000
    ramp = [min(1.0, step / (0.1 * steps)) for step in range(steps)]
    theirs = fmean(r * 0.5 * (1 + cos(pi * s / steps)) for s, r in enumerate(ramp))
    ours = fmean(Protocol(warmup=0.1).rate_factor(step, steps) for step in range(steps))
    text = (ROOT / "docs" / "reproduce.md").read_text(encoding="utf-8")
    assert f"a mean rate {ours / theirs:.2f} times theirs" in text


def test_the_documentation_states_the_errors_of_verdicts() -> None:
    table = pd.read_csv(ROOT / "results" / "verdicts" / "errors.csv")
    errors = table.groupby("test")["error"].max()
    text = " ".join((ROOT / "docs" / "read.md").read_text(encoding="utf-8").split())
    assert f"error is at most {rounded_up(errors['clbench'])}." in text
    power = table.groupby("test")["power"].mean()[errors[errors <= 0.055].index]
    unguarded = power.pop("no collapses")
    assert (
        f"{power['clbench']:.3f} of the true differences instead of {unguarded:.3f}".replace(
            "0.", "."
        )
        in text
    )
    assert power.idxmax() == "clbench"
    assert (errors[["pooled", "moderated", "leaning"]] > 0.055).all()


def test_the_documentation_states_what_simulations_of_other_intervals_show() -> None:
    folder = ROOT / "results" / "verdicts"

    def read(name: str) -> str:
        return " ".join((ROOT / "docs" / name).read_text(encoding="utf-8").split())

    text, looks = read("read.md"), pd.read_csv(folder / "looks.csv")
    assert f"at most {rounded_up(looks['error'].max())} of families" in text
    noisy = looks[looks["fixed"] < 0.99]
    ends = {c: (f"{noisy[c].min():.3f}", f"{noisy[c].max():.3f}") for c in ("power", "fixed")}
    ranges = [" and ".join(ends["power"]), " to ".join(ends["fixed"])]
    shown = f"found between {ranges[0]} of the true differences, a run without looks {ranges[1]}"
    assert shown.replace("0.", ".") in text
    curves = pd.read_csv(folder / "curves.csv")["error"]
    range_of_curves = f"{rounded_down(curves.min())} to {rounded_up(curves.max())}"
    assert f"in {range_of_curves} of simulated comparisons" in read("tune.md")
    rows = pd.read_csv(ROOT / "results" / "verdicts" / "rows.csv")["coverage"]
    assert f"{rows.min():.3f} to {rows.max():.3f}".replace("0.", ".") in text


def test_the_documentation_states_what_the_rows_of_an_audit_show() -> None:
    text = " ".join((ROOT / "docs" / "audit.md").read_text(encoding="utf-8").split())
    assert f'"{plan({"glue/mrpc": 500}, 6)}"' in text


def test_the_documentation_states_the_errors_of_audits() -> None:
    folder = ROOT / "results" / "verdicts"
    text = " ".join((ROOT / "docs" / "audit-methods.md").read_text(encoding="utf-8").split())
    worst = (
        pd.read_csv(folder / "audit.csv")
        .groupby(["losses", "levels"])
        .agg({"coverage": "min", "false_forgot_or_gained": "max", "false_kept": "max"})
    )
    own, holm = (worst.loc[("some texts better", levels)] for levels in ("clbench", "Holm's"))
    worse, far = (
        worst.loc[(losses, "clbench")] for losses in ("some texts worse", "few texts far worse")
    )
    alarms = "false_forgot_or_gained"
    assert (
        f"at most {rounded_up(worse[alarms])} have a false *forgot* or *gained* and "
        f"{rounded_up(worse['false_kept'])} a false *kept*." in text
    )
    assert (
        f"{rounded_up(far[alarms])} and {rounded_up(far['false_kept'])} have one, and "
        f"{rounded_down(far['coverage'])} hold jointly" in text
    )
    assert f"at most {rounded_up(own['false_forgot_or_gained'])} have a false *forgot*" in text
    assert f"{rounded_up(own['false_kept'])} a false *kept*, and" in text
    assert f"and {rounded_down(own['coverage'])} or more of the families hold jointly" in text
    assert f"hold jointly in {rounded_down(holm['coverage'])} and have a false" in text
    assert f"have a false *kept* in {rounded_up(holm['false_kept'])}." in text
    coverage = pd.read_csv(folder / "audit-chance.csv")["coverage"]
    least = rounded_down(coverage.min())
    assert f"{least} or more of 1,000 draws in each of {len(coverage)} cases" in text
    power = pd.read_csv(folder / "audit-power.csv")
    shown = power["shown"][power["loss"] < power["flips"]]
    range_of_power = f"{rounded_down(shown.min())} to {rounded_up(shown.max())} of audits with"
    assert range_of_power in text
    looks = pd.read_csv(folder / "audit-looks.csv")["false"]
    assert f"at most {rounded_up(looks.max())} of the audits end with a false word" in text
    errors = pd.read_csv(folder / "audit-calibration.csv")
    least, of_17 = (rounded_down(errors[name].min(), 2) for name in ("coverage", "coverage_of_17"))
    assert f"cover the true difference in {least} to 1, and 99.7 % intervals" in text
    assert f"as in a family of 17, in {of_17} to 1" in text


def test_the_documentation_states_the_errors_of_gates() -> None:
    text = " ".join((ROOT / "docs" / "audit-methods.md").read_text(encoding="utf-8").split())
    table = pd.read_csv(ROOT / "results" / "verdicts" / "audit-gate.csv")
    violated = table[table["case"].str.endswith("just violated")]
    passed = violated.groupby("losses")["pass"].max()
    failed = table[table["case"] == "all just met"]["fail"].max()
    assert f"at most {rounded_up(passed['some texts better'])} of the models pass" in text
    assert f"passes in up to {rounded_up(passed['some texts worse'])}, and where" in text
    assert f"on average, in up to {rounded_up(passed['few texts far worse'])}." in text
    assert f"Where all are just met, at most {rounded_up(failed)} fail" in text


def test_the_documentation_states_the_alarms_of_tuned_copies() -> None:
    page = (ROOT / "docs" / "audit-methods.md").read_text(encoding="utf-8")
    text = " ".join(page.split())
    for model in ("minilm", "smollm2"):
        name = f"audit-copies-{model}.csv"
        pairs = pd.read_csv(ROOT / "results" / "verdicts" / name, keep_default_na=False)
        alarmed = pairs[pairs["alarms"] != ""]
        language = alarmed["alarms"].str.contains("language").sum()
        same, other = pairs["same_sign"].sum(), pairs["other_sign"].sum()
        assert len(pairs) >= 100
        assert 2 * other / len(pairs) <= 0.05
        assert f"{len(alarmed)} of {len(pairs)} pairs have an alarm" in text
        assert f"{language} in language" in text
        assert f"{same} of {same + other} have the same sign" in text
        assert f"results/verdicts/{name}" in text


def test_the_documentation_states_what_collapses_and_skewed_references_do() -> None:
    folder = ROOT / "results" / "verdicts"
    text = " ".join((ROOT / "docs" / "read.md").read_text(encoding="utf-8").split())
    table = pd.read_csv(folder / "collapses.csv", dtype={"collapses": str})
    errors = table.groupby("collapses")[["error", "without_rule"]].max()
    skewed = errors.loc["very skewed", "error"]
    quiet = table[table["collapses"].str.contains("beside")]
    sizes = quiet.groupby(["methods", "comparisons"])["error"].max()
    one, two, one_of_many, two_of_many = (
        rounded_up(sizes[size], 2) for size in ((1, 48), (2, 24), (1, 240), (2, 120))
    )
    assert f"up to {one} of families, two methods in 24 scores each in up to {two};" in text
    assert f"with 240 comparisons it is {one_of_many} and {two_of_many}" in text
    errors = errors.drop(["very skewed", *quiet["collapses"].unique()])
    assert errors["error"].max() <= 0.06
    assert f"(skewness 1: at most {rounded_up(errors.loc['skewed', 'error'])};" in text
    errors = errors.drop("skewed")
    assert f"at most {rounded_up(errors['error'].max())} of families get" in text
    assert f"instead of up to {errors['without_rule'].max():.2f}".replace("0.", ".") in text
    assert f"up to {rounded_up(skewed)} with a very skewed one" in text
    scenarios = pd.read_csv(folder / "scenarios.csv")
    least = scenarios["coverage_of_95"].min()
    assert f"where 95 % would cover {least:.2f}".replace("0.", ".") in text
    coverage = scenarios["coverage"]
    assert coverage.min() >= 0.94
    assert f"{coverage.min():.3f} or more of draws".replace("0.", ".") in text


def test_the_documentation_states_whose_memory_grows_with_tasks() -> None:
    growth = pd.read_csv(ROOT / "results" / "sequences" / "memory.csv").set_index("method")[
        "growth"
    ]
    text = " ".join((ROOT / "docs" / "methods.md").read_text(encoding="utf-8").split())
    growing = growth[growth > 0.01].sort_values(ascending=False)
    assert len(growing) == 4
    for name, value in growing.items():
        assert f"`{name}` (.{1000 * value:03.0f}" in text
    packaged = {path.stem for path in (ROOT / "baselines").glob("*.toml")}
    # Those for language models hold one copy or none: `clbench check` says so. l2p-paper has the
    # memory of l2p, and rate-steps that of low-rate.
    for_words = {"kl-anchor", "asft", "dft", "eaft", "talr", "self-replay", "self-sft", "sdft"}
    for_words |= {"grpo"}
    # The square of their features, whatever the tasks: tests/methods/test_random_features.py.
    by_features = {"klda", "ranpac"}
    assert packaged - {*growth.index} == {*for_words, *by_features, "l2p-paper", "rate-steps"}


def test_the_documentation_states_what_rules_that_stop_trials_find() -> None:
    table = pd.read_csv(ROOT / "results" / "halving" / "table.csv").set_index(["pair", "rule"])
    text = (ROOT / "docs" / "search.md").read_text(encoding="utf-8")
    pairs = ("sst2-mrpc", "sentiment-acceptability")

    def plain(value: float, digits: int = 3) -> str:
        return f"{value:.{digits}f}".replace("0.", ".", 1)

    for rule, label in (
        ("none", "neither task"),
        ("both stages", "D_o and D_s"),
        ("both stages + gap", "D_o and D_s, rewards extrapolated"),
        ("D_s only", "D_s"),
    ):
        columns = [label]
        for pair in pairs:
            row = table.loc[(pair, rule)]
            columns.append(plain(row["replay_regret"]))
            columns.append(f"{plain(row['search_regret'])} ± {plain(row['search_error'])}")
        assert f"| {' | '.join(columns)} |" in text.replace("**", "")
    here, there = (table.xs(rule, level="rule") for rule in ("D_s only", "both stages"))
    agreements = [" and ".join(plain(t["spearman"][p], 2) for p in pairs) for t in (here, there)]
    words = " ".join(text.split())
    assert f"correlation is {agreements[0]}, against {agreements[1]}" in words
    epochs = [{f"{t['epochs'][pair]:.1f}" for pair in pairs} for t in (here, there)]
    assert epochs[0] == {"4.8"}
    assert "trains for 4.8 of its six epochs, against 2.5" in words
    assert epochs[1] == {"2.4", "2.5"}


@pytest.mark.parametrize("name", ["qa", "paraphrase"])
def test_the_documentation_states_how_easy_the_built_in_tasks_are(name: str) -> None:
    def shares(rows: Any) -> list[float]:
        pairs = [
            [set(re.findall("[a-z]+", text.lower())) for text in pair]
            for pair in zip(rows.first, rows.second, strict=True)
        ]
        return [len(a & b) / min(len(a), len(b)) for a, b in pairs]

    def accuracy(values: list[float], labels: Any, threshold: float) -> float:
        return fmean((v >= threshold) == label for v, label in zip(values, labels, strict=True))

    task = load_task(f"synthetic/{name}", data=None, base=ROOT, own={})
    train, held_out = shares(task.train), shares(task.validation)
    best = max({*train}, key=lambda threshold: accuracy(train, task.train.labels, threshold))
    reached = f"{accuracy(held_out, task.validation.labels, best):.2f}".lstrip("0")
    text = (ROOT / "docs" / "run.md").read_text(encoding="utf-8")
    assert f"{reached} on `{name}`" in text


def test_the_readme_shows_the_audit_of_its_page() -> None:
    readme, page = (
        re.findall(r"```\n(.*?)```", (ROOT / name).read_text("utf-8"), re.DOTALL)
        for name in ("README.md", "docs/audit.md")
    )
    (shown,) = [text for text in readme if "sst2: no loss in" in text]
    assert shown in page
    lines = [line for line in shown.splitlines() if "lost and" in line]
    assert len(lines) == 5
    for line in lines:
        change, lost, gained, items = re.search(  # type: ignore[union-attr]
            r"([+-][\d.]+) \[.*\], (\d+) lost and (\d+) gained of (\d+)", line
        ).groups()
        assert float(change) == round((int(gained) - int(lost)) / int(items), 3)


def test_the_task_of_the_page_on_audits_can_be_audited(tmp_path: Path) -> None:
    (own,) = [block for block in blocks("docs/audit.md", "toml") if "[task.mood]" in block]
    (tmp_path / "mood.toml").write_text(own, encoding="utf-8")
    rows = [f"the film was {word} {i},{label}" for i in range(30) for word, label in MOODS]
    for name in ("mood.csv", "mood-dev.csv"):
        (tmp_path / name).write_text("\n".join(["text,label", *rows]), encoding="utf-8")
    (items,) = load_items([str(tmp_path / "mood.toml")], data=None, rows=60)
    assert items.name == "mood"
    assert items.task.template is not None
    assert items.training == 0
