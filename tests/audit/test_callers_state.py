"""Audits and mixtures do not depend on the state of the process that calls clbench."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.callers import states

from clbench.audit import mend as mending
from clbench.audit.audit import audit

TASKS: dict[str, Any] = {"keep": ["synthetic/sentiment"], "learn": "synthetic/acceptability"}


def halve(model: Any) -> None:
    for value in model.base_model.encoder.layer[1].parameters():
        value.mul_(0.5)


@pytest.mark.slow
def test_audits_and_mixtures_have_a_state_of_their_own(
    copy: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, values in {"ALPHAS": (0.5, 1.0), "TRIMS": (), "GROUP_ALPHAS": ()}.items():
        monkeypatch.setattr(mending, name, values)
    tuned = copy(halve)

    def results() -> tuple[Any, Any]:
        audited = audit("tiny", [tuned], tasks=["synthetic/sentiment"], rows=60)
        mended, model = mending.mend("tiny", tuned, rows=60, **TASKS)
        assert {value.dtype for value in model.model.parameters()} == {torch.float32}
        return audited.to_json(), mended.to_json()

    expected = results()
    with states("default type", "autocast", "inference mode", "hook"):
        assert results() == expected
