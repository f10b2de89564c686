"""Records whose schemas are in the AWS Glue Schema Registry."""
