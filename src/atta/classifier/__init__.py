"""Classifiers: a network, its views and its calibrator as one object, from images to a file.

This package imports no experiments, no training and no datasets.

calibrate   a model and labelled images → a `CalibratedClassifier`: `calibrate`
choice      the policy with the fewest passes that is as good as the best
classifier  images in, calibrated probabilities out: `CalibratedClassifier`
segmenter   the same for segmentation, pixel by pixel: `CalibratedSegmenter`
label_maps  files of a segmenter: label maps and confidence maps as PNG
adapt       the same network under drift, for stated classes or a risk: `drift`, `adapt`, `at_risk`
estimator   many images, in the style of scikit-learn: `predict_proba`, `decide`, `fit`, `score`
summary     what calibration changed, by cross-validation: `Summary`
archive     classifiers on disk: `save`, `load`
export      a classifier as one graph, .pt2 or .onnx: `export`, `open_graph`
hub         classifiers on the Hugging Face hub, and their model cards
check       what a file is, and whether it is complete
predict     image files in, a table of predictions as CSV, JSON lines or Parquet out
serve       answers to images as bytes, and a page to try a classifier: `Explainer`, `TryIt`
"""
