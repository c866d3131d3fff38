# Three instances in three zones, with a fixed private address each.
#
# A stop erases an instance's drives. So instances are protected from stops, but for one slot at a time, and neither a
# newer image nor other user data changes one that runs: Terraform would stop all of them at once.

locals {
  name = "cairn-${var.cluster}"
  members = join(",", [for slot, member in var.members :
    "${slot}=${member.private_ip}:7400/${member.private_ip}:7401"
  ])
  tags = merge({ cluster = var.cluster }, var.tags)
}

data "aws_partition" "here" {}

data "aws_subnet" "of" {
  for_each = var.members
  id       = each.value.subnet_id
}

data "aws_ssm_parameter" "image" {
  name = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-${var.architecture}"
}

resource "aws_security_group" "members" {
  name        = local.name
  description = "Members of the Cairn cluster ${var.cluster}"
  vpc_id      = values(data.aws_subnet.of)[0].vpc_id
  tags        = local.tags
}

resource "aws_vpc_security_group_ingress_rule" "between_members" {
  security_group_id            = aws_security_group.members.id
  description                  = "Members ask one another at both ports"
  referenced_security_group_id = aws_security_group.members.id
  from_port                    = 7400
  to_port                      = 7401
  ip_protocol                  = "tcp"
}

resource "aws_vpc_security_group_ingress_rule" "clients" {
  for_each          = toset(var.client_cidrs)
  security_group_id = aws_security_group.members.id
  description       = "Clients"
  cidr_ipv4         = each.value
  from_port         = 7400
  to_port           = 7400
  ip_protocol       = "tcp"
}

resource "aws_vpc_security_group_egress_rule" "all" {
  security_group_id = aws_security_group.members.id
  description       = "The other members, the bucket, and updates"
  cidr_ipv4         = "0.0.0.0/0"
  ip_protocol       = "-1"
}

# It outlives its instance, and so does the address.
resource "aws_network_interface" "member" {
  for_each        = var.members
  subnet_id       = each.value.subnet_id
  private_ips     = [each.value.private_ip]
  security_groups = [aws_security_group.members.id]
  description     = "${local.name} slot ${each.key}"
  tags            = merge(local.tags, { Name = "${local.name}-${each.key}" })
}

data "aws_iam_policy_document" "instances" {
  statement {
    actions = ["sts:AssumeRole"]
    principals {
      type        = "Service"
      identifiers = ["ec2.amazonaws.com"]
    }
  }
}

resource "aws_iam_role" "member" {
  for_each           = var.members
  name               = "${local.name}-${each.key}"
  assume_role_policy = data.aws_iam_policy_document.instances.json
  tags               = local.tags
}

# A member reads its own certificate, and no other one's.
data "aws_iam_policy_document" "member" {
  for_each = var.members
  statement {
    actions = ["s3:GetObject"]
    resources = [
      "arn:${data.aws_partition.here.partition}:s3:::${var.bucket}/${var.package.key}",
      "arn:${data.aws_partition.here.partition}:s3:::${var.bucket}/slot-${each.key}/*",
    ]
  }
}

resource "aws_iam_role_policy" "member" {
  for_each = var.members
  name     = "bucket"
  role     = aws_iam_role.member[each.key].id
  policy   = data.aws_iam_policy_document.member[each.key].json
}

resource "aws_iam_instance_profile" "member" {
  for_each = var.members
  name     = "${local.name}-${each.key}"
  role     = aws_iam_role.member[each.key].name
}

resource "aws_instance" "member" {
  for_each             = var.members
  ami                  = data.aws_ssm_parameter.image.insecure_value
  instance_type        = var.instance_type
  iam_instance_profile = aws_iam_instance_profile.member[each.key].name

  disable_api_stop        = tostring(var.stoppable_slot) != each.key
  disable_api_termination = tostring(var.stoppable_slot) != each.key

  network_interface {
    network_interface_id = aws_network_interface.member[each.key].id
    device_index         = 0
  }

  root_block_device {
    volume_type = "gp3"
    volume_size = 20
    encrypted   = true
  }

  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }

  user_data = templatefile("${path.module}/user-data.yaml.tftpl", {
    boot = base64encode(templatefile("${path.module}/../boot.tftpl", {
      machine        = file("${path.module}/machine.sh")
      cluster        = var.cluster
      slot           = each.key
      members        = local.members
      failure_domain = data.aws_subnet.of[each.key].availability_zone
      bucket         = var.bucket
      package        = var.package
      size           = var.size
      settings       = var.settings
    }))
  })

  tags = merge(local.tags, { Name = "${local.name}-${each.key}" })

  lifecycle {
    ignore_changes = [ami, user_data]
    precondition {
      condition     = length(distinct([for subnet in data.aws_subnet.of : subnet.availability_zone])) == length(var.members)
      error_message = "Two members are in one zone: they fail together. Give each a subnet of another zone."
    }
  }

  depends_on = [aws_iam_role_policy.member]
}
