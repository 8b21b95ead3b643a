"""Trains protected encoders, one of them watched, in one of several processes: FOLDER METHODS."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from helpers.hosted import make_for, weights
from safetensors.torch import save_file
from torch import distributed
from transformers import AutoTokenizer

from clbench.hf import ForgettingCallback, protect

folder = Path(sys.argv[1])
for method, options in json.loads(sys.argv[2]).items():
    setting = make_for(method, folder)
    trainer = setting.trainer(
        folder / "run", method, ddp_backend="gloo", per_device_train_batch_size=2
    )
    protect(trainer, method, **options)
    watch = None
    if method == "l2-sp":
        trainer.processing_class = AutoTokenizer.from_pretrained(folder / "model")
        trainer.callback_handler.processing_class = trainer.processing_class
        watch = ForgettingCallback(["synthetic/sentiment"], every=2, rows=60, texts=30, budget=0.9)
        trainer.add_callback(watch)
    trainer.train()
    rank = trainer.args.process_index
    if watch is not None:
        points = [point["step"] for point in watch.curve]
        (folder / f"points-{rank}.json").write_text(json.dumps(points))
    if rank == 0:
        save_file(weights(trainer), folder / f"{method}.safetensors")
        logs = [entry for entry in trainer.state.log_history if "loss" in entry]
        (folder / f"{method}.json").write_text(json.dumps(logs))

# Without this, the process that ends first may abort: threads of the group outlive the interpreter.
distributed.barrier()
distributed.destroy_process_group()
