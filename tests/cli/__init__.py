"""Tests of farm/cli."""
