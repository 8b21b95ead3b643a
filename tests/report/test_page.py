"""The page and what lies beside it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from matplotlib.image import imread
from report_browser import BROWSER, pictured, played

import clbench
from clbench.cli import main
from clbench.errors import RunFolderError
from clbench.report import write_report
from clbench.report.reading import read_runs
from clbench.report.tables import table_files
from clbench.results.cell import CellResult
from clbench.results.store import Store

EVIL = '<b onmouseover="alert(1)">&"\'</b>'


def cell(scenario: str, method: str, seed: int, p_o: float, **changes: Any) -> CellResult:
    given: dict[str, Any] = {
        "key": f"{scenario}--{method}--seed{seed}",
        "fingerprint": "0", "scenario": scenario, "shift": "dataset", "baseline": method,
        "method": method, "model": "tiny", "seed": seed, "status": "ok",
        "tasks": ["a", "b"], "R": [[0.9, None], [p_o, 0.8]],
        "scores": {"p_o": p_o, "p_s": 0.8, "p": p_o + 0.8, "p_o_before": 0.9,
                   "forgetting": 0.9 - p_o},
        "stages": [
            {"task": task, "rows": 10, "steps": 4, "epochs": 1.0, "examples": 40, "tokens": 100,
             "train_seconds": 1.0, "curves": {"scores": {"a": [[0, 0.9], [4, p_o]]}}}
            for task in ("a", "b")
        ],
        "train_seconds": 2.0, "peak_memory_mb": 100.0, "started": "2026-01-01T00:00:00",
    }  # fmt: skip
    return CellResult(**{**given, **changes})


def make_run(folder: Path, name: str = "mine", better: float = 0.05, **changes: Any) -> Path:
    """A run of two scenarios, two methods and four seeds, one cell of which failed."""
    store = Store(folder)
    with store.lock():
        store.write_suite(
            {"name": name, "methods": ["vanilla", "ewc"], "seeds": [0, 1, 2, 3],
             "description": changes.pop("description", ""), "protocol": {"model": "tiny"}}
        )  # fmt: skip
        for scenario in ("one", "two"):
            for seed in range(4):
                base = 0.6 + 0.05 * seed
                store.write_cell(cell(scenario, "vanilla", seed, base, **changes))
                failed = scenario == "two" and seed == 3
                ewc = base + better + 0.002 * seed
                more = {"status": "failed", "reason": EVIL} if failed else {}
                store.write_cell(cell(scenario, "ewc", seed, ewc, **{**changes, **more}))
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run")


def test_page_tables_and_figures(run: Path) -> None:
    made = write_report([run])
    assert made.page == run / "report" / "index.html"
    text = made.page.read_text(encoding="utf-8")
    assert "16 cells: 2 scenarios, 2 methods, 4 seeds" in text
    assert '<strong class="failed">1 failed</strong>' in text
    assert "keeps more of the old task than vanilla." in text
    assert "clbench run mine --model tiny --methods vanilla,ewc --seeds 0,1,2,3" in text
    assert made.page.stat().st_size < 4e6
    tables = {path.name for path in (run / "report/tables").iterdir()}
    assert tables == {
        f"{name}.{kind}"
        for name in ("scores", "means", "comparisons")
        for kind in ("csv", "md", "tex")
    }
    figures = {path.name for path in (run / "report/figures").iterdir()}
    assert {"tradeoff.png", "tradeoff.svg", "tradeoff.pdf", "forgetting.png"} <= figures
    assert {"curves-one.png", "matrices-two.png", "costs-two.pdf"} <= figures
    assert imread(run / "report/figures/tradeoff.png")[..., :3].std() > 0.01
    back = pd.read_csv(run / "report/tables/comparisons.csv")
    ewc = back[(back["method"] == "ewc") & (back["score"] == "p_o")].set_index("scenario")
    assert ewc.loc["one", "difference"] == pytest.approx(0.053)
    assert ewc.loc["two", "pairs"] == 3


def test_nothing_comes_from_outside_and_names_are_escaped(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", description=EVIL, shift=EVIL, notes=[EVIL], model=EVIL)
    text = write_report([run], formats=[]).page.read_text(encoding="utf-8")
    assert "<b onmouseover" not in text
    assert text.count("&lt;b onmouseover") > 8
    assert not re.findall(r'(?:src|href)="(?!data:|#)', text)
    assert not re.search(r"https?://", text)
    assert all(alt.strip() for alt in re.findall(r'<img [^>]*alt="([^"]*)"', text))


def test_two_runs_tell_equal_methods_apart(tmp_path: Path) -> None:
    first, second = make_run(tmp_path / "a"), make_run(tmp_path / "b", better=0.0)
    made = write_report([first, second], tmp_path / "both", formats=[])
    assert made.page == tmp_path / "both" / "index.html"
    assert list(dict.fromkeys(made.content.frame["method"])) == [
        "vanilla", "ewc", "vanilla (b)", "ewc (b)",
    ]  # fmt: skip


def test_runs_of_other_protocols_are_told_apart(tmp_path: Path) -> None:
    first, second = make_run(tmp_path / "a"), make_run(tmp_path / "b")
    store = Store(second)
    with store.lock():
        suite = store.read_suite()
        store.write_suite({**suite, "protocol": {"model": "tiny", "limit": 32}})
    made = write_report([first, second], tmp_path / "both", formats=[])
    (note,) = made.notes
    assert "The protocols differ (limit: None in a, 32 in b)" in note
    assert "The protocols differ" in made.page.read_text(encoding="utf-8")
    with store.lock():
        store.write_cell(cell("one", "lwf", 0, 0.7))
    third = make_run(tmp_path / "more" / "b")
    with Store(third).lock():
        Store(third).write_cell(cell("one", "lwf", 0, 0.7))
    made = write_report([first, second, third], tmp_path / "all", formats=[])
    assert list(dict.fromkeys(made.content.frame["method"])) == [
        "vanilla", "ewc",
        f"vanilla ({tmp_path.name}/b)", f"ewc ({tmp_path.name}/b)", f"lwf ({tmp_path.name}/b)",
        "vanilla (more/b)", "ewc (more/b)", "lwf (more/b)",
    ]  # fmt: skip
    assert write_report([first], tmp_path / "one", formats=[]).notes == ()


def test_nothing_of_two_runs_is_pooled_that_is_not_the_same(tmp_path: Path) -> None:
    def run(name: str, seed: int, task: str, importance: float) -> Path:
        folder = tmp_path / name
        store = Store(folder)
        with store.lock():
            store.write_suite({"name": "mine", "protocol": {"model": "tiny"}})
            for method, settings in (("vanilla", {}), ("e", {"importance": importance})):
                store.write_cell(
                    cell("s", method, seed, 0.5, settings={"method": settings},
                         recipe={"scenario": {"tasks": [task, "b"]}})
                )  # fmt: skip
        return folder

    def shown(*runs: Path) -> tuple[list[tuple[str, str, int]], tuple[str, ...]]:
        made = write_report(runs, tmp_path / "out", formats=[])
        rows = made.content.means[["scenario", "method", "seeds"]]
        return sorted(tuple(row) for row in rows.itertuples(index=False)), made.notes

    first = run("a", 0, "a", 1.0)
    assert shown(first, run("b", 1, "a", 1.0)) == ([("s", "e", 2), ("s", "vanilla", 2)], ())
    rows, notes = shown(first, run("c", 1, "a", 2.0))
    assert rows == [("s", "e", 1), ("s", "e (c)", 1), ("s", "vanilla", 2)]
    assert notes == ("e has other settings in c than before.",)
    rows, notes = shown(first, run("d", 1, "x", 1.0))
    assert rows == [
        ("s", "e", 1), ("s", "vanilla", 1), ("s (d)", "e", 1), ("s (d)", "vanilla", 1),
    ]  # fmt: skip
    assert notes == ("s has other tasks or settings in d than before.",)


def test_the_commands_of_a_run_stand_on_its_page(run: Path) -> None:
    store = Store(run)
    with store.lock():
        for command in (["clbench", "run", "mine"], ["clbench", "run", "mine", "--methods", "a b"]):
            for _ in range(2):
                store.write_suite({**store.read_suite(), "commands": [command]})
    text = write_report([run], formats=[]).page.read_text(encoding="utf-8")
    assert re.findall("<pre>(clbench .*)</pre>", text) == [
        "clbench run mine", "clbench run mine --methods &#39;a b&#39;",
    ]  # fmt: skip


def test_details_hold_the_curves(run: Path) -> None:
    text = write_report([run], formats=[]).page.read_text(encoding="utf-8")
    of_a_cell = text.split("one--vanilla--seed0</summary>")[1].split("</summary><pre>")[0]
    assert of_a_cell.count("<b>score on a</b>") == 2
    assert "0.9 at step 0, 0.6 at step 4" in of_a_cell
    assert of_a_cell.count('<polyline points="2,2 158,30"/>') == 2


def test_a_finished_run_is_loaded_and_drawn(run: Path) -> None:
    (run / "cells" / "one--lwf--seed0.json").write_text("{")
    with pytest.warns(UserWarning, match=r"one--lwf--seed0\.json is not a valid cell file"):
        loaded = clbench.load_run(run)
    assert (loaded.path, len(loaded.cells), len(loaded.failed)) == (run, 16, 1)
    assert list(loaded.summary["method"]) == ["vanilla", "ewc", "vanilla", "ewc"]
    assert len(clbench.figures.tradeoff(loaded).axes) == 2
    assert "one" in clbench.figures.curves(loaded, "one").get_label()
    with pytest.raises(RunFolderError, match="There is no folder"):
        clbench.load_run(run / "none")


def test_of_many_cells_only_those_keep_curves_that_show_them(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    store = Store(folder)
    with store.lock():
        for number in range(8):
            store.write_cell(cell(f"more{number}", "vanilla", 0, 0.5))
    cells, _ = read_runs([store])
    assert all(cell.stages[0].curves for cell in cells)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("clbench.report.reading.MOST_DETAILS", 2)
        cells, _ = read_runs([store])
    with_curves = {cell.scenario for cell in cells if cell.stages[0].curves}
    assert with_curves == {*(f"more{n}" for n in range(6)), "two"}  # one of two failed
    assert len(cells) == 24


def test_published_numbers_stand_beside_ours_and_bear_their_source(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", name="paper-dataset-shift")
    store = Store(folder)
    with store.lock():
        for seed in (0, 1):
            store.write_cell(cell("sst2-mrpc", "vanilla", seed, 0.7 + 0.1 * seed))
    made = write_report([folder], formats=[])
    text = made.page.read_text(encoding="utf-8")
    assert "Beside the published numbers" in text
    assert "Kenneweg et al. 2022 (IDEAL), Table 2" in text
    back = pd.read_csv(folder / "report/tables/published.csv").set_index("score")
    assert back.loc["p_o", "published"] == 0.904
    assert back.loc["p_o", "ours"] == pytest.approx(0.75)
    assert back.loc["p_o", "difference"] == pytest.approx(0.75 - 0.904)
    assert back.loc["p_o", "differs"] == (
        "model tiny, theirs bert-base-uncased; mean of 2 seeds, theirs one run; "
        "a: 1 epochs, theirs 3; b: 1 epochs, theirs 3"
    )
    other = make_run(tmp_path / "other")
    text = write_report([other], formats=[]).page.read_text(encoding="utf-8")
    assert "Beside the published numbers" not in text
    assert not (other / "report/tables/published.csv").exists()


def test_a_run_without_a_finished_cell_still_has_a_page(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", status="failed", reason="no luck")
    made = write_report([run])
    text = made.page.read_text(encoding="utf-8")
    assert text.count("no luck") >= 16
    assert not (run / "report/figures").exists()


def test_the_command(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def clbench(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments)
        told = capsys.readouterr()
        return code, told.out, told.err

    code, out, _ = clbench("report", str(run), "--formats", "svg")
    assert code == 1  # a cell failed
    assert out.endswith(f"Report: {run / 'report/index.html'}\n")
    assert {path.suffix for path in (run / "report/figures").iterdir()} == {".svg"}
    assert clbench("report", str(run), "--formats", "gif")[0] == 2
    code, _, err = clbench("compare", str(run), str(run))
    assert (code, err.count("\n")) == (2, 1)
    assert "is named twice" in err


def test_tables_for_readers() -> None:
    frame = pd.DataFrame({"name_1": ["a|b", "50%"], "x": [0.12345, None], "n": [3, 4]})
    files = table_files("t", frame)
    assert files["t.md"] == (
        "| name_1 | x | n |\n| --- | --- | --- |\n| a\\|b | 0.123 | 3 |\n| 50% |  | 4 |\n"
    )
    assert r"name\_1 & x & n \\" in files["t.tex"]
    assert r"50\% &  & 4 \\" in files["t.tex"]
    assert "0.12345" in files["t.csv"]


needs_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")


@needs_browser
def test_filters_and_sorting_do_what_they_say(run: Path, tmp_path: Path) -> None:
    page = write_report([run], formats=[]).page
    script = """
    const rows = () => [...document.querySelectorAll('#scores tbody tr')].filter(r => !r.hidden);
    const keys = () => rows().map(r => r.dataset.scenario + ' ' + r.dataset.method);
    const made = {begin: keys(), count: document.getElementById('count').textContent};
    const set = (c, v) => { c.value = v; c.dispatchEvent(new Event('input', {bubbles: true})); };
    const scenario = document.querySelector('[data-column=scenario]');
    made.options = [...scenario.options].map(o => o.value);
    set(scenario, 'two');
    made.filtered = keys();
    set(scenario, '');
    set(document.querySelector('[data-find]'), 'EWC');
    made.found = keys();
    made.counted = document.getElementById('count').textContent;
    set(document.querySelector('[data-find]'), '');
    const heads = [...document.querySelectorAll('#scores th')];
    const head = name => heads.find(h => h.textContent.trim() === name);
    head('p_o').querySelector('button').click();
    made.up = rows().map(r => Number(r.cells[3].dataset.value));
    made.sort = head('p_o').getAttribute('aria-sort');
    head('p_o').querySelector('button').click();
    made.down = rows().map(r => Number(r.cells[3].dataset.value));
    made.sort2 = head('p_o').getAttribute('aria-sort');
    head('method').querySelector('button').click();
    made.byMethod = rows().map(r => r.dataset.method);
    made.cleared = head('p_o').getAttribute('aria-sort');
    head('to vanilla in p_o').querySelector('button').click();
    made.last = rows().slice(-2).map(r => r.dataset.method);
    made.buttons = heads.every(h => h.querySelector('button').tabIndex === 0);
    made.wide = document.documentElement.scrollWidth <= innerWidth;
    made.images = [...document.images].every(i => i.complete && i.naturalWidth > 0);
    return made;
    """
    made, said = played(page, script, tmp_path / "profile")
    assert said == []
    assert made["begin"] == ["one vanilla", "one ewc", "two vanilla", "two ewc"]
    assert (made["count"], made["counted"]) == ("4 of 4 rows", "2 of 4 rows")
    assert made["options"] == ["", "one", "two"]
    assert made["filtered"] == ["two vanilla", "two ewc"]
    assert made["found"] == ["one ewc", "two ewc"]
    assert made["up"] == sorted(made["up"])
    assert made["down"] == sorted(made["down"], reverse=True)
    assert (made["sort"], made["sort2"], made["cleared"]) == ("ascending", "descending", None)
    assert made["byMethod"] == ["ewc", "ewc", "vanilla", "vanilla"]
    assert made["last"] == ["vanilla", "vanilla"]  # what has no number stands last
    assert made["buttons"]
    assert made["wide"]
    assert made["images"]


@needs_browser
@pytest.mark.parametrize(("width", "height"), [(1280, 900), (380, 800)])
def test_wide_and_narrow_windows(run: Path, tmp_path: Path, width: int, height: int) -> None:
    page = write_report([run], formats=[]).page
    picture = pictured(page, tmp_path / "page.png", width, height, tmp_path / "profile")
    pixels = imread(picture)[..., :3]
    assert pixels.shape == (height, width, 3)
    assert pixels.std() > 0.02
    assert pixels[:, -3:].mean() > 0.98  # nothing runs over the edge
