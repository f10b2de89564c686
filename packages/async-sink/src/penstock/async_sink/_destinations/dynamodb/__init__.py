"""DynamoDB as a destination."""
