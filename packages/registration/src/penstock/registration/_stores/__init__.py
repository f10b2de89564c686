"""Where the records of leases are kept: SQLite, DynamoDB, and stores by URL."""
