"""`python -m headrace`: the same as the command `headrace`."""

from headrace_command import main

main()
