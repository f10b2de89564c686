"""The life of a lease, decided without I/O: the record, the rules that change it, and who sees that it is over."""
