"""Trains a protected, watched encoder in one of several processes: FOLDER METHOD SETTINGS."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from hosted import make_encoder
from safetensors.torch import save_file
from transformers import AutoTokenizer

from clbench.hf import ForgettingCallback, protect

folder, method, settings = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
setting = make_encoder(folder / "model")
trainer = setting.trainer(folder / "run", method, ddp_backend="gloo", **settings["trainer"])
protect(trainer, method, **settings["method"])
watch = None
if settings.get("watch"):
    trainer.processing_class = AutoTokenizer.from_pretrained(folder / "model")
    watch = ForgettingCallback(["synthetic/sentiment"], every=2, rows=60, texts=30, budget=0.9)
    trainer.add_callback(watch)
    trainer.callback_handler.processing_class = trainer.processing_class
trainer.train()
if watch is not None:
    points = [point["step"] for point in watch.curve]
    (folder / f"points-{trainer.args.process_index}.json").write_text(json.dumps(points))
if trainer.is_world_process_zero():
    save_file(dict(trainer.model.state_dict()), folder / "weights.safetensors")
