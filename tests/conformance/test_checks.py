"""Every built-in method passes; every broken one fails in its row, and only there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import broken_methods as broken

from clbench.conformance import CHECKS, Row, check
from clbench.conformance.sessions import Candidate, FailedCheckError, Session, _vanilla
from clbench.core.errors import ClbenchError, SettingsError, UnknownNameError
from clbench.methods.base import METHODS, Method
from clbench.suite.baselines import read_baseline
from clbench.suite.read import packaged_files
from clbench.training.stage import Stage

SHORT = {"examples": 4, "text_length": 12, "head_steps": 2}
"""Settings that shorten a preparation, for methods that have them."""
FILES = {name: read_baseline(name) for name in packaged_files("baselines")}
OURS = {name for name in METHODS.names() if METHODS.where(name).startswith("clbench.")}
BUILT_IN = sorted({*FILES, *(OURS - {file.method for file in FILES.values()})})
FAST = {"packnet"}
"""Methods that fast test runs check too."""


def short_settings(name: str) -> dict[str, Any]:
    fields = METHODS.get(FILES[name].method if name in FILES else name).settings_model()
    return {key: value for key, value in SHORT.items() if key in fields.model_fields}


def failures(rows: list[Row]) -> dict[str, str]:
    return {row.check: row.reason for row in rows if row.status != "pass"}


@pytest.mark.parametrize(
    "name",
    [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in BUILT_IN],
)
def test_built_in_method_passes_every_check(name: str, bert: str) -> None:
    architectures: dict[str, Any] = {"architectures": ("gpt2",)} if name in FAST else {}
    rows = check(name, settings=short_settings(name), model=bert, **architectures)
    assert [row.check for row in rows] == list(CHECKS)
    assert failures(rows) == {}
    numbers = rows[-1].numbers
    assert numbers["held_bytes"] >= 0
    assert numbers["step_ratio"] > 0


def test_vanilla_trains_first_so_that_its_imports_do_not_count(
    monkeypatch: pytest.MonkeyPatch, bert: str, tmp_path: Path
) -> None:
    order: list[str] = []
    monkeypatch.setattr(
        "clbench.conformance.sessions.run_candidate",
        lambda toy, candidate, **_: order.append(candidate.baseline.name),
    )
    monkeypatch.setattr("clbench.conformance.sessions._vanilla", _vanilla.__wrapped__)
    _ = Session(Candidate.of("frozen"), bert, tmp_path, ()).first
    assert order == ["vanilla", "frozen"]


BROKEN = {
    broken.Undescribed: "registers",
    broken.Untyped: "settings",
    broken.Swallows: "settings",
    broken.OtherError: "settings",
    broken.Raises: "trains",
    broken.Unseeded: "repeats",
    broken.ChangesDefaults: "frees",
    broken.Forgetful: "resumes",
    broken.Unstorable: "resumes",
    broken.AlwaysZero: "acts",
    broken.Modest: "acts",
    broken.TrainsSecretly: "acts",
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
    broken.NeedsHead: "decoders",
}
FIRST = list({check: kind for kind, check in reversed(BROKEN.items())}.values())
"""One broken method for each check."""


@pytest.fixture
def session(bert: str, tmp_path: Path) -> Callable[[type[Method]], Session]:
    """Make a session for a method."""
    return lambda kind: Session(Candidate.of(kind), bert, tmp_path, ("gpt2",))


@pytest.mark.parametrize("kind", FIRST, ids=lambda kind: kind.__name__)
def test_broken_method_fails_its_check(kind: type[Method], session: Any) -> None:
    name = BROKEN[kind]
    with pytest.raises(KeyError if name == "trains" else FailedCheckError):
        CHECKS[name].run(session(kind))


@pytest.mark.slow
@pytest.mark.parametrize("kind", BROKEN, ids=lambda kind: kind.__name__)
def test_broken_method_fails_no_other_check(kind: type[Method], bert: str) -> None:
    architectures = ("gpt2",) if kind is broken.BertOnly else ()
    rows = check(kind, model=bert, architectures=architectures)
    (row,) = [row for row in rows if row.status == "fail"]
    assert row.check == BROKEN[kind], row.reason
    assert row.reason
    assert row.hint


@pytest.mark.parametrize(
    "hook",
    ["setup", "before_stage", "training_data", "phases", "before_phase", "parameter_groups",
     "optimizer", "schedule", "before_step", "after_stage"],  # others: seeded at every step
)  # fmt: skip
def test_random_numbers_of_torch_itself_are_found(hook: str, session: Any) -> None:
    with pytest.raises(FailedCheckError, match="two runs with one seed differ"):
        CHECKS["repeats"].run(session(broken.draws_in(hook)))


def test_failure_skips_the_checks_that_need_it(bert: str) -> None:
    rows = {row.check: row for row in check(broken.Raises, model=bert, architectures=())}
    assert [name for name, row in rows.items() if row.status == "pass"] == ["registers", "settings"]
    assert rows["trains"].status == "fail"
    assert "KeyError: 'no_such_thing' (broken_methods.py" in rows["trains"].reason
    assert rows["repeats"].reason == rows["rows"].reason == "not checked, because trains failed"


def test_every_check_that_can_fail_has_a_broken_method() -> None:
    assert {*BROKEN.values(), "cost"} == set(CHECKS)


@pytest.mark.slow
def test_correct_method_passes_and_its_cost_is_exact(bert: str, session: Any) -> None:
    """The method holds a copy of the backbone; vanilla costs nothing beyond itself."""
    rows = check(broken._Pull, model=bert, architectures=())
    assert failures(rows) == {}
    numbers = rows[-1].numbers
    assert 0.9 < numbers["held_models"] < 1.0
    assert numbers["peak_models"] >= numbers["held_models"]
    vanilla = session("vanilla")
    vanilla.rows["resumes"] = Row("resumes", "fail", "")
    CHECKS["cost"].run(vanilla)
    assert (vanilla.numbers["held_bytes"], vanilla.numbers["peak_bytes"]) == (0, 0)


def test_hooks_that_are_never_called_are_named(session: Any) -> None:
    reason = CHECKS["acts"].run(session(broken.Idle))
    assert reason.endswith("never called: before_stage, penalty")


def test_weights_that_change_after_the_last_stage_only_are_named(session: Any) -> None:
    class HalvesAtEnd(Method):
        def after_stage(self, stage: Stage) -> None:
            for weight in stage.trainable() if stage.index == stage.stages - 1 else ():
                weight.data.mul_(0.5)

    reason = CHECKS["acts"].run(session(HalvesAtEnd))
    assert reason == "trains as vanilla; differs after the last consolidation"


@pytest.mark.parametrize(("name", "rate"), [("frozen", "; lr = 0.001 "), ("vanilla", "")])
def test_a_rate_that_is_not_the_suites_is_named(name: str, rate: str, session: Any) -> None:
    text = CHECKS["settings"].run(session(name))
    assert (f"{rate}whatever the suite's" in text) == bool(rate)


def test_declared_rows_may_be_kept(session: Any) -> None:
    class Declared(broken.KeepsReference):
        """Declares that it keeps rows."""

        keeps_rows = True

    assert "declares it" in CHECKS["rows"].run(session(Declared))


@pytest.mark.slow
def test_failing_architectures_are_named(bert: str) -> None:
    rows = {row.check: row for row in check(broken.BertOnly, model=bert)}
    reason = rows["architectures"].reason
    assert "distilbert: AttributeError" in reason
    assert "gpt2: AttributeError" in reason
    assert "albert" in reason
    assert "roberta" not in reason


@pytest.mark.parametrize(
    ("method", "settings", "kind"),
    [
        ("vanlla", None, UnknownNameError),
        ("vanilla", {"lr": "x"}, SettingsError),
        ("no.such:Thing", None, ClbenchError),
        (dict, None, SettingsError),
    ],
)
def test_wrong_arguments_raise(method: Any, settings: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        check(method, settings=settings)


def test_check_does_not_touch_the_users_cache(tmp_path: Path, monkeypatch: Any, bert: str) -> None:
    monkeypatch.setenv("CLBENCH_CACHE", str(tmp_path))
    check(broken.Raises, model=bert, architectures=())
    assert not list(tmp_path.iterdir())
