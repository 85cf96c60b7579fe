"""The command line, `atta`: each command reads its options, calls one function, and prints a table.

Nothing is computed here, and no other package imports this one. A command imports what it needs
when it runs.

app           the `atta` command: all commands, and what ends them
options       shared options, groups of options, and functions that read them
terminal      printing: tables, progress, errors
records       methods, compare, fit, evaluate, search, report, figure, records, check
deploy        calibrate, export, predict, serve, drift, adapt
experiments   train, collect, run, reproduce, demo
"""
