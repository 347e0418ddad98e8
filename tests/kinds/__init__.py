"""Generated models of the kinds people report as broken, and the verdicts that are right for each.

Written from what the graphs compute and from docs/judging.md; where a delegate's own fault decides (a tapped layer
norm, an int8 table), the verdict was confirmed by hand on the stored outputs. tests/test_case_kinds.py sweeps them.
"""
