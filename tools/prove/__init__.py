"""Proofs that run for as long as they are given: random histories against the whole, until one fails."""
