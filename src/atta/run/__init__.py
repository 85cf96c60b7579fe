"""Collection: the network runs here, once, and what it answers to each image and each of its views is kept.

Everything after it works from the record, without the network. Whoever else shows images to a network, the deployed
classifier, does it by the same runner.

collect   images and a policy → a `Record`: `collect`
given     images and labels, made ready: `take`
runner    one batch through all views: `run_views`, `as_pixels`, `read_batches`; batch after batch: `Runner`
trial     what can be told before the network runs, and by a few images: `try_out`
advice    what looks wrong in what was answered
cluster   the same on Ray, for whoever works in several processes: `stream`, `spread`
ranks     the same in the processes that torchrun started: `together`
shards    finished work in a folder, from which a killed run goes on
"""
