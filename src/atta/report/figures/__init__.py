"""Draws charts with Altair.

theme        how charts look, in light and dark mode; the only module that imports altair
parts        what charts share: tooltips, axes, legends, titles, histograms
reliability  reliability diagrams, of probabilities or of details
detail       one method: its confidence, the weights and shares of its views, gaps by class
comparison   several methods: by a metric, by validation images, by cost
drift        new images compared with validation images
catalogue    `figure`: every chart of results by its name
write        `picture`: a chart as a file
"""
