"""Research on methods: experiments on records, datasets, training, policy search, the paper.

An experiment is a TOML file or an `Experiment`. `run` turns it and its records into `Results`:
every fit is made once, in workers if wanted, and the numbers depend on the experiment alone.

compare        compares methods on records, without the file of an experiment
experiment     Experiment: reads and checks it, and lists its fits
run            runs experiments: fits, chooses, tests; tables of the results
fits           makes every fit once; the rules that choose a policy
workers        runs fits and tests in worker processes; describes the machine
measure        measures a calibrator: metrics, details for reports, intervals
policy_search  chooses a policy of views from validation images
shrunk         the method shrunk-m-atta: M-ATTA, shrunk towards V-ATTA
datasets       loads datasets by name, from the layouts they are published in
recipe         how networks are trained; reads and writes trained networks
training       trains networks
paper          reproduces the paper
"""
