"""The chaos suite's own checker, held against histories made by hand."""
