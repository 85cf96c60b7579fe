"""Draws charts with Altair.

theme       how charts look, what they share, and `picture`: a chart as a file; imports altair
detail      single methods: reliability diagrams, confidence, risk, views, gaps by class, drift
comparison  several methods: by a metric, by validation images, by cost; `figure`: charts by name
"""
