"""What a release promises: version, dependencies, page of the package, workflows and links."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import clbench
from clbench.cli.schema import KINDS

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob(".github/*.md")])
SOURCES = sorted((ROOT / "clbench").rglob("*.py"))
LINK = re.compile(r"\]\(([^)\s]+)\)")
"""A link, or a picture."""


def text_of(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def printed(code: str, folder: Path) -> str:
    """Return what code prints in a fresh process."""
    command, paths = [sys.executable, "-c", code], {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=folder, env=os.environ | paths, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_version_is_the_same_everywhere() -> None:
    assert str(Version(clbench.__version__)) == clbench.__version__
    assert yaml.safe_load(text_of("CITATION.cff"))["version"] == clbench.__version__
    headings = re.findall(r"^## \[(.+?)\]", text_of("CHANGELOG.md"), re.MULTILINE)
    assert headings[:2] == ["Unreleased", clbench.__version__]


PLANNED = """
import clbench.core
clbench.core.__version__ = {version!r}
from clbench.suite.options import RunOptions
from clbench.suite.plan import make_plan
from clbench.suite.read import read_suite
print(*(cell.fingerprint for cell in make_plan(read_suite("quick"), RunOptions()).cells))
"""


def test_fingerprints_of_cells_do_not_depend_on_the_version(tmp_path: Path) -> None:
    old, new = (printed(PLANNED.format(version=each), tmp_path) for each in ("0.1.0", "2.0.0"))
    assert old == new
    assert len(old.split()) > 10


def test_constraints_fit_the_declared_versions() -> None:
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)$", text_of("constraints.txt"), re.MULTILINE))
    pins = {name.lower().replace("_", "-"): version for name, version in pins.items()}
    declared = (
        PROJECT["project"]["dependencies"] + PROJECT["project"]["optional-dependencies"]["dev"]
    )
    for requirement in map(Requirement, declared):
        assert requirement.specifier.contains(pins[requirement.name.lower()]), requirement


def top_imports(tree: ast.Module) -> set[str]:
    """Return the packages that importing a module imports."""
    found = set()
    for node in tree.body:
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_modules_import_on_every_system_and_without_ray(path: Path) -> None:
    names = top_imports(ast.parse(path.read_text("utf-8")))
    assert names.isdisjoint({"fcntl", "grp", "pwd", "resource", "termios"}), "not on Windows"
    if path.name != "ray_tune.py":
        assert names.isdisjoint({"ray", "autogluon"})
    optional = PROJECT["project"]["optional-dependencies"].values()
    extra = {Requirement(line).name.replace("-", "_") for lines in optional for line in lines}
    assert names.isdisjoint(extra), "not in an environment without extras"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_name_of_a_class_hides_one_in_its_annotations(path: Path) -> None:
    """Python 3.14 reads annotations when all names of the class are known."""
    for kind in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(kind, ast.ClassDef):
            own = {part.name for part in kind.body if isinstance(part, ast.FunctionDef)}
            hints = [part.annotation for part in ast.walk(kind) if isinstance(part, ast.AnnAssign)]
            hints += [part.annotation for part in ast.walk(kind) if isinstance(part, ast.arg)]
            parts = [part for hint in hints if hint is not None for part in ast.walk(hint)]
            used = {part.id for part in parts if isinstance(part, ast.Name)}
            assert own.isdisjoint(used), kind.name


def loaded(code: str, folder: Path) -> set[str]:
    """Return the packages that a fresh process imports for some code."""
    code += "\nimport sys; print('LOADED', *{name.partition('.')[0] for name in sys.modules})"
    return set(printed(code, folder).rpartition("LOADED")[2].split())


EXPORTS = """
import clbench, clbench.hf
for package in clbench, clbench.hf, clbench.figures, clbench.fisher, clbench.search:
    for name in package.__all__:
        getattr(package, name)
"""


def test_public_names_load_neither_ray_nor_autogluon(tmp_path: Path) -> None:
    packages = loaded(EXPORTS, tmp_path)
    assert "transformers" in packages
    assert packages.isdisjoint({"ray", "autogluon"})


@pytest.mark.slow
def test_an_audit_loads_neither_ray_nor_autogluon(tmp_path: Path) -> None:
    code = text_of("tools/package.py").partition('AUDIT = """')[2].partition('"""')[0]
    code = code.partition("import clbench.search.ray_tune")[0]
    assert "main([" in code
    assert loaded(code, tmp_path).isdisjoint({"ray", "autogluon"})


def test_the_page_of_the_package_has_only_links_that_work_there() -> None:
    page = text_of("README.md")
    for rule in PROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        page = re.sub(rule["pattern"], rule["replacement"].replace("\\1", r"\1"), page)
    assert "](" not in re.sub(r"\]\(https?://[^)]+\)", "", page)
    assert "# clbench" in page
    assert "docs/install.md" in page


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_and_pictures_lead_somewhere(path: Path) -> None:
    page = re.sub(r"```.*?```", "", path.read_text("utf-8"), flags=re.DOTALL)
    for link in LINK.findall(page):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (path.parent / file) if file else path
        assert target.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.*)$", target.read_text("utf-8"), re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in headings}
            assert anchor in slugs, link


def test_files_for_assistants_exist() -> None:
    page = text_of("AGENTS.md")
    paths = re.findall(r"(?:tests|clbench|baselines|docs)/[\w./]*\w", page)
    assert len(paths) > 10
    for path in paths:
        assert "NAME" in path or (ROOT / path).exists(), path


def test_the_stability_page_lists_what_is_public() -> None:
    page = text_of("docs/stability.md")
    groups = set(re.findall(r'group="(clbench\.\w+)"', "".join(p.read_text() for p in SOURCES)))
    assert groups
    assert {group for group in groups if f"`{group}`" not in page} == set()
    for kind in KINDS:
        assert f"`clbench schema {kind}`" in page


def steps(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def test_there_are_workflows() -> None:
    assert {path.stem for path in WORKFLOWS} >= {"release", "tests", "verify"}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_are_safe_by_default(path: Path) -> None:
    text = path.read_text("utf-8")
    workflow = yaml.safe_load(text)
    events = workflow[True]  # YAML reads the key `on` as a truth value
    assert "pull_request_target" not in events
    assert "workflow_run" not in events
    assert workflow["permissions"] == {}
    assert "secrets." not in text
    for job in workflow["jobs"].values():
        assert "timeout-minutes" in job
        allowed = {"contents": "read"} if job["steps"][0].get("uses", "").count("checkout") else {}
        publishes = {
            "release": {"id-token": "write"},
            "docs": {"id-token": "write", "pages": "write"},
        }
        assert job["permissions"] in (allowed, publishes.get(path.stem))
    for step in steps(workflow):
        if "uses" in step:
            assert re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}", step["uses"]), step
        if "checkout" in step.get("uses", ""):
            assert step["with"]["persist-credentials"] is False
        assert "${{" not in step.get("run", ""), "an expression in a script is an injection"


@pytest.mark.skipif(shutil.which("jq") is None, reason="needs jq")
@pytest.mark.parametrize(
    ("files", "folders"),
    [
        (["results/community/mine/manifest.json", "results/community/mine/suite.json"], ["mine"]),
        (["results/community/b-2/x", "results/community/a_1/x", "README.md"], ["a_1", "b-2"]),
        (["README.md", "results/community/README.md"], []),
        (["results/community/$(touch owned)/x"], None),
        (["results/community/.hidden/x"], None),
        (["results/community/loose file"], None),
        (["results/community/link -> /etc"], None),
    ],
    ids=["one", "two", "none", "command", "hidden", "file", "link"],
)
def test_folders_of_a_pull_request_are_found(
    tmp_path: Path, files: list[str], folders: list[str] | None
) -> None:
    (step,) = (
        s for s in steps(yaml.safe_load(text_of(".github/workflows/verify.yml"))) if "id" in s
    )

    def git(*words: str) -> str:
        name = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        command = ["git", "-C", str(tmp_path), *name, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    (tmp_path / "results/community/gone").mkdir(parents=True)
    (tmp_path / "results/community/gone/x").touch()
    git("add", "-A")
    git("commit", "-qm", "base")
    base = git("rev-parse", "HEAD")
    shutil.rmtree(tmp_path / "results/community/gone")
    (tmp_path / "results/community").mkdir(exist_ok=True)
    for name in files:
        file, _, target = name.partition(" -> ")
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).symlink_to(target) if target else (tmp_path / file).touch()
    git("add", "-A")
    git("commit", "-qm", "change")
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "BASE": base, "GITHUB_OUTPUT": str(tmp_path / "output")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not (tmp_path / "owned").exists()
    if folders is None:
        assert done.returncode == 1
        assert done.stdout.startswith("::error::")
    else:
        assert done.returncode == 0, done.stderr
        assert (
            tmp_path / "output"
        ).read_text() == f"folders={json.dumps(folders, separators=(',', ':'))}\n"
