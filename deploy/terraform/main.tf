# A role for the job and one for each service, the table of leases and a bucket for checkpoints, on AWS. A role allows
# what its process calls, and nothing else: a test compares its actions with the calls in the code.

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

variable "destinations" {
  description = "ARNs of what is written to, by kind: streams, delivery streams, tables and queues."
  type = object({
    kinesis  = optional(list(string), [])
    firehose = optional(list(string), [])
    dynamodb = optional(list(string), [])
    sqs      = optional(list(string), [])
  })
  default = {}
}

variable "trust_policies" {
  description = "JSON of who may assume a role, by the role's name. In a cluster: its own service account alone."
  type        = map(string)
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

locals {
  consumers = [for arn in var.streams : "${arn}/consumer/*"]
  polling   = ["kinesis:ListShards", "kinesis:GetShardIterator", "kinesis:GetRecords", "kinesis:DescribeStreamSummary"]
  registering = [
    "kinesis:RegisterStreamConsumer",
    "kinesis:ListStreamConsumers",
    "kinesis:DescribeStreamConsumer",
    "kinesis:DeregisterStreamConsumer",
  ]
  registered = ["kinesis:RegisterStreamConsumer", "kinesis:DescribeStreamConsumer", "kinesis:DeregisterStreamConsumer"]
  subscribed = ["kinesis:SubscribeToShard", "kinesis:DescribeStreamConsumer"]

  # A job can also do without the services: it then registers its own consumer, of whatever name, reads and writes.
  roles = {
    delays-job = [
      { actions = local.polling, resources = var.streams },
      { actions = local.registering, resources = var.streams },
      { actions = local.registered, resources = local.consumers },
      { actions = local.subscribed, resources = local.consumers },
      { actions = ["kinesis:PutRecords", "kinesis:ListShards"], resources = var.destinations.kinesis },
      {
        actions   = ["s3:GetObject", "s3:PutObject", "s3:DeleteObject"]
        resources = ["${aws_s3_bucket.checkpoints.arn}/*"]
      },
      { actions = ["s3:ListBucket"], resources = [aws_s3_bucket.checkpoints.arn] },
    ]
    penstock-registry = [
      { actions = ["kinesis:DescribeStreamSummary"], resources = var.streams },
      { actions = local.registering, resources = var.streams },
      { actions = local.registered, resources = local.consumers },
      {
        actions = [
          "dynamodb:DescribeTable",
          "dynamodb:GetItem",
          "dynamodb:PutItem",
          "dynamodb:UpdateItem",
          "dynamodb:Scan",
        ]
        resources = [aws_dynamodb_table.leases.arn]
      },
    ]
    penstock-reader = [
      { actions = local.polling, resources = var.streams },
      { actions = local.subscribed, resources = local.consumers },
    ]
    penstock-sink = [
      {
        actions   = ["kinesis:PutRecords", "kinesis:ListShards", "kinesis:DescribeStreamSummary"]
        resources = var.destinations.kinesis
      },
      {
        actions   = ["firehose:PutRecordBatch", "firehose:DescribeDeliveryStream"]
        resources = var.destinations.firehose
      },
      { actions = ["dynamodb:BatchWriteItem", "dynamodb:DescribeTable"], resources = var.destinations.dynamodb },
      { actions = ["sqs:SendMessage", "sqs:GetQueueAttributes"], resources = var.destinations.sqs },
    ]
  }
}

data "aws_iam_policy_document" "role" {
  for_each = local.roles

  dynamic "statement" {
    for_each = [for one in each.value : one if length(one.resources) > 0]
    content {
      actions   = statement.value.actions
      resources = statement.value.resources
    }
  }
}

resource "aws_iam_role" "role" {
  for_each           = local.roles
  name               = each.key
  assume_role_policy = var.trust_policies[each.key]
}

# A policy needs a statement: the gateway has none until there is a destination.
resource "aws_iam_role_policy" "role" {
  for_each = { for name, all in local.roles : name => all if length(concat(all[*].resources...)) > 0 }
  role     = aws_iam_role.role[each.key].id
  policy   = data.aws_iam_policy_document.role[each.key].json
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

output "roles" {
  description = "ARNs of the roles, by their names."
  value       = { for name, role in aws_iam_role.role : name => role.arn }
}
