"""weft's tools, those in Python."""
