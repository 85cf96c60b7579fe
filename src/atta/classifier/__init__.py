"""Deployment: a network, its views and its calibrator as one thing, from labelled images to a file that runs anywhere.

Nothing here loads experiments, training, charts or datasets.

calibrate   a model and labelled images → a `CalibratedClassifier`: `calibrate`
door        what it is given, checked before the network runs
choice      which policy, at as few passes as will do
classifier  images in, calibrated probabilities out: `CalibratedClassifier`
adapt       images without labels: whether they drifted, and a classifier for their domain: `drift`, `adapt`
estimator   its scikit-learn side: many images, `predict_proba`, `fit`, `score`
summary     what calibration did, by cross-validation: `Summary`
archive     a classifier on disk: `save`, `load`
graphs      a classifier as one graph, .pt2 or .onnx: `export`, `open_graph`
inline      an ONNX network put into the graph as it is
pt2         a .pt2 file made harmless before torch sees it
hub         classifiers shared on the Hugging Face hub
card        the page that goes with one
check       what a file is, and whether it is whole
predict     files of images in, a table of predictions out
tables      such a table as CSV, JSON lines or Parquet
explain     one image after another, as bytes, answered with plain values: `Explainer`
service     a page on which people try a classifier out: `TryIt`
"""
