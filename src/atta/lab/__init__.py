"""Experiments on records: which methods are fitted on which rows and tested on which, as data, and one runner for all.

An experiment is a TOML file or an `Experiment`. `run` turns it and its records into `Results`: every fit is made once, in as
many processes as wanted, and its numbers depend on nothing but the experiment. Nothing here knows the paper.

experiment   Experiment: the data, and how it is read and checked
compare      methods side by side on records, without a file
run          run(experiment, records) and the bench that tests calibrators
trials       what an experiment comes to on given records; whether they fit it
fits         every fit once: Rows, Fit, Fits
workers      fits in processes beside this one, and how many
policy_rules   rules by which one policy of several is chosen in an experiment: the paper's, and by held-out Brier
policy_search  which policy of the library to take, by held-out NLL and passes
measure      all that can be measured of a calibrator
intervals    how sure the means and differences are
details      what a report shows of one calibrator besides
tables       the results of an experiment as tables
shrunk       the method shrunk-m-atta: M-ATTA, shrunk towards V-ATTA
provenance   on what machine and which commit a number was measured
"""
