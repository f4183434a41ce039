"""Record batches: header, columns, compression, validation. Pure."""
