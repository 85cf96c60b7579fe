"""The paper, reproduced: what it published, what it concludes, and how its experiments are run from images to a page.

Everything that is about this one paper stands here, and nothing but the command line uses it. Its experiments are TOML files:
in `experiments/` of the source, and beside this file in an installed package.

published    its numbers, as data
claims       its conclusions, checked on any results
shifts       its shifted test sets
records      its records, made from data: a network is trained and looks at images and their views
reproduce    its evaluation from start to end
comparison   ours beside the published, table by table
words        what came out of each table and figure, in words
page         all of it as one page
"""
