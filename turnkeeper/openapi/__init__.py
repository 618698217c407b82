"""Tools from an OpenAPI description, as YAML for a person to review (`turnkeeper tools import openapi`).

Read `document` (the file, its references) → `schemas` (what arguments may be) → `operations` (one tool each) →
`listing`.
A description is somebody else's: nothing of it is followed outside its file, and no text of it is more than a line.
"""

from turnkeeper.openapi.document import OpenapiError, read_document
from turnkeeper.openapi.listing import Imported, import_tools

__all__ = ["Imported", "OpenapiError", "import_tools", "read_document"]
