"""What may other programs rely on in a file of results? Its JSON schema, made from the structs themselves.

``python -m graders.results.schema`` writes it anew beside this file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from graders.results.rows import ClassResults

PATH: Final = Path(__file__).with_name("results.schema.json")


def schema() -> dict[str, Any]:
    """The schema of a whole file."""
    made = msgspec.json.schema(ClassResults)
    # The structs have defaults for these so that a header is easily made; a file without them is refused.
    made["$defs"]["ClassResults"]["required"] += ["version", "submissions"]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "gpudojo class results", **made}


def text() -> str:
    return msgspec.json.format(msgspec.json.encode(schema()), indent=2).decode() + "\n"


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
