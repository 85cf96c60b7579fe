"""The command line, `atta`: each command reads what was typed, calls one function of another room, and prints one table.

Nothing is computed here, and nothing imports this room. A command imports what it needs when it runs.

app           the commands in their order; a mistake is one sentence
records       methods, compare, fit, evaluate, search: from records, without the network
networks      train, collect: with the network
deploy        calibrate, export, predict, serve
shift         drift, adapt: with images that have no labels
experiments   run, reproduce, demo
pages         report, figure
files         records, check: which records are at hand, and whether a file is whole
options       options that commands share, and groups of them
arguments     what was typed, read
terminal      what a person sees: tables, bars
demo          the chain that `atta demo` shows
"""
