"""Pages of the site that the repository holds elsewhere, and links between all of them.

Scenarios, reference and gallery appear where they are in the repository (`scenarios/REFERENCE.md`), so that the same
links work in both. The help of the commands is a page, and so is each section of the reference and each notebook, with
the outputs that it has. A link to a file that the site lacks becomes its name. A figure is a link to its full size.
"""

from __future__ import annotations

import base64
import io
import json
import posixpath
import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

from markdown.extensions.toc import slugify
from mkdocs.structure.files import File, Files

import hybrid_des
from hybrid_des.interface.cli import command_files, main

ROOT = Path(__file__).resolve().parents[1]
MIRRORED = ("CHANGELOG.md", "CONTRIBUTING.md", "CITATION.cff", "scenarios/**/*.md", "scenarios/**/*.png",
            "scenarios/**/*.yaml", "scenarios/**/*.csv", "notebooks/*.ipynb")  # fmt: skip
LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<to>[^)#:\s]+)(?P<place>#[^)\s]*)?\)")
REFERENCE = "scenarios/REFERENCE.md"
GALLERY = "scenarios/README.md"
SECTION_PAGES = "scenarios/reference/{}.md"
OF_OVERVIEW = ("a-first-scenario", "contents")  # sections that the overview shows
SECTION = re.compile(r"(?=^#{2,3} )", flags=re.MULTILINE)  # deeper ones stay with the section they are in
HEADING = re.compile(r"^#+ (.+)$", flags=re.MULTILINE)
SAME_PAGE = re.compile(r"\]\(#([^)\s]+)\)")
FENCE = re.compile(r"(^```.*?^```$)", flags=re.MULTILINE | re.DOTALL)
FIGURE = re.compile(r'(<img [^>]*src="([^"]+\.png)"[^>]*>)')
STYLE_OF_TABLE = re.compile(r"<style scoped>.*?</style>\s*", flags=re.DOTALL)  # of pandas
COLOURS = re.compile(r"\x1b\[[\d;]*m")  # of a terminal
WIDTH = "100"  # columns of the help


def on_config(config: Any) -> Any:
    """Name the version that the site documents."""
    config.extra["version_of_package"] = hybrid_des.__version__
    config.site_name = f"hybrid_des {hybrid_des.__version__}"
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the files of the repository, and the help of the commands."""
    for pattern in MIRRORED:
        for path in sorted(ROOT.glob(pattern)):
            uri = path.relative_to(ROOT).as_posix()
            files.append(File.generated(config, uri, abs_src_path=str(path)))
    files.append(File.generated(config, "reference/commands.md", content="\n".join(helps())))
    for name, text in sections().items():
        files.append(File.generated(config, SECTION_PAGES.format(name), content=text))
    for notebook in sorted(ROOT.glob("notebooks/*.ipynb")):
        for uri, content in rendered(notebook):
            files.append(File.generated(config, uri, content=content))
    return files


def rendered(notebook: Path) -> Iterator[tuple[str, str | bytes]]:
    """A notebook as a page, and the pictures of its outputs; it is not run."""
    texts = [f'Download: <a href="{notebook.name}" download>{notebook.name}</a>']
    for number, cell in enumerate(json.loads(notebook.read_text(encoding="utf-8"))["cells"]):
        source = "".join(cell["source"])
        texts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for place, output in enumerate(cell.get("outputs", ())):
            data = output.get("data", {"text/plain": output.get("text", "")})
            if "image/png" in data:
                name = f"{notebook.stem}_files/{number}_{place}.png"
                yield f"notebooks/{name}", base64.b64decode("".join(data["image/png"]))
                texts.append(f"![output]({name})")
            elif "text/html" in data:
                texts.append(STYLE_OF_TABLE.sub("", "".join(data["text/html"])))
            else:
                texts.append(f"```text\n{COLOURS.sub('', ''.join(data['text/plain'])).rstrip()}\n```")
    title, _, rest = texts[1].partition("\n")
    texts[:2] = [title, texts[0], rest]
    yield f"notebooks/{notebook.stem}.md", "\n\n".join(texts)


def sections() -> dict[str, str]:
    """The sections of the reference by their anchors, each as a page: its heading becomes the first one."""
    parts = SECTION.split((ROOT / REFERENCE).read_text(encoding="utf-8"))[1:]
    pages = {anchor(part): re.sub(rf"^#{{{depth(part) - 1}}}(?=#)", "", part, flags=re.MULTILINE) for part in parts}
    return {name: text for name, text in pages.items() if name not in OF_OVERVIEW}


def depth(section: str) -> int:
    """The level of a section's heading."""
    return len(section) - len(section.lstrip("#"))


def anchor(section: str) -> str:
    """The anchor of the first heading of a text, as the site and GitHub make it."""
    heading = HEADING.search(section)
    assert heading is not None
    return slugify(heading[1].replace("`", ""), "-")


def pages_of_anchors() -> dict[str, str]:
    """The anchors of the reference, and the page that has each."""
    return {
        anchor(heading[0]): SECTION_PAGES.format(name)
        for name, text in sections().items()
        for heading in HEADING.finditer(FENCE.sub("", text))
    }


def helps() -> Iterator[str]:
    """The help of every command, as the command line prints it."""
    yield "# Commands\n\n`python -m hybrid_des` is the same as `hybrid-des`.\n"
    for name in ("", *command_files.names()):
        printed = io.StringIO()
        with redirect_stdout(printed), patch("sys.argv", ["hybrid-des"]), patch.dict("os.environ", COLUMNS=WIDTH):
            main.main([*([name] if name else []), "--help"])
        title = f"hybrid-des {name or 'FILE'}"
        yield f"## {title}\n\n```text\n{printed.getvalue().rstrip()}\n```\n"


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Point links at the pages of the site."""
    uri = page.file.src_uri
    if uri == "CHANGELOG.md":
        page.meta["search"] = {"boost": 0.1}  # it names every key
    if uri == GALLERY:
        page.meta["hide"] = ["toc"]  # so that figures have their full width
    of_reference = uri == REFERENCE or posixpath.dirname(uri) == posixpath.dirname(SECTION_PAGES)
    of_notebook = posixpath.dirname(uri) == "notebooks"
    if page.file.generated_by and page.file.abs_src_path is None and not of_reference and not of_notebook:
        return markdown
    elsewhere = ROOT / REFERENCE if of_reference else ROOT / uri if of_notebook else None
    source = elsewhere or Path(page.file.abs_src_path).resolve()
    if uri == REFERENCE:
        markdown = markdown[: markdown.index("\n## A complete file")]
    parts = FENCE.split(markdown)
    if of_reference:
        parts[::2] = [SAME_PAGE.sub(rf"]({source.name}#\1)", text) for text in parts[::2]]
    parts[::2] = [LINK.sub(lambda found: _relinked(found, source, uri, files), text) for text in parts[::2]]
    return "".join(parts)


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """Let a figure open at full size."""
    return FIGURE.sub(r'<a href="\2">\1</a>', html)


def _relinked(found: re.Match[str], source: Path, page: str, files: Files) -> str:
    """A link relative to its file in the repository as one between pages, or as the name of the file."""
    target = (source.parent / found["to"]).resolve()
    if target == ROOT / REFERENCE and (section := pages_of_anchors().get((found["place"] or "#")[1:])):
        return f"[{found['text']}]({posixpath.relpath(section, posixpath.dirname(page))}{found['place']})"
    if not target.exists():
        return found[0]  # reported as wrong
    inside = target.relative_to(ROOT).as_posix()
    uri = inside.removeprefix("docs/").replace(".ipynb", ".md")
    if files.get_file_from_path(uri) is None:
        return f"{found['text']} (`{inside}`)" if found["text"].strip("`") != inside else f"`{inside}`"
    return f"{found['image']}[{found['text']}]({posixpath.relpath(uri, posixpath.dirname(page))}{found['place'] or ''})"
