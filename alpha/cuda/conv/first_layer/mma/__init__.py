"""The first layer on tensor cores."""
