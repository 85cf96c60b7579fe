"""Writes results as one HTML page that opens offline.

page        `report` and `write_report`: the page and its charts
sections    what the page compares: one section per experiment and dataset, and its recommendation
thumbnails  pictures of the images that changed most
figures/    the charts
templates/  the HTML of the page; `verdict.html.jinja` puts a section into sentences
"""
