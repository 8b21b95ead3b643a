"""A session of checks of one method: the checks by name, their rows, and the runs they share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from clbench.conformance.check_run import Candidate, CheckRun, run_candidate
from clbench.conformance.toy_scenario import (
    GENERATORS,
    ToyScenario,
    checkpoint,
    make_toy_scenario,
    temporary_cache,
)
from clbench.core.errors import SettingsError
from clbench.core.user_code import explain


@dataclass(frozen=True)
class Row:
    """The result of one check: the finding, how to mend a failure, and measured numbers.

    The status ``skip`` means that an earlier failure prevents the check.
    """

    check: str
    status: Literal["pass", "fail", "skip"]
    reason: str
    hint: str = ""
    numbers: Mapping[str, Any] = field(default_factory=dict)


class FailedCheckError(Exception):
    """The reason why a check failed."""


class Session:
    """A candidate under check, with the runs that several checks share."""

    def __init__(
        self, candidate: Candidate, model: str, folder: Path, architectures: Sequence[str]
    ) -> None:
        self.candidate, self.folder, self.architectures = candidate, folder, architectures
        head = candidate.method.head_kinds[0]
        if head != "classification":
            model = checkpoint(GENERATORS[0], writes=True)
        self.toy = make_toy_scenario(model, folder, head=head)
        self.rows: dict[str, Row] = {}
        self.numbers: dict[str, float] = {}

    @cached_property
    def first(self) -> CheckRun:
        """A plain run of the candidate."""
        _ = self.vanilla  # trains first: what its imports change is not the candidate's doing
        return run_candidate(self.toy, self.candidate)

    @cached_property
    def second(self) -> CheckRun:
        """A second run, with live bytes counted."""
        return run_candidate(self.toy, self.candidate, count_bytes=True)

    @property
    def vanilla(self) -> CheckRun:
        """A run of vanilla at the candidate's flat rate, with live bytes counted."""
        return self.vanilla_on(self.toy)

    def vanilla_on(self, toy: ToyScenario) -> CheckRun:
        """Return a run of vanilla at the candidate's flat rate on a scenario's model."""
        method, p = self.candidate.make(), toy.protocol
        return _vanilla(p.model, p.head, p.lr, p.epochs, method.lr, method.lr_multiple)

    def run(self, name: str) -> None:
        """Run a check, or skip it if the one that it needs did not pass."""
        check = CHECKS[name]
        before = self.rows.get(check.needs)
        if before is not None and before.status != "pass":
            reason = f"not checked, because {before.check} failed"
            self.rows[name] = Row(
                name, "skip", before.reason if before.status == "skip" else reason
            )
            return
        self.numbers = {}
        try:
            self.rows[name] = Row(name, "pass", check.run(self), numbers=self.numbers)
        except FailedCheckError as error:
            self.rows[name] = Row(name, "fail", str(error), check.hint)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            hint = "Correct what the message says; `clbench run` would stop there too."
            if isinstance(error, SettingsError):
                hint = "Give settings that suit tasks of a few steps, with --set KEY=VALUE."
            self.rows[name] = Row(name, "fail", explain(error), hint)


@cache
def _vanilla(
    model: str, head: str, rate: float, epochs: int, lr: float | None, lr_multiple: float
) -> CheckRun:
    settings = {"lr": lr, "lr_multiple": lr_multiple}
    with temporary_cache() as folder:
        toy = make_toy_scenario(model, folder, head=head, lr=rate, epochs=epochs)
        return run_candidate(toy, Candidate.of("vanilla", settings), count_bytes=True)


class Check(NamedTuple):
    """A check, the name of the one that must pass before it, and what to do if it fails."""

    run: Callable[[Session], str]
    needs: str
    hint: str


CHECKS: dict[str, Check] = {}
"""The checks by name, in the order of their rows."""


def conformance_check(*, needs: str = "", hint: str = "") -> Callable[..., Any]:
    """Return a decorator that adds a check to `CHECKS`."""

    def add(run: Callable[[Session], str]) -> Callable[[Session], str]:
        CHECKS[run.__name__] = Check(run, needs, hint)
        return run

    return add
