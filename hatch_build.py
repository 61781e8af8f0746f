"""What a wheel takes along beside the package: the scenarios and the documentation; and the README in its metadata.

`hybrid_des.scenario.shipped` and `hybrid_des.interface.cli.commands.docs` find the files there.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(!?)\[([^]]*)\]\((?!https?:)([^)#]*)[^)]*\)")
PAGES = {"scenarios/REFERENCE.md": "reference", "CHANGELOG.md": "changes"}


def readme(text: str) -> str:
    """The README without links into the repository: pages of the documentation by their command, no pictures."""

    def instead(link: re.Match[str]) -> str:
        is_picture, words, path = link.groups()
        page = PAGES.get(path) or (path[5:-3] if re.fullmatch(r"docs/.*\.md", path) else None)
        return "" if is_picture else words if page is None else f"{words} (`hybrid-des docs {page}`)"

    return LINK.sub(instead, text)


class Readme(MetadataHookInterface):
    """The README as the description of the distribution."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Describe the distribution."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": readme(text)}


class ShippedScenarios(BuildHookInterface):
    """Adds scenarios, experiments and documentation; an editable installation finds them in the checkout."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name the files to include."""
        if version == "editable":
            return
        root, included = Path(self.root), build_data["force_include"]
        folder = root / "scenarios"
        for file in (*folder.rglob("*.yaml"), *folder.rglob("*.csv")):
            included[str(file)] = f"hybrid_des/shipped/{file.relative_to(folder).as_posix()}"
        for file in (root / "CHANGELOG.md", folder / "REFERENCE.md", *root.glob("docs/**/*.md")):
            included[str(file)] = f"hybrid_des/shipped/docs/{file.relative_to(root).as_posix()}"
