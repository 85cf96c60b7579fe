"""Numbers, and what they are numbers of: tidy rows in a JSON file, tables of them, and the words for all of it. No torch.

rows        `Row`, `Interval`, `Results`: in and out of results.json
contenders  what is compared: its key, its label, how sure a difference between two is
table       `pivot` lays rows out as a `Table`, a `Summary` in each cell
words       the names of metrics and datasets, which way is better, how many digits
"""
