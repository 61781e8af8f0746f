"""What all parts of a scenario have in common."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import core_schema

MOST = 2**20 - 1  # what a message's tag has room for


class Section(BaseModel):
    """A part of a scenario: nothing unknown goes in, nothing changes afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class OrNone:
    """Lets a section be `none`."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        """Read the word."""
        return core_schema.no_info_before_validator_function(self._read, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Offer the word."""
        return {"anyOf": [{"const": "none"}, handler(schema)]}

    def _read(self, value: Any) -> Any:
        return None if value == "none" else value
