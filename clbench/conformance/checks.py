"""The checks of a method, in order; each gives one row."""

import inspect
import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from clbench.conformance import toys
from clbench.conformance.sessions import (
    CHECKS,
    Candidate,
    CheckRun,
    FailedCheckError,
    Row,
    Session,
    conformance_check,
    differences,
    run_candidate,
)
from clbench.core.errors import ClbenchError, SettingsError, count, explain
from clbench.core.options import checks_arguments
from clbench.core.user_code import own_state
from clbench.methods.base import METHODS, Method
from clbench.suite.baselines import Baseline
from clbench.suite.plugins import load_plugins

MAX_ADDED, MAX_GROWTH, MAX_REST = 4.0, 0.05, 0.5
"""Largest memory, in copies of the model, that a method may add to its attributes in a stage and
in the second half of a stage, and leave after a run."""
WRONG: tuple[Any, ...] = ({"no such": {"value": "here"}}, "no such value", [["no", "such"]], -1e99)
"""Values of which any sensible setting refuses at least one."""

ENGINE_HOOKS = (
    *("before_stage", "training_data", "phases", "before_phase", "parameter_groups", "optimizer"),
    *("schedule", "before_step", "loss", "penalty", "edit_gradients", "after_step"),
)
"""Hooks that are called only in stages for which `acts_in` returns True."""


def _run(reason: str, toy: toys.ToyScenario, candidate: Candidate, **options: Any) -> CheckRun:
    """Train a candidate as `run_candidate` does; fail with the `reason` if that raises."""
    try:
        return run_candidate(toy, candidate, **options)
    except Exception as error:
        raise FailedCheckError(f"{reason} raises {explain(error)}") from error


def _require_equal(first: CheckRun, second: CheckRun, reason: str) -> None:
    if names := differences(first.final, second.final):
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        raise FailedCheckError(f"{reason} in {names[0]}{more}.")


@conformance_check(hint="Write a docstring; its first line describes the method in lists.")
def registers(session: Session) -> str:
    """The method has a name and a description."""
    method = session.candidate.method
    text = inspect.getdoc(method)
    if not text or text in {inspect.getdoc(base) for base in method.__mro__[1:]}:
        raise FailedCheckError("the class has no docstring.")
    name = session.candidate.baseline.method
    if name not in METHODS or METHODS.get(name) is not method:
        return "an unregistered class; suites need it registered by @clbench.method('name')"
    return f"{METHODS.where(name)}: {text.splitlines()[0]}"


@conformance_check(
    hint="Annotate settings with a type and bounds, as in Annotated[float, pydantic.Field(gt=0)], "
    "pass all to super().__init__(**settings) first, and in checks of your own raise a "
    "clbench.core.errors.SettingsError that names the setting."
)
def settings(session: Session) -> str:
    """Settings are typed: valid ones are accepted, others refused with a clear message."""
    candidate = session.candidate
    try:
        values = candidate.make().settings()
        again = candidate.method(**json.loads(json.dumps(values))).settings()
    except (ClbenchError, TypeError, ValueError) as error:
        raise FailedCheckError(
            f"settings() cannot be written as JSON and read back: {error}"
        ) from error
    if again != values:
        raise FailedCheckError(f"reading settings() back changes {values} to {again}.")
    keys = candidate.method.settings_model().model_fields
    for key, wrong in {"no_such_setting": (1,), **dict.fromkeys(keys, WRONG)}.items():
        if not any(_refuses(candidate, key, value) for value in wrong):
            raise FailedCheckError(f"the setting {key!r} accepts anything, such as {wrong[0]!r}.")
    small = {key: values[key] for key in candidate.method.check_settings}
    checked = ", ".join(f"{key} = {value}" for key, value in small.items())
    text = count(len(keys), "typed setting") if keys else "no settings"
    for key in ("lr", "head_lr"):
        if rate := values.get(key):
            text += f"; {key} = {rate:g} whatever the suite's: small models may need ten times that"
    return f"{text}; all checks are with {checked}" if checked else text


def _refuses(candidate: Candidate, key: str, value: Any) -> bool:
    """Whether the method refuses a value, with a SettingsError that names the key."""
    try:
        candidate.method(**{**candidate.baseline.settings, key: value})
    except Exception as error:
        if isinstance(error, SettingsError) and key in str(error):
            return True
        raise FailedCheckError(f"{key} = {value!r} raises {explain(error)}") from error
    return False


@conformance_check(needs="settings")
def trains(session: Session) -> str:
    """The method trains all stages without an error."""
    return f"through {len(session.first.weights)} stages"


@conformance_check(
    needs="trains",
    hint="Draw random numbers only from stage.rng(name) or stage.random_seed(name), and keep no "
    "counter in the class or module.",
)
def repeats(session: Session) -> str:
    """Two runs with one seed agree in every bit."""
    _require_equal(session.first, session.second, "two runs with one seed differ")
    return "two runs with one seed agree in every bit"


@conformance_check(
    needs="repeats",
    hint="Keep what must survive a stage in attributes without a leading underscore, or save it by "
    "state() and load_state(): tensors, arrays, numbers, texts, lists and dictionaries. Keep "
    "nothing in the class, the module or a file.",
)
def resumes(session: Session) -> str:
    """A run that is interrupted between stages and resumed ends in the same weights.

    In between, the method trains on other rows, which overwrites whatever it keeps in a class, a
    module or a file.
    """
    first, toy, candidate = session.first, session.toy, session.candidate
    if first.save_errors:
        raise FailedCheckError(first.save_errors[0])
    other_rows = toy.copy_train()
    for data in other_rows:
        toys.reverse(data.rows.ids)
        toys.reverse(data.rows.labels)
    run_candidate(replace(toy, folder=toy.folder / "elsewhere"), candidate, train=other_rows)
    for stage, digest in enumerate(first.digests):
        resumed = _run(f"resuming after stage {stage}", toy, candidate, resume=digest)
        _require_equal(first, resumed, f"a run resumed after stage {stage} differs")
    return f"interrupted after each of {len(first.digests)} stages and resumed: equal in every bit"


@conformance_check(
    needs="trains",
    hint="Check the penalty's strength, its anchor (taken too late?) and the weights that it "
    "covers. Return True from acts_in only for stages that the method changes.",
)
def acts(session: Session) -> str:
    """The method changes training in the stages for which `acts_in` returns True."""
    first, vanilla, method = session.first, session.vanilla, session.candidate.make()
    if method.only_consolidates:
        # The hooks of training, which are never called, must change nothing.
        trains = type(method.__class__.__name__, (type(method),), {"only_consolidates": False})
        reason = "only_consolidates is declared, but training with the method's own hooks differs"
        trained = run_candidate(session.toy, replace(session.candidate, method=trains))
        _require_equal(first, trained, reason)
    acting = [stage for stage in first.weights if method.acts_in(stage)]
    final = differences(first.final, vanilla.final)
    if not final:
        if acting and method.writes_answers:
            return "weights equal vanilla's: the tiny model writes no answer that would differ"
        if acting:
            raise FailedCheckError(
                f"acts_in returns True for the stages {acting}, but the weights equal vanilla's "
                "in every bit: what it adds is zero."
            )
        overridden = [n for n in ENGINE_HOOKS if getattr(type(method), n) != getattr(Method, n)]
        unused = f"; never called: {', '.join(overridden)}" if overridden else ""
        return f"trains as vanilla in every stage, as acts_in says{unused}"
    if not acting:
        raise FailedCheckError(
            "acts_in returns False for all stages, but weights or outputs differ from vanilla's."
        )
    changed = [n for n, w in first.weights.items() if differences(w, vanilla.weights[n])]
    if not changed and not all(name.startswith("outputs for ") for name in final):
        return "trains as vanilla; differs after the last consolidation"
    if not changed:
        return "weights equal vanilla's; only outputs differ when scoring"
    observing = [stage for stage in acting if stage < changed[0]]
    more = f"; only observes in the stages {observing}" if observing else ""
    return f"differs from vanilla from stage {changed[0]} on{more}"


@conformance_check(
    needs="repeats",
    hint="Declare keeps_rows: ClassVar[bool] = True and read the rows by stage.earlier(task), or "
    "keep no rows, batches or token numbers of a stage after after_stage.",
)
def rows(session: Session) -> str:
    """Replacing the rows of finished tasks changes nothing, unless `keeps_rows` is declared.

    What was computed from rows, such as mean features, does not count as rows.
    """
    candidate, toy = session.candidate, session.toy
    if candidate.make().keeps_rows:
        return "keeps rows of earlier tasks and declares it; results say so"
    corrupter = toys.RowCorrupter(toy.copy_train())
    reason = "keeps_rows is not declared, but with other rows of finished tasks training"
    corrupted = _run(reason, toy, candidate, train=corrupter.train, after_stage=corrupter)
    _require_equal(session.first, corrupted, f"{reason} differs")
    return "other rows of finished tasks change nothing"


@conformance_check(
    needs="trains",
    hint="Leave modes and defaults of torch and the environment alone, or put them back. "
    "Hold tensors in attributes of the method only, not in the class, the module, a cache or "
    "a hook that is never removed; accumulate over steps instead of keeping every step.",
)
def frees(session: Session) -> str:
    """Nothing large outlives a run, and the method's attributes do not grow with the steps."""
    run, size = session.second, session.vanilla.model_bytes
    if changed := session.first.changed:
        raise FailedCheckError(f"changes {' and '.join(changed)} for the whole process.")
    if run.leaks:
        raise FailedCheckError(f"still alive after the run: {', '.join(run.leaks)}.")
    if (rest := run.rest / size) > MAX_REST:
        raise FailedCheckError(f"tensors of {rest:.1f} × the model's weights outlive the run.")
    to = "× the model's weights to the method's attributes."
    for stage, (before, after) in enumerate(itertools.pairwise([0, *run.attributes])):
        if (change := (after - before) / size) > MAX_ADDED:
            raise FailedCheckError(f"stage {stage} adds {change:.1f} {to}")
        if (growth := run.growth[stage] / size) > MAX_GROWTH:
            raise FailedCheckError(f"the second half of stage {stage} adds {growth:.2f} {to}")
    return "nothing outlives the run, and nothing grows with the steps"


@conformance_check(
    needs="trains",
    hint="Use stage.model.layer_groups(), stage.shared_names() and named_parameters() instead of "
    "names that only one architecture has.",
)
def architectures(session: Session) -> str:
    """The method works on every architecture."""
    if "classification" not in session.candidate.method.head_kinds:
        return "not with classification heads, as it declares"
    errors = []
    for name in session.architectures:
        toy = toys.make_toy_scenario(toys.checkpoint(name), session.folder / name, rows=8)
        try:
            run_candidate(toy, session.candidate)
        except Exception as error:
            errors.append(f"{name}: {explain(error)}")
    if errors:
        raise FailedCheckError("; ".join(errors))
    return ", ".join(session.architectures)


@conformance_check(
    needs="trains",
    hint="Labels of language models are tokens of answers: compare batch.predictions(outputs), and "
    'use no heads; or declare head_kinds: ClassVar[tuple[str, ...]] = ("classification",).',
)
def decoders(session: Session) -> str:
    """The method trains decoders that answer in words, or declares that it does not."""
    candidate = session.candidate
    if "language-model" not in candidate.method.head_kinds:
        return "not with language models, as it declares"
    acts = bool(differences(session.first.final, session.vanilla.final))
    for name in toys.GENERATORS:
        model, folder = toys.checkpoint(name, writes=True), session.folder / f"{name}-lm"
        # Some methods act only once tasks conflict, for which the model must have learned them.
        for lr, epochs in ((1e-4, 1), (1e-2, 2)) if acts else ((1e-4, 1),):
            protocol: dict[str, Any] = {"head": "language-model", "lr": lr, "epochs": epochs}
            toy = toys.make_toy_scenario(model, folder, **protocol)
            run = _run(f"training {name}", toy, candidate)
            if differences(run.final, session.vanilla_on(toy).final):
                break
        else:
            if acts:
                raise FailedCheckError(
                    f"{name}: weights and outputs equal vanilla's in every bit, unlike those with "
                    "classification heads."
                )
    return f"{', '.join(toys.GENERATORS)}, answering in words{'' if acts else ', as vanilla'}"


@conformance_check(needs="trains")
def cost(session: Session) -> str:
    """Measure what the method adds to vanilla: memory in copies of the model, and time."""
    run, plain = session.second, session.vanilla
    attributes, peak = run.attributes[-1], run.peak - plain.peak
    # Both are timed in the last stage, one right after the other.
    vanilla = run_candidate(session.toy, Candidate.of("vanilla"))
    resume = session.first.digests[-1] if session.rows["resumes"].status == "pass" else None
    timed = run_candidate(session.toy, session.candidate, resume=resume)
    numbers = session.numbers = {
        "held_bytes": attributes,
        "peak_bytes": peak,
        "held_models": attributes / plain.model_bytes,
        "peak_models": peak / plain.model_bytes,
        "step_ratio": timed.step_seconds / max(vanilla.step_seconds, 1e-9),
        "other_seconds": session.first.hook_seconds,
    }
    return (
        f"holds {numbers['held_models']:.2f} × the model's weights; peak "
        f"{numbers['peak_models']:+.2f} ×; a step takes {numbers['step_ratio']:.2f} × vanilla's; "
        f"setup and consolidation {numbers['other_seconds']:.2f} s"
    )


@own_state()
@checks_arguments
def check(
    method: str | Baseline | type[Method],
    *,
    settings: Mapping[str, Any] | None = None,
    plugins: Iterable[str | Path] = (),
    model: str = "tiny",
    architectures: Sequence[str] = toys.ARCHITECTURES,
    started: Callable[[str], None] | None = None,
) -> list[Row]:
    """Check a method on tiny tasks; takes seconds. Return one row for each of `CHECKS`.

    Parameters
    ----------
    method
        A baseline, its file, a registered method, ``module:Class``, or a class.
    settings
        Replace those of the baseline, key by key; for example fewer rows to shorten a preparation.
    plugins
        Python files to import first.
    model
        Built-in model, folder, or name on the hub to check on.
    architectures
        Architectures whose tiny random models to check on in addition.
    started
        Called with the name of each check before it begins.

    Raises
    ------
    ClbenchError
        If there is no such method, plug-in or model, or the baseline file or `settings` are
        wrong.
    """
    load_plugins(plugins)
    candidate = Candidate.of(method, settings)
    with toys.temporary_cache() as folder:
        session = Session(candidate, model, folder, architectures)
        for name in CHECKS:
            if started is not None:
                started(name)
            session.run(name)
    return list(session.rows.values())
