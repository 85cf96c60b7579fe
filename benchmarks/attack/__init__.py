"""The package attacked, on purpose and repeatably: `python -m benchmarks.attack`, or `make attack`.

| module       | what is tried                                                                                             |
|--------------|-----------------------------------------------------------------------------------------------------------|
| rows         | millions of hard rows, through the formula, every method, a classifier and exported graphs: is the class kept? |
| inputs       | wrong arguments to Python and to the command line: is each refused in one sentence?                       |
| files        | files cut short, with a bit flipped, or forged: is each refused, and is nothing of it run?                |
| writers      | every writer killed at a random time, or on a full disk: is the old or the new file there, whole?         |
| twins        | two processes with one output                                                                             |
| surroundings | terminals that cannot print, closed pipes, devices, links, names that are no text                         |

Each of them is a table of attacks (`tally.Attack`). `runner` runs them in processes of their own with a time limit, `page`
writes docs/reliability.md, `known` lists the failures that stay, each with its reason.
"""
