"""Metrics of probabilities: computed in one pass, batch by batch, and with intervals.

per_image   check probabilities and labels; what each image adds to the metrics
binning     sort images into bins by confidence: the ECE and reliability diagrams
formulas    the formula of each metric, from a summary of sums
scores      METRICS, `evaluate`: all metrics at once; `Sums`: batch by batch; `map_scores`
running     `Calibration`: `Sums` as a metric of torchmetrics (the only module that imports it)
resampling  `bootstrap` and `paired`: intervals of metrics and of differences
"""
