"""Mend a tuned model: choose a mixture with its base, and test it on other rows."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from clbench.audit.changes import UNCHANGED, Change, Flips, judge
from clbench.audit.items import Items, has_head_for, hits, load_items
from clbench.audit.models import AuditedModel, load_base, load_tuned
from clbench.audit.scores import Bools, Part
from clbench.audit.settings import MARGIN
from clbench.audit.weights import BASE, DEPTHS, TUNED, Mixer, Mixture, is_scalable, write_scaled
from clbench.core.errors import SettingsError, count, named
from clbench.core.user_code import own_state
from clbench.models.locate import adapter_folder
from clbench.results.fronts import front
from clbench.suite.read import read_tasks
from clbench.training.device import resolve_device

ALPHAS = tuple(i / 10 for i in range(11))
"""Shares of the way from the base model (0) to the tuned one (1)."""
GROUP_ALPHAS = (0.0, 0.5, 1.0)
"""Shares that are tried for one group of layers while the others keep theirs."""
TRIMS = (0.05, 0.2, 0.5)
"""Shares of the change of each weight tensor that trimming keeps, the largest entries."""
SWEEP_ROWS = 200


@dataclass(frozen=True)
class Point:
    """A mixture and its scores on the rows of the sweep: mean accuracies."""

    mixture: Mixture
    kept: float
    learned: float

    @property
    def merit(self) -> float:
        """Their sum, by which mixtures are chosen."""
        return round(self.kept + self.learned, 9)


@dataclass(frozen=True)
class Mended:
    """The result of `mend`.

    Attributes
    ----------
    points
        All mixtures that were tried.
    chosen
        The best by the mean of both scores; `TUNED` if nothing beats it.
    before, after
        Accuracies of the tuned and the mended model by task, on rows that the sweep did not see.
    changes
        Mended minus tuned by task, on these rows, judged together.
    instead
        If tasks are `worse`: the best single α that beats the tuned model on the rows of the sweep
        and makes none worse here; None if there is none.
    write_adapter
        If the tuned model is an adapter that can be scaled: function that writes the one chosen
        into a folder.
    merged
        For such an adapter: the best mixture that only a merged model can be, and its changes from
        the one chosen, by task.
    notes
        Lines for the user.
    """

    base: str
    tuned: str
    keep: tuple[str, ...]
    learn: str
    points: tuple[Point, ...]
    chosen: Mixture
    before: Mapping[str, float]
    after: Mapping[str, float]
    changes: Mapping[str, Change]
    settings: Mapping[str, Any]
    instead: Mixture | None = None
    write_adapter: Callable[[Path], None] | None = field(default=None, repr=False)
    merged: tuple[Mixture, Mapping[str, Change]] | None = None
    notes: tuple[str, ...] = ()

    @property
    def unseen(self) -> list[tuple[str, float, float, Change]]:
        """Each task with both accuracies and the change, on rows that the sweep did not see."""
        return [(name, self.before[name], self.after[name], c) for name, c in self.changes.items()]

    @property
    def worse(self) -> list[str]:
        """The tasks that speak against the choice: see `losses`."""
        return losses(self.changes, self.learn)

    @property
    def front(self) -> list[Point]:
        """The Pareto front of the points, sorted by accuracy learned, lowest first."""
        by_name = {str(point.mixture): point for point in self.points}
        best = front({name: (p.learned, p.kept) for name, p in by_name.items()})
        return [by_name[name] for name in best]

    def to_json(self) -> dict[str, Any]:
        """Return the content of ``mend.json``."""
        return {
            "format": "clbench-mend",
            "schema_version": 1,
            "base": self.base,
            "tuned": self.tuned,
            "keep": list(self.keep),
            "learn": self.learn,
            "settings": dict(self.settings),
            "adapter": self.write_adapter is not None,
            "chosen": _plain(self.chosen),
            "points": [
                {**_plain(p.mixture), "kept": p.kept, "learned": p.learned} for p in self.points
            ],
            "unseen": {
                name: {"tuned": tuned, "mended": mended, **change.to_json("word")}
                for name, tuned, mended, change in self.unseen
            },
            "merged": self.merged
            and {
                **_plain(self.merged[0]),
                "changes": {name: c.to_json("word") for name, c in self.merged[1].items()},
            },
            "notes": list(self.notes),
        }


def losses(changes: Mapping[str, Change], learn: str) -> list[str]:
    """Return the tasks shown to be worse, without the one learned if that paid for a better one."""
    found = [name for name, change in changes.items() if change.verdict == "worse"]
    gains = [name for name, change in changes.items() if change.verdict == "better"]
    return [] if found == [learn] and gains else found


def _plain(mixture: Mixture) -> dict[str, Any]:
    return {**asdict(mixture), "groups": dict(mixture.groups)}


@dataclass
class _Sweep:
    """Mixtures that are tried on some rows.

    `scores` returns which rows are right, by task; the last task is the one learned. With
    `keeps_adapter`, trimmed mixtures are tried and not chosen.
    """

    scores: Callable[[Mixture], Mapping[str, Bools]]
    tell: Callable[[str], None]
    keeps_adapter: bool
    points: list[Point] = field(default_factory=list)

    def choose(self, alpha: float | None) -> Mixture:
        """Try mixtures and return the best, or that of a given α."""
        if alpha is not None:
            for each in (1.0, alpha, 0.0):
                self._visit(Mixture(each))
            return Mixture(alpha)
        for each in reversed(ALPHAS):
            self._visit(Mixture(each))
        for share in TRIMS:
            self._visit(Mixture(1.0, largest=share))
        for group in DEPTHS:
            start = self.best().mixture
            for share in GROUP_ALPHAS:
                self._visit(start.with_group(group, share))
        return self.best().mixture

    def best(self, *, trimmed: bool = False) -> Point:
        """Return the best point; of equal ones the first, and so before all the tuned model."""
        wanted = [
            p for p in self.points if not self.keeps_adapter or (p.mixture.largest < 1.0) == trimmed
        ]
        return max(wanted, key=lambda p: p.merit)

    def single(self) -> list[Mixture]:
        """Return mixtures of one α for all weights that beat the tuned model, the best first."""
        tuned = self.points[0].merit
        better = [p for p in self.points if p.merit > tuned and p.mixture != BASE]
        better.sort(key=lambda p: p.merit, reverse=True)
        return [p.mixture for p in better if p.mixture == Mixture(p.mixture.alpha)]

    def _visit(self, mixture: Mixture) -> None:
        if mixture not in [point.mixture for point in self.points]:
            self.tell(str(mixture))
            means = [float(right.mean()) for right in self.scores(mixture).values()]
            self.points.append(Point(mixture, fmean(means[:-1]), means[-1]))


@own_state()
def mend(
    base: str,
    tuned: str,
    *,
    keep: Sequence[str],
    learn: str,
    data: str | Path | None = None,
    rows: int = 500,
    alpha: float | None = None,
    merge: bool = False,
    device: str = "auto",
    seed: int = 0,
    tell: Callable[[str], None] = lambda text: None,
) -> tuple[Mended, AuditedModel]:
    """Return the best weights between a base model and one tuned from it, and what they score.

    Tries the `ALPHAS` for all weights, then the largest changes alone (`TRIMS`), then other shares
    for one part of the layers at a time, starting from the best mixture so far. A task is scored by
    the model's own head if that has its classes (for tasks to keep, the base model's head, too);
    else by a linear probe of the features.

    Parameters
    ----------
    base, tuned, data, device, seed, tell
        As in `clbench.audit.audit.audit` and its settings.
    keep, learn
        Tasks that the base model can do, and the task that the tuned model learned.
    rows
        Most rows of each task for the final scores; the sweep has 200 others.
    alpha
        The α for all weights, between 0 and 1, in place of a choice.
    merge
        Whether to merge a LoRA adapter into the base. By default it stays an adapter, so that its
        largest changes alone are tried only for comparison.

    Returns
    -------
    Mended
        The points, the choice, and its scores.
    AuditedModel
        The tuned model with the weights that were chosen.

    Raises a ClbenchError as `clbench.audit.audit.audit`.
    """
    if alpha is not None and not 0.0 < alpha < 1.0:
        raise SettingsError(f"{named('alpha', alpha)}: must be between 0 and 1, such as 0.5.")
    if not keep:
        raise SettingsError(f"{named('keep')} names no task. Name at least one.")
    where = resolve_device(device)
    items = load_items([*keep, learn], data=data, rows=rows, extra=SWEEP_ROWS, seed=seed)
    if learn.endswith(".toml") and len(tasks := read_tasks(learn)) > 1:
        raise SettingsError(
            f"{named('learn', learn)}: has {count(len(tasks), 'task')}. Give a file of one."
        )
    tell("loading models")
    first = load_base(base)
    second = load_tuned(tuned, first)
    sweeps, finals = zip(*(each.split(SWEEP_ROWS) for each in items), strict=True)
    mixer = Mixer(first, second)
    parts = {each.name: _part(each, first, second) for each in items[:-1]}
    parts[items[-1].name] = _part(items[-1], second, second)
    folder = adapter_folder(tuned)
    scales = folder is not None and not merge and is_scalable(folder, second)

    def scores(rows: Sequence[Items], mixture: Mixture) -> dict[str, Bools]:
        with mixer.mixed(mixture):
            return {n.name: hits(second, n, parts[n.name], where) for n in rows}

    sweep = _Sweep(partial(scores, sweeps), tell, keeps_adapter=scales)
    chosen = sweep.choose(alpha)
    tell("scoring on rows that the sweep did not see")
    final = partial(scores, finals)
    before = final(TUNED)

    def test(after: Mapping[str, Bools], than: Mapping[str, Bools]) -> dict[str, Change]:
        return judge({n: Flips.of(than[n], hit).sample() for n, hit in after.items()}, MARGIN)

    names = [each.name for each in finals]
    after = final(chosen)
    same = judge(dict.fromkeys(names, UNCHANGED), MARGIN)
    changes = same if chosen == TUNED else test(after, before)
    merged = None
    if scales and alpha is None:
        other = sweep.best(trimmed=True).mixture
        merged = other, test(final(other), after)
    instead = None
    if losses(changes, names[-1]):
        ranked = (m for m in sweep.single() if m != chosen)
        instead = next((m for m in ranked if not losses(test(final(m), before), names[-1])), None)
    mixer.apply(chosen)
    mended = Mended(
        first.title,
        second.title,
        tuple(names[:-1]),
        names[-1],
        tuple(sweep.points),
        chosen,
        {name: float(hit.mean()) for name, hit in before.items()},
        {name: float(hit.mean()) for name, hit in after.items()},
        changes,
        {
            "rows": {each.name: len(each.rows) for each in finals},
            "sweep_rows": {each.name: len(each.rows) for each in sweeps},
            "seed": seed,
            "scored_by": parts,
            "alpha": alpha,
        },
        instead,
        partial(write_scaled, tuned, first, mixer, chosen, second) if scales else None,
        merged,
        tuple(_notes(sweeps[-1], finals[-1])),
    )
    return mended, second


def _notes(sweep: Items, final: Items) -> Iterator[str]:
    """Yield a note if rows of the task learned, on which the tuned model may be tuned, are used."""
    if sweep.training or final.training:
        yield (
            f"{final.name}: {sweep.training} of the {len(sweep.rows)} rows of the sweep and "
            f"{final.training} of the {len(final.rows)} final rows are from its training set. A "
            "model tuned on them looks better than it is, and so better than the mixtures."
        )


def _part(items: Items, first: AuditedModel, second: AuditedModel) -> Part:
    """Return how a task is scored: by the models' own heads if both have one for it."""
    fits = first.head == second.head and all(has_head_for(m, items) for m in (first, second))
    return "behaviour" if fits else "features"
