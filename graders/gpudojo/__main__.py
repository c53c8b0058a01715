"""`python -m gpudojo` is `dojo`."""

from __future__ import annotations

from gpudojo.cli import main

main()
