"""`python -m raylog` is the command `raylog`."""

from raylog.cli import main

main()
