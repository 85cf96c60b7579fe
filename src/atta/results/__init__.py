"""Measured numbers, what identifies them, and tables of them. No torch.

rows        `Row`, `Interval`, `Results`: read and write results.json
table       `pivot` lays rows out as a `Table`, a `Summary` in each cell
words       names of metrics, datasets and contenders, which direction is better, how many digits
"""
