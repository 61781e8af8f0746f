"""What a wheel takes along beside the package: the scenarios, which `hybrid_des.scenario.composition` finds there."""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ShippedScenarios(BuildHookInterface):
    """Adds the scenarios and experiments; an editable installation finds them in the checkout."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name the files to include."""
        folder = Path(self.root) / "scenarios"
        if version != "editable":
            for file in (*folder.glob("*.yaml"), *folder.glob("experiments/*.yaml")):
                build_data["force_include"][str(file)] = f"hybrid_des/shipped/{file.relative_to(folder).as_posix()}"
