"""How good probabilities are: every metric from one pass over them, each from sums, each with its interval.

per_image   probabilities, checked once, and what each image adds
binning     images by confidence: the bins of the ECE and of reliability diagrams
scores      METRICS and their formulas; `evaluate`, `class_changes`, `ood_auroc`
sums        `Sums`: the same metrics, batch by batch, mergeable
running     `Calibration`: the sums as a metric of torchmetrics, which only this file imports
resampling  `bootstrap` and `paired`: how sure a number, or a difference, is
"""
