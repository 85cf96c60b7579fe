"""Predictions and records."""
