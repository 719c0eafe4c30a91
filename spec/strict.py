"""What every model of the schema is made of: strict mappings and the forms of names."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Id = Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
Option = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]*$")]
Param = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*(\.[a-z0-9_]+)*$")]
ClauseId = Annotated[str, Field(pattern=r"^[A-Z]+-[0-9]+$")]
Text = Annotated[str, Field(min_length=1)]


class Strict(BaseModel):
    """A mapping without unknown keys and without conversions."""

    # A run that reads one component's files builds the validators of these alone.
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)
