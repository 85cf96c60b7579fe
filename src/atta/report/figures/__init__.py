"""Draws charts with Altair.

theme        how charts look, `picture`: a chart as a file; the only module that imports altair
parts        what charts share: tooltips, axes, legends, titles, histograms
reliability  reliability diagrams, of probabilities or of details
detail       one method: its confidence, the weights and shares of its views, gaps by class, drift
comparison   several methods: by a metric, by validation images, by cost
catalogue    `figure`: every chart of results by its name
"""
