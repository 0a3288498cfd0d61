"""Work -> a record of where the time went."""
