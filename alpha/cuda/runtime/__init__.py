"""Driver, memory, launches and recordings; nothing here knows an op."""
