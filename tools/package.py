"""Build sdist and wheel, check both, and use the wheel in a clean environment.

Needs pip and the package index, but nothing installed beside Python.

python -m tools.package [--out DIR]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
CONSTRAINTS = ROOT / "constraints.txt"
IN_WHEEL = {
    "clbench/py.typed",
    "clbench/schemas/audit.json",
    "clbench/models/tiny/model.safetensors",
    "clbench/tasks/synthetic.parquet",
    "clbench/_scenarios/quick.toml",
    "clbench/_baselines/vanilla.toml",
    "clbench/_published/bertcl.csv",
}
"""Data files of which each stands for its kind."""
IN_SDIST = {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "PKG-INFO"}
RENDER = """
import sys, zipfile
from email import message_from_bytes
from readme_renderer import markdown

with zipfile.ZipFile(sys.argv[1]) as wheel:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    page = message_from_bytes(wheel.read(name)).get_payload(decode=True)
print(markdown.render(page.decode()))
"""
"""Prints the description of a wheel in HTML, as the package index shows it."""
AUDIT = """
import shutil, sys
from importlib.resources import files

import clbench, clbench.hf
from safetensors.torch import load_file, save_file
from clbench.cli import main

shutil.copytree(str(files("clbench") / "models" / "tiny"), "tuned")
weights = load_file("tuned/model.safetensors")
for name, weight in weights.items():
    if "layer.0" in name and weight.ndim == 2:
        weight.mul_(0.9)
save_file(weights, "tuned/model.safetensors", metadata={"format": "pt"})
tasks = ["--tasks", "synthetic/sentiment", "--rows", "50"]
assert main(["audit", "tiny", "tuned", *tasks, "--out", "audit"]) == 0
heavy = {name.partition(".")[0] for name in sys.modules} & {"ray", "autogluon"}
assert not heavy, f"clbench audit imports {heavy}"
import clbench.search.ray_tune  # which does need them, and finds them
"""
"""Audits the built-in model against a copy that was changed a little."""


def main() -> None:
    """Build, check, install and use the package."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder of both files")
    out = parser.parse_args().out.resolve()
    with tempfile.TemporaryDirectory() as folder:
        sdist, wheel = build(Path(folder) / "build", out)
        version = check_contents(sdist, wheel)
        use(Path(folder) / "clean", wheel, version)


def build(environment: Path, out: Path) -> tuple[Path, Path]:
    """Build the sdist, the wheel from it, and check how their pages render."""
    python = make_environment(environment, "build", "twine", "readme_renderer[md]")
    for old in out.glob("clbench-*"):
        old.unlink()
    call(python, "-m", "build", "--outdir", out, ROOT)
    (sdist,), (wheel,) = out.glob("clbench-*.tar.gz"), out.glob("clbench-*.whl")
    call(python, "-m", "twine", "check", "--strict", sdist, wheel)
    # twine looks only at reStructuredText.
    html = output(python, "-c", RENDER, wheel, cwd=ROOT)
    if html.count("<h2") < 4 or html.count("<pre") < 4 or "<table" not in html:
        raise SystemExit("the page of the package does not render")
    return sdist, wheel


def check_contents(sdist: Path, wheel: Path) -> str:
    """Refuse a package that lacks files or has foreign ones; return its version."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    missing = IN_WHEEL - {*names}
    roots = {name.split("/")[0] for name in names}
    version = wheel.name.split("-")[1]
    foreign = roots - {"clbench", f"clbench-{version}.dist-info"}
    with tarfile.open(sdist) as packed:
        missing |= IN_SDIST - {name.partition("/")[2] for name in packed.getnames()}
    cached = {name for name in names if name.endswith(".pyc")}
    if missing or foreign or cached:
        raise SystemExit(f"missing: {missing}, not expected: {foreign | cached}")
    return version


def use(environment: Path, wheel: Path, version: str) -> None:
    """Install the wheel in a clean environment, and run, report and audit with it."""
    # torch first and alone, for the reason that the Makefile gives.
    lines = CONSTRAINTS.read_text("utf-8").splitlines()
    python = make_environment(environment, *(x for x in lines if x.startswith("torch==")))
    install(python, wheel)
    with tempfile.TemporaryDirectory() as folder:
        clbench = (python, "-m", "clbench")
        script = next(python.parent.glob("clbench*"))
        for program in (clbench, (script,)):
            if output(*program, "--version", cwd=folder) != f"clbench {version}":
                raise SystemExit(f"{program[0]} is not version {version}")
        for kind in ("suite", "cell", "audit", "submission"):
            json.loads(output(*clbench, "schema", kind, cwd=folder))
        options = "--methods", "vanilla,frozen", "--seeds", "0", "--epochs", "1", "--out", "run"
        call(*clbench, "run", "quick", "--scenarios", "growing-head", *options, cwd=folder)
        call(*clbench, "report", "run", cwd=folder)
        call(python, "-c", AUDIT, cwd=folder)


def make_environment(folder: Path, *packages: str) -> Path:
    """Make an environment with some packages; return its Python."""
    venv.create(folder, with_pip=True)
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    install(python, *packages)
    return python


def install(python: Path, *packages: str | Path) -> None:
    """Install packages in the versions that all of this project's tests run with."""
    call(python, "-m", "pip", "install", "--quiet", "-c", CONSTRAINTS, *packages)


def call(*words: str | Path, cwd: str | Path = ROOT) -> None:
    """Run a command; stop with its exit code if it fails."""
    shown = " ".join("…" if "\n" in str(word) else str(word) for word in words)
    sys.stdout.write(f"$ {shown}\n")
    sys.stdout.flush()
    if code := subprocess.run(words, cwd=cwd, env=outside(), check=False).returncode:
        raise SystemExit(code)


def output(*words: str | Path, cwd: str | Path) -> str:
    """Return what a command prints."""
    done = subprocess.run(words, cwd=cwd, env=outside(), check=True, capture_output=True, text=True)
    return done.stdout.strip()


def outside() -> dict[str, str]:
    """Return an environment in which Python finds nothing of this checkout, and no hub."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return kept | {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "PYTHONUTF8": "1"}


if __name__ == "__main__":
    sys.exit(main())
