"""Programs that write pages and lists from the code, so that no copy is kept by hand."""
