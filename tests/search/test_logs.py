from __future__ import annotations

from pathlib import Path

import pytest

from clbench.errors import DataError
from clbench.search import read_log

RATES = [1e-7 * 2**n for n in range(10)]
ONE = [0.91, 0.86, 0.9, *RATES]


def line(*trials: list[float], end: str = "") -> str:
    return ",".join(repr(number) for trial in trials for number in trial) + end


@pytest.mark.parametrize("end", ["", ",", ",\n", "\n", " , \n\n"])
def test_a_log_of_two_trials(tmp_path: Path, end: str) -> None:
    path = tmp_path / "sst2-mrpc.txt"
    path.write_text(line(ONE, [0.5, 0.6, 0.7, *RATES[::-1]], end=end))
    first, second = read_log(path)
    assert (first.p_o_before, first.p_s, first.p_o) == (0.91, 0.86, 0.9)
    assert first.p == pytest.approx(1.76)
    assert first.rates == tuple(RATES)
    assert second.rates == tuple(RATES[::-1])


def test_trials_may_stand_on_lines_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(line(ONE) + "\n" + line(ONE, ONE, end=",") + "\n")
    assert len(read_log(path)) == 3


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is empty. A log has 13 numbers a trial."),
        ("\n\n", "is empty"),
        (line(ONE, ONE[:4]), "line 1: 17 numbers are 1 times 13 and 4 more, from column"),
        (
            line(ONE).replace("0.86", "good"),
            "line 1, column 6: the score on D_s of trial 1 must be a number, got 'good'.",
        ),
        (
            line(ONE, ONE).replace("0.9,", ",", 1),
            "line 1, column 11: the score on D_o after it of "
            "trial 1 must be a number, got nothing.",
        ),
        (
            line(ONE) + "," + line([0.9, 0.8, 0.7, *RATES[:-1], float("nan")]),
            "rate 10 of trial 2 must be a number, got 'nan'.",
        ),
        (line(ONE, [0.9, 0.8, 0.7, 0.0, *RATES[1:]]), "trial 2, which begins at column"),
        (line(ONE, [0.9, 0.8, 0.7, 0.0, *RATES[1:]]), "rate 1 is 0: must be above 0."),
        (line([91.0, 86.0, 90.0, *RATES]), "p_o_before is 91: must be a fraction"),
    ],
)
def test_what_is_wrong_has_its_place(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "log.txt"
    path.write_text(text)
    with pytest.raises(DataError) as caught:
        read_log(path)
    assert told in str(caught.value)
    assert str(path) in str(caught.value)


def test_files_that_are_no_log(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is a folder"):
        read_log(tmp_path)
    with pytest.raises(DataError, match="nowhere"):
        read_log(tmp_path / "nowhere.txt")
    (tmp_path / "binary").write_bytes(b"0.9,\xff\xfe")
    with pytest.raises(DataError, match="byte 5 is no text"):
        read_log(tmp_path / "binary")
