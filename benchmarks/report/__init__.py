"""Results of benchmarks: statistics, tables, plots, the document."""
