output "endpoints" {
  description = "For `cairn status --endpoints`."
  value       = join(",", [for member in values(var.members) : "${member.private_ip}:7400"])
}

output "instances" {
  description = "The instance of each slot."
  value       = { for slot, instance in aws_instance.member : slot => instance.id }
}

output "roles" {
  description = "The role of each slot, which needs a policy for the bucket of backups."
  value       = { for slot, role in aws_iam_role.member : slot => role.name }
}
