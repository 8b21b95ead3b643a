"""The Python API: any value in the place of an argument, and any state of the caller."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from helpers.callers import STATES, states
from helpers.workspace import measured
from hypothesis import strategies as st

import clbench
from clbench.api import RunArguments
from clbench.core.errors import ClbenchError
from clbench.core.options import options_of
from clbench.search import SearchSettings
from clbench.search.plan import TuneSettings
from faults.spoil import any_input, one_of, values
from faults.verdict import Judge

KINDS = (RunArguments, SearchSettings, TuneSettings)


@any_input
def test_any_argument(judge: Judge, data: st.DataObject) -> None:
    kind = one_of(data.draw, *KINDS)
    names = data.draw(st.lists(st.sampled_from(sorted(options_of(kind))), min_size=1, unique=True))
    judge.tried += 1
    with suppress(ClbenchError):  # one line; anything else is a fault
        kind(**{name: data.draw(values) for name in names})


@pytest.mark.slow
@any_input
def test_any_state_of_the_caller(judge: Judge, data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(sorted(STATES)), min_size=1, unique=True))
    folder = judge.fresh()
    judge.tried += 1

    def scores(out: str) -> object:
        options = {"methods": "strong", "references": False, "threads": 1}
        return measured(clbench.run(folder / "small.toml", out=folder / out, **options))

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(Path(folder))
        expected = scores("alone")
        with states(*names):
            assert scores("out") == expected, names
