# Roles, the table of leases and the store of pipeline stages, on AWS. Each list of actions is that of a policy in
# docs/pages/operations/iam.md, and a test compares them.

terraform {
  required_version = ">= 1.6"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.0"
    }
  }
}

variable "streams" {
  description = "ARNs of the streams that are read."
  type        = list(string)
}

variable "written_streams" {
  description = "ARNs of the streams that are written."
  type        = list(string)
  default     = []
}

variable "trust_policy" {
  description = "JSON of who may assume the two roles: a cluster's identity provider, or a service such as EC2."
  type        = string
}

variable "bucket" {
  description = "Name of the bucket for checkpoints."
  type        = string
}

variable "table" {
  description = "Name of the registry's table: --store dynamodb://NAME."
  type        = string
  default     = "penstock-leases"
}

data "aws_iam_policy_document" "reading" {
  statement {
    sid = "polling"
    actions = [
      "kinesis:ListShards",
      "kinesis:GetShardIterator",
      "kinesis:GetRecords",
      "kinesis:DescribeStreamSummary",
    ]
    resources = var.streams
  }
}

# Enhanced fan-out: also the query's own consumer, of whatever name.
data "aws_iam_policy_document" "efo" {
  source_policy_documents = [data.aws_iam_policy_document.reading.json]

  statement {
    sid = "efo"
    actions = [
      "kinesis:RegisterStreamConsumer",
      "kinesis:ListStreamConsumers",
      "kinesis:DescribeStreamConsumer",
      "kinesis:DeregisterStreamConsumer",
    ]
    resources = var.streams
  }

  statement {
    sid = "consumers"
    actions = [
      "kinesis:SubscribeToShard",
      "kinesis:DescribeStreamConsumer",
      "kinesis:RegisterStreamConsumer",
      "kinesis:DeregisterStreamConsumer",
    ]
    resources = [for arn in var.streams : "${arn}/consumer/*"]
  }
}

data "aws_iam_policy_document" "job" {
  source_policy_documents = [data.aws_iam_policy_document.efo.json]

  dynamic "statement" {
    for_each = length(var.written_streams) > 0 ? [true] : []
    content {
      sid       = "writing"
      actions   = ["kinesis:PutRecords", "kinesis:ListShards"]
      resources = var.written_streams
    }
  }

  statement {
    sid       = "checkpoints"
    actions   = ["s3:GetObject", "s3:PutObject", "s3:DeleteObject"]
    resources = ["${aws_s3_bucket.checkpoints.arn}/*"]
  }

  statement {
    sid       = "checkpointslist"
    actions   = ["s3:ListBucket"]
    resources = [aws_s3_bucket.checkpoints.arn]
  }
}

# Registry, readers and gateway: what they call for the jobs.
data "aws_iam_policy_document" "services" {
  source_policy_documents = [data.aws_iam_policy_document.job.json]

  statement {
    sid = "leases"
    actions = [
      "dynamodb:DescribeTable",
      "dynamodb:GetItem",
      "dynamodb:PutItem",
      "dynamodb:UpdateItem",
      "dynamodb:Scan",
    ]
    resources = [aws_dynamodb_table.leases.arn]
  }
}

resource "aws_iam_role" "job" {
  name               = "delays-job"
  assume_role_policy = var.trust_policy
}

resource "aws_iam_role_policy" "job" {
  role   = aws_iam_role.job.id
  policy = data.aws_iam_policy_document.job.json
}

resource "aws_iam_role" "services" {
  name               = "penstock-services"
  assume_role_policy = var.trust_policy
}

resource "aws_iam_role_policy" "services" {
  role   = aws_iam_role.services.id
  policy = data.aws_iam_policy_document.services.json
}

resource "aws_s3_bucket" "checkpoints" {
  bucket = var.bucket
}

resource "aws_s3_bucket_public_access_block" "checkpoints" {
  bucket                  = aws_s3_bucket.checkpoints.id
  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

# As the registry itself would make it.
resource "aws_dynamodb_table" "leases" {
  name         = var.table
  billing_mode = "PAY_PER_REQUEST"
  hash_key     = "stream"
  range_key    = "consumer_name"

  attribute {
    name = "stream"
    type = "S"
  }

  attribute {
    name = "consumer_name"
    type = "S"
  }
}

output "job_role" {
  value = aws_iam_role.job.arn
}

output "services_role" {
  value = aws_iam_role.services.arn
}
