"""`python -m graders` is `dojo`."""

from graders.cli import main

main()
