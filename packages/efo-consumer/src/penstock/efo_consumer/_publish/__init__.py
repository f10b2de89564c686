"""Publishers: the records of one shard, as they come."""
