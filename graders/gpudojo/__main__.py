"""The command `dojo`, also as `python -m gpudojo`."""

from __future__ import annotations

from gpudojo.cli import main

if __name__ == "__main__":
    main()
