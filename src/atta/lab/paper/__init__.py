"""Reproduces the paper: its published numbers, its conclusions, its experiments and a page.

Its experiments are TOML files: in `experiments/` of the source, and next to this file in an
installed package.

published    the published numbers and conclusions (published.json), next to ours
records      makes the records from data, and the shifted test sets
reproduce    runs the evaluation from start to end, and writes it as one page
"""
