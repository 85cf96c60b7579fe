"""The package attacked, on purpose and repeatably: `python -m benchmarks.attack`, or `make attack`.

| module       | what is tried                                                                                             |
|--------------|-----------------------------------------------------------------------------------------------------------|
| rows         | millions of hard rows, through the formula, every method, a classifier and exported graphs: is the class kept? |
| inputs       | wrong arguments to Python and to the command line: is each refused in one sentence?                       |
| files        | files cut short or with a bit flipped, also those of stopped runs: is the damage noticed?                 |
| forged       | files of the right form and the wrong content: is each refused, and is nothing of it run?                 |
| serving      | silent and slow clients, bad headers, slow images: does `atta serve` answer others?                       |
| writers      | every writer killed at a random time, or on a full disk: is the old or the new file there, complete?      |
| twins        | two processes with one output                                                                             |
| surroundings | terminals that cannot print, closed pipes, devices, links, file names that are not text                   |

Each of them is a table of attacks (`tally.Attack`), and `runner.SECTIONS` lists the modules. `runner` runs them in processes of
their own with a time limit, `children` starts processes that may crash, `page` writes docs/reliability.md, `known` lists the failures
that stay, each with its reason.
"""
