"""Amazon SQS as a destination."""
