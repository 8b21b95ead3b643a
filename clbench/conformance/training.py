"""Checks that train: on the tiny tasks, with every hook called as in a run."""

from __future__ import annotations

from dataclasses import replace

from clbench.conformance.candidate import Candidate
from clbench.conformance.check_run import CheckRun, differing, travel
from clbench.conformance.corrupt_rows import Poison, overwrite
from clbench.conformance.result import FailedCheckError
from clbench.conformance.toy_scenario import ToyScenario
from clbench.evaluation.run_cell import explain
from clbench.methods.base import Method


def repeats(first: CheckRun, second: CheckRun) -> str:
    """Two runs with one seed agree in every bit."""
    names = differing(first.final, second.final)
    if names:
        raise FailedCheckError(
            f"two runs with one seed differ in {_some(names)}.",
            "Take randomness from stage.rng(name) or stage.random_seed(name) only; keep no "
            "counter in the class or module.",
        )
    return "two runs with one seed agree in every bit"


def resumes(world: ToyScenario, subject: Candidate, whole: CheckRun) -> str:
    """A cell that was stopped between stages ends as if it had not been.

    In between the method goes through other rows, so that whatever it keeps in a class, a
    module or a file is not that of the cell that goes on.
    """
    if whole.refused:
        raise FailedCheckError(
            whole.refused[0],
            "State may hold tensors, arrays, numbers, texts, and lists and dictionaries of them.",
        )
    elsewhere = world.fresh_rows()
    for data in elsewhere.train:
        overwrite(data.rows.ids)
        overwrite(data.rows.labels)
    travel(replace(world, folder=world.folder / "elsewhere"), subject, scene=elsewhere)
    for number, digest in enumerate(whole.saved):
        try:
            later = travel(world, subject, resume=digest)
        except Exception as fault:
            raise FailedCheckError(
                f"going on after stage {number} raises {explain(fault)}",
                "On continuing, setup(), load_state() and after_stage() of the last stage are "
                "called, and what they need must have been saved: in attributes without a leading "
                "underscore, or by state().",
            ) from fault
        if later.taken != 1:
            raise FailedCheckError(
                f"the state after stage {number} cannot be read back.",
                "Let state() return what load_state() can take.",
            )
        names = differing(whole.final, later.final)
        if names:
            raise FailedCheckError(
                f"stopped after stage {number} and continued, it differs in {_some(names)}.",
                "What must survive a stage belongs to attributes without a leading underscore, "
                "or into state() and load_state(); not to the class, the module or a file.",
            )
    return f"stopped after each of {len(whole.saved)} stages and continued: the same in every bit"


_ALWAYS_CALLED = {"acts_in", "setup", "after_stage", "scoring", "state", "load_state"}
_NEEDS_ACTS_IN = [
    name
    for name, member in vars(Method).items()
    if callable(member) and not name.startswith("_") and name not in _ALWAYS_CALLED
]
"""Hooks that the engine calls only in stages for which acts_in says yes."""


def acts(subject: Candidate, first: CheckRun, vanilla: CheckRun) -> str:
    """The method does something where it says so."""
    claimed = [stage for stage, says in enumerate(first.acts) if says]
    changed = [
        stage for stage in first.weights if differing(first.weights[stage], vanilla.weights[stage])
    ]
    same = not differing(first.final, vanilla.final)
    if claimed and same:
        raise FailedCheckError(
            f"acts_in claims {_stages(claimed)}, but the weights are vanilla's in every bit: "
            "what it adds is zero.",
            "Look at the penalty's strength, at its anchor (taken after the change?) and at "
            "which weights it covers. A method that does nothing more in a stage lets acts_in "
            "return False for it.",
        )
    if not claimed and same:
        idle = [
            hook
            for hook in _NEEDS_ACTS_IN
            if getattr(subject.kind, hook) is not getattr(Method, hook)
        ]
        never = f"; with these settings never called: {', '.join(idle)}" if idle else ""
        return f"trains as vanilla in every stage, and says so{never}"
    if not claimed:
        raise FailedCheckError(
            "acts_in says no for every stage, but weights or outputs are not vanilla's.",
            "Let acts_in return True for the stages that the method trains in its own way.",
        )
    if not changed:
        return "weights as vanilla's; only the outputs when scoring differ"
    text = f"differs from vanilla from stage {changed[0]} on"
    quiet = [stage for stage in claimed if stage < changed[0]]
    return f"{text}; {_stages(quiet)} only watched" if quiet else text


def rows(world: ToyScenario, subject: Candidate, first: CheckRun) -> str:
    """No row of an earlier task is read, unless the method declares it.

    Replaced rows must change nothing: see `Poison`. What was computed of rows, such as mean
    features, is no row and is not found.
    """
    if subject.kind.keeps_rows:
        return "keeps rows of earlier tasks and declares it; results mark it"
    scene = world.fresh_rows()
    poison = Poison(scene.train)
    try:
        later = travel(world, subject, scene=replace(scene, train=poison.train), between=poison)
    except Exception as fault:
        raise FailedCheckError(
            f"with replaced rows of earlier tasks: {explain(fault)}", _ROWS
        ) from fault
    names = differing(first.final, later.final)
    if names:
        raise FailedCheckError(
            f"other rows of finished tasks lead to other weights ({_some(names)}), and "
            "keeps_rows is not declared.",
            _ROWS,
        )
    return "other rows of finished tasks change nothing"


_ROWS = (
    "Declare keeps_rows: ClassVar[bool] = True and take the rows from stage.earlier(task), or "
    "keep no rows, batches or token numbers of a stage beyond after_stage."
)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{names[0]}{more}"


def _stages(numbers: list[int]) -> str:
    word = "stage" if len(numbers) == 1 else "stages"
    return f"{word} {', '.join(str(number) for number in numbers)}"
