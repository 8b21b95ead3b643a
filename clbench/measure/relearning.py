"""How many rows of the first task bring its score back: real or spurious forgetting."""

from dataclasses import replace
from typing import Any

from clbench.core.seeds import numpy_stream
from clbench.measure.rows import PreparedScenario, RowScorer
from clbench.methods.base import Method, Vanilla
from clbench.training.context import Context
from clbench.training.engine import train_stage
from clbench.training.protocol import Protocol
from clbench.training.stage import Stage

FEWEST_ROWS = 8
RELEARN = {"relearn_rows", "relearn_margin", "relearn_rate", "relearn_steps"}
"""Its settings in a protocol, on which no weights depend."""


def relearn(
    scenario: PreparedScenario, method: Method, context: Context, protocol: Protocol, before: float
) -> dict[str, Any]:
    """Train on 8, 16, 32 … rows of the first task until its score is what it was; undo it all.

    Every time, all weights start as the method has them for the task, whatever it froze, and are
    trained as a stage of the protocol at `relearn_rate` times its flat rate, without the method.
    The rows are the same for all cells, and each number includes the smaller ones. A task that
    comes back after a few rows was not lost (Zheng et al. 2025, arXiv 2501.13453: spurious
    forgetting).

    Parameters
    ----------
    before
        Main score of the task after its own stage.

    Returns
    -------
    dict
        ``rows`` and ``steps`` of each training, 0 before the first, the ``scores`` after it,
        whether one is within `relearn_margin` of `before` (``recovered``), or with a margin below
        0, which tries more numbers of rows (-1: all), at least `before`; and the fewest ``needed``.
    """
    data, model = scenario.train[0], context.model
    scorer = RowScorer(scenario, Vanilla(), context, None)
    most = min(protocol.relearn_rows or 0, len(data.rows))
    order = numpy_stream("relearned rows", data.name, protocol.data_seed).permutation(
        len(data.rows)
    )
    changes: dict[str, Any] = {"curve_points": 0, "lr": protocol.lr * protocol.relearn_rate}
    if protocol.relearn_steps is not None:
        changes |= {"steps": protocol.relearn_steps, "task_steps": {}, "task_epochs": {}}
    own = replace(context, protocol=protocol.model_copy(update=changes), notes=[])
    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    with method.scoring(0):
        start = {name: value.clone() for name, value in model.state_dict().items()}
        rows, steps, scores = [0], [0], [scorer.main_score(0)]
        while scores[-1] < before - protocol.relearn_margin and rows[-1] < most:
            rows.append(min(max(FEWEST_ROWS, 2 * rows[-1]), most))
            model.load_state_dict(start)
            model.requires_grad_(requires_grad=True)
            few = replace(data, rows=data.rows.take(order[: rows[-1]]))
            steps.append(train_stage(Stage(**vars(own), tasks=[few]), Vanilla()).steps)
            scores.append(scorer.main_score(0))
        model.load_state_dict(start)
    for parameter, flag in flags:
        parameter.requires_grad_(flag)
    enough = before - max(protocol.relearn_margin, 0.0)
    needed = [number for number, score in zip(rows, scores, strict=True) if score >= enough]
    found = {"rows": rows, "steps": steps, "scores": scores, "recovered": bool(needed)}
    return found | ({"needed": needed[0]} if needed else {})
