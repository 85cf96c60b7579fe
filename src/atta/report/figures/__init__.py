"""Draws charts with Altair.

theme        how charts look, what they share, and `picture`: a chart as a file; imports altair
reliability  reliability diagrams, of probabilities or of details
detail       one method: its confidence, the weights and shares of its views, gaps by class, drift
comparison   several methods: by a metric, by validation images, by cost
catalogue    `figure`: every chart of results by its name
"""
