"""Writes results as one HTML page that opens offline.

page        `report` and `write_report`: the page, its charts and its thumbnails
sections    what the page compares: one section per experiment and dataset, and its recommendation
figures/    the charts
templates/  the HTML of the page; `verdict.html.jinja` puts a section into sentences
"""
