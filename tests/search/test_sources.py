from __future__ import annotations

from pathlib import Path

import pytest

from clbench.core.errors import DataError
from clbench.search import read_log
from clbench.search.sources import TrialSource, common_origin, read_source
from clbench.search.space import SearchOrigin

RATES = [1e-7 * 2**n for n in range(10)]
ONE = [0.91, 0.86, 0.9, *RATES]


def line(*trials: list[float], end: str = "") -> str:
    return ",".join(repr(number) for trial in trials for number in trial) + end


@pytest.mark.parametrize("end", ["", ",\n", " , \n\n"])
def test_log_holds_scores_and_rates_of_each_trial(tmp_path: Path, end: str) -> None:
    path = tmp_path / "sst2-mrpc.txt"
    path.write_text(line(ONE, [0.5, 0.6, 0.7, *RATES[::-1]], end=end))
    first, second = read_log(path)
    assert (first.p_o_before, first.p_s, first.p_o) == (0.91, 0.86, 0.9)
    assert first.p == pytest.approx(1.76)
    assert first.rates == tuple(RATES)
    assert second.rates == tuple(RATES[::-1])
    assert read_source(path).name == "sst2-mrpc"


def test_trials_may_be_on_separate_lines(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(line(ONE) + "\n" + line(ONE, ONE, end=",") + "\n")
    assert len(read_log(path)) == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n\n", "is empty. A trial log has 13 numbers for each trial."),
        (line(ONE, ONE[:4]), "line 1: has 17 numbers, which is not a multiple of 13"),
        (line(ONE).replace("0.86", "good"), "line 1, trial 1: could not convert"),
        (line(ONE, ONE).replace("0.9,", ",", 1), "line 1, trial 1: could not convert"),
        (
            line(ONE) + "," + line([0.9, 0.8, 0.7, *RATES[:-1], float("nan")]),
            "trial 2: rate 10 is nan: must be above 0, and at most 1.",
        ),
        (line([91.0, 86.0, 90.0, *RATES]), "p_o_before is 91: must be a fraction"),
    ],
)
def test_error_in_log_names_line_and_trial(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "log.txt"
    path.write_text(text)
    with pytest.raises(DataError) as caught:
        read_log(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def test_unreadable_log_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read as a trial log: No such file"):
        read_log(tmp_path / "nowhere.txt")
    (tmp_path / "binary").write_bytes(b"0.9,\xff\xfe")
    with pytest.raises(DataError, match="it is not a text file"):
        read_log(tmp_path / "binary")
    with pytest.raises(DataError, match="holds no search"):
        read_source(tmp_path)


def searched(name: str, origin: SearchOrigin | None) -> TrialSource:
    return TrialSource(Path(name), (), name, origin=origin)


def test_logs_take_origin_of_searches_or_user() -> None:
    log, search = searched("log", None), searched("a", SearchOrigin(1e-4, 6, "paper"))
    assert common_origin([log]) == SearchOrigin(2e-5, 12, "code")
    assert common_origin([log], depth=4) == SearchOrigin(2e-5, 4, "code")
    assert common_origin([log, search]) == SearchOrigin(1e-4, 6, "paper")
    assert common_origin([search], flat=1e-3) == SearchOrigin(1e-3, 6, "paper")


@pytest.mark.parametrize(
    ("other", "options", "text"),
    [
        (SearchOrigin(2e-5, 6), {}, "b was searched with depth 6, not 12. Combine searches on"),
        (SearchOrigin(1e-4, 12), {}, "b was searched with flat 0.0001, not 2e-05. Give --flat"),
        (SearchOrigin(), {"depth": 6}, "a was searched with depth 12, not 6"),
    ],
)
def test_different_searches_cannot_be_combined(
    other: SearchOrigin, options: dict[str, int], text: str
) -> None:
    with pytest.raises(DataError, match=text):
        common_origin([searched("a", SearchOrigin()), searched("b", other)], **options)  # type: ignore[arg-type]
