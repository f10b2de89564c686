"""What outlives the process, in a journal on the disk."""
