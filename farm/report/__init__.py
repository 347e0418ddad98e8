"""From a run to people: matrix.py builds the value, then one file per format; write.py picks among them."""

from farm.report.write import FORMATS, render, write_reports

__all__ = ["FORMATS", "render", "write_reports"]
