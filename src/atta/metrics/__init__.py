"""Metrics of probabilities: computed in one pass, batch by batch, and with intervals.

per_image   check probabilities and labels; what each image adds to the metrics
binning     sort images into bins by confidence: the ECE and reliability diagrams
scores      METRICS and their formulas; `evaluate`, `class_changes`, `ood_auroc`
sums        `Sums`: the same metrics batch by batch, mergeable
running     `Calibration`: `Sums` as a metric of torchmetrics (the only module that imports it)
resampling  `bootstrap` and `paired`: intervals of metrics and of differences
"""
