from __future__ import annotations

import pytest

from clbench.errors import SettingsError
from clbench.evaluation.resources import Resources, cores


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"workers": 0}, "--workers 0: must be 1 or more."),
        ({"threads": -1}, "--threads -1: must be 1 or more."),
        ({"workers": 2, "gpus": 1.5}, "--gpus 1.5: must be a fraction"),
        ({"workers": 2, "gpus": 0.0}, "--gpus 0: must be a fraction"),
        ({"workers": 2, "gpus": float("nan")}, "--gpus nan: must be a fraction"),
        ({"gpus": 0.5}, "Give --workers or --address as well."),
        ({"address": " "}, "--address: is empty."),
    ],
)
def test_what_makes_no_sense_is_refused(given: dict[str, object], text: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Resources(**given)  # type: ignore[arg-type]
    assert text in str(caught.value)


def test_one_process_is_the_default_and_a_cluster_is_not() -> None:
    assert Resources().alone
    assert Resources(workers=1).alone
    assert Resources(threads=3).alone
    assert not Resources(workers=2).alone
    assert not Resources(workers=1, address="auto").alone


def test_workers_share_the_cores() -> None:
    assert Resources(workers=2).threads_here == max(1, cores() // 2)
    assert Resources(workers=10_000).threads_here == 1
    assert Resources(workers=2, threads=3).threads_here == 3
