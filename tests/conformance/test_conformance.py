"""Every built-in method passes; every broken one fails in its row, and only there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import broken
import pytest

from clbench.conformance import CHECKS, check
from clbench.conformance.checkpoints import checkpoint
from clbench.errors import ClbenchError, PluginError, SettingsError, UnknownNameError
from clbench.methods.base import METHODS, Method
from clbench.suite.baselines import read_baseline
from clbench.suite.packaged import baselines

BRIEF = {"examples": 4, "text_length": 12, "head_steps": 2}
"""Settings that make a preparation short, where a method has them."""
SMALL: dict[str, dict[str, Any]] = {}
"""Settings that suit stages of six steps, by baseline."""
FILES = {name: read_baseline(name) for name in baselines()}
OWN = {name for name in METHODS.names() if METHODS.where(name).startswith("clbench.")}
BUILT_IN = sorted({*FILES, *(OWN - {file.method for file in FILES.values()})})


def short(name: str) -> dict[str, Any]:
    fields = METHODS.get(FILES[name].method if name in FILES else name).settings_model()
    brief = {key: value for key, value in BRIEF.items() if key in fields.model_fields}
    return {**brief, **SMALL.get(name, {})}


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in(name: str) -> None:
    rows = check(name, settings=short(name), model=checkpoint("bert"))
    assert [row.check for row in rows] == list(CHECKS)
    assert [(row.check, row.reason) for row in rows if row.status != "pass"] == []
    numbers = rows[-1].numbers
    assert numbers["held_bytes"] >= 0
    assert numbers["step_ratio"] > 0


BROKEN = {
    broken.Undescribed: "registers",
    broken.Untyped: "settings",
    broken.Swallows: "settings",
    broken.OtherError: "settings",
    broken.Raises: "trains",
    broken.Unseeded: "repeats",
    broken.Forgetful: "resumes",
    broken.Unstorable: "resumes",
    broken.AlwaysZero: "acts",
    broken.Modest: "acts",
    broken.KeepsData: "rows",
    broken.KeepsReference: "rows",
    broken.KeepsTokens: "rows",
    broken.KeepsFloats: "rows",
    broken.KeepsInClosure: "rows",
    broken.KeepsInModule: "rows",
    broken.KeepsInFile: "resumes",
    broken.KeepsModel: "frees",
    broken.KeepsTensors: "frees",
    broken.Grows: "frees",
    broken.GrowsSlowly: "frees",
    broken.BertOnly: "architectures",
}


@pytest.mark.parametrize("kind", BROKEN, ids=lambda kind: kind.__name__)
def test_broken(kind: type[Method]) -> None:
    models = ("gpt2",) if kind is broken.BertOnly else ("bert",)
    rows = check(kind, model=checkpoint("bert"), architectures=models)
    failed = [row for row in rows if row.status == "fail"]
    assert [row.check for row in failed] == [BROKEN[kind]], [row.reason for row in failed]
    assert failed[0].reason
    assert failed[0].hint


def test_broken_methods_cover_every_check_that_can_fail() -> None:
    assert {*BROKEN.values(), "cost"} == set(CHECKS)


def test_a_method_that_is_right_passes() -> None:
    assert all(
        row.status == "pass"
        for row in check(broken._Pull, model=checkpoint("bert"), architectures=())
    )


def test_hooks_that_are_never_called_are_told() -> None:
    rows = check(broken.Idle, model=checkpoint("bert"), architectures=())
    told = next(row.reason for row in rows if row.check == "acts")
    assert told.endswith("with these settings never called: before_stage, penalty")


def test_a_claim_of_rows_is_shown() -> None:
    class Declared(broken.KeepsReference):
        """Says so."""

        keeps_rows = True

    rows = {row.check: row for row in check(Declared, model=checkpoint("bert"), architectures=())}
    assert rows["rows"].status == "pass"
    assert "declares it" in rows["rows"].reason


def test_architectures_are_named() -> None:
    rows = {row.check: row for row in check(broken.BertOnly, model=checkpoint("bert"))}
    reason = rows["architectures"].reason
    assert "distilbert: AttributeError" in reason
    assert "gpt2: AttributeError" in reason
    assert "albert" in reason
    assert "roberta" not in reason


def test_costs_are_what_they_must_be() -> None:
    """A copy of the backbone is held, and vanilla costs nothing beyond itself."""
    plain = check("vanilla", model=checkpoint("bert"), architectures=())[-1].numbers
    assert (plain["held_bytes"], plain["peak_bytes"]) == (0, 0)
    pull = check(broken._Pull, model=checkpoint("bert"), architectures=())[-1].numbers
    assert 0.9 < pull["held_models"] < 1.0
    assert pull["peak_models"] >= pull["held_models"]


@pytest.mark.parametrize(
    ("method", "settings", "kind"),
    [
        ("vanlla", None, UnknownNameError),
        ("vanilla", {"lr": "x"}, SettingsError),
        ("no.such:Thing", None, ClbenchError),
        (dict, None, PluginError),
    ],
)
def test_wrong_use_raises(method: Any, settings: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        check(method, settings=settings)


def test_the_cache_of_the_user_is_left_alone(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("CLBENCH_CACHE", str(tmp_path))
    check("vanilla", model=checkpoint("bert"), architectures=())
    assert not list(tmp_path.iterdir())
