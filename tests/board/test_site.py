"""The pages of a board: what they say, that they link and load nothing foreign, in a browser."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest
from helpers.boards import make_entry, manifest, verify_entry
from helpers.commands import Call
from helpers.report_browser import BROWSER, run_script, screenshot
from helpers.report_runs import EVIL
from matplotlib.image import imread

from clbench.board import write_board
from clbench.board.site import MARKER
from clbench.core.errors import RunFolderError
from clbench.report.files import write_report
from clbench.results.published import published
from clbench.suite.read import read_suite

CHECKED = [
    {"check": "whole", "grade": "reported", "holds": True, "says": "12 cells"},
    {"check": "rows", "grade": "recomputed", "holds": True, "unchecked": ["no data"]},
    "not a table",
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A board of three submissions to two suites, shared by tests that only read it."""
    every = tmp_path_factory.mktemp("entries")
    make_entry(every / "own", scenarios=("one", "two"), needs_task_id=True)
    first = make_entry(
        every / "other",
        suite="recadam-glue",
        methods={"vanilla": 0.5, "recadam": 0.6},
        search={"trials": 6, "epochs": 9.0, "seconds": 1.0, "seeds": [3]},
    )
    more = make_entry(
        every / "more", suite="recadam-glue", methods={"vanilla": 0.52}, seeds=range(4, 8)
    )
    verify_entry(first, "recomputed", date="2026-11-28", checked=CHECKED)
    verify_entry(more, "rerun")
    page, problems = write_board([every], every.parent / "site")
    assert problems == ()
    return page.parent


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures take most of the time."""
    monkeypatch.setattr("clbench.board.site.draw_all", lambda plans, formats: [])


def text_of(page: Path) -> str:
    """Return the text of a page as a reader sees it."""
    main = page.read_text("utf-8").partition("<body>")[2].partition("<script>")[0]
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", main)).split())


def test_a_page_for_each_suite_submission_and_method(site: Path) -> None:
    assert {path.stem for path in (site / "submissions").iterdir()} == {"own", "other", "more"}
    assert {"mine", "recadam-glue"} < {path.stem for path in (site / "suites").iterdir()}
    assert {"vanilla", "ewc", "recadam"} < {path.stem for path in (site / "methods").iterdir()}
    index = text_of(site / "index.html")
    assert "from 3 submissions" in index
    assert "mine mean over 2 scenarios tiny 3 1 replay" in index
    assert "recomputed" in index


def test_a_suite_has_ranks_intervals_and_what_methods_are_told(site: Path) -> None:
    page = (site / "suites" / "mine.html").read_text("utf-8")
    assert page.count("<table") == 3  # both scenarios together, and each
    rows = re.findall(r'<tr data-told="([^"]*)" data-tuned="([^"]*)"', page)
    assert set(rows) == {
        ("task id at test time", "defaults"), ("keeps rows, task id at test time", "defaults"),
    }  # fmt: skip
    text = text_of(site / "suites" / "mine.html")
    assert "3 comparisons in one family" in text
    assert "at most 5 %" in text  # split() takes the fixed space, too
    assert "1 why Better than vanilla, ewc. replay" in text
    assert "2 why Better than vanilla. Worse than replay. ewc" in text
    assert "▲ +0.2" in text
    assert page.count("<img ") == 3  # one trade-off of both scenarios, two figures of costs


def test_a_tuned_method_says_so_and_warns_of_seeds_that_are_shown(site: Path) -> None:
    text = text_of(site / "suites" / "recadam-glue.html")
    assert "6 trials, on seeds that are shown: too good by chance" in text


def test_published_results_are_marked_and_never_tested(site: Path) -> None:
    page = (site / "suites" / "recadam-glue.html").read_text("utf-8")
    tested, theirs = page.split('<h2 id="published">')
    assert "Chen et al." not in tested
    assert theirs.count("Chen et al. 2020") == (published()["suite"] == "recadam-glue").sum()
    assert "no test and have no rank" in theirs
    ours, theirs = text_of(site / "methods" / "vanilla.html").split("Published results")
    assert ours.count("recadam-glue : pair vanilla") == 2
    assert "Chen et al. 2020 (EMNLP)" in theirs
    assert "Chen et al. 2020 (EMNLP)" in text_of(site / "methods" / "recadam-ri.html")
    only = text_of(site / "suites" / "paper-unseen.html")
    assert "Kenneweg" in only
    assert "rank of" not in only


def test_a_submission_says_how_to_run_it_what_was_verified_and_where_it_ran(site: Path) -> None:
    text = text_of(site / "submissions" / "other.html")
    for part in (
        "A title", "clbench run recadam-glue", "clbench verify other", "contact: somebody",
        "recomputed (verified.json, 2026-11-28)", "whole: holds; 12 cells",
        "rows: not checked: no data", "a processor, cpu, Linux: 8 cells",
        "clbench 0.1.0, torch 2.6",
    ):  # fmt: skip
        assert part in text, part
    own = text_of(site / "submissions" / "own.html")
    assert "unverified : there is no verified.json of these files" in own
    assert "clbench verify" not in own


def test_all_links_lead_to_a_page_and_nothing_foreign_is_loaded(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text("utf-8")
        assert text.count(MARKER) == 1
        assert not re.search(r"<(?:link|iframe|script[^>]+src)|@import|url\(", text)
        assert not re.findall(r'src="(?!data:image/png)', text)
        for link in re.findall(r'href="([^"]*)"', text):
            if link == "https://example.org/more":
                continue
            file, _, anchor = link.partition("#")
            target = (page.parent / file).resolve() if file else page
            assert target.is_file(), (page, link)
            assert not anchor or f'id="{anchor}"' in target.read_text("utf-8"), (page, link)
            assert target.is_relative_to(site.resolve())


@pytest.mark.usefixtures("no_figures")
def test_studies_of_one_title_and_suites_of_one_name_are_told_apart(tmp_path: Path) -> None:
    same = {"suite": "quick", "fingerprint": "equal"}
    text = "Suite quick, again."
    make_entry(tmp_path / "all" / "a", files={"manifest.json": manifest()}, **same)
    make_entry(tmp_path / "all" / "b", files={"manifest.json": manifest()},
               methods={"vanilla": 0.8}, suite_fields={"description": text}, **same)  # fmt: skip
    site = write_board([tmp_path / "all"], tmp_path / "site")[0].parent
    for name in ("a", "b"):
        page = site / "submissions" / f"{name}.html"
        assert f"<h1>A title ({name})</h1>" in page.read_text("utf-8")
        assert f">A title ({name})</a>" in (site / "index.html").read_text("utf-8")
    page = site / "suites" / "quick.html"
    (said,) = re.findall(r"</h1>\s*<p>([^<]*)</p>", page.read_text("utf-8"))
    assert said == read_suite("quick").file.description
    before, after = text_of(page).split("Submissions A title (a)")
    assert text not in before
    assert f"A title (b) ( unverified ): {text}" in after
    assert "a and b do not agree on 4 cells of the same recipe" in before


@pytest.mark.usefixtures("no_figures")
def test_names_of_others_are_texts_and_safe_files(tmp_path: Path) -> None:
    evil = manifest(name=EVIL, contact=EVIL)
    fields = {"name": "../../up", "description": EVIL, "commands": [["clbench", EVIL]]}
    folder = make_entry(tmp_path / "run", suite_fields=fields, files={"manifest.json": evil},
                        model=EVIL, host={"device_name": EVIL}, versions={EVIL: EVIL})  # fmt: skip
    page, _ = write_board([folder], tmp_path / "site")
    pages = [*page.parent.rglob("*.html")]
    assert {path.parent.name for path in pages} == {"site", "suites", "submissions", "methods"}
    for path in pages:
        assert "<b onmouseover" not in path.read_text("utf-8")
    assert not (tmp_path / "up.html").exists()
    assert (page.parent / "suites" / "up.html").exists()


@pytest.mark.usefixtures("no_figures")
def test_a_board_overwrites_and_removes_nothing_but_its_own_pages(tmp_path: Path) -> None:
    first, second = make_entry(tmp_path / "first"), make_entry(tmp_path / "second", suite="two")
    out = tmp_path / "site"
    write_board([first, second], out)
    mine = out / "suites" / "note.html"
    mine.write_text("my own page")
    write_board([first], out)
    assert mine.read_text() == "my own page"
    assert not (out / "suites" / "two.html").exists()
    assert not (out / "submissions" / "second.html").exists()
    (out / "suites" / "two.html").write_text("my own, too")
    before = {path: path.read_bytes() for path in out.rglob("*.html")}
    with pytest.raises(RunFolderError, match=r"two.html is not from a board"):
        write_board([second], out)
    assert {path: path.read_bytes() for path in out.rglob("*.html")} == before
    assert not [*out.rglob("*.part")]
    report = write_report([first], tmp_path / "report", formats=[]).page
    with pytest.raises(RunFolderError, match=r"index.html is not from a board"):
        write_board([first], report.parent)
    with pytest.raises(RunFolderError, match="page of another kind"):
        write_report([first], out)


@pytest.mark.usefixtures("no_figures")
def test_bad_submissions_are_named_and_the_rest_is_made(tmp_path: Path, clbench: Call) -> None:
    every = tmp_path / "all"
    make_entry(every / "good")
    make_entry(every / "bad", files={"manifest.json": "{"})
    code, out, err = clbench("board", str(every), "--out", str(tmp_path / "site"))
    assert code == 1
    assert out.startswith(f"Board: {tmp_path / 'site' / 'index.html'}")
    assert err.count("\n") == 1
    assert err.startswith("bad is left out: ")
    assert "bad is left out" in text_of(tmp_path / "site" / "index.html")
    code, _, err = clbench("board", str(every / "good"), "--out", str(tmp_path / "again"))
    assert (code, err) == (0, "")
    code, _, err = clbench("board", str(every / "bad"), "--out", str(tmp_path / "none"))
    assert code == 2
    assert err.startswith("error: bad is left out")
    assert not (tmp_path / "none").exists()


@pytest.mark.skipif(BROWSER is None, reason="no Chromium")
def test_the_pages_work_in_a_browser(site: Path, tmp_path: Path) -> None:
    script = """
      const rows = [...document.querySelectorAll("table.filtered tbody tr")];
      const shown = () => rows.filter(row => row.checkVisibility()).length;
      const all = shown(), select = document.querySelector("[data-column=told]");
      const options = [...select.options].map(option => option.value);
      select.value = "task id at test time";
      select.dispatchEvent(new Event("input"));
      const few = shown(), count = document.getElementById("count").textContent;
      const table = document.querySelector("table.sortable");
      const methods = () => [...table.tBodies[0].rows].map(row => row.cells[1].textContent);
      const before = methods();
      const button = table.tHead.querySelectorAll("button")[2];
      button.click();
      return {all, options, few, count, before, after: methods(),
              wide: document.documentElement.scrollWidth};
    """
    for width in (1200, 390):
        found, console = run_script(site / "suites" / "mine.html", script, tmp_path, width)
        (site / "suites" / "script.html").unlink()
        assert console == []
        assert found["all"] == 9
        assert found["options"] == ["", "keeps rows, task id at test time", "task id at test time"]
        assert (found["few"], found["count"]) == (6, "6 of 9 rows")
        assert found["before"] == ["replay", "ewc", "vanilla"]
        assert found["after"] == ["vanilla", "ewc", "replay"]
        assert found["wide"] <= max(width, 500)  # the least that the browser lays out


@pytest.mark.skipif(BROWSER is None, reason="no Chromium")
def test_cards_are_sorted_by_a_menu_with_the_order_of_the_table(site: Path, tmp_path: Path) -> None:
    script = """
      const table = document.querySelector("table.sortable");
      const methods = () => [...table.tBodies[0].rows].map(row => row.cells[1].textContent);
      const menu = table.previousElementSibling.querySelector("select");
      const choose = name => {
        menu.value = [...menu.options].find(option => option.text === name).value;
        menu.dispatchEvent(new Event("input"));
        return methods();
      };
      const names = [...menu.options].map(option => option.text).slice(0, 5);
      const result = {names, visible: menu.checkVisibility(), before: methods(),
        up: choose("average ↑"), down: choose("average ↓"), text: choose("method ↑")};
      table.tHead.querySelectorAll("button")[0].click();
      return {...result, follows: menu.selectedOptions[0].text};
    """
    for width in (1200, 390):
        found, console = run_script(site / "suites" / "mine.html", script, tmp_path, width)
        (site / "suites" / "script.html").unlink()
        assert console == []
        assert found["visible"] == (width == 390)
        assert found["names"] == ["as listed", "rank of 3 ↑", "rank of 3 ↓", "method ↑", "method ↓"]
        assert found["before"] == found["down"] == ["replay", "ewc", "vanilla"]
        assert found["up"] == ["vanilla", "ewc", "replay"]
        assert found["text"] == ["ewc", "replay", "vanilla"]
        assert found["follows"] == "rank of 3 ↑"


@pytest.mark.skipif(BROWSER is None, reason="no Chromium")
def test_find_takes_only_what_is_shown(site: Path, tmp_path: Path) -> None:
    script = """
      const box = document.querySelector("[data-find]");
      const table = document.querySelector("table.filtered");
      const find = text => {
        box.value = text;
        box.dispatchEvent(new Event("input"));
        const rows = [...table.tBodies[0].rows].filter(row => !row.hidden);
        return rows.map(row => row.cells[1].textContent);
      };
      const hidden = find("better than"), shown = find("Replay"), across = find("whyreplay");
      find("");
      table.querySelector("details").open = true;
      return {hidden, shown, across, opened: find("better than"), all: find("").length};
    """
    found, console = run_script(site / "suites" / "mine.html", script, tmp_path)
    (site / "suites" / "script.html").unlink()
    assert console == []
    assert found == {
        "hidden": [], "shown": ["replay"], "across": [], "opened": ["replay"], "all": 3,
    }  # fmt: skip


@pytest.mark.skipif(BROWSER is None, reason="no Chromium")
def test_empty_fields_of_cards_are_a_dash_with_their_name(site: Path, tmp_path: Path) -> None:
    script = """
      const text = (cell, part) => getComputedStyle(cell, part).content;
      return [...document.querySelectorAll(".cards td:empty")].map(
        cell => [cell.checkVisibility(), text(cell, "::before"), text(cell, "::after")]);
    """
    found, console = run_script(site / "index.html", script, tmp_path, 390)
    (site / "script.html").unlink()
    assert console == []
    assert {tuple(cell) for cell in found} == {
        (True, f'"{name}"', '"–"') for name in ("scenarios", "model", "methods", "submissions")
    }


@pytest.mark.skipif(BROWSER is None, reason="no Chromium")
@pytest.mark.parametrize("page", ["index", "suites/mine", "submissions/other", "methods/recadam"])
def test_no_page_is_wider_than_a_phone(site: Path, tmp_path: Path, page: str) -> None:
    script = "document.documentElement.style.width = '390px'; return document.body.scrollWidth"
    found, console = run_script(site / f"{page}.html", script, tmp_path)  # 500 or wider
    (site / f"{page}.html").with_name("script.html").unlink()
    assert console == []
    assert found <= 390
    picture = screenshot(site / f"{page}.html", tmp_path / "phone.png", 390, 900, tmp_path)
    assert imread(picture)[..., :3].std() > 0.01
