"""Results as one page to hand on: a single HTML file that opens anywhere and asks no network for anything.

page        `report` and `write_report`: the page from results and from tables that are handed in; its charts
sections    what the page compares: one section an experiment and dataset, its lines and their differences. No HTML
verdict     a section in plain words
thumbnails  pictures of the images that changed the most, where those can be had
templates/  the page itself
"""
