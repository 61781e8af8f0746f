"""What a wheel takes along beside the package: the scenarios and the documentation.

`hybrid_des.scenario.composition` and `hybrid_des.cli.commands.docs` find them there.
"""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ShippedScenarios(BuildHookInterface):
    """Adds scenarios, experiments and documentation; an editable installation finds them in the checkout."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name the files to include."""
        if version == "editable":
            return
        root, included = Path(self.root), build_data["force_include"]
        folder = root / "scenarios"
        for file in (*folder.glob("*.yaml"), *folder.glob("experiments/*.yaml")):
            included[str(file)] = f"hybrid_des/shipped/{file.relative_to(folder).as_posix()}"
        for file in (root / "CHANGELOG.md", folder / "REFERENCE.md", *root.glob("docs/**/*.md")):
            included[str(file)] = f"hybrid_des/shipped/docs/{file.relative_to(root).as_posix()}"
