"""What mkdocs.yml asks for beside the pages of docs/: README as the first page, the reference of Python, and the notebook."""

import os
import re
from pathlib import Path, PurePosixPath

from mkdocs.structure.files import File
from nbconvert import MarkdownExporter

import fsdp_mlir

ROOT = Path(__file__).resolve().parents[1]
BESIDE = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}  # of the repository: in the site
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def move_links(text, source, page):
    """The text of a file of the repository with links as its page has them; what is not in the site is named and not linked."""

    def move(match):
        picture, label, target = match.groups()
        path, _, anchor = target.partition("#")
        if "://" in target or not path:
            return match[0]
        found = (ROOT / PurePosixPath(source).parent / path).resolve()
        name = found.relative_to(ROOT).as_posix()
        if not name.startswith("docs/") and name not in BESIDE:
            return label if name in label else f"{label} (`{name}`)"
        place = BESIDE.get(name) or name.removeprefix("docs/") + ("/README.md" if found.is_dir() else "")
        return f"{picture}[{label}]({os.path.relpath(place, PurePosixPath(page).parent)}{'#' + anchor if anchor else ''})"

    return LINK.sub(move, text)


def on_files(files, config):
    for name, page in BESIDE.items():
        files.append(File.generated(config, page, content=move_links((ROOT / name).read_text(), name, page)))
    public = (getattr(fsdp_mlir, name) for name in sorted(fsdp_mlir.__all__, key=str.lower))
    reference = "\n\n".join(f"::: {what.__module__}.{what.__name__}" for what in public)
    files.append(File.generated(config, "reference/python.md", content=f"# Python\n\n{reference}\n"))
    notebook = files.get_file_from_path("notebook.ipynb").abs_src_path
    files.append(File.generated(config, "notebook.md", content=move_links(MarkdownExporter().from_filename(notebook)[0], "docs/notebook.ipynb", "notebook.md")))
    return files


def on_page_markdown(markdown, page, **_):
    return markdown if page.file.generated_by else move_links(markdown, f"docs/{page.file.src_uri}", page.file.src_uri)
