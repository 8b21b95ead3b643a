from __future__ import annotations

from pathlib import Path

import pytest
from helpers.commands import Call
from matplotlib.image import imread

from clbench.methods.base import METHODS
from clbench.search.trials import EpochRecord, SearchFolder, TrialRecord
from clbench.suite.baselines import read_baseline


def log(path: Path, *trials: tuple[float, float]) -> Path:
    """A log whose trials have a score and one rate for all groups."""
    path.write_text(
        ",".join(f"0.9,{p / 2},{p / 2}," + ",".join([repr(rate)] * 10) for p, rate in trials)
    )
    return path


def test_combined_file_is_a_baseline_for_run(
    tmp_path: Path, clbench: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    log(Path("a.txt"), (1.5, 8e-5), (1.6, 1e-5))
    log(Path("b.txt"), (1.1, 8e-5))
    code, out, _ = clbench("combine", "a.txt", "b.txt", "--out", "mine.toml", "--b", "2")
    assert code == 0
    assert "layers 0, 1" in out
    assert "4e-05" in out
    baseline = read_baseline("mine.toml")
    method = METHODS.get(baseline.method)(**baseline.settings)
    assert method.settings()["multiples"] == pytest.approx([2.0] * 10)  # 4e-5 over 2e-5
    assert method.settings()["depth"] == 12
    assert set(baseline.sources) == set(baseline.settings)
    assert "a (2 trials), b (1 trial)" in baseline.sources["multiples"]
    picture = imread("mine.png")
    assert picture.shape[0] > 300
    assert picture[..., :3].std() > 0.01
    code, out, _ = clbench("run", "quick", "--methods", "mine.toml", "--dry-run")
    assert code == 0
    assert "sentiment-acceptability--mine--seed0" in out


def test_existing_file_is_overwritten_only_with_replace(
    tmp_path: Path, clbench: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    log(Path("a.txt"), (1.5, 8e-5))
    Path("mine.toml").write_text("precious")
    code, _, err = clbench("combine", "a.txt", "--out", "mine.toml")
    assert code == 2
    assert err == "error: mine.toml already exists. Choose another --out, or give --replace.\n"
    assert Path("mine.toml").read_text() == "precious"
    assert clbench("combine", "a.txt", "--out", "mine.toml", "--replace")[0] == 0
    assert Path("mine.toml").read_text() != "precious"


def test_unwritable_path_leaves_no_file(
    tmp_path: Path, clbench: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    log(Path("a.txt"), (1.5, 8e-5))
    Path("m.png").mkdir()
    Path("file").touch()
    for out, text in (("m.toml", "m.png already exists"), ("file/m.toml", "cannot be written")):
        code, _, err = clbench("combine", "a.txt", "--out", out, "--replace")
        assert (code, err.count("\n")) == (2, 1)
        assert text in err
    assert not Path("m.toml").exists()


def test_search_and_log_are_combined_with_their_sources(
    tmp_path: Path, clbench: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    log(Path("a.txt"), (1.5, 8e-5))
    folder = SearchFolder(Path("search"))
    facts = {"scenario": "x-y", "split": "validation (the paper's choice)"}
    space = {"flat": 1e-4, "depth": 12, "division": "code"}
    recipe = {"search": space, "seed": 7, "protocol": {"score_on": "validation"}}
    folder.begin(recipe, facts)
    epoch = EpochRecord(stage=1, epoch=1, scores=[0.5, 0.5], reward=1.0, seconds=7.0)
    for number, status in ((1, "complete"), (2, "running")):
        scores = {"p_o": 0.5, "p_s": 0.5} if status == "complete" else {}
        folder.write(
            TrialRecord(
                number=number,
                rates=[2e-5] * 10,
                status=status,
                epochs=[epoch],
                seconds=7.0,
                **scores,
            )
        )
    assert clbench("combine", "a.txt", "search", "--out", "m.toml")[0] == 0
    baseline = read_baseline("m.toml")
    assert baseline.settings["multiples"] == pytest.approx([0.4] * 10)  # 4e-5 over the search's
    assert baseline.cost is not None
    assert (baseline.cost.trials, baseline.cost.seconds) == (2, 14.0)
    assert (baseline.cost.seeds, baseline.cost.on_reported_rows) == ((7,), True)
    source = baseline.sources["multiples"]
    assert "a (1 trial), x-y (1 trial, on validation (the paper's choice))" in source
    assert "the cost does not include the logs'" in source
    code, _, err = clbench("combine", "a.txt", "search", "--out", "n.toml", "--depth", "6")
    assert code == 2
    assert "search was run with depth = 12, now 6. Combine searches on one model" in err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["a.txt", "a.txt", "--out", "m.toml"], "may be given only once"),
        (["none.txt", "--out", "m.toml"], "none.txt"),
        (["a.txt", "--out", "m.json"], "must end in .toml"),
        (
            ["a.txt", "--out", "m.toml", "--b", "0.5"],
            "b is 0.5: must be a finite number, 1 or more.",
        ),
        (["a.txt", "--out", "m.toml", "--flat", "0"], "--flat 0: must be between 1e-09 and 1."),
        (["a.txt", "--out", "m.toml", "--flat", "1e-300"], "--flat 1e-300: must be between 1e-09"),
        (["a.txt", "--out", "m.toml", "--division", "odd"], "--division 'odd' is unknown"),
        (["a.txt", "--out", "m.toml", "--division", ""], "--division '' is unknown"),
        (["a.txt", "--out", "m.toml", "--depth", "9" * 20], "--depth 9999999"),
        (["a.txt", "--out", "m.toml", "--b", "inf"], "b is inf: must be a finite number"),
    ],
)
def test_wrong_input_is_one_line(
    tmp_path: Path, clbench: Call, monkeypatch: pytest.MonkeyPatch, arguments: list[str], text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    log(Path("a.txt"), (1.5, 8e-5))
    code, _, err = clbench("combine", *arguments)
    assert code == 2
    assert text in err
    assert err.count("\n") == 1
    assert not Path("m.toml").exists()
