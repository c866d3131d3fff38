output "endpoints" {
  description = "For `cairn status --endpoints`."
  value       = join(",", [for member in values(var.members) : "${member.private_ip}:7400"])
}

output "service_accounts" {
  description = "The service account of each slot, which needs a role on the bucket of backups, such as roles/storage.objectUser."
  value       = { for slot, account in google_service_account.member : slot => account.email }
}
