"""`clbench run`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clbench.cli.options import PRECISIONS, choice, seeds, words
from clbench.cli.shared import Address, Data, Device, Epochs, Limit, Model, Precision, Suite


def run(
    suite: Suite = "quick",
    out: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Folder of the run.  [default: results/SUITE]"),
    ] = None,
    model: Model = None,
    data: Data = None,
    methods: Annotated[
        list[str] | None, typer.Option(metavar="A,B", help="Baselines, joined by commas.")
    ] = None,
    scenarios: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN", help="Shell pattern of scenario names, such as 'sst2*'; repeatable."
        ),
    ] = None,
    seed_list: Annotated[
        str | None, typer.Option("--seeds", metavar="SEEDS", help="Seeds as 0,1,2 or 0-4.")
    ] = None,
    limit: Limit = None,
    epochs: Epochs = None,
    device: Device = "auto",
    precision: Precision = None,
    corpus: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Text, one a line, for ewc-mlm and the shift pretraining; or a name.",
        ),
    ] = None,
    plugin: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Python file with methods, tasks; repeatable."),
    ] = None,
    references: Annotated[
        bool, typer.Option("--references", help="Also each last task alone, for intransigence.")
    ] = False,
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Run again what was run with other settings; keep the old."),
    ] = False,
    workers: Annotated[
        int | None,
        typer.Option(metavar="N", help="Cells at a time, in processes of their own."),
    ] = None,
    address: Address = None,
    threads: Annotated[
        int | None,
        typer.Option(metavar="N", help="Processor threads of a cell.  [default: cores / workers]"),
    ] = None,
    gpus: Annotated[
        float | None, typer.Option(metavar="X", help="GPUs of a cell, such as 0.5 or 1.")
    ] = None,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Also write logs to DIR/tensorboard.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the cells and an estimate; write nothing.")
    ] = False,
) -> int:
    """Run a suite, or go on with it: finished cells are not run again.

    Exit code 0 if all cells are well, 1 if some failed, 2 if something in the command or its
    input is wrong.
    """
    from clbench import api
    from clbench.evaluation.resources import Resources

    place = Resources(workers, address, threads, gpus)
    plan = api.make(
        suite,
        out=out,
        model=model,
        data=data,
        methods=words("--methods", methods),
        scenarios=words("--scenarios", scenarios),
        seeds=seeds(seed_list),
        limit=limit,
        epochs=epochs,
        device=device,
        precision=precision and choice("--precision", precision, PRECISIONS),
        corpus=corpus,
        plugins=tuple(plugin or ()),
        references=references,
    )
    if dry_run:
        from clbench.cli.dry import show_plan

        show_plan(plan, replace=replace)
        return 0
    from clbench.cli.progress import listener
    from clbench.cli.table import show_results

    with listener(plan.suite.name, plan.out) as told:
        if tensorboard:
            from clbench.evaluation.tensorboard import TensorBoard

            told = TensorBoard(told, plan.out / "tensorboard")
        done = api.execute(plan, replace=replace, place=place, listener=told)
    return show_results(done.path, done.cells)
