"""Tests mirror the rooms of farm/; lab/ starts the real things they need."""
