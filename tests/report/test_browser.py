"""What a browser makes of the page of a report."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.report_browser import BROWSER, run_script, screenshot
from helpers.report_runs import make_run
from matplotlib.image import imread

from clbench.report.files import write_report

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")


def test_filters_and_sorting(run: Path, tmp_path: Path) -> None:
    page = run / "report/index.html"
    script = """
    const rows = () => [...document.querySelectorAll('#scores tbody tr')].filter(r => !r.hidden);
    const keys = () => rows().map(r => r.dataset.scenario + ' ' + r.dataset.method);
    const result = {begin: keys(), count: document.getElementById('count').textContent};
    const set = (c, v) => { c.value = v; c.dispatchEvent(new Event('input', {bubbles: true})); };
    const scenario = document.querySelector('[data-column=scenario]');
    result.options = [...scenario.options].map(o => o.value);
    set(scenario, 'two');
    result.filtered = keys();
    set(scenario, '');
    set(document.querySelector('[data-find]'), 'EWC');
    result.searched = keys();
    result.counted = document.getElementById('count').textContent;
    set(document.querySelector('[data-find]'), '');
    const heads = [...document.querySelectorAll('#scores th')];
    const head = name => heads.find(h => h.textContent.trim() === name);
    head('p_o').querySelector('button').click();
    result.up = rows().map(r => Number(r.cells[2].dataset.value));
    result.sort = head('p_o').getAttribute('aria-sort');
    head('p_o').querySelector('button').click();
    result.down = rows().map(r => Number(r.cells[2].dataset.value));
    result.sort2 = head('p_o').getAttribute('aria-sort');
    head('method').querySelector('button').click();
    result.byMethod = rows().map(r => r.dataset.method);
    result.cleared = head('p_o').getAttribute('aria-sort');
    head('p_o − vanilla').querySelector('button').click();
    result.last = rows().slice(-2).map(r => r.dataset.method);
    result.buttons = heads.every(h => h.querySelector('button').tabIndex === 0);
    result.wide = document.documentElement.scrollWidth <= innerWidth;
    result.images = [...document.images].every(i => i.complete && i.naturalWidth > 0);
    return result;
    """
    result, console = run_script(page, script, tmp_path / "profile")
    assert console == []
    assert result["begin"] == ["one vanilla", "one ewc", "two vanilla", "two ewc"]
    assert (result["count"], result["counted"]) == ("4 of 4 rows", "2 of 4 rows")
    assert result["options"] == ["", "one", "two"]
    assert result["filtered"] == ["two vanilla", "two ewc"]
    assert result["searched"] == ["one ewc", "two ewc"]
    assert result["up"] == sorted(result["up"])
    assert result["down"] == sorted(result["down"], reverse=True)
    assert (result["sort"], result["sort2"], result["cleared"]) == ("ascending", "descending", None)
    assert result["byMethod"] == ["ewc", "ewc", "vanilla", "vanilla"]
    assert result["last"] == ["vanilla", "vanilla"]  # rows without a number come last
    assert result["buttons"]
    assert result["wide"]
    assert result["images"]


@pytest.mark.parametrize(("width", "height"), [(1280, 900), (380, 800)])
def test_the_page_fits_wide_and_narrow_windows(
    run: Path, tmp_path: Path, width: int, height: int
) -> None:
    page = run / "report/index.html"
    picture = screenshot(page, tmp_path / "page.png", width, height, tmp_path / "profile")
    pixels = imread(picture)[..., :3]
    assert pixels.shape == (height, width, 3)
    assert pixels.std() > 0.02
    assert pixels[:, -3:].mean() > 0.98  # nothing runs over the edge


@pytest.mark.usefixtures("no_figures")
def test_the_table_of_a_long_sequence_fits_a_window_of_1200_pixels(tmp_path: Path) -> None:
    R = [[0.9, None, None], [0.8, 0.8, None], [0.7, 0.6, 0.9]]
    search = {"trials": 3, "epochs": 9.0, "seconds": 5000.0}
    folder = make_run(
        tmp_path / "run", tasks=["a", "b", "c"], R=R, floors=[0.5] * 3, search=search,
        training_memory_mb=1234.5,
    )  # fmt: skip
    write_report([folder])
    script = """
    const box = document.querySelector('#scores').parentElement;
    return [innerWidth, box.scrollWidth - box.clientWidth, box.querySelectorAll('th').length];
    """
    result, _ = run_script(folder / "report/index.html", script, tmp_path / "profile", 1200)
    assert result[:2] == [1200, 0]
    assert result[2] >= 15
