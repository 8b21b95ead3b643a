"""Cells, tables, archives and logs of finished runs, spoiled: nothing else is lost."""

from pathlib import Path

import pandas as pd
import pytest
from hypothesis import strategies as st

from clbench.results.archive import pack
from faults.sandbox import command
from faults.spoil import (
    COMPARE,
    ODD_FILES,
    REPORT,
    RUN,
    any_input,
    as_odd_file,
    damage,
    one_of,
    spoil_file,
    texts,
)
from faults.verdict import Judge


def _scores(folder: Path) -> set[tuple[str, ...]]:
    """Return the file of each cell in scores.csv and its scores."""
    frame = pd.read_csv(folder / "out" / "scores.csv", dtype=str, keep_default_na=False)
    key = "{scenario}--{method}--seed{seed}.json"
    return {(key.format(**row), row["p_o"], row["p_s"]) for _, row in frame.iterrows()}


def _answer(judge: Judge, what: str, words: list[str], name: str = "") -> None:
    """Check that no finished cell is lost but that in the file `name`, which is then named.

    If that file was there, it is kept, or moved aside.
    """
    folder, whole = judge.folder, judge.templates.runs
    there = (folder / "out" / "cells" / name).exists()
    err = judge.answer(f"{words[0]} with {what}", words, dry=words == RUN)
    files = [{path.name for path in (at / "out/cells").rglob("*.json")} for at in (whole, folder)]
    assert files[0] - files[1] <= (set() if there else {name}), what
    if err is not None and "error: " not in err:
        before, after = _scores(whole), _scores(folder)
        assert {row for row in before if row[0] != name} <= after, what
        assert not there or len(after) >= len(before) or name in err, what


def _spoil(data: st.DataObject, path: Path) -> str:
    if one_of(data.draw, True, True, True, path.name == ".lock"):
        return spoil_file(data.draw, path)
    kind: str = one_of(data.draw, *ODD_FILES)
    as_odd_file(path, kind)
    return f"{path.name}: {kind}"


@pytest.mark.slow
@any_input
def test_any_cell(judge: Judge, data: st.DataObject) -> None:
    cells = sorted((judge.fresh(finished=True) / "out" / "cells").glob("*.json"))
    path, words = one_of(data.draw, *cells), one_of(data.draw, RUN, REPORT, COMPARE)
    _answer(judge, _spoil(data, path), words, path.name)


@pytest.mark.slow
@any_input
def test_any_other_file_of_a_run(judge: Judge, data: st.DataObject) -> None:
    out, words, missing = judge.fresh(finished=True) / "out", one_of(data.draw, RUN, REPORT), ""
    (out / ".lock").touch()
    files = [out / "suite.json", out / "scores.csv", out / ".lock"]
    path = one_of(
        data.draw, *files, *sorted(out.glob("scenarios/*")), *sorted(out.glob("stages/*"))
    )
    if words == RUN:  # something is left to do
        missing = one_of(data.draw, *sorted(file.name for file in out.glob("cells/*.json")))
        (out / "cells" / missing).unlink()
    _answer(judge, _spoil(data, path), words, missing)


@any_input
def test_any_archive(judge: Judge, data: st.DataObject) -> None:
    path, words = pack(judge.fresh(finished=True) / "out"), one_of(data.draw, RUN, REPORT)
    whole = path.read_bytes()
    spoiled, what = damage(data.draw, whole)
    path.write_bytes(spoiled)
    err = judge.answer(f"{words[0]} with an archive: {what}", words, dry=words == RUN)
    assert path.read_bytes() == spoiled
    if err is not None and spoiled not in (whole, whole * 2):  # twice, it has the same cells
        assert path.name in err, what


TRIAL = [0.8, 0.7, 0.75, *(2e-5 * 0.9**n for n in range(10))]
NUMBERS = ("1e300", "-1", "nan", "inf", "0", "", "x", "1e-320", "1e308", "9" * 5_000, "\x1b[31m")


@any_input
def test_any_log_of_trials(judge: Judge, data: st.DataObject) -> None:
    folder, draw = judge.fresh(finished=True), data.draw
    lines = [[f"{value * (1 + 0.01 * n):g}" for value in TRIAL] for n in range(6)]
    (folder / "b.log").write_text("".join(f"{','.join(line)}\n" for line in lines))
    if one_of(draw, True, False):
        lines[1][draw(st.integers(0, len(TRIAL) - 1))] = draw(st.sampled_from(NUMBERS) | texts)
    content, what = "".join(f"{','.join(line)}\n" for line in lines).encode("utf-8", "replace"), ""
    if one_of(draw, True, False):
        content, what = damage(draw, content)
    (folder / "a.log").write_bytes(content)
    words = ["combine", "a.log", "b.log", "--out", "mine.toml"]
    judge.answer(f"{ascii(lines[1])[:80]} {what}", words, writes=("mine.toml", "mine.png"))
    if (folder / "mine.toml").exists():
        run = ["run", "small.toml", "--methods", "mine.toml", "--model", "tiny", "--dry-run"]
        assert command(run, folder).code == 0, what
