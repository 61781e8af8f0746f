"""The page `report.html`: report and timeline of one run, or of two on one time axis, in one file.

    drawn.py      lanes and bars as columns of whole numbers
    document.py   the page from its template, page.html; columns as text: zlib and base64

It needs no other file and no network, and shows rows only: all its content is in the timeline.
"""
