"""Simulate how often an audit errs, and count false alarms between models that differ by noise.

    python benchmarks/audit.py [--draws 1000] [--table results/verdicts/audit.csv]
    python benchmarks/audit.py --pairs 200 [--noise 0.01]
    python benchmarks/audit.py --copies 15 --model MODEL --data DIR [--scores FILE.npz] [--table …]

The first draws families of changes whose truth is known: flips of tasks, and losses of 300 texts
with skewed noise (`LOSSES`). For each kind of losses and truth, number of tasks, rows and share of
flips, it prints the share of families whose intervals all hold the truth, with a false *forgot* or
*gained*, with a false *kept*, and with any false word; then the share of true losses and gains
beyond the margin that are said, and of changes truly within it that are called *kept*.
`clbench.audit.changes.judge` is compared with intervals at the levels of Holm's procedure (1979).
The kinds of truth:

    none    nothing changed
    margin  every change is just beyond the margin: a *kept* is false
    mixed   a third did not change, a third is just beyond the margin either way, a third lost 0.1

The second audits pairs of models. Both of a pair are the built-in one with independent normal noise
in every weight, of a standard deviation that is a share of the weight tensor's own: no model is
better than the other by design. It prints the share of pairs with a false alarm (forgot or gained),
which should be at most 0.05. Language is judged on the built-in corpus, features on three built-in
tasks of 300 rows.

The third tunes copies of a model that differ by their seed alone (order of the rows, a new head)
for a few dozen steps of one task, and audits every copy against every other on other tasks. Each
copy is scored once; `--scores` keeps what it scored on each item, and a later call goes on from
there. n copies make n(n − 1)/2 pairs, which are not independent: a copy that is unlike the others
raises an alarm in up to n − 1 of them, so the alarms by copy are printed, too. Copies of other
seeds are other models, which may truly differ: an alarm (*forgot* or *gained*) may be right. So the
audit is also made on every second item alone, and its alarms are checked on the others. Where
nothing differs, half of these have the other sign; where it does, hardly any. Twice the alarms with
the other sign, divided by the pairs, estimates the share of false alarms, which should be at most
0.05.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations, product
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from clbench.audit.audit import Auditor
from clbench.audit.changes import Flips, Sample, judge, mean_change
from clbench.audit.comparison import compare
from clbench.audit.items import DEFAULT_TASKS, load_items
from clbench.audit.language import LanguageLoss
from clbench.audit.material import Material
from clbench.audit.models import AuditedModel, load_base
from clbench.audit.scores import ItemScores
from clbench.audit.settings import MARGIN, TEXTS, AuditSettings
from clbench.results.statistics import ALPHA
from clbench.tasks.registry import load_task
from clbench.tasks.task import Rows

TASKS, ROWS, SHARES = (3, 6, 10), (500, 2000, 10_000), (0.04, 0.15)
TRUTHS = ("none", "margin", "mixed")
LOSSES: dict[str, Callable[[np.random.Generator], np.ndarray]] = {
    "some texts better": lambda rng: 0.15 * (rng.exponential(size=TEXTS) - 1.0),
    "some texts worse": lambda rng: -0.1 * (rng.lognormal(size=TEXTS) - np.exp(0.5)),
    "few texts far worse": lambda rng: (
        0.02
        - (rng.random(TEXTS) < 0.02) * rng.exponential(size=TEXTS)
        + 0.05 * rng.normal(size=TEXTS)
    ),
}
"""Changes in nats of 300 texts, of mean 0; positive is better."""
FIELDS = ("losses", "truth", "tasks", "rows", "flips", "levels")
RESULTS = ("coverage", "false_forgot_or_gained", "false_kept", "false", "said", "kept")
BATCH = 32
"""Rows in a step of a copy."""
NEAR = MARGIN + 0.0001
"""A true change just beyond the margin."""
Judge = Callable[[Mapping[int, Sample]], Sequence[tuple[float, float, str]]]


def truth_of(kind: str, tasks: int) -> np.ndarray:
    """Return the true changes of the tasks, and that of language at the end."""
    changes = {"none": [0.0], "margin": [-NEAR], "mixed": [0.0, -NEAR, -0.1, 0.0, NEAR, -0.1]}
    return np.resize(changes[kind], tasks + 1)


interval = cache(Flips.interval)


def draw(
    truth: np.ndarray, rows: int, flips: float, losses: str, rng: np.random.Generator
) -> list[Sample]:
    """Return a family of samples, `losses` being a kind of `LOSSES`."""
    samples = []
    for change in truth[:-1]:
        share = max(flips, abs(change))  # at least as many flip as change
        lost, gained = (share - change) / 2, (share + change) / 2
        b, c, _ = rng.multinomial(rows, [lost, gained, 1.0 - lost - gained])
        both = Flips(int(b), int(c), rows)
        plain = both.sample()
        samples.append(Sample(plain.difference, plain.p, lambda level, f=both: interval(f, level)))
    return [*samples, mean_change(np.zeros(TEXTS), truth[-1] + LOSSES[losses](rng))]


def of_package(samples: Mapping[int, Sample]) -> list[tuple[float, float, str]]:
    """Judge as an audit does."""
    return [(c.low, c.high, c.word) for c in judge(samples, MARGIN).values()]


def at_holms_levels(samples: Mapping[int, Sample]) -> list[tuple[float, float, str]]:
    """Judge by intervals of the level of the step of Holm's procedure at which a test is judged."""
    judged: dict[int, tuple[float, float, str]] = {}
    rate, judged_all = 0.0, True
    for rank, i in enumerate(sorted(samples, key=lambda i: samples[i].p)):
        if judged_all:
            rate = ALPHA / (len(samples) - rank)
        low, high = samples[i].interval(1.0 - rate)
        judged_all = samples[i].p < rate
        judged[i] = low, high, word(low, high)
    return [judged[i] for i in samples]


def word(low: float, high: float) -> str:
    """Return the word of an interval."""
    if low > -MARGIN and high < MARGIN:
        return "kept"
    return "forgot" if high < 0 else "gained" if low > 0 else "unclear"


LEVELS: dict[str, Judge] = {"clbench": of_package, "Holm's": at_holms_levels}


def is_false(said: str, true: float) -> bool:
    """Whether a word is false of a true change."""
    return (
        (said == "forgot" and true >= 0)
        or (said == "gained" and true <= 0)
        or (said == "kept" and abs(true) >= MARGIN)
    )


def simulate(
    truth: np.ndarray,
    rows: int,
    flips: float,
    losses: str,
    draws: int,
    rng: np.random.Generator,
) -> dict[str, list[float]]:
    """Return `RESULTS` by levels; NaN for what no change of this kind of truth can be."""
    counts = {levels: np.zeros(len(RESULTS)) for levels in LEVELS}
    beyond, within = np.abs(truth) > MARGIN, np.abs(truth) < MARGIN
    for _ in range(draws):
        samples = dict(enumerate(draw(truth, rows, flips, losses, rng)))
        for levels, how in LEVELS.items():
            judged = how(samples)
            covers = all(low <= t <= high for (low, high, _), t in zip(judged, truth, strict=True))
            false = {w for (_, _, w), t in zip(judged, truth, strict=True) if is_false(w, t)}
            words = np.array([w for _, _, w in judged])
            right = (words == np.where(truth < 0, "forgot", "gained"))[beyond]
            counts[levels] += (
                covers,
                bool(false - {"kept"}),
                "kept" in false,
                bool(false),
                right.mean() if beyond.any() else np.nan,
                (words[within] == "kept").mean() if within.any() else np.nan,
            )
    return {levels: list(values / draws) for levels, values in counts.items()}


def cases() -> Iterator[tuple[str, str, int, int, float]]:
    """Yield kind of losses, kind of truth, number of tasks, rows and share of flips."""
    yield from product(["some texts better"], TRUTHS, TASKS, ROWS, SHARES)
    yield from product([*LOSSES][1:], TRUTHS, TASKS, ROWS[:1], SHARES[:1])


def errors(draws: int, table: Path | None) -> None:
    """Print the results of all kinds of families, and write them into a table."""
    lines = [",".join((*FIELDS, *RESULTS))]
    worst: dict[tuple[str, str], list[float]] = {}
    for losses, kind, tasks, rows, flips in cases():
        rng = np.random.default_rng([TRUTHS.index(kind), tasks, rows])
        found = simulate(truth_of(kind, tasks), rows, flips, losses, draws, rng)
        interval.cache_clear()
        for levels, values in found.items():
            numbers = ["" if np.isnan(v) else f"{v:.4f}" for v in values]
            lines.append(
                ",".join((losses, kind, str(tasks), str(rows), f"{flips:g}", levels, *numbers))
            )
            print(lines[-1], flush=True)
            before = worst.get((losses, levels), [1.0, 0.0, 0.0, 0.0])
            worst[losses, levels] = [
                min(before[0], values[0]),
                *map(max, before[1:], values[1:4]),
            ]
    for (losses, levels), values in worst.items():
        text = ", ".join(f"{n} {v:.3f}" for n, v in zip(RESULTS, values, strict=False))
        print(f"{losses}, worst at {levels} levels: {text}")
    if table:
        table.write_text("\n".join(lines) + "\n")


def noisy(base: AuditedModel, noise: float, seed: int) -> AuditedModel:
    """Return a copy of a model with noise in its weights."""
    generator = torch.Generator().manual_seed(seed)
    model = copy.deepcopy(base.model)
    with torch.no_grad():
        for value in model.parameters():
            spread = noise * float(value.std()) if value.numel() > 1 else 0.0
            value.add_(torch.randn(value.shape, generator=generator), alpha=spread)
    return AuditedModel(f"noise {seed}", model, base.tokenizer, base.head)


def alarms(pairs: int, noise: float, rows: int) -> None:
    """Audit pairs of models and print the shares."""
    base, device = load_base("tiny"), torch.device("cpu")
    items = load_items(DEFAULT_TASKS[:3], data=None, rows=rows)
    loss = LanguageLoss(base, "built-in", TEXTS, 0, device)
    auditor = Auditor(base, Material(items, ()), loss, device, MARGIN, False, lambda text: None)
    words: Counter[str] = Counter()
    false, flips, start = 0, 0, time.perf_counter()
    for pair in range(pairs):
        one, two = (noisy(base, noise, 2 * pair + i) for i in range(2))
        comparison = auditor.compare(auditor.look(one), auditor.look(two))
        found = [each.change.word for each in comparison.measures]
        words.update(found)
        false += not {"forgot", "gained"}.isdisjoint(found)
        flips += sum(task.flips.lost + task.flips.gained for task in comparison.tasks)
    print(f"{pairs} pairs, noise {noise:g}, {rows} rows")
    print(f"pairs with a false alarm  {false}  share {false / pairs:.3f}")
    print(f"words of all changes      {dict(words)}")
    print(f"flips per task            {flips / pairs / len(items):.1f}")
    print(f"seconds per pair          {(time.perf_counter() - start) / pairs:.1f}")


def tuned_copy(base: AuditedModel, rows: Rows, names: Sequence[str], steps: int, seed: int):
    """Return a copy of a model after some steps of AdamW on a task, with an order of its own.

    Decoders learn to write the class after the text; others get a linear head on the first token.
    """
    torch.manual_seed(seed)
    model = copy.deepcopy(base.model).train()
    body = model.base_model
    head = torch.nn.Linear(body.config.hidden_size, len(names))
    rate = 5e-5 if base.answers else 1e-4
    optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()], lr=rate)
    order = torch.randperm(len(rows))[: steps * BATCH].split(BATCH)
    for step, batch in enumerate(order):
        texts = [str(rows.first[i]) for i in batch.tolist()]
        labels = torch.as_tensor(rows.labels[batch.numpy()])
        if base.answers:
            texts = [f"{t.strip()} {names[n]}" for t, n in zip(texts, labels, strict=True)]
        inputs = base.tokenizer(
            texts, padding=True, truncation=True, max_length=64, return_tensors="pt"
        )
        if base.answers:
            targets = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)
            loss = model(**inputs, labels=targets).loss
        else:
            states = body(**inputs).last_hidden_state[:, 0]
            loss = torch.nn.functional.cross_entropy(head(states), labels)
        optimizer.param_groups[0]["lr"] = rate * (1.0 - step / len(order))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return AuditedModel(f"copy {seed}", model.eval(), base.tokenizer, base.head)


def tuned_alarms(arguments: argparse.Namespace) -> None:
    """Audit tuned copies that differ by their seed against each other, and print the shares."""
    device, start = torch.device("cpu"), time.process_time()
    base = load_base(arguments.model)
    learned = load_task(arguments.learn, data=arguments.data, base=Path.cwd(), own={})
    settings = AuditSettings(
        tasks=tuple(arguments.tasks.split(",")), data=arguments.data, rows=arguments.rows
    )
    material = Material.load(arguments.model, settings)
    loss = LanguageLoss(base, "built-in", arguments.texts, 0, device)
    auditor = Auditor(base, material, loss, device, MARGIN, False, lambda text: None)
    scores: dict[str, np.ndarray] = {}
    if arguments.scores and arguments.scores.exists():
        scores = dict(np.load(arguments.scores))
    looks: list[list[ItemScores]] = []
    for seed in range(arguments.copies):
        if f"{seed}|language" not in scores:
            one = tuned_copy(base, learned.train, learned.labels, arguments.steps, seed)
            for each in filter(lambda each: each.primary, auditor.look(one).scores):
                name = "language" if each.part == "language" else f"{each.part} {each.task}"
                scores[f"{seed}|{name}"] = each.scores
            if arguments.scores:
                np.savez_compressed(arguments.scores, **scores)
            print(f"copy {seed}: {time.process_time() - start:.0f} s of CPU", flush=True)
        own = {k.partition("|")[2]: v for k, v in scores.items() if k.startswith(f"{seed}|")}
        looks.append(
            [
                ItemScores(name, name.split()[0], v, tuple(map(str, range(len(v)))))
                for name, v in own.items()
            ]
        )
    words: Counter[str] = Counter()
    pairs = []
    for one, two in combinations(range(len(looks)), 2):
        comparison = compare(looks[one], looks[two], MARGIN)
        words.update(each.change.word for each in comparison.changes)
        found = [c.task for c in comparison.changes if c.change.word in ("forgot", "gained")]
        even, odd = (
            compare(part_of(looks[one], start), part_of(looks[two], start), MARGIN)
            for start in (0, 1)
        )
        same = [
            first.change.difference * second.change.difference > 0
            for first, second in zip(even.changes, odd.changes, strict=True)
            if first.change.word in ("forgot", "gained")
        ]
        signs = {"same_sign": sum(same), "other_sign": len(same) - sum(same)}
        pairs.append({"one": one, "two": two, "alarms": "; ".join(found), **signs})
    alarmed = [pair for pair in pairs if pair["alarms"]]
    halves = {name: sum(pair[name] for pair in pairs) for name in ("same_sign", "other_sign")}
    print(
        f"{len(pairs)} pairs of {len(looks)} copies, {arguments.steps} steps on {arguments.learn}"
    )
    print(f"pairs with an alarm  {len(alarmed)}  share {len(alarmed) / len(pairs):.3f}")
    print(f"alarms by measure    {Counter(n for p in alarmed for n in p['alarms'].split('; '))}")
    print(f"alarms by copy       {Counter(p[name] for p in alarmed for name in ('one', 'two'))}")
    print(f"on even items, by the sign of the odd ones  {halves}")
    print(f"words of all changes {dict(words)}")
    if arguments.table:
        pd.DataFrame(pairs).to_csv(arguments.table, index=False)


def part_of(scores: Sequence[ItemScores], start: int) -> list[ItemScores]:
    """Return every second item of each measure."""
    return [replace(s, scores=s.scores[start::2], keys=s.keys[start::2]) for s in scores]


def main() -> None:
    """Simulate families, or audit pairs of models."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--table", type=Path, help="also write the results into this file")
    parser.add_argument("--pairs", type=int, help="audit that many pairs of models instead")
    parser.add_argument("--noise", type=float, default=0.01, help="share of a tensor's own spread")
    parser.add_argument("--rows", type=int, default=300, help="rows of each task of the pairs")
    parser.add_argument("--copies", type=int, help="audit that many tuned copies of --model")
    parser.add_argument("--model", default="tiny", help="base model of the copies")
    parser.add_argument("--learn", default="glue/sst2", help="task that the copies are tuned on")
    parser.add_argument("--steps", type=int, default=40, help="steps of 32 rows of each copy")
    parser.add_argument("--texts", type=int, default=TEXTS, help="texts of the language loss")
    parser.add_argument("--tasks", default="glue/cola,glue/mrpc,glue/qnli,ag_news")
    parser.add_argument("--data", type=Path, help="folder of the tasks' data")
    parser.add_argument("--scores", type=Path, help="file that keeps the scores of the copies")
    arguments = parser.parse_args()
    if arguments.copies:
        tuned_alarms(arguments)
    elif arguments.pairs:
        alarms(arguments.pairs, arguments.noise, arguments.rows)
    else:
        errors(arguments.draws, arguments.table)


if __name__ == "__main__":
    main()
