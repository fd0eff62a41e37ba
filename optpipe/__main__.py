"""`python -m optpipe` is the `optpipe` command."""

from optpipe.cli import main

main()
