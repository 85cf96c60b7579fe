"""Measured numbers, what identifies them, and tables of them. No torch.

rows        `Row`, `Interval`, `Results`: read and write results.json
contenders  what is compared: its key, its label, and whether a difference is significant
table       `pivot` lays rows out as a `Table`, a `Summary` in each cell
words       names of metrics and datasets, which direction is better, how many digits
"""
