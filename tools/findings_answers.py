"""What ``docs/findings.md`` says: its comparisons and the values of its sentences, by name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from statistics import fmean

import numpy as np
import pandas as pd

from clbench.results.score_tables import means, score_rows
from clbench.results.statistics import Comparison, Differences, Summary, compare, summarise
from clbench.results.store import Store
from clbench.suite.schema import Question
from tools import findings as pairs
from tools import findings_decoder as decoder
from tools import findings_facts as facts
from tools import findings_glue as glue
from tools import findings_grpo as grpo
from tools import findings_sequences as sequences
from tools import findings_smollm2 as smollm2
from tools.findings import SCORES, Claim, plain
from tools.findings_studies import STUDIES, runs

MARGIN = Question().margin
CLASS_MEANS = ("prototypes", "klda", "ranpac")
CONTROLS = ("ewc-lora-head", "ewc-lora-delta")
"""Parts of EWC-LoRA, not methods."""
CHANGES = {
    "vanilla-half": "half the rate",
    "vanilla-quarter": "a quarter of the rate",
    "self-replay-half": "the model's own texts",
    "self-sft-drop": "its own right answers",
}
"""What is compared with plain fine-tuning of the decoder: each changes one thing."""
SEQUENCES = dict(
    zip(("all", "stage", "four", "fifteen", "written"), sequences.STUDIES, strict=True)
)
DRAWN = {"drawn": grpo.SELDOM, "able": grpo.OFTEN}
"""The studies of answers that are drawn as the model learns."""
LEADS = "lead prototypes (.+) average"
TRIES = ("before learning", "after it", "8 old rows", "16 old rows", "32 old rows")


def shown(answer: Comparison | Summary) -> str:
    """Return a mean difference with its interval."""
    if isinstance(answer, Summary):
        return pairs.interval(answer.mean, answer.low, answer.high)
    return pairs.interval(answer.difference, answer.difference_low, answer.difference_high)


def share(*ends: float) -> str:
    """Return a share with its interval."""
    return "{} [{}, {}]".format(*(plain(end, 2) for end in ends))


def percent(value: float, digits: int = 1) -> str:
    """Return ``1.8 %``."""
    return f"{100 * value:.{digits}f} %"


def brackets(interval: tuple[float, float]) -> str:
    """Return an interval of a difference."""
    return "[{}, {}]".format(*map(pairs.signed, interval))


@cache
def averages(study: pairs.Study) -> dict[str, float]:
    """Return the mean average over the tasks after the last stage, by method, in rising order."""
    rows = means(score_rows(sequences.with_retuned(study)))
    return dict(sorted(((r["method"], r["average_mean"]) for r in rows), key=lambda pair: pair[1]))


def strongest(study: pairs.Study) -> str:
    """Return the control with the highest mean p_o + p_s, of those that keep no rows."""
    sums: dict[str, list[float]] = {}
    for cell in study.read()[0]:
        if cell.control and not cell.keeps_rows:
            score = cell.scores["p"]
            assert score is not None
            sums.setdefault(cell.baseline, []).append(score)
    return max(sums, key=lambda name: fmean(sums[name]))


@cache
def comparisons() -> dict[str, Comparison]:
    """Return the comparisons of the page by name; each call of `compare` is one family."""
    found: dict[str, Comparison] = {}

    def add(name: str, study: pairs.Study, claims: Sequence[Claim], scores: Sequence[str]) -> None:
        cells, question = study.read()
        answers = pairs.answers(cells, question.margin, claims, scores)
        found.update({f"{name} {c.method} {c.reference} {s}": a for (c, s), a in answers.items()})

    for study in pairs.STUDIES:
        add(study.name, study, pairs.CLAIMS, SCORES)
        best, names = strongest(study), [c.baseline for c in study.read()[0] if not c.control]
        add(study.name, study, [Claim(name, best) for name in dict.fromkeys(names)], ("p",))
    score = (sequences.SCORE,)
    for name, study in SEQUENCES.items():
        add(name, study, sequences.CLAIMS, score)
    names = [n for n in averages(sequences.ALL) if n not in (*CLASS_MEANS, *CONTROLS)]
    cells, margin = sequences.with_retuned(sequences.ALL), sequences.ALL.read()[1].margin
    leads = pairs.answers(cells, margin, [Claim("prototypes", name) for name in names], score)
    found |= {f"lead prototypes {c.reference} {s}": answer for (c, s), answer in leads.items()}
    found |= {f"later {' '.join(claim)}": a for (claim, _), a in sequences.later().items()}
    found |= {f"unseen {' '.join(claim)}": a for (claim, _), a in sequences.unseen().items()}
    for study in sequences.RETUNED:
        for (claim, _), answer in sequences.retuned(study).items():
            found[f"retuned {study.name} {' '.join(claim)}"] = answer
    for study in sequences.EXPLORED:
        for (claim, _), answer in sequences.explored(study).items():
            found[f"explored {study.name} {' '.join(claim)}"] = answer
    found |= {f"{task} {method}": answer for (task, method), answer in pretraining()[1].items()}
    found |= {f"head {c.reference}": answer for (c, _), answer in sequences.heads().items()}
    frame = decoder.kept().set_index(["baseline", "seed"])
    parts = Store(decoder.FOLDER).read().cells[0].scenario_report["parts"]
    groups: dict[str, dict[str, Differences]] = {}
    for key, part in zip(SCORES, parts, strict=True):
        for name in CHANGES:
            differences = frame.loc[name][key] - frame.loc["vanilla"][key]
            sample = Differences(tuple(differences), 1 / part["validation"])
            groups.setdefault(key, {})[name] = sample
    changes = compare(groups, margin=MARGIN)
    for name, (_, new, old) in decoder.at_steady().items():
        found |= {f"steady {name} p_s": new, f"steady {name} p_o": old}
    for (key, name), answer in facts.against_vanilla().items():
        found[f"tuned {name} {key}"] = answer
    answers = smollm2.against_rates() | smollm2.against_later() | smollm2.against_tuned()
    answers |= smollm2.against_untrained()
    for (key, rate, name), answer in answers.items():
        found[f"smollm2 {name} {rate} {key}"] = answer
    for (key, rate, name), answer in glue.against_rates().items():
        found[f"glue {name} {rate} {key}"] = answer
    found |= {"glue equal": read} if isinstance(read := glue.primary(), Comparison) else {}
    found |= {f"explored facts {key}": answer for key, answer in facts.explored().items()}
    for name, reading in facts.on_curve().items():
        found |= {f"equal {name}": reading} if isinstance(reading, Comparison) else {}
    for label, study in DRAWN.items():
        for (key, name), answer in grpo.on_curve(study).items():
            found |= {f"{label} {name} {key}": answer} if isinstance(answer, Comparison) else {}
    for (key, name), answer in decoder.on_curve().items():
        found |= {f"curve {name} {key}": answer} if isinstance(answer, Comparison) else {}
    return found | {f"change {name} {key}": answer for (key, name), answer in changes.items()}


def matching(pattern: str) -> dict[str, str]:
    """Return the names of comparisons that match, by the method that the pattern captures."""
    found = (re.fullmatch(pattern, name) for name in comparisons())
    return {match[1]: match[0] for match in found if match}


def count_better(names: Mapping[str, str]) -> str:
    """Return how many methods have only comparisons with the verdict better, as ``2 of 3``.

    `names` are those of comparisons on CLINC150 by baseline. Other settings and parts of a method
    count with it.
    """
    methods = {cell.baseline: cell.method for cell in sequences.with_retuned(sequences.ALL)}
    verdicts: dict[str, set[str]] = {}
    for baseline, name in names.items():
        verdicts.setdefault(methods[baseline], set()).add(comparisons()[name].verdict)
    return f"{[*verdicts.values()].count({'better'})} of {len(verdicts)}"


@cache
def pretraining() -> tuple[dict[tuple[str, str], float], dict[tuple[str, str], Comparison]]:
    """Return what is kept of the pretraining and both tasks, and differences from plain."""
    return pairs.kept(Store(pairs.PRETRAINING).read().cells, Question())


@cache
def relearned() -> pd.DataFrame:
    """Return the old facts known by the cells that lost many, in the columns `TRIES`.

    A cell that recovers sooner keeps its last score.
    """
    kept = {*decoder.kept()[["baseline", "seed"]].itertuples(index=False, name=None)}
    rows = []
    for cell in Store(decoder.FOLDER).read().cells:
        is_lost = (cell.scores.get("forgetting") or 0.0) >= decoder.FORGOT
        if is_lost and (cell.baseline, cell.seed) in kept:
            scores = [cell.scores["p_o_before"], *cell.relearning["scores"]]
            scores += scores[-1:] * (len(TRIES) - len(scores))
            own = {"baseline": cell.baseline, "seed": cell.seed}
            rows.append(own | dict(zip(TRIES, scores, strict=True)))
    return pd.DataFrame(rows)


@cache
def values() -> dict[str, str]:
    """Return the values of the page's sentences by name."""
    found = {name: shown(answer) for name, answer in comparisons().items()}
    for name in STUDIES:
        found[f"rows {name}"] = f"{runs(name)['rows'].max():,}"
        found[f"seeds {name}"] = f"{runs(name)['seed'].nunique()}"
    found["seeds fewest"] = str(sequences.SEEDS)
    for name in ("replay", smollm2.GENERAL):
        found[f"time smollm2 {name}"] = smollm2.values()[f"time {name}"]
    found["seeds self-replay-tenth"] = str(smollm2.beside(smollm2.LATER)["seed"].nunique())
    found |= {f"{task} {method} score": plain(x) for (task, method), x in pretraining()[0].items()}
    for name, study in SEQUENCES.items():
        for row in means(score_rows(sequences.with_retuned(study))):
            found[f"{name} {row['method']}"] = plain(row["average_mean"])
            if study in (sequences.ALL, sequences.STAGE):
                found[f"told {name} {row['method']}"] = plain(row["told_mean"])
        if study is not sequences.WRITTEN:
            costs = sequences.multiples(study.read()[0], "vanilla")
            found |= {f"time {name} {method}": f"{x:.2g}" for method, (x, _) in costs.items()}
            found |= {f"memory {name} {method}": f"{x:.1f}" for method, (_, x) in costs.items()}
    for label, study in DRAWN.items():
        found[f"{label} right"] = f"{100 * grpo.first_reward(study):.0f} %"
    most_frequent = glue.cells()[0].floors[glue.MRPC]
    assert most_frequent is not None
    for name, own in glue.compared().groupby("baseline"):
        found |= {f"glue {name} {score}": plain(own[score].mean()) for score in glue.SCORES}
        found[f"glue {name} gained"] = plain(own["learned"].mean() - most_frequent)
    found |= {f"time facts {name}": f"{x:.2g}" for name, x in facts.times().items()}
    unseen = sequences.FIFTEEN, sequences.AHEAD, sequences.UNSEEN
    found["unseen rows"] = brackets(sequences.with_other_rows(*unseen))
    for study, claims in sequences.EXPLORED.items():
        for claim in claims:
            other = brackets(sequences.with_other_rows(study, claim))
            found[f"explored {study.name} {' '.join(claim)} rows"] = other
    for name, pattern in (("head", "head (.+)"), ("lead", LEADS)):
        found[f"{name} count"] = count_better(matching(pattern))
    return found | kl_values() | relearning_values()


def kl_values() -> dict[str, str]:
    """Return the values on KL by name."""
    found = {f"kl {n}": str(decoder.r2(n)) for n in ("forward_kl_base", "p_s")}
    for name in ("forward_kl", "divergence"):
        found |= {
            f"kl {name}": str(decoder.r2(name)),
            f"kl text {name}": str(decoder.r2(name, "text_loss_added")),
            f"kl unseen {name}": str(decoder.r2(name, unseen=True)),
            f"kl slow {name}": plain(decoder.r2(name, without=decoder.FAST).value, 2),
            f"kl log {name}": plain(decoder.r2(name, logarithm=True).value, 2),
            f"kl log unseen {name}": str(decoder.r2(name, unseen=True, logarithm=True)),
            f"kl ranks {name}": plain(decoder.rank_correlation(name), 2),
        }
    first = decoder.r2("forward_kl", unseen=True, without=decoder.LAST)
    found |= {"kl first": str(first), "kl first below": percent(first.below_zero, 0)}
    unseen = decoder.r2("forward_kl", unseen=True)
    return found | {"kl below forward_kl": percent(unseen.below_zero)}


def relearning_values() -> dict[str, str]:
    """Return the values on relearning by name."""
    again = decoder.kept()["relearned"].dropna()
    count, n = int(np.isfinite(again).sum()), len(again)
    before, lost, eight, _, last = (relearned().groupby("seed")[name].mean() for name in TRIES)
    back, cost = summarise([*((last - lost) / (before - lost))]), summarise([*(eight - lost)])
    most = decoder.TRIED[-1]
    slow = decoder.relearned_slowly(decoder.SLOW["a tenth"], "vanilla")
    part = summarise([*(slow[most] / slow["lost"])])
    never = decoder.relearned_slowly(decoder.NEVER_KNEW, "vanilla")
    return {
        "again slow vanilla": share(part.mean, part.low, part.high),
        "again brought": shown(summarise([*slow[most]])),
        "again never": shown(summarise([*never[most]])),
        "again recovered": shown(decoder.remembered()["vanilla"]),
        "again recovered half": shown(decoder.remembered()["vanilla-half"]),
        "again count": f"{count} of the {n}",
        "again back": share(back.mean, back.low, back.high),
        "again cost": shown(cost),
    }
