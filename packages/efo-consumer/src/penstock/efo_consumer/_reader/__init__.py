"""The shard reader in this process."""
