"""Run networks on images and their views.

collect     `collect`: from a model and images to a record; `Run`: prepare once, run many policies
runner      one batch through all views: `Runner`, `run_views`, `as_pixels`; `Execution`: how
pixels      labelled pixels of masks, for segmentation
checks      eight images first; remarks on what looks wrong at the end
cluster     the same on a Ray cluster
"""
