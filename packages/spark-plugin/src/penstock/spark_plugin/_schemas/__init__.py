"""Records with schemas of the AWS Glue Schema Registry: their header, the registry, and the three data formats."""
