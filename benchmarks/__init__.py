"""What atta costs and how good it is, measured: `make bench` runs all and writes docs/speed.md, `python -m benchmarks.fit` one.

measured    what every benchmark returns: rows of costs, and what they were measured on, as files; clocks
children    a function in a process of its own
peers       the environment of the peers
page        docs/speed.md, of what was measured

baselines · scores · fit · predict · dirichlet · shrunk · collect · deploy · growth · quality     are on that page
choice · choice_rule · cost · front · shift · weights                                             have pages of their own

`python -m benchmarks.attack` is another matter: whether what is promised holds when someone tries to break it.
"""
