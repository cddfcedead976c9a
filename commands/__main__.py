"""`./reckon` starts the commands here."""

from commands import main

main(prog_name="reckon")
