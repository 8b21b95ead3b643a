from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from helpers.handmade import failed, pair, reference, three
from helpers.report_runs import cells as report_cells
from rich.console import Console

from clbench.cli import console as module
from clbench.cli.console import results_table, show_results
from clbench.results.cell import CellResult
from clbench.results.score_tables import means, score_rows

LONG = {"scenario": "paraphrase-to-entailment-length"}


def printed(cells: list[CellResult], width: int, encoding: str = "utf-8") -> list[str]:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True)
    console = Console(file=file, width=width, markup=False, highlight=False)
    console.print(results_table(means(score_rows(cells)), console))
    file.seek(0)
    return file.read().splitlines()


def cells() -> list[CellResult]:
    low = [[0.75, 0.5], [0.60, 0.9]]
    return [
        pair("vanilla", 0),
        pair("vanilla", 1, low),
        pair("replay", 0, keeps_rows=True),
        failed("bertcl-combined", 0),
    ]


@pytest.mark.parametrize("width", [80, 120])
def test_lines_fit_and_numbers_are_not_cut(width: int) -> None:
    lines = printed(cells(), width)
    assert max(map(len, lines)) <= width
    vanilla = next(line for line in lines if "vanilla" in line)
    # p_o 0.8 and 0.6: mean 0.7, sample deviation 0.1414; p_s 0.7 and 0.9; forgetting .1, .15
    assert re.findall(r"-?\d\.\d{3}", vanilla)[:6] == [
        *("0.700", "0.141", "0.800", "0.141", "0.125", "0.035"),
    ]
    assert "0.700 ±0.141" in vanilla
    assert ("train s" in "".join(lines)) == (width == 120)


def test_scores_that_the_question_asks_for_are_columns() -> None:
    console = Console(file=io.StringIO(), width=200)
    rows = means(score_rows(cells()))
    titles = [str(c.header) for c in results_table(rows, console, ["average"]).columns]
    assert "average" in titles
    assert "average" not in [str(c.header) for c in results_table(rows, console).columns]


@pytest.mark.parametrize("width", [80, 120])
def test_long_names_fold(width: int) -> None:
    name = "a-baseline-with-quite-a-long-name"
    long = [three(name, seed, **LONG) for seed in (0, 1)]
    lines = printed([*long, reference(1, 0.75)], width)
    text = "\n".join(lines)
    assert "…" not in text
    assert max(map(len, lines)) <= width
    # means of p_o, p_s, BWT, average, over time and mean forgetting, whole, in one line
    means = ["0.800", "0.700", "-0.100", "0.750", "0.833", "0.100"]
    assert any(re.findall(r"(?<![±\d.])-?\d\.\d{3}", line) == means for line in lines)
    assert text.count("±0.000") == 6


def test_shares_are_dropped_before_deviations_move_below() -> None:
    some = [pair("vanilla", seed, floors=[0.5, 0.5]) for seed in (0, 1)]
    wide, narrow = (
        printed([*some, reference(1, 0.75)], 100),
        printed([*some, reference(1, 0.75)], 80),
    )
    assert wide[0].split()[-3:] == ["retained", "learned", "seeds"]
    # .3 of .4 is left, and vanilla is the reference
    assert next(line for line in wide if "vanilla" in line).split()[-3:] == ["0.750", "1.000", "2"]
    assert narrow[0].split()[-2:] == ["intrans.", "seeds"]
    assert "0.800 ±0.000" in "".join(narrow)


def test_a_narrow_window_puts_deviations_below() -> None:
    lines = printed(cells(), 50)
    assert max(map(len, lines)) <= 50
    row = next(i for i, line in enumerate(lines) if "vanilla" in line)
    assert lines[row].split() == ["vanilla", "0.700", "0.800", "0.125", "2"]
    assert lines[row + 1].split() == ["±0.141", "±0.141", "±0.035"]


def test_failed_cells_are_counted_and_one_seed_has_no_deviation() -> None:
    lines = printed(cells(), 80)
    replay = next(line for line in lines if "replay" in line)
    assert "replay *" in replay
    assert "±" not in replay
    failure = next(line for line in lines if "bertcl-combined" in line)
    assert failure.split() == ["bertcl-combined", "-", "-", "-", "0/1"]


def test_a_terminal_without_utf8_gets_ascii() -> None:
    lines = printed(cells(), 80, "ascii")
    assert any("0.700 +/-0.141" in line for line in lines)
    assert max(map(len, lines)) <= 80


def test_zero_has_no_minus_sign() -> None:
    lines = printed([pair(R=[[0.8, 0.5], [0.80004, 0.7]])], 80)
    assert any("0.000" in line for line in lines)
    assert not any("-0.000" in line for line in lines)


def test_longer_sequences_show_average_and_backward_transfer() -> None:
    assert not any("BWT" in line for line in printed(cells(), 120))
    assert any("BWT" in line for line in printed([three()], 120))


def test_failures_footnote_and_exit_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "out", lambda: Console(width=80, markup=False, highlight=False))
    reason = "[bold]loss[/] is not a number at step 3 of 40 of task 'glue/mrpc', " + 40 * "x"
    assert show_results(Path("results/quick"), [*cells(), failed("ewc", 3, reason)]) == 1
    text = capsys.readouterr().out
    assert "* keeps rows of earlier tasks" in text
    assert f"failed: sst2-mrpc--ewc--seed3: {reason}\n" in text
    assert "2 of 5 cells failed; repeat the command to retry." in text
    assert show_results(Path("results/quick"), cells()[:2]) == 0
    assert "* keeps" not in capsys.readouterr().out


def test_a_method_that_is_told_the_task_is_marked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "out", lambda: Console(width=80, markup=False, highlight=False))
    show_results(None, [pair("vanilla", 0), pair("packnet", 0, needs_task_id=True)])
    text = capsys.readouterr().out
    assert "packnet #" in text
    assert "vanilla #" not in text
    assert "\n# is told the task of each row at test time, even where tasks share a head\n" in text
    assert "keeps rows" not in text


def test_a_sweep_says_where_its_readings_are(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "scores.csv").touch()
    for family, is_told in (("", False), ("vanilla", True)):
        some = [cell.model_copy(update={"family": family}) for cell in cells()[:2]]
        assert show_results(tmp_path, some) == 0
        assert ("clbench report" in capsys.readouterr().out) is is_told


def test_collapsed_runs_stand_below_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    some = report_cells(vanilla=[(0.80, 0.8), (0.55, 0.8), (0.81, 0.8)])
    assert show_results(None, some) == 0
    assert "\npair, vanilla: 1 of 3 runs collapsed in p_o\n" in capsys.readouterr().out


def test_a_window_too_narrow_for_any_layout_cuts_no_number(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    show_results(Path("out"), [pair("vanilla", 0)])
    text = capsys.readouterr().out
    assert "0.700" in text
    assert "forgetting" in text
    assert "…" not in text
