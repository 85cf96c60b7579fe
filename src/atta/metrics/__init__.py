"""Metrics of probabilities: computed in one pass, batch by batch, and with intervals.

per_image   check probabilities and labels; what each image adds to the metrics
binning     sort images into bins by confidence: the ECE and reliability diagrams
formulas    the formula of each metric, from a summary of sums
sums        `Sums`: add up what images add, batch by batch; compute the metrics
scores      METRICS and `evaluate`: all metrics at once; `class_changes`, `ood_auroc`
running     `Calibration`: `Sums` as a metric of torchmetrics (the only module that imports it)
resampling  `bootstrap` and `paired`: intervals of metrics and of differences
"""
