from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers.handmade import pair
from helpers.report_runs import EVIL, cell, make_run
from matplotlib.image import imread

import clbench
from clbench.cli import main
from clbench.core.errors import RunFolderError
from clbench.report.files import head_notes, table_files, write_report
from clbench.results.cell import pack_rows, summarizer
from clbench.results.statistics import spend
from clbench.results.store import Store


def page_of(run: Path) -> str:
    return (run / "report" / "index.html").read_text(encoding="utf-8")


def test_the_page_has_counts_verdicts_and_a_command(run: Path) -> None:
    text = page_of(run)
    assert "16 cells: 2 scenarios, 2 methods, 4 seeds" in text
    assert '<strong class="failed">1 failed</strong>' in text
    assert '<span class="title">p_o, the old task</span>' in text
    assert '<span class="better">Better than vanilla</span>: ewc +0.053 (+0.0' in text
    rows = re.findall(r"<tr><td>p_o</td><td>ewc</td>(.*?)</tr>", text)
    assert len(rows) == 1  # over all scenarios, on the three seeds that both have
    assert re.findall(r'<td class="n">([^<]*)</td>', rows[0])[:3] == ["2", "3", "+0.052"]
    assert "<pre>clbench run mine</pre>" in text
    assert (run / "report/index.html").stat().st_size < 4e6


def test_a_report_between_looks_is_judged_at_the_share_of_the_next(
    tmp_path: Path, no_figures: None
) -> None:
    folder = make_run(tmp_path / "run")
    suite = json.loads((folder / "suite.json").read_text())
    suite["suite"] |= {"looks": [[3, 6, 9]], "seeds": list(range(6))}
    (folder / "suite.json").write_text(json.dumps(suite))
    more = make_run(tmp_path / "more", name="other")
    for path in (more / "cells").glob("*.json"):  # seeds that the first run does not have
        cell = json.loads(path.read_text())
        cell["seed"] += 10
        cell["key"] = f"{cell['scenario']}--{cell['baseline']}--seed{cell['seed']}"
        path.unlink()
        (path.parent / f"{cell['key']}.json").write_text(json.dumps(cell))
    extra = json.loads((folder / "cells" / "one--vanilla--seed3.json").read_text())
    extra |= {"seed": 5, "key": "one--vanilla--seed5"}  # the look is not finished
    (folder / "cells" / "one--vanilla--seed5.json").write_text(json.dumps(extra))
    for runs in ([folder], [folder, more]):
        content = write_report(runs, tmp_path / "out").content
        primary = content.tables["comparisons"][content.tables["comparisons"]["primary"]]
        family = len(primary)
        assert set(primary["level"]) == {1 - spend((3, 6, 9))[1] / family}
        text = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
        assert "interim report with 4 complete seeds" in text
        assert "do not count before look 2 of 3, with 6 seeds" in text


@pytest.mark.parametrize(
    ("absent", "text"),
    [
        ("", "This is look 2 of 3, with 4 seeds"),
        ("two--*seed3", "interim report with 3 complete seeds"),  # as many as look 1
        ("two--*", "interim report with 0 complete seeds"),
        ("two--ewc--*", "interim report with 0 complete seeds"),
    ],
)
def test_an_unfinished_look_is_no_look(
    tmp_path: Path, no_figures: None, absent: str, text: str
) -> None:
    folder = make_run(tmp_path / "run")
    suite = json.loads((folder / "suite.json").read_text())
    suite["suite"] |= {"looks": [[3, 4, 6]], "scenario": [{"name": "one"}, {"name": "two"}]}
    (folder / "suite.json").write_text(json.dumps(suite))
    for path in (folder / "cells").glob(f"{absent}.json"):
        path.unlink()
    primary = write_report([folder]).content.tables["comparisons"].query("primary")
    assert text in page_of(folder)
    assert {*primary["level"]} == {1 - spend((3, 4, 6))[1] / len(primary)}  # the next look's


def test_a_page_without_verdicts_claims_no_error_rate(tmp_path: Path, no_figures: None) -> None:
    folder = make_run(tmp_path / "run")
    for seed in (2, 3):
        for path in (folder / "cells").glob(f"*seed{seed}.json"):
            path.unlink()
    write_report([folder])
    text = page_of(folder)
    assert "None of its comparisons has enough common seeds for a verdict." in text
    assert "hold jointly" not in text


def test_tables_and_figures_lie_beside_the_page(run: Path) -> None:
    tables = {path.name for path in (run / "report/tables").iterdir()}
    assert tables == {
        f"{name}.{kind}"
        for name in ("scores", "means", "comparisons", "overall", "paper")
        for kind in ("csv", "md", "tex")
    }
    figures = {path.name for path in (run / "report/figures").iterdir()}
    names = ("overall", "tradeoff", "forgetting", "curves-one", "matrices-two", "costs-two")
    assert {f"{name}.{kind}" for name in names for kind in ("png", "svg", "pdf")} <= figures
    assert imread(run / "report/figures/tradeoff.png")[..., :3].std() > 0.01
    back = pd.read_csv(run / "report/tables/comparisons.csv")
    ewc = back[(back["method"] == "ewc") & (back["score"] == "p_o")].set_index("scenario")
    assert ewc.loc["one", "difference"] == pytest.approx(0.053)
    assert ewc.loc["two", "pairs"] == 3


def test_the_page_begins_with_its_question(run: Path) -> None:
    text = page_of(run)
    assert 0 < text.index('<div class="pictures">') < text.index("Better than vanilla")
    picture = text[text.index('<div class="pictures">') : text.index("Better than vanilla")]
    assert picture.count("<figcaption>") == 4  # two scenarios, two scores
    assert 'role="img" aria-label="better">▲</b>' in picture
    assert '<b class="better">▲ better</b>' in text
    head = text[text.index('<table id="scores"') :].partition("</thead>")[0]
    titles = re.findall(r"<th[^>]*>([^<]*)</th>", head)
    asked = ["p_o", "p_o − vanilla", "p_s", "p_s − vanilla"]
    assert titles[:7] == ["scenario", "method", *asked, "forgetting"]
    cell = re.findall(r'<td class="n better"[^>]*>.*?</td>', text)[0]
    assert '<span title="better">▲ +0.053</span>' in cell
    for file in ("paper.md", "paper.tex"):
        table = (run / "report" / "tables" / file).read_text(encoding="utf-8")
        assert "by seed, with its interval" in table


def test_details_hold_the_curves(run: Path) -> None:
    details = page_of(run).split("one--vanilla--seed0</summary>")[1].split("</summary><pre>")[0]
    assert details.count("<b>score on a</b>") == 2
    assert "Scores during training use some rows of each task." in details
    assert "0.9 at step 0, 0.6 at step 4" in details
    assert details.count('<polyline points="2,2 158,30"/>') == 2


def test_the_page_loads_nothing_and_escapes_names(tmp_path: Path, run: Path) -> None:
    evil = make_run(tmp_path / "run", description=EVIL, shift=EVIL, notes=[EVIL], model=EVIL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("clbench.report.files.draw_all", lambda figures, formats: [])
        write_report([evil])
    text = page_of(evil)
    assert "<b onmouseover" not in text
    assert text.count("&lt;b onmouseover") > 8
    for page in (text, page_of(run)):
        assert not re.findall(r'(?:src|href)="(?!data:|#)', page)
        assert not re.search(r"https?://", page)
    images = re.findall(r"<img [^>]*>", page_of(run))
    assert images
    for image in images:
        assert re.search(r' alt="[^".]+\. [^"]{20,} The numbers are in ', image), image[-300:]


@pytest.mark.usefixtures("no_figures")
def test_the_page_marks_a_method_that_is_told_the_task(tmp_path: Path) -> None:
    footnote = "# is told the task of each row at test time"
    for flag in (True, False):
        folder = make_run(tmp_path / f"run{flag}", needs_task_id=flag)
        write_report([folder])
        assert (footnote in page_of(folder)) == flag
        assert ("vanilla #</td>" in page_of(folder)) == flag


@pytest.mark.usefixtures("no_figures")
def test_floors_shares_and_flipped_rows_are_on_the_page(tmp_path: Path) -> None:
    before, after = (pack_rows(np.arange(10) < count) for count in (9, 6))
    correct = [[before, None], [after, after]]
    folder = make_run(tmp_path / "run", floors=[0.5, 0.6], correct=correct)
    with Store(folder).lock() as store:
        for seed, p_o in ((0, 0.85), (1, 0.8)):
            store.write_cell(cell("one", "frozen", seed, p_o, floors=[0.5, 0.6]))
    write_report([folder])
    text = page_of(folder)
    frozen = '<td>one</td><td>a</td><td class="n">0.500</td><td class="n">0.825</td>'
    assert frozen in text
    assert '<th scope="col" class="n">retained</th>' in text
    # of ten rows three are lost and none is gained; vanilla and ewc agree
    flips = (
        '<td class="n">10</td><td class="n">3 <span class="sd">30.0 %</span></td><td class="n">0'
    )
    assert text.count(flips) == 4
    back = pd.read_csv(folder / "report/tables/floors.csv")
    assert back["constant"].tolist() == [0.5, 0.6, 0.5, 0.6]
    means = pd.read_csv(folder / "report/tables/means.csv").set_index(["scenario", "method"])
    # vanilla's p_o is .6, .65, .7 and .75 after .9: it keeps .7 of 4 * .4
    assert means.loc[("one", "vanilla"), "retained_mean"] == pytest.approx(0.7 / 1.6)
    assert means.loc[("one", "vanilla"), "learned_mean"] == 1.0


@pytest.mark.usefixtures("no_figures")
def test_sequences_have_a_column_for_backward_transfer(tmp_path: Path) -> None:
    R = [[0.9, None, None], [0.8, 0.8, None], [0.7, 0.6, 0.9]]
    folder = make_run(tmp_path / "run", tasks=["a", "b", "c"], R=R)
    write_report([folder])
    assert '<th scope="col" class="n">BWT</th>' in page_of(folder)


@pytest.mark.usefixtures("no_figures")
def test_differences_between_runs_are_noted_on_the_page(tmp_path: Path) -> None:
    first, second = make_run(tmp_path / "a"), make_run(tmp_path / "b")
    store = Store(second)
    with store.lock():
        store.write_suite({**store.read_suite(), "protocol": {"limit": 32}})
    report = write_report([first, second], tmp_path / "both")
    assert report.page == tmp_path / "both" / "index.html"
    assert "The protocols differ" in report.page.read_text(encoding="utf-8")


@pytest.mark.usefixtures("no_figures")
def test_the_page_shows_all_commands_of_a_run_once(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    store = Store(folder)
    with store.lock():
        for command in (["clbench", "run", "mine"], ["clbench", "run", "mine", "--methods", "a b"]):
            for _ in range(2):
                store.write_suite({**store.read_suite(), "commands": [command]})
    write_report([folder])
    assert re.findall("<pre>(clbench .*)</pre>", page_of(folder)) == [
        "clbench run mine", "clbench run mine --methods &#39;a b&#39;",
    ]  # fmt: skip


def test_a_finished_run_is_loaded_and_drawn(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (run / "cells" / "one--lwf--seed0.json").write_text("{")
    with pytest.warns(UserWarning, match=r"one--lwf--seed0\.json is not a valid cell file"):
        loaded = clbench.load_run(run)
    assert (loaded.path, len(loaded.cells), len(loaded.failed)) == (run, 16, 1)
    assert list(loaded.summary["method"]) == ["vanilla", "ewc", "vanilla", "ewc"]
    assert len(clbench.figures.tradeoff(loaded).axes) == 2
    assert "one" in clbench.figures.curves(loaded, "one").get_label()
    with pytest.raises(RunFolderError, match="There is no folder"):
        clbench.load_run(run / "none")


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("file", ["index.html", "audit.json"])
def test_pages_that_are_no_reports_are_kept(tmp_path: Path, file: str, no_figures: None) -> None:
    folder = make_run(tmp_path / "run")
    out = write_report([folder], tmp_path / "out", formats=[]).page.parent
    write_report([folder], out, formats=[])  # it replaces its own
    (out / file).write_text("mine")
    with pytest.raises(RunFolderError, match="has a page of another kind"):
        write_report([folder], out, formats=[])
    assert (out / file).read_text() == "mine"


@pytest.mark.slow
def test_published_results_are_shown_with_their_source(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", name="paper-dataset-shift")
    store = Store(folder)
    with store.lock():
        for seed in (0, 1):
            store.write_cell(cell("sst2-mrpc", "vanilla", seed, 0.7 + 0.1 * seed))
    report = write_report([folder], formats=[])
    text = report.page.read_text(encoding="utf-8")
    assert "Published results" in text
    assert "Kenneweg et al. 2022 (IDEAL), Table 2" in text
    back = pd.read_csv(folder / "report/tables/published.csv").set_index("score")
    assert back.loc["p_o", "published"] == 0.904
    assert back.loc["p_o", "ours"] == pytest.approx(0.75)
    assert back.loc["p_o", "difference"] == pytest.approx(0.75 - 0.904)
    assert back.loc["p_o", "differs"] == (
        "model tiny, theirs bert-base-uncased; mean of 2 seeds, theirs one run; "
        "a: 1 epoch, theirs 3; b: 1 epoch, theirs 3"
    )
    other = make_run(tmp_path / "other")
    text = write_report([other], formats=[]).page.read_text(encoding="utf-8")
    assert "Published results" not in text
    assert not (other / "report/tables/published.csv").exists()


def test_a_run_without_a_finished_cell_still_has_a_page(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", status="failed", reason="no luck")
    report = write_report([run])
    text = report.page.read_text(encoding="utf-8")
    assert text.count("no luck") >= 16
    assert not (run / "report/figures").exists()


def test_report_and_compare_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "run")

    def clbench(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    code, out, _ = clbench("report", str(run), "--formats", "svg")
    assert code == 1  # a cell failed
    assert out.endswith(f"Report: {run / 'report/index.html'}\n")
    assert {path.suffix for path in (run / "report/figures").iterdir()} == {".svg"}
    assert clbench("report", str(run), "--formats", "gif")[0] == 2
    code, _, err = clbench("compare", str(run), str(run))
    assert (code, err.count("\n")) == (2, 1)
    assert "is named twice" in err


def test_markdown_and_latex_tables_are_rounded_and_escaped() -> None:
    frame = pd.DataFrame({"name_1": ["a|b", "50%"], "x": [0.12345, None], "n": [3, 4]})
    files = table_files("t", frame)
    assert files["t.md"] == (
        "| name_1 | x | n |\n| --- | --- | --- |\n| a\\|b | 0.123 | 3 |\n| 50% |  | 4 |\n"
    )
    assert r"name\_1 & x & n \\" in files["t.tex"]
    assert r"50\% &  & 4 \\" in files["t.tex"]
    assert "0.12345" in files["t.csv"]


def test_the_page_shows_control_characters_and_leaves_out_empty_columns(
    tmp_path: Path, no_figures: None
) -> None:
    folder = make_run(tmp_path / "run", notes=["a\x1b[31mb"], description="d\x07e")
    write_report([folder])
    text = page_of(folder)
    assert r"a\x1b[31mb" in text
    assert r"d\x07e" in text
    assert all(c == "\n" or c.isprintable() for c in text)
    assert '<th scope="col" class="n">train s</th>' in text
    assert "search s" not in text
    assert "memory MB" not in text
    alone = tmp_path / "alone"
    with Store(alone).lock() as store:
        store.write_cell(cell("one", "ewc", 0, 0.5))
    write_report([alone])
    text = page_of(alone)
    assert "vanilla has no finished cell" in text


def test_the_treatment_of_shared_heads_is_told() -> None:
    metrics = [[{"accuracy": 0.5, "told": 0.7}, None], [{"accuracy": 0.5, "told": 0.7}] * 2]
    plain = pair("vanilla", metrics=metrics, settings={"protocol": {}, "holds_head": False})
    held = pair(
        "ewc", metrics=metrics, settings={"protocol": {"head_loss": "stage"}, "holds_head": True}
    )
    assert head_notes([pair()]) == []
    assert head_notes([plain]) == ["Heads that tasks share: head_loss = all."]
    assert head_notes([summarizer()(plain)]) == head_notes([plain])
    assert head_notes([plain, held]) == [
        "Heads that tasks share: head_loss = all and stage; held or computed by the method itself: "
        "ewc."
    ]
