"""`python -m headrace`: the same as the command."""

from headrace_command import main

main()
