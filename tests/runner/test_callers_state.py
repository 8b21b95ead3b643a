"""Scores do not depend on the state of the process that calls clbench."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.callers import STATES, states
from helpers.workspace import Workspace, measured

from clbench.core.errors import SettingsError
from clbench.core.user_code import own_state


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "names"), [("float32", [*STATES]), ("bf16", ["autocast"])])
def test_cells_run_in_a_state_of_their_own(
    world: Workspace, precision: str, names: list[str]
) -> None:
    options: dict[str, Any] = {"epochs": 1, "limit": 32, "precision": precision}
    expected = measured(world.run("alone", **options))
    for number, name in enumerate(names):
        with states(name):
            assert measured(world.run(f"out{number}", **options)) == expected, name


def test_a_state_that_cannot_be_changed_is_refused() -> None:
    products: Any = torch.backends.cuda.matmul
    before = getattr(products, "fp32_precision", None)
    if before is None:
        pytest.skip("this version of torch has no such setting")
    products.fp32_precision = "tf32"
    try:
        with pytest.raises(SettingsError, match="products: clbench needs its own"), own_state():
            pass
    finally:
        products.fp32_precision = before
