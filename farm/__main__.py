"""`python -m farm` is `farm`."""

from farm.cli import main

main()
