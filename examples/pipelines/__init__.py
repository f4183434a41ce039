"""Five pipelines on the flights that left New York City in 2013 and the weather there. Run by ``make pipelines``."""
