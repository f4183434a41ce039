"""An end-to-end demo on real data: the 336,776 flights that left New York City in 2013. Run by ``make demo``."""
