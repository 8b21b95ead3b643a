"""The site: Sphinx reads the pages where they lie, with the root of the repository as its source.

So links between README.md, docs/ and other files work on the site as they do in the repository.
`make docs` builds it.
"""

from __future__ import annotations

import html
import inspect
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from myst_parser.parsers.sphinx_ import MystParser
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.osutil import relative_uri

from clbench import __version__

ROOT = Path(__file__).resolve().parents[1]
CONTENTS = """
```{toctree}
:hidden:
:caption: Tutorials
Audit a LoRA <docs/tutorials/audit-a-lora>
Protect an SFTTrainer <docs/tutorials/protect-an-sfttrainer>
Your own method against ten <docs/tutorials/your-method-against-ten>
From a suite to a figure <docs/tutorials/suite-to-figure>
```
```{toctree}
:hidden:
:caption: What did my model forget?
Audit, watch, protect, mend <docs/audit>
Audit logs <docs/audit-logs>
How sure audits are <docs/audit-methods>
```
```{toctree}
:hidden:
:caption: Which method forgets least?
Quick: the demo <docs/quick>
Run <docs/run>
Read the scores <docs/read>
Methods <docs/methods>
Tune <docs/tune>
Search learning rates <docs/search>
Decoders <docs/decoders>
Scale <docs/scale>
Extend <docs/extend>
Reproduce papers <docs/reproduce>
Pretrain <docs/pretrain>
```
```{toctree}
:hidden:
:caption: Results
Findings <docs/findings>
By scenario <docs/findings-by-scenario>
Pairs of tasks <docs/findings-pairs>
Sequences <docs/findings-sequences>
The GLUE sequence <docs/findings-glue>
A small decoder <docs/findings-decoders>
Tuned alike <docs/findings-facts>
SmolLM2 <docs/findings-smollm2>
Gallery <docs/gallery>
The board <docs/board>
Publish and verify <docs/submit>
```
```{toctree}
:hidden:
:caption: Reference
API <docs/api/index>
CONTRIBUTING
For coding assistants <AGENTS>
CHANGELOG
{more}
```
"""
"""The menu; `more` are the pages of docs/ that it does not name."""

project = "clbench"
author = "The clbench maintainers"
version = release = __version__
root_doc = "README"
include_patterns = ["README.md", "AGENTS.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/**"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext", ".ipynb": "notebook"}

html_theme = "furo"
html_title = f"clbench {version}"
html_copy_source = False
html_show_copyright = False
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_theme_options = {"navigation_with_keys": True}
highlight_language = "none"  # of blocks without a language: commands and what they print
myst_heading_anchors = 4
myst_links_external_new_tab = False

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
napoleon_google_docstring = False
napoleon_use_rtype = False
# Parameters that one text describes, as in `url, contact`, stay together.
napoleon_use_param = False
napoleon_custom_sections = [("Attributes", "params_style")]
default_role = "literal"  # `name` in a docstring


class NotebookParser(MystParser):  # type: ignore[misc]
    """Reads a notebook as the page that its cells and their outputs make."""

    supported = ("notebook",)

    def parse(self, inputstring: str, document: nodes.document) -> None:
        """Parse the notebook's text."""
        super().parse("\n\n".join(_cells(json.loads(inputstring))), document)


def _cells(notebook: dict[str, Any]) -> Iterator[str]:
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            yield text
            continue
        yield _fenced("none" if text.startswith("!") else "python", text)
        for output in cell["outputs"]:
            data = output.get("data", {"text/plain": output.get("text", [])})
            if "image/png" in data:
                source = f"data:image/png;base64,{data['image/png']}"
                yield f'<img alt="What the cell shows" src="{source}">'
            else:
                yield _fenced("text", "".join(data["text/plain"]))


def _fenced(language: str, text: str) -> str:
    return f"````{language}\n{text.rstrip()}\n````"


def add_contents(app: Sphinx, name: str, source: list[str]) -> None:
    """Append the menu to the landing page, and link the board, which `make docs` writes beside."""
    if name == "docs/board":
        link = '<a href="../board/index.html">Open the board of this project\'s results</a>'
        source[0] = source[0].replace("\n\n", f"\n\n{link}\n\n", 1)
    if name == root_doc:
        pages = [f"docs/{page.stem}" for page in sorted((ROOT / "docs").glob("*.md"))]
        more = [page for page in pages if f"<{page}>" not in CONTENTS]
        source[0] += CONTENTS.replace("{more}", "\n".join(more))


def without_annotated(
    app: Sphinx, what: str, name: str, value: Any, options: Any, signature: str, result: str
) -> tuple[str, str] | None:
    """Leave types out of a signature whose types hold the descriptions of options."""
    if what != "class" or "Annotated[" not in (signature or ""):
        return None
    plain = inspect.signature(value)
    empty = inspect.Parameter.empty
    parameters = [each.replace(annotation=empty) for each in plain.parameters.values()]
    return str(plain.replace(parameters=parameters, return_annotation=empty)), result


class FolderLinks(SphinxPostTransform):  # type: ignore[misc]
    """Lets a link to a folder of the repository lead to a list of its files."""

    default_priority = 8  # before that of MyST, which warns

    def run(self, **options: Any) -> None:
        """Replace the links of a page."""
        page = self.env.docname
        for node in list(self.document.findall(addnodes.pending_xref)):
            folder = (ROOT / page).parent / node["reftarget"]
            if node["reftype"] == "myst" and node["refdomain"] is None and folder.is_dir():
                name = folder.resolve().relative_to(ROOT).as_posix()
                folders.add(name)
                link = relative_uri(self.app.builder.get_target_uri(page), f"files/{name}.html")
                node.replace_self(nodes.reference("", "", *node.children, refuri=link))


folders: set[str] = set()
"""Folders that pages link to."""


def list_folders(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield a page for each folder that is linked, and copy its files."""
    for name in sorted(folders):
        files = [each for each in sorted((ROOT / name).iterdir()) if each.is_file()]
        below = [each.name for each in sorted((ROOT / name).iterdir()) if each.is_dir()]
        copies = Path(app.outdir) / "files" / name
        copies.mkdir(parents=True, exist_ok=True)
        for file in files:
            shutil.copy(file, copies)
        base = Path(name).name
        lines = [f'<li><a href="{base}/{html.escape(f.name)}">{f.name}</a></li>' for f in files]
        lines += [f"<li>{html.escape(each)}/</li>" for each in below]
        body = f"<h1>{name}</h1><p>Files of the repository:</p><ul>{''.join(lines)}</ul>"
        yield f"files/{name}", {"title": name, "body": body}, "page.html"


def add_index(app: Sphinx, error: Exception | None) -> None:
    """Let the address of the folder show the landing page."""
    if error is None:
        shutil.copy(Path(app.outdir) / "README.html", Path(app.outdir) / "index.html")


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect the above."""
    app.add_source_parser(NotebookParser)
    app.connect("source-read", add_contents)
    app.connect("autodoc-process-signature", without_annotated)
    app.add_post_transform(FolderLinks)
    app.connect("html-collect-pages", list_folders)
    app.connect("build-finished", add_index)
    return {"parallel_read_safe": False}
